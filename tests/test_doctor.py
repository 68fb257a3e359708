"""The checks of the environment, and the command line that prints them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nbcompile.doctor as doctor
from nbcompile.__main__ import main
from nbcompile.doctor import Check, Diagnosis
from nbcompile.report import Report


def compiler(folder: Path, name: str, script: str) -> Path:
    """A program called ``name`` in ``folder`` that stands in for a compiler."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH, empty; inductor's compiler is the default one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delitem(sys.modules, "torch._inductor.config", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    return folder


def test_this_environment_is_examined() -> None:
    # GIVEN the environment of the tests, which can compile
    # WHEN it is examined
    diagnosis = doctor.examine()
    # THEN what compiling needs was looked at and is there
    names = [check.name for check in diagnosis.checks]
    assert names[:4] == ["Python", "torch", "torch.compile", "device"]
    assert {"C++ compiler", "Triton", "cache", "plotly", "transformers", "lab extension"} <= set(names)
    assert [check for check in diagnosis.checks[:4] if not check.ok] == []


def test_examining_creates_no_folder(tmp_path: Path) -> None:
    # GIVEN a cache folder that does not exist, and a Python in which torch has not been imported
    folder = tmp_path / "deep" / "cache"
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    # WHEN the doctor is run
    done = subprocess.run(
        [sys.executable, "-m", "nbcompile", "doctor", "--json"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    # THEN it tells that the folder is still to come, and has not created it
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["cache"]["found"] == f"{folder}: empty, the first compile creates it"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("version", "ok"), [("2.10.1+cu128", False), ("2.11.0", True), ("2.13.0+cpu", True), ("3.0.0a0+git12", True)]
)
def test_torch_version(version: str, ok: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a version of torch
    import torch

    monkeypatch.setattr(torch, "__version__", version)
    # WHEN it is checked
    check = doctor.check_torch()
    # THEN it is good from 2.11 on, else the remedy says what to install
    assert (check.ok, check.found) == (ok, version)
    assert ("pip install -U torch" in check.remedy) is not ok


def test_torch_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN an environment without torch
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    # WHEN it is checked THEN that is said, with where to get it
    check = doctor.check_torch()
    assert check.ok is False
    assert "not installed" in check.found
    assert "https://pytorch.org" in check.remedy


def test_torch_compile_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN the variable that makes torch.compile do nothing
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    # WHEN it is checked THEN the variable is named
    check = doctor.check_torch_compile()
    assert check.ok is False
    assert "TORCHDYNAMO_DISABLE" in check.found


def test_torch_compile_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a Python for which torch.compile has no support
    import torch._dynamo.eval_frame as eval_frame

    def refuse() -> None:
        raise RuntimeError("Python 3.15+ not yet supported for torch.compile")

    monkeypatch.setattr(eval_frame, "check_if_dynamo_supported", refuse)
    # WHEN it is checked THEN torch's own words are told
    check = doctor.check_torch_compile()
    assert (check.ok, check.found) == (False, "Python 3.15+ not yet supported for torch.compile")


def test_compiler_found(path: Path) -> None:
    # GIVEN a g++ that runs
    program = compiler(path, "g++", "echo 'g++ (Test) 14.2.0'; echo 'Copyright'")
    # WHEN the compiler is checked THEN its first line is shown
    assert doctor.check_cxx() == Check("C++ compiler", True, f"{program}: g++ (Test) 14.2.0")


def test_compiler_missing(path: Path) -> None:
    # GIVEN no compiler at all
    # WHEN it is checked THEN the remedy says how to get one
    check = doctor.check_cxx()
    assert (check.ok, check.found) == (False, "g++ is not on the PATH")
    assert "apt install g++" in check.remedy
    assert "conda" in check.remedy


def test_compiler_missing_on_a_mac(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a Mac without its command line tools
    monkeypatch.setattr(sys, "platform", "darwin")
    # WHEN the compiler is checked THEN it is clang++ that is missed, and the remedy is the Mac's
    assert doctor.check_cxx() == Check("C++ compiler", False, "clang++ is not on the PATH", "xcode-select --install")


def test_another_compiler_is_there(path: Path) -> None:
    # GIVEN no g++, which inductor would use, but a clang++
    compiler(path, "clang++", "echo clang")
    # WHEN the compiler is checked THEN the remedy is to use what is there
    check = doctor.check_cxx()
    assert check.ok is False
    assert "CXX=clang++" in check.remedy


def test_compiler_named_by_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN the variable CXX, and a g++ beside it
    compiler(path, "g++", "echo g++")
    compiler(path, "my-c++", "echo mine")
    monkeypatch.setenv("CXX", "my-c++")
    # WHEN the compiler is checked THEN it is the one that inductor takes
    assert doctor.check_cxx().found.endswith("mine")


def test_compiler_of_inductors_settings(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN inductor's settings, loaded, with a compiler of their own; None there stands for one to be downloaded
    settings = type("config", (), {"cpp": type("cpp", (), {"cxx": (None, "other-c++")})})
    monkeypatch.setitem(sys.modules, "torch._inductor.config", settings)
    compiler(path, "g++", "echo g++")
    compiler(path, "other-c++", "echo other")
    # WHEN the compiler is checked THEN it is that one, and nothing is downloaded
    assert doctor.check_cxx().found.endswith("other")


def test_compiler_that_does_not_run(path: Path) -> None:
    # GIVEN a Mac's stand-in for a compiler that is not installed: it is there, and fails
    compiler(path, "g++", "echo 'xcode-select: no developer tools' >&2; exit 1")
    # WHEN it is checked THEN what it said is told
    check = doctor.check_cxx()
    assert check.ok is False
    assert "does not run: xcode-select: no developer tools" in check.found


@pytest.mark.parametrize(
    ("versions", "gpu", "ok"),
    [({}, False, None), ({}, True, False), ({"triton": "3.5.0"}, True, True), ({"triton-windows": "3.5"}, True, True)],
)
def test_triton(versions: dict[str, str], gpu: bool, ok: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a machine with or without a GPU, and Triton or not
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(doctor, "_version", versions.get)
    # WHEN it is checked THEN it is missing only where there is a GPU
    assert doctor.check_triton().ok is ok


def test_old_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a GPU for which Triton generates no code
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (6, 1))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Old GPU")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    # WHEN the device is checked THEN it says so
    check = doctor.check_device()
    assert (check.ok, check.found) == (False, "Old GPU, compute capability 6.1, and 1 more")
    assert "7.0" in check.remedy


def test_cache_is_measured(tmp_path: Path) -> None:
    # GIVEN a cache with two files, the older from three days ago
    (tmp_path / "ab").mkdir()
    for name, size, age in (("ab/one.so", 1_500_000, 3 * 86400 + 5), ("two.py", 500, 60)):
        file = tmp_path / name
        file.write_bytes(bytes(size))
        written = file.stat().st_mtime - age
        os.utime(file, (written, written))
    # WHEN it is checked THEN number, size and age are told
    check = doctor.check_cache(tmp_path)
    assert check.ok is True
    assert check.found == f"{tmp_path}: 2 files, 1.50 MB, the oldest from 3 days ago"


def test_cache_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a folder without permission to write, which for root is every folder's answer but by pretence
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    # WHEN it is checked, existing or not THEN the remedy names the variable
    for folder in (tmp_path, tmp_path / "new" / "cache"):
        check = doctor.check_cache(folder)
        assert check.ok is False
        assert "TORCHINDUCTOR_CACHE_DIR" in check.remedy


def test_cache_is_a_file(tmp_path: Path) -> None:
    # GIVEN a file where the cache folder should be
    file = tmp_path / "cache"
    file.write_text("")
    file.chmod(0o755)
    # WHEN it, or a folder in it, is checked THEN that is said
    assert doctor.check_cache(file).found == f"{file} is not a folder"
    assert doctor.check_cache(file / "below").ok is False


def test_cache_folder_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN no folder named by the environment
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    expected = Path(default_cache_dir())
    # WHEN the folder is asked for, with torch's own function and without it THEN both give the same
    assert doctor.cache_folder() == expected
    monkeypatch.delitem(sys.modules, "torch._inductor.runtime.cache_dir_utils")
    assert doctor.cache_folder() == expected


def test_optional_package_missing_is_no_failure() -> None:
    # GIVEN a package that is not installed
    check = doctor.check_package("no-such-package", "for nothing")
    # WHEN it is checked THEN that is a note, with the command that installs it
    assert check == Check("no-such-package", None, "not installed; for nothing", "pip install no-such-package")
    assert Diagnosis((check,)).ok is True


def test_text_is_aligned_and_html_is_escaped() -> None:
    # GIVEN one check of each kind
    diagnosis = Diagnosis(
        (Check("torch", True, "2.13"), Check("a <b>", False, "x & y", "do <this>"), Check("cache", None, "none"))
    )
    # WHEN they are printed THEN columns are aligned and the remedy stands below
    assert str(diagnosis).splitlines() == [
        "ok       torch  2.13",
        "missing  a <b>  x & y",
        "                -> do <this>",
        "note     cache  none",
    ]
    # AND WHEN they are shown in a notebook THEN nothing of it is markup
    page = diagnosis._repr_html_()
    assert "a &lt;b&gt;" in page
    assert "x &amp; y" in page
    assert "do &lt;this&gt;" in page
    assert diagnosis.ok is False


@pytest.mark.parametrize(("ok", "status"), [(True, 0), (None, 0), (False, 1)])
def test_doctor_command(
    ok: bool | None, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN an environment in which something is missing, or not
    monkeypatch.setattr(doctor, "examine", lambda: Diagnosis((Check("torch", ok, "2.13"),)))
    # WHEN the doctor is run THEN its exit status tells
    assert main(["doctor"]) == status
    assert "torch  2.13" in capsys.readouterr().out


def report(**fields: Any) -> Report:
    return Report(model={"class_name": "TinyModel"}, **fields)


def test_report_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a saved report
    file = report().save(tmp_path / "run")
    # WHEN it is printed THEN the model is named
    assert main(["report", str(file)]) == 0
    assert "TinyModel" in capsys.readouterr().out


def test_report_command_writes_a_page_and_replaces_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a saved report and a file that exists
    file = report().save(tmp_path / "run")
    page = tmp_path / "page.html"
    page.write_text("mine")
    # WHEN the page would replace it THEN it is refused, with the option that allows it
    assert main(["report", str(file), "--html", str(page)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert page.read_text() == "mine"
    # AND WHEN that is given THEN the page is written
    assert main(["report", str(file), "--html", str(page), "--overwrite"]) == 0
    assert "TinyModel" in page.read_text()


@pytest.mark.parametrize("content", [None, b"{", b'{"schema": 99}'])
def test_report_command_with_a_bad_file(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a file that is missing, broken, or of a schema to come
    file = tmp_path / "run.nbcompile.json"
    if content is not None:
        file.write_bytes(content)
    # WHEN it is read THEN one line says what is wrong with which file
    assert main(["report", str(file)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert str(file) in message


def test_cleaning_removes_what_the_compiler_made_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for name in ("ab/kernel.so", "fxgraph/xy/graph", "triton/0/kernel.cubin", "thesis/chapter.txt", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    main(["doctor", "--clean-cache"])
    assert "3 files removed" in (told := capsys.readouterr().err)
    assert "notes.txt, thesis" in told
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()) == [
        "notes.txt",
        "thesis/chapter.txt",
    ]
