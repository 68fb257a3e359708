"""Code that is exchanged under a compiled model: nothing stale is ever used, and nothing is compiled without need."""

from __future__ import annotations

import itertools
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nbcompile
from nbcompile.methods import Methods


class Inner(nn.Module):
    scale = 1.0

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return self.work(y)

    def work(self, y: torch.Tensor) -> torch.Tensor:
        return y * self.scale + 1


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(self.fc(x))
        return result


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


X = torch.ones(2, 4)


@pytest.fixture
def model() -> Iterator[nn.Module]:
    """A compiled model that has run; the classes are as they were afterwards."""
    saved = {kind: dict(vars(kind)) for kind in (Inner, Block, nn.Linear)}
    codes = {method: method.__code__ for method in (Inner.forward, Inner.work, Block.forward)}
    with torch.no_grad():
        compiled = nbcompile.compile_regions(Model().eval(), backend="eager")
        compiled(X)
        yield compiled
    for method, code in codes.items():
        method.__code__ = code
    for kind, members in saved.items():
        for name in set(vars(kind)) - set(members):
            delattr(kind, name)
        for name, value in members.items():
            if vars(kind)[name] is not value:
                setattr(kind, name, value)


def other(self: Any, y: torch.Tensor) -> torch.Tensor:
    return y + 100


def same(model: nn.Module) -> bool:
    with nbcompile.eager(model):
        expected = model(X)
    return torch.equal(model(X), expected)


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "a method of the block": lambda model: setattr(Block, "forward", other),
    "forward of a part": lambda model: setattr(Inner, "forward", other),
    "another method of a part": lambda model: setattr(Inner, "work", other),
    "code put into a method": lambda model: setattr(Inner.work, "__code__", other.__code__),
    "code put into the block's forward": lambda model: setattr(Block.forward, "__code__", other.__code__),
    "a method of torch's": lambda model: setattr(nn.Linear, "forward", other),
    "a class attribute": lambda model: setattr(Inner, "scale", 7.0),
    "on one instance": lambda model: setattr(model.layers[1].inner, "forward", lambda y: y + 100),
}


@pytest.mark.parametrize("change", CHANGES)
def test_exchanged_code_takes_effect(model: nn.Module, change: str) -> None:
    # GIVEN a compiled model that has run WHEN code that it is made of is exchanged
    before = model(X)
    CHANGES[change](model)
    # THEN it acts, and compiled
    assert same(model)
    assert not torch.equal(model(X), before)
    (group,) = nbcompile.report(model).groups
    assert (group.compiled, group.eager) == (3, 0)


def test_exchanged_code_takes_effect_when_the_first_blocks_are_gone(model: nn.Module) -> None:
    # GIVEN a compiled model whose first block is pruned WHEN a method is exchanged THEN it acts in the others
    model.layers = model.layers[1:]
    before = model(X)
    Inner.work = other
    assert same(model)
    assert not torch.equal(model(X), before)


def test_a_method_added_to_a_subclass_hides_the_inherited_one() -> None:
    class Special(Inner):
        pass

    model = Model().eval()
    for layer in model.layers:
        layer.inner = Special()
    with torch.no_grad():
        nbcompile.compile_regions(model, backend="eager")
        model(X)
        Special.work = other
        assert same(model)


def test_earlier_code_that_comes_back_is_not_compiled_again(model: nn.Module) -> None:
    def graphs() -> int:
        return nbcompile.report(model).groups[0].graphs

    plain = Inner.work
    for _ in range(3):
        Inner.work = other
        model(X)
        Inner.work = plain
        model(X)
    assert graphs() == 2
    names = [variant.name for variant in nbcompile.report(model).groups[0].variants]
    assert names == ["version 1 of the methods' code", "version 2 of the methods' code"]


def test_other_modules_and_moved_lines_compile_nothing_anew(model: nn.Module) -> None:
    before = nbcompile.report(model).groups[0].graphs
    Model()  # modules are made elsewhere
    code = Inner.work.__code__
    Inner.work.__code__ = code.replace(co_firstlineno=code.co_firstlineno + 5)
    model(X)
    assert nbcompile.report(model).groups[0].graphs == before


def test_versions_are_told_apart_by_what_methods_do() -> None:
    class A:
        def f(self) -> int:
            return 1

        def g(self) -> Callable[[], int]:
            return lambda: 1

    methods = Methods()
    methods._classes = [A]  # any class will do: modules only say which
    methods._settle()
    assert methods.version == 0
    A.f.__code__ = (lambda self: 2).__code__
    methods.check()
    assert methods.version == 1
    A.g.__code__ = (lambda self: lambda: 2).__code__  # the difference is in a function inside
    methods.check()
    assert methods.version == 2


SOURCE = """
import torch
from torch import nn

def helper(y):
    return {helper}

class Inner(nn.Module):
    def forward(self, y):
        return {inner}

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.inner = nn.Linear(4, 4), Inner()
    def forward(self, x):
        return self.inner(helper(self.fc(x)))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""


STEP = """
with torch.no_grad():
    out = model(x)
    with nbcompile.eager(model):
        expected = model(x)
"""


@pytest.fixture
def run(bare_shell: Any) -> Callable[[str], Any]:
    """Runs a cell in a shell of its own."""

    def cell(code: str) -> Any:
        result = bare_shell.run_cell(textwrap.dedent(code), silent=False)
        result.raise_error()
        return bare_shell.user_ns

    return cell


def test_autoreload(run: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a model from a file, compiled, in a notebook with %autoreload
    file, saved = tmp_path / "model_of_the_user.py", 0

    def save(helper: str, inner: str) -> None:
        nonlocal saved
        saved += 10
        file.write_text(SOURCE.format(helper=helper, inner=inner))
        os.utime(file, (file.stat().st_mtime + saved,) * 2)  # within one second nobody sees that a file is newer

    save("y * 2", "y + 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "model_of_the_user", raising=False)
    run("%load_ext autoreload\n%autoreload 2\nimport torch, nbcompile, model_of_the_user")
    run("model = nbcompile.compile_regions(model_of_the_user.Model().eval(), backend='eager'); x = torch.ones(2, 4);")
    results = []
    for helper, inner in (("y * 2", "y + 1"), ("y * 2", "y + 100"), ("y * 3", "y + 100"), ("y - 1", "y * 5")):
        # WHEN the file is saved with other code in a method, in a function, or in both
        save(helper, inner)
        namespace = run(STEP)
        # THEN the next cell runs the new code, compiled
        assert torch.equal(namespace["out"], namespace["expected"]), (helper, inner)
        results.append(namespace["out"])
    assert all(not torch.equal(one, two) for one, two in itertools.pairwise(results))


def test_a_cell_that_defines_the_class_is_run_again(run: Callable[[str], Any]) -> None:
    # GIVEN a cell that defines a model and compiles it WHEN it is changed and run again
    cell = (
        SOURCE
        + """
import nbcompile
model = nbcompile.compile_regions(Model().eval(), backend='eager')
x = torch.ones(2, 4)
"""
    )
    for inner in ("y + 1", "y + 100", "y * 3"):
        namespace = run(cell.format(helper="y * 2", inner=inner) + STEP)
        # THEN the new class is what runs
        assert torch.equal(namespace["out"], namespace["expected"])
