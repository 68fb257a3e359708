"""The tutorials: each runs as it is, on a small setting, and as saved shows every figure where no kernel runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbconvert import HTMLExporter

from nbcompile.render.mime import PLOTLY_MIME_TYPE
from nbcompile.report import MIME_TYPE, Report

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
TUTORIALS = [path.name for path in sorted(NOTEBOOKS.glob("*.ipynb"))]
#: Traces and generates no code: for notebooks in which what is compiled matters more than what it gains.
QUICK = {"ACCELERATE_DYNAMO_BACKEND": "aot_eager"}

Notebook = Any


def executed(number: str, folder: Path, **environment: str) -> Notebook:
    """A tutorial after a run on its small setting, as ``make demo`` runs the first one."""
    (source,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
    done = subprocess.run(
        [sys.executable, NOTEBOOKS / "run.py", source, "--out", folder],
        env={**os.environ, "NBCOMPILE_SMALL": "1", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return nbformat.read(folder / source.name, as_version=4)


def outputs(notebook: Notebook, of: str = "") -> Iterator[Any]:
    """The outputs of the cells whose source holds ``of``."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and of in cell.source:
            yield from cell.outputs


def text(notebook: Notebook, of: str = "") -> str:
    """What those cells printed, showed and raised, as text."""
    found = (o.get("text") or o.get("evalue") or o.get("data", {}).get("text/plain", "") for o in outputs(notebook, of))
    return "\n".join(found)


def figures(notebook: Notebook, of: str = "") -> list[Any]:
    """The outputs of those cells that hold a figure."""
    return [output for output in outputs(notebook, of) if PLOTLY_MIME_TYPE in output.get("data", {})]


@pytest.mark.slow
@pytest.mark.inductor
def test_choose_mode_and_backend(tmp_path: Path) -> None:
    # GIVEN the tutorial WHEN it is run
    notebook = executed("02", tmp_path)
    # THEN a mode that does not exist is refused with those that do, and the others are measured
    assert "Those that exist: default" in text(notebook, "--mode fast")
    assert len(figures(notebook, "%%compile_regional")) == 2
    # AND the tuning is shown, and ranks without measuring again
    assert len(figures(notebook, "%%tune")) == 1
    assert "1 calls: eager" in text(notebook, "tuned.best(calls)")
    assert "from call 1 on: eager" in text(notebook, "tuned.crossings()")
    assert text(notebook, "load_report") == "True"


@pytest.mark.slow
def test_regional_or_full(tmp_path: Path) -> None:
    # GIVEN the tutorial WHEN it is run
    notebook = executed("03", tmp_path, **QUICK)
    # THEN both sweeps are shown, and each of the five conclusions has a verdict
    assert len(figures(notebook, "%compile_sweep")) == 2
    verdicts = re.findall(r"^ +(YES|NO|CANNOT BE TOLD)\. ", text(notebook, "both.conclusions"), re.MULTILINE)
    assert len(verdicts) == 5
    # AND all that was asked for was measured: nothing is missing for a verdict
    assert "was not measured" not in text(notebook, "both.conclusions")


@pytest.mark.slow
@pytest.mark.inductor  # by accelerate
def test_generation_and_caches(tmp_path: Path) -> None:
    # GIVEN the tutorial WHEN it is run
    notebook = executed("04", tmp_path, **QUICK)
    # THEN tokens are those of the uncompiled model, also where accelerate compiles it
    assert text(notebook).count("same tokens as uncompiled: True") == 2
    # AND each layer runs compiled with three graphs, of which the remedy saves one
    assert "3 of 3 layers ran compiled, 3 graphs" in text(notebook, "again.remedy")
    assert re.search(r"before: 3 graphs.*\nafter: 2 graphs", text(notebook, '("before", report)'))
    # AND a change of lengths is told by the cell that makes it, but not where it was announced
    assert "LlamaForCausalLM was compiled again once" in text(notebook, "%nbcompile marks on")
    assert text(notebook, "nbcompile.compile_regions(llama, dynamic=True)") == ""
    # AND a cache that is not known costs a graph per layer and use
    assert "MyCache is not a cache that nbcompile knows" in text(notebook, "MyCache(config")
    assert re.findall(r"graphs: (\d+)", text(notebook, "graphs_with(")) == ["9", "3"]


@pytest.mark.slow
@pytest.mark.inductor
@pytest.mark.alone  # the helper, at the lowest priority, gets next to nothing beside the other processes
def test_start_fast(tmp_path: Path) -> None:
    # GIVEN the tutorial WHEN it is run
    notebook = executed("06", tmp_path)
    # THEN all blocks run compiled in the end, with eager's results
    measured = dict(re.findall(r"^(.+?)  +([\d.e+-]+)", text(notebook, "background=True"), re.MULTILINE))
    assert float(measured["all blocks ran compiled after"]) < 300
    assert float(measured["largest difference to eager"]) < 1e-3
    shown = "\n".join(str(output) for output in outputs(notebook, "nbcompile.report(model)"))
    assert "compiled in the background for" in shown, shown[-4000:]
    # AND starts from the kept folder and from the file are measured, and a file that is cut is refused
    starts = dict(re.findall(r"^(.+?)  +([\d.]+) s", text(notebook, "first_call("), re.MULTILINE))
    assert set(starts) >= {"empty cache folder", "restarted, the same folder", "empty folder, file loaded"}
    assert float(starts["restarted, the same folder"]) < float(starts["empty cache folder"])
    assert re.match(r"\w+Error .*(damaged|cut)", text(notebook, "cut.nbcache"))


@pytest.mark.slow
@pytest.mark.inductor
def test_your_own_model(tmp_path: Path) -> None:
    # GIVEN the tutorial WHEN it is run
    notebook = executed("07", tmp_path)
    # THEN the classes of the cell, those of diffusers, tiny ones and another mode are measured
    assert len(figures(notebook, "%%compile_regional")) == 4
    # AND a model in which nothing repeats is refused, with the way out, which the next cell takes
    assert "Use nbcompile.compile_model(model)" in text(notebook, "%%compile_regional cnn")
    assert "strategy=full" in text(notebook, "nbcompile.compile_model(cnn)")


@pytest.mark.slow
@pytest.mark.inductor
def test_training(tmp_path: Path) -> None:
    # GIVEN the tutorial WHEN it is run THEN it measures what it is about
    assert_training_is_measured(executed("05", tmp_path))


def test_training_as_saved() -> None:
    # GIVEN the tutorial as it is saved THEN it has measured what it is about
    notebook = nbformat.read(NOTEBOOKS / "05_training.ipynb", as_version=4)
    assert_training_is_measured(notebook)
    # AND no prose has a figure with a unit that a cell would have to have measured
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert re.findall(r"\d[\d.,]* ?(s|ms|seconds|minutes|times|%)\b", prose) == []


def assert_training_is_measured(notebook: Notebook) -> None:
    """It has the first step and later ones of each way, the time to so many steps, and the losses held to eager's."""
    reports = [Report.from_dict(o["data"][MIME_TYPE]) for o in outputs(notebook) if MIME_TYPE in o.get("data", {})]
    report = next(report for report in reports if len(report.strategies) > 1)
    assert all(report.strategies[name].steady_seconds for name in ("eager", "full", "regional"))
    assert all(report.strategies[name].cold_seconds for name in ("full", "regional"))
    assert re.search(r"^ +10000 ", text(notebook), re.MULTILINE)
    assert "largest difference of a loss" in text(notebook)


@pytest.mark.parametrize("name", TUTORIALS)
def test_saved_notebook_needs_no_kernel(name: str) -> None:
    # GIVEN a tutorial as it is saved
    path = NOTEBOOKS / name
    assert path.stat().st_size < 1_000_000
    notebook = nbformat.read(path, as_version=4)
    if not list(outputs(notebook)):
        pytest.skip("saved without outputs; `python notebooks/run.py NOTEBOOK --save` on a machine at rest adds them")
    # THEN every cell was run, in order, from a fresh kernel
    numbers = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert numbers == list(range(1, len(numbers) + 1))
    # AND none of its outputs names the machine's folders or needs a kernel
    shown = [str(output) for output in outputs(notebook)]
    assert not [found for output in shown for found in re.findall(r"/(?:home|root|tmp|work|usr)/[^\s'\"]+", output)]
    assert not [output for output in shown if "application/vnd.jupyter.widget-view+json" in output]
    # AND it has one title
    titles = [line for cell in notebook.cells if cell.cell_type == "markdown" for line in cell.source.split("\n")]
    assert len([line for line in titles if line.startswith("# ")]) == 1
    # AND its figures are in the web page of it, without a script
    found = figures(notebook)
    assert found
    assert all("<svg" in output["data"]["text/html"] for output in found)
    page, _ = HTMLExporter().from_notebook_node(notebook)
    assert page.count('class="nbc-report') >= len(found)
