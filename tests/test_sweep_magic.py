"""``%compile_sweep``: what its line means, what it shows, and that it goes on after an interrupt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from IPython.core.error import UsageError as MagicUsageError
from IPython.core.interactiveshell import InteractiveShell
from torch import nn

import nbcompile
from nbcompile import Sweep, cellrun
from nbcompile.cells import PRESETS, LlamaShape, Preset
from nbcompile.report import Report
from tests.blocks import net, rows

QUICK = "--backend aot_eager --strategies regional --tasks inference -r 2"


def factory(batch: int) -> tuple[nn.Module, dict[str, Any]]:
    return net(2), {"x": rows(batch)}


@pytest.fixture
def shell(bare_shell: InteractiveShell) -> Iterator[InteractiveShell]:
    """A shell with the extension loaded and models of the user's own."""
    bare_shell.run_line_magic("load_ext", "nbcompile")
    bare_shell.push({"mine": {"net": factory}, "torch": torch})
    yield bare_shell
    bare_shell.run_line_magic("unload_ext", "nbcompile")


def shown(shell: InteractiveShell) -> list[dict[str, Any]]:
    outputs: list[dict[str, Any]] = shell.display_pub.outputs
    return outputs


@pytest.mark.slow
def test_a_tiny_preset_is_swept_shown_and_written(
    shell: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a preset that takes little time
    pytest.importorskip("transformers")
    tiny = Preset(
        {"one": LlamaShape(2, 16, 32, 2, 2, 8, 64, True)}, (1,), ("inference", "training"), 8, "float32", "cpu"
    )
    monkeypatch.setitem(PRESETS, "tiny", tiny)
    page = tmp_path / "sweep.html"
    # WHEN it is swept
    line = f"%compile_sweep --preset tiny {QUICK} --folder '{tmp_path}' --html '{page}'"
    ran = shell.run_cell(line)
    # THEN there is one output, which told how far it was and has become the table with the conclusions
    assert ran.success
    assert len({output["transient"]["display_id"] for output in shown(shell)}) == 1
    lines = [output["data"]["text/plain"] for output in shown(shell)[:-1]]
    assert "[1/1] one, batch 1, inference: regional: cold start (compiling)" in lines
    last = shown(shell)[-1]["data"]
    assert "Every cell" in last["text/html"]
    assert "Borne out" in last["text/html"]
    assert "Every cell" in page.read_text()
    assert ran.result is None
    # AND the cell is a file, with which a later call goes on
    assert len(Sweep.load(tmp_path).reports) == 1
    shown(shell).clear()
    ran = shell.run_cell(f"{line} --overwrite -o")
    assert isinstance(ran.result, Sweep)
    assert shown(shell)[0]["data"]["text/plain"].endswith("one, batch 1, inference: measured before")


@pytest.mark.slow
def test_after_an_interrupt_the_same_line_goes_on(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a sweep of two cells that is interrupted in the second
    measure, measured = cellrun.Run.measure, []

    def interrupted(self: cellrun.Run) -> Report:
        measured.append(1)
        if len(measured) == 2:
            raise KeyboardInterrupt
        return measure(self)

    monkeypatch.setattr(cellrun.Run, "measure", interrupted)
    line = f"%compile_sweep --models mine --batches 1,2 {QUICK}"
    ran = shell.run_cell(line)
    # THEN the output says how far it came
    assert isinstance(ran.error_in_exec, KeyboardInterrupt)
    said = "stopped: 1 of 2 cells are finished and kept; the same call goes on with the next one"
    assert shown(shell)[-1]["data"] == {"text/plain": said}
    # AND the same line measures the other one alone, and shows both
    ran = shell.run_cell(f"{line} -o")
    assert ran.success
    assert (len(measured), len(ran.result.reports)) == (3, 2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "takes either a preset, one of 'cpu', 'document', or models"),
        ("--preset gpu", "there is no preset 'gpu'; those that exist: 'cpu', 'document'"),
        ("--preset cpu --batches 1,b", "--batches takes whole numbers from 1 on"),
        ("--preset cpu --batches 0", "batches takes a list of whole numbers from 1 on"),
        ("--preset cpu --tasks train", "tasks takes a list of names out of"),
        ("--preset cpu --strategies regionl", "there is no strategy 'regionl'"),
        ("--preset cpu --backend inductr", "no backend 'inductr'"),
        ("--preset cpu -r 0", "rounds takes a whole number"),
        ("--models nowhere", "--models takes a dictionary"),
        ("--models '{1: 2}'", "models takes a dictionary with a name"),
        ("--presets cpu --x", "%compile_sweep? shows the options"),
        ("--preset cpu --html /nowhere/at/all.html", "there is no folder"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    ran = shell.run_cell(f"%compile_sweep {line}")
    assert isinstance(ran.error_in_exec, MagicUsageError)
    told = capsys.readouterr()
    assert message in told.err
    assert "Traceback" not in told.out + told.err
    assert shown(shell) == []


def test_its_manual_and_the_short_help_name_it(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("%nbcompile")
    assert "%compile_sweep?" in capsys.readouterr().out
    assert "--preset NAME" in nbcompile.notebook.magics.NbcompileMagics.compile_sweep.__doc__
