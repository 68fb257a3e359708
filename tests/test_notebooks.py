"""The tutorials: each runs in its small setting, and what is saved of it shows its figures where no kernel runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from nbcompile.report import MIME_TYPE, Report

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
#: Those that are saved with the outputs of a real run, and have a small setting, by the variable NBCOMPILE_SMALL.
SAVED = ["05_training"]


def read(file: Path) -> Any:
    return nbformat.read(file, as_version=4)


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def printed(notebook: Any) -> str:
    return "".join(output.get("text", "") for output in outputs(notebook))


@pytest.mark.slow
@pytest.mark.inductor
@pytest.mark.parametrize("name", SAVED)
def test_it_runs_in_its_small_setting(tmp_path: Path, name: str) -> None:
    # GIVEN a tutorial WHEN it runs in a real kernel with less of everything THEN no cell fails
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), str(FOLDER / f"{name}.ipynb"), "--out", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NBCOMPILE_SMALL": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    again = read(tmp_path / f"{name}.ipynb")
    # AND its cells are those of the saved one
    assert [cell.source for cell in again.cells] == [cell.source for cell in read(FOLDER / f"{name}.ipynb").cells]


@pytest.mark.parametrize("name", SAVED)
def test_what_is_saved_shows_its_figures_without_a_kernel(name: str) -> None:
    # GIVEN a tutorial as it is in the repository
    file = FOLDER / f"{name}.ipynb"
    notebook = read(file)
    # THEN it is small, every code cell has run, in order, and none failed
    assert file.stat().st_size < 1_000_000
    ran = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert ran == list(range(1, len(ran) + 1))
    assert not [output for output in outputs(notebook) if output.output_type == "error"]
    # AND each report in it comes with a picture and text that need no kernel, and no script of its own
    shown = [output.data for output in outputs(notebook) if MIME_TYPE in output.get("data", {})]
    assert shown
    for data in shown:
        assert "text/plain" in data
        assert "<script" not in data["text/html"]
        Report.from_dict(data[MIME_TYPE])
    assert not [output for output in outputs(notebook) if "widget-view" in str(list(output.get("data", {})))]


def test_the_training_tutorial_has_measured_what_it_is_about() -> None:
    # GIVEN the saved tutorial on training WHEN its report is read
    notebook = read(FOLDER / "05_training.ipynb")
    found = [output.data[MIME_TYPE] for output in outputs(notebook) if MIME_TYPE in output.get("data", {})]
    report = next(report for report in map(Report.from_dict, found) if len(report.strategies) > 1)
    # THEN it has the first step and later ones of each way, and the text has the time to so many steps
    for name in ("eager", "full", "regional"):
        assert report.strategies[name].steady_seconds
    for name in ("full", "regional"):
        assert report.strategies[name].cold_seconds
    assert re.search(r"^ +10000 ", printed(notebook), re.MULTILINE)
    assert "largest difference of a loss" in printed(notebook)
    # AND no prose has a figure with a unit that a cell would have to have measured
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert re.findall(r"\d[\d.,]* ?(s|ms|seconds|minutes|times|%)\b", prose) == []
