"""The quick-start notebook as a reader uses it: opened in JupyterLab, run, steered by hand, saved, opened again.

Its model has three of its thirty layers here, to be quick; ``NBCOMPILE_WHOLE=1`` takes it as it is.
"""

from __future__ import annotations

import os
import re
import time

import nbformat
import pytest

from tests.browser.lab import Lab
from tests.browser.test_panel_in_lab import choose, panel, press, told

pytestmark = [pytest.mark.slow, pytest.mark.inductor]

WHOLE = os.environ.get("NBCOMPILE_WHOLE") == "1"
NAME = "01_quickstart.ipynb"
CUT = "\nmodel.model.layers, model.config.num_hidden_layers = model.model.layers[:3], 3\n"
SECONDS = 600 if WHOLE else 240


def notebook() -> nbformat.NotebookNode:
    """The notebook without the outputs it is kept with, and with fewer layers unless it is to be whole."""
    found = nbformat.read(os.path.join(os.path.dirname(__file__), "..", "..", "notebooks", NAME), as_version=4)
    for cell in found.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    (loads,) = [cell for cell in found.cells if "AutoModelForCausalLM.from_pretrained(" in cell.source]
    if not WHOLE:
        before, line, after = loads.source.partition("\ntext = ")
        loads.source = before + CUT + line + after
    return found


def test_quickstart_is_run_steered_and_read_again(lab: Lab) -> None:
    # GIVEN the quick start, opened
    cells = notebook()
    nbformat.write(cells, lab.server.notebooks / NAME)
    lab.open(NAME)
    code = [index for index, cell in enumerate(cells.cells) if cell.cell_type == "code"]
    (compares,) = [index for index in code if cells.cells[index].source.startswith("%%compile_regional")]
    (steers,) = [index for index in code if "%nbcompile panel" in cells.cells[index].source]
    # WHEN it is run THEN the chart moves while the model is compiled
    for index in code[: code.index(steers) + 1]:
        if index == compares:
            lab.watch_bars(lab.cell(index))
            begun = time.monotonic()
            lab.run(index, SECONDS)
            lasted = time.monotonic() - begun
            states = lab.bars()
            lab.watch_bars(None)
        else:
            lab.run(index, SECONDS)
        assert not re.search(r"Error|Traceback", lab.output(index).inner_text())
    assert len({state["bars"] for state in states if state["bars"]}) >= 5
    assert len({state["line"] for state in states}) >= lasted  # the line, at least once a second over all of it
    # AND ends as the figure
    drawn = lab.figure(compares)
    assert {"eager", "regional", "full"} <= set(drawn)
    lab.shoot("quickstart-chart", compares)
    # AND WHEN another mode is chosen in the panel, and Compile pressed THEN the model is compiled so
    panel(lab).get_by_text("For 1,000 calls:").wait_for()
    lab.shoot("quickstart-panel", steers)
    choose(lab, "mode", "max-autotune-no-cudagraphs")
    press(lab, "Compile")
    told(lab, "Compiled in", SECONDS)
    panel(lab).get_by_text("is compiled: regional, mode='max-autotune-no-cudagraphs'").wait_for()
    steered = lab.figure(steers)
    assert any("model.layers" in text for text in steered)
    # AND WHEN the slider is moved THEN the strategies are ranked anew
    panel(lab).locator(".noUi-handle").press("End")
    panel(lab).get_by_text("For 1,000,000 calls:").wait_for()
    lab.shoot("quickstart-steered", steers)
    # AND WHEN it is restored THEN the model runs eager, and the last cell works
    press(lab, "Restore")
    told(lab, "runs eager again")
    lab.run(code[-1])
    assert "Error" not in lab.output(code[-1]).inner_text()
    # WHEN the page is loaded again THEN figure and controls are there
    lab.save(NAME)
    lab.reload()
    assert lab.figure(compares) == drawn
    panel(lab).get_by_text("runs eager: not compiled").wait_for()
    # AND WHEN the saved notebook is opened with no kernel THEN the same figures are there
    lab.server.stop_kernels()
    lab.known.append("widget model not found")
    lab.open(NAME, kernel=False)
    assert lab.figure(compares) == drawn
    assert lab.figure(steers) == steered
    lab.shoot("quickstart-no-kernel", compares)
    # AND the file is small
    assert (lab.server.notebooks / NAME).stat().st_size < 1_000_000
