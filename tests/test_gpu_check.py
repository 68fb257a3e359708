"""The check for a GPU machine: its code paths run on the CPU, and without a device it says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu import check
from tests.gpu.check import Case, Checks, Figures

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "gpu" / "check.py"


def figures(**values: object) -> dict[str, object]:
    return vars(Figures(**values))  # type: ignore[arg-type]


def case(**steps: float) -> Case:
    """A case in which all is met, but for the steps that are given, in seconds."""
    full = figures(first=20.0, ready=21.0, peak=100, events=[steps.get("full", 0.006)], clock=[0.006])
    regional = figures(first=3.0, ready=3.1, peak=90, events=[0.009], clock=[0.009])
    graph = figures(first=3.0, ready=3.2, peak=95, events=[steps.get("graph", 0.006)], clock=[0.006])
    accelerate = figures(first=3.0, ready=3.1, peak=90, events=[0.0095], clock=[0.0095])
    return Case("1B", 1, {"full": full, "regional": regional, "regional+graph": graph, "accelerate": accelerate})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_says_so_in_one_sentence() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, cwd="/")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "no CUDA device" in done.stderr


@pytest.mark.slow
def test_the_code_paths_on_the_cpu(tmp_path: Path) -> None:
    # GIVEN no device WHEN the check is run on the one that records on the CPU, from elsewhere
    out = tmp_path / "figures.json"
    command = [sys.executable, SCRIPT, "--fake", "--json", out, "--strategy", "eager", "--strategy", "regional+graph"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    # THEN all checks hold, and each process has told its figures
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
    ((only),) = json.loads(out.read_text())
    graph = only["strategies"]["regional+graph"]
    assert graph["failure"] == ""
    assert graph["difference"] < 1e-4
    assert len(graph["events"]) == len(graph["clock"]) == 2
    assert graph["ready"] > graph["first"] > 0
    assert any("1 recorded" in note for note in graph["notes"])
    assert "regional+graph" in done.stdout


def test_a_check_that_fails_is_told_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in vars(Checks) if not name.startswith("_")]:
        if name not in ("compiled", "same", "replayed", "told", "rows", "usable"):
            monkeypatch.delattr(Checks, name)
    monkeypatch.setattr(Checks, "wrong", lambda self: 1 // 0, raising=False)
    monkeypatch.setattr(Checks, "right", lambda self: None, raising=False)
    assert check.run_checks(fake=True) is False
    lines = capsys.readouterr().out.splitlines()
    assert "FAILED: ZeroDivisionError" in lines[1]
    assert lines[2].endswith("ok")


def test_the_judgement(capsys: pytest.CaptureFixture[str]) -> None:
    assert case().show(judged=True)
    assert not case(graph=0.0061).show(judged=True)
    assert "1.017" in capsys.readouterr().out
    assert case(graph=0.0061).show(judged=False)


def test_a_strategy_that_failed_or_was_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a case in which one process has died WHEN it is judged THEN what needs it is not met, with no figure made up
    broken = case()
    broken.strategies["full"] = figures(failure="exit status 1: out of memory")
    assert not broken.show(judged=True)
    told = capsys.readouterr().out
    assert "failed: exit status 1: out of memory" in told
    assert "NOT MET" in told
    assert not broken.show(judged=False)


def test_what_is_timed() -> None:
    def cases(*arguments: str) -> list[tuple[str, int]]:
        return check._cases(check._parser().parse_args(arguments))

    assert cases("--quick") == [("1B", 1)]
    assert cases() == [("1B", 1), ("1B", 4), ("3B", 1), ("3B", 4)]
    assert cases("--shape", "8B", "--batch", "2") == [("8B", 2)]


def test_the_documents_benchmark_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert check.document()
    assert "no nbcompile.sweep" in capsys.readouterr().out
