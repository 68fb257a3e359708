"""The compiler's cache in one file: what it holds, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nbcompile
from nbcompile import cache

_PROGRAM = """
import json, sys, time
import torch, nbcompile
from torch import nn
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 16)
    def forward(self, x):
        return x + torch.relu(self.fc(x)).sin()
model = nn.Sequential(*[Block() for _ in range(3)])
x = torch.ones(2, 16)
file, task = sys.argv[1:]
if task == "load":
    header = nbcompile.load_cache(file)
with torch.no_grad():
    eager = model(x)
    begin = time.perf_counter()
    nbcompile.compile_regions(model)
    result = model(x)
    seconds = time.perf_counter() - begin
if task == "save":
    header = nbcompile.save_cache(file)
counters = torch._dynamo.utils.counters["inductor"]
from torch._inductor import codecache
print(json.dumps({"header": header, "difference": (result - eager).abs().max().item(), "seconds": seconds,
    "misses": counters["fxgraph_cache_miss"], "hits": counters["fxgraph_cache_hit"]}))
"""


def _run(folder: Path, file: Path, task: str) -> dict[str, Any]:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", textwrap.dedent(_PROGRAM), str(file), task]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("saved")
    return folder / "file.nbcache", _run(folder / "cache", folder / "file.nbcache", "save")


@pytest.mark.inductor
@pytest.mark.slow
def test_a_machine_that_starts_empty_compiles_no_kernel(saved: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    file, first = saved
    assert first["header"]["kernels"] >= 1
    assert first["misses"] == 1
    again = _run(tmp_path / "empty", file, "load")
    assert again["difference"] < 1e-5
    assert again["hits"] == 1
    assert again["misses"] == 0
    kernels = {path.name for path in (tmp_path / "empty").rglob("*.main.so")}
    with zipfile.ZipFile(file) as archive:
        assert kernels == {Path(n).name for n in archive.namelist() if n.startswith("kernels/")}
    assert not list(file.parent.glob(".*"))  # nothing half written


@pytest.mark.inductor
@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch", "device", "processor", "compiler"])
def test_another_machine_refuses_it_with_the_reason(
    saved: tuple[Path, dict[str, Any]], tmp_path: Path, name: str
) -> None:
    def other(header: dict[str, Any]) -> None:
        header["made_for"][name] = "of another kind"

    with pytest.raises(nbcompile.UsageError, match=r"made for another machine.*'of another kind', here"):
        nbcompile.load_cache(_changed(saved[0], tmp_path, other))


@pytest.mark.inductor
@pytest.mark.slow
def test_a_damaged_file_is_one_clear_error(saved: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    data = saved[0].read_bytes()
    for number, bad in enumerate(
        [b"", data[: len(data) // 2], data[:-1], data[:3000] + b"\0" * 50 + data[3050:], b"no archive at all"]
    ):
        file = tmp_path / f"{number}"
        file.write_bytes(bad)
        with pytest.raises(nbcompile.UsageError, match="is damaged or cut off"):
            nbcompile.load_cache(file)

    def astray(header: dict[str, Any]) -> None:
        header["checksums"]["kernels/../../x.so"] = header["checksums"].pop("artifacts")

    with pytest.raises(nbcompile.UsageError, match="damaged"):
        nbcompile.load_cache(_changed(saved[0], tmp_path, astray))
    with pytest.raises(nbcompile.UsageError, match="there is no file"):
        nbcompile.load_cache(tmp_path / "none")


def test_a_file_of_another_format_is_told_as_that(tmp_path: Path) -> None:
    file = tmp_path / "later"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("header.json", json.dumps({"format": 99}))
    with pytest.raises(nbcompile.UsageError, match=r"has the format 99; this nbcompile reads \d") as told:
        nbcompile.load_cache(file)
    assert "damaged" not in str(told.value)


def test_an_encrypted_file_is_one_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "encrypted"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("header.json", "{}")
    data = bytearray(file.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + flags] |= 1
    file.write_bytes(data)
    with pytest.raises(nbcompile.UsageError, match="is damaged or cut off"):
        nbcompile.load_cache(file)


def test_nothing_compiled_is_nothing_to_save(tmp_path: Path) -> None:
    program = (
        "import nbcompile, sys\ntry: nbcompile.save_cache(sys.argv[1])\nexcept nbcompile.UsageError as e: print(e)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "f")], capture_output=True, text=True, check=True, timeout=120
    )
    assert "nothing has been compiled in this process" in done.stdout
    assert not (tmp_path / "f").exists()


def test_loading_says_that_it_is_code() -> None:
    assert "is code" in (nbcompile.load_cache.__doc__ or "")


def test_a_library_that_was_cut_off_is_known_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = next(Path(sys.prefix, "lib").rglob("*.so")).read_bytes()
    folder = tmp_path / "ab"
    folder.mkdir()
    (folder / "whole.so").write_bytes(whole)
    for name, data in {
        "cut.so": whole[: len(whole) // 2],
        "empty.so": b"",
        ".77.5.tmp": b"x",
        ".78.5.tmp": b"x",
    }.items():
        (folder / name).write_bytes(data)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert not cache.cut(folder / "whole.so")
    assert cache.cut(folder / "cut.so")
    assert {path.name for path in cache.mend(77)} == {"cut.so", "empty.so", ".77.5.tmp"}
    assert {path.name for path in folder.iterdir()} == {"whole.so", ".78.5.tmp"}


def _changed(file: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    made = folder / "changed"
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "header.json":
                header = json.loads(data)
                change(header)
                data = json.dumps(header).encode()
            new.writestr(name, data)
    return made
