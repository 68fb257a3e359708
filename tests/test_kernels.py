"""Kernels that are compiled together: the same results under the same names, and nothing lost where it fails."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

import nbcompile
from nbcompile import kernels

SOURCE = """
#include <vector>
extern "C" void kernel() {}
static void* PyInit_kernel(void) { return nullptr; }
"""


class Several(nn.Module):
    """A block of which inductor makes more than two kernels: each product of matrices parts them."""

    def __init__(self) -> None:
        super().__init__()
        self.products = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, product in enumerate(self.products):
            x = product(torch.sin(x) + number * torch.sigmoid(x))
        return x


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Sequential(*(Several() for _ in range(3)))).eval()


Run = tuple[list[str], Path]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Run]]:
    """The commands that this package runs, with two compiles at once and an empty cache."""
    from torch._inductor import config
    from torch._inductor.utils import fresh_cache

    done: list[Run] = []
    plain = kernels._run

    def watched(command: Sequence[str], folder: Path) -> None:
        done.append((list(command), folder))
        plain(command, folder)

    monkeypatch.setattr(kernels, "_run", watched)
    with config.patch(compile_threads=2), fresh_cache(dir=str(tmp_path)):
        yield done


@pytest.mark.inductor
def test_kernels_of_a_block_are_compiled_in_as_many_files_as_run_at_once(runs: list[Run], tmp_path: Path) -> None:
    # GIVEN a block with more kernels than are compiled at once
    net, x = model(), torch.randn(8, 32)
    with torch.no_grad():
        want = net(x)
        # WHEN it is compiled
        got = nbcompile.compile_regions(net)(x)
    # THEN there were two compiles, a link for each kernel, and the results are eager's
    compiled = [command for command, _ in runs if "-c" in command]
    linked = [command for command, _ in runs if "-shared" in command]
    assert len(compiled) == 2
    assert len(linked) >= 4
    torch.testing.assert_close(got, want)
    # AND nothing is left beside the libraries
    assert not [folder for _, folder in runs if folder.exists()]
    libraries = {str(path) for path in tmp_path.rglob("*.so")}
    assert len(libraries) >= len(linked)
    # AND WHEN another model of the kind is compiled, as in the next process THEN the libraries are found
    runs.clear()
    torch._dynamo.reset()
    torch._inductor.codecache.CppPythonBindingsCodeCache.cache_clear()
    again = model()
    with torch.no_grad():
        torch.testing.assert_close(nbcompile.compile_regions(again)(x), want)
    assert not runs
    assert {str(path) for path in tmp_path.rglob("*.so")} == libraries


@pytest.mark.inductor
def test_a_whole_model_is_compiled_as_ever(runs: list[Run]) -> None:
    # GIVEN a model WHEN it is compiled as a whole, which is what regions are held against
    net, x = model(), torch.randn(8, 32)
    with torch.no_grad():
        want = net(x)
        torch.testing.assert_close(nbcompile.compile_model(net)(x), want)
    # THEN that was the compiler's own affair
    assert not runs
    # AND the compiler's way of handing on its work is back in its place
    from torch._inductor.async_compile import AsyncCompile

    assert vars(AsyncCompile)["submit"].__func__.__module__ == AsyncCompile.__module__


@pytest.mark.inductor
@pytest.mark.parametrize("strategy", ["regional", "full"])
def test_kernels_of_a_backward_graph_are_compiled_together_too(runs: list[Run], strategy: str) -> None:
    # GIVEN gradients of a model that is not compiled, and what a forward pass compiles
    net, x = model().train(), torch.randn(8, 32)
    net(x).sum().backward()
    want = [parameter.grad for parameter in net.parameters()]
    net.zero_grad(set_to_none=True)
    compiled = nbcompile.compile_regions(net) if strategy == "regional" else nbcompile.compile_model(net)
    loss = compiled(x).sum()
    runs.clear()
    # WHEN the backward graph is compiled THEN its kernels are in two files, of a block and not of the whole model
    loss.backward()
    torch.testing.assert_close([parameter.grad for parameter in net.parameters()], want)
    assert len([command for command, _ in runs if "-c" in command]) == (2 if strategy == "regional" else 0)
    # AND the compiler's way of handing on its work is back in its place
    from torch._inductor.async_compile import AsyncCompile

    assert vars(AsyncCompile)["submit"].__func__.__module__ == AsyncCompile.__module__


@pytest.mark.inductor
@pytest.mark.parametrize("stage", ["-c", "-shared"])
def test_what_fails_together_is_compiled_one_by_one(
    runs: list[Run], stage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # GIVEN a C++ compiler that cannot do it
    plain = kernels._run

    def refused(command: Sequence[str], folder: Path) -> None:
        if stage in command:
            raise subprocess.CalledProcessError(1, list(command))
        plain(command, folder)

    monkeypatch.setattr(kernels, "_run", refused)
    net, x = model(), torch.randn(8, 32)
    with torch.no_grad():
        want = net(x)
        # WHEN a block is compiled
        nbcompile.compile_regions(net)
        got = net(x)
    # THEN every kernel is there, and the block runs compiled
    torch.testing.assert_close(got, want)
    assert all(group.compiled == group.instances for group in nbcompile.report(net).groups)
    assert len(list(tmp_path.rglob("*.so"))) >= 4


def test_includes_stand_outside_and_once() -> None:
    text = kernels.combined([SOURCE, SOURCE])
    assert text.count("#include <vector>") == 1
    assert text.index("#include <vector>") < text.index("namespace")
    assert "#define kernel kernel_1" in text


@pytest.mark.parametrize("line", ["#define kernel other", '#include "mine.h"', "#if 1"])
def test_a_source_that_may_change_others_is_left_alone(line: str) -> None:
    with pytest.raises(ValueError, match="it has the line"):
        kernels.combined([SOURCE, f"{line}\n{SOURCE}"])


def test_a_source_without_an_entry_is_left_alone() -> None:
    with pytest.raises(ValueError, match="PyInit_kernel"):
        kernels.combined([SOURCE, "int main() { return 0; }"])


def test_kernels_are_split_evenly_and_only_among_their_like(tmp_path: Path) -> None:
    # GIVEN five kernels, one of which is compiled by another command
    def kernel(name: str, size: int, flag: str) -> kernels.Kernel:
        source, library = tmp_path / f"{name}.cpp", tmp_path / f"{name}.so"
        source.write_text("x" * size)
        return kernels.Kernel(source, library, "", ("g++", flag, str(source), "-o", str(library)))

    several = [kernel("a", 30, "-O3"), kernel("b", 10, "-O3"), kernel("c", 20, "-O3"), kernel("d", 40, "-O3")]
    other = kernel("e", 10, "-O1")
    # WHEN they are split in two
    groups = kernels.split([*several, other], 2)
    # THEN each half is as long, and the other one is by itself
    assert [sorted(one.source.name for one in group) for group in groups] == [
        ["b.cpp", "d.cpp"],
        ["a.cpp", "c.cpp"],
        ["e.cpp"],
    ]
