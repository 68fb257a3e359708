"""The panel and the report in JupyterLab, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.lab import Lab

pytestmark = [pytest.mark.slow]

SETUP = """\
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
    def forward(self, x):
        return x + self.down(self.up(x).relu())
class Net(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(count))
        self.head = nn.Linear(8, 4)
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
model, x = Net(3), torch.ones(2, 8)
def step():
    return model(x)
%load_ext nbcompile"""

PANEL = "%nbcompile panel model step"


def panel(lab: Lab) -> Any:
    """The panel's controls."""
    return lab.page.locator(".nbc-panel")


def press(lab: Lab, name: str) -> None:
    """Press one of the panel's buttons."""
    panel(lab).get_by_role("button", name=name, exact=True).click()


def told(lab: Lab, words: str, seconds: float = 60) -> None:
    """Wait until the panel's message says so."""
    panel(lab).locator(".nbc-message", has_text=words).wait_for(timeout=seconds * 1000)


def choose(lab: Lab, setting: str, label: str) -> None:
    """Choose a value of a setting by what the list shows."""
    panel(lab).get_by_label(setting, exact=True).select_option(label=label)


def code(lab: Lab) -> str:
    """The code that the panel shows."""
    return str(panel(lab).locator("textarea").input_value())


def test_cell_magic_shows_progress_then_the_figure_that_stays(lab: Lab) -> None:
    # GIVEN a notebook with a model
    lab.write("magic.ipynb", SETUP, "%%compile_regional model --backend aot_eager -n 1 -r 3\ny = model(x)")
    lab.open("magic.ipynb")
    lab.run(0)
    # WHEN a cell is compiled THEN its output changes meanwhile
    lab.watch(lab.cell(1))
    lab.run(1)
    lines = [text for text in lab.seen() if "eager: first call" in text or "cold start" in text or "round" in text]
    assert len(lines) >= 3, lab.seen()
    # AND ends as the figure
    drawn = lab.figure(1)
    assert "regional" in drawn
    lab.shoot("magic", 1)
    # AND WHEN it is saved, its kernel is gone, and it is opened again THEN the same figure is there
    lab.save("magic.ipynb")
    lab.server.stop_kernels()
    lab.open("magic.ipynb", kernel=False)
    assert lab.figure(1) == drawn
    lab.shoot("magic-saved", 1)


def test_panel_compiles_compares_ranks_and_restores(lab: Lab) -> None:
    # GIVEN a panel
    lab.write("panel.ipynb", SETUP, PANEL, "print(type(model._modules['layers'][0]._compiled_call_impl))")
    lab.open("panel.ipynb")
    lab.run(0)
    lab.run(1)
    panel(lab).get_by_text("runs eager: not compiled").wait_for()
    lab.shoot("panel-new", 1)
    # WHEN a mode that gains nothing here is chosen THEN it is refused, with the reason
    choose(lab, "mode", "reduce-overhead (not here: gains nothing, no CUDA device)")
    told(lab, "reduce-overhead cannot be chosen here: gains nothing, no CUDA device")
    assert panel(lab).get_by_label("mode", exact=True).locator("option:checked").inner_text() == "default"
    # WHEN another backend is chosen, a block is left out, and Compile pressed
    choose(lab, "backend", "aot_eager (debug)")
    panel(lab).get_by_text("Regions: 3 of 3 blocks").click()
    press(lab, "show blocks")
    panel(lab).get_by_label("layers.1", exact=True).uncheck()
    panel(lab).get_by_text("Regions: 2 of 3 blocks").wait_for()
    wanted = "nbcompile.compile_regions(model, backend='aot_eager', regions=['layers.0', 'layers.2'])"
    lab.page.wait_for_function(
        "wanted => document.querySelector('.nbc-panel textarea').value.includes(wanted)", arg=wanted
    )
    lab.watch(lab.cell(1))
    press(lab, "Compile")
    # THEN it says what it does and that it is done, and the report is below
    told(lab, "Compiled in")
    assert any("first call (compiling)" in text for text in lab.seen())
    panel(lab).get_by_text("is compiled: regional, backend='aot_eager'").wait_for()
    assert "layers" in lab.figure(1)
    lab.shoot("panel-compiled", 1)
    # WHEN the strategies are compared THEN the report is of all of them
    press(lab, "Compare")
    told(lab, "Compared")
    drawn = lab.figure(1)
    assert {"eager", "regional", "full"} <= set(drawn)
    # AND WHEN the slider is moved THEN the ranking is another at once, and the kernel measures nothing
    panel(lab).get_by_text("For 1,000 calls:").wait_for()
    panel(lab).locator(".noUi-handle").press("End")
    panel(lab).get_by_text("For 1,000,000 calls:").wait_for()
    assert lab.figure(1) == drawn
    lab.shoot("panel-compared", 1)
    # WHEN Restore is pressed THEN the model is as it was
    press(lab, "Restore")
    told(lab, "runs eager again")
    panel(lab).get_by_text("runs eager: not compiled").wait_for()
    lab.run(2)
    assert "NoneType" in lab.output(2).inner_text()
    # WHEN the page is loaded again THEN the controls and the figure are there, and the controls work
    lab.save("panel.ipynb")
    lab.reload()
    panel(lab).get_by_text("runs eager: not compiled").wait_for()
    assert lab.figure(1) == drawn
    press(lab, "Compile")
    told(lab, "Compiled in")
    panel(lab).get_by_text("For 1,000,000 calls:").wait_for()
    # AND the cell, run again, shows the report of what was done since
    lab.run(1)
    panel(lab).get_by_text("For 1,000 calls:").wait_for()
    assert "full" not in lab.figure(1)
    lab.shoot("panel-reloaded", 1)
    drawn = lab.figure(1)
    lab.save("panel.ipynb")
    # WHEN the saved notebook is opened with no kernel THEN the same figure is there; that the controls are not is told
    lab.server.stop_kernels()
    lab.known.append("widget model not found")
    lab.open("panel.ipynb", kernel=False)
    assert lab.figure(1) == drawn
    lab.shoot("panel-no-kernel", 1)


SLOW_BACKEND = """\
import time, threading
@torch._dynamo.register_backend
def slow(graph, inputs):
    time.sleep(600)
    return graph.forward"""

# libraries start threads of their own when something is compiled for the first time
BASELINE = """\
import nbcompile
nbcompile.compile_regions(Net(2), backend='aot_eager')(x)
before = set(threading.enumerate())"""

CHECK = """\
shape = nbcompile.compile_regions(model, backend='aot_eager')(x).shape
print('works', shape, {thread.name for thread in set(threading.enumerate()) - before})"""


def test_interrupt_stops_the_work_of_a_button(lab: Lab) -> None:
    # GIVEN a panel, and a backend that takes ten minutes
    lab.write("stop.ipynb", SETUP, SLOW_BACKEND, PANEL, BASELINE, CHECK)
    lab.open("stop.ipynb")
    for index in range(4):
        lab.run(index)
    choose(lab, "backend", "slow")
    for action, line in (("Compile", "first call (compiling)"), ("Compare", "start-up of the slow compiler")):
        # WHEN the kernel is interrupted while it compiles
        press(lab, action)
        told(lab, line)
        lab.interrupt()
        # THEN the panel says so, the model is as it was, and nothing but the kernel's own shows an error
        told(lab, f"{action} was interrupted. The model is as it was before.")
        panel(lab).get_by_text("runs eager: not compiled").wait_for()
        assert "Traceback" not in lab.output(2).inner_text()
    lab.shoot("panel-interrupted", 2)
    # AND the next cell works, and no thread is left
    lab.run(4)
    assert lab.output(4).inner_text().strip() == "works torch.Size([2, 4]) set()"


def test_two_panels_a_running_cell_and_a_closed_panel(lab: Lab) -> None:
    # GIVEN two panels of one model, and a cell that runs until a file is there
    flag = lab.server.notebooks / "go"
    first = "import nbcompile, pathlib, time\none = nbcompile.panel(model, step)\none"
    wait = "while not pathlib.Path('go').exists():\n    time.sleep(0.05)\nprint('cell done')"
    lab.write("two.ipynb", SETUP, first, PANEL, wait, "one.close(); print('closed')")
    lab.open("two.ipynb")
    for index in range(3):
        lab.run(index)
    one, two = panel(lab).first, panel(lab).last
    # WHEN a button of the first is pressed while the cell runs
    one.get_by_label("backend", exact=True).select_option(label="eager (debug)")
    lab.start(3)
    lab.page.locator("#jp-main-statusbar", has_text="| Busy").wait_for()
    one.get_by_role("button", name="Compile", exact=True).click()
    flag.touch()
    # THEN the cell ends, the work is done after it, and both panels show the state of the model
    lab.output(3).get_by_text("cell done").wait_for()
    one.locator(".nbc-message", has_text="Compiled in").wait_for()
    two.get_by_text("is compiled: regional, backend='eager'").wait_for()
    # AND WHEN the first is closed THEN the second goes on working
    lab.run(4)
    lab.page.wait_for_function("() => document.querySelectorAll('.nbc-panel').length === 1")
    press(lab, "Restore")
    told(lab, "runs eager again")


def test_error_is_told_in_words(lab: Lab) -> None:
    # GIVEN a step that fails
    lab.write("error.ipynb", SETUP, "def step():\n    raise KeyError('no batch')", PANEL, "print(model(x).shape)")
    lab.open("error.ipynb")
    for index in range(3):
        lab.run(index)
    choose(lab, "backend", "aot_eager (debug)")
    # WHEN Compile is pressed THEN the panel tells what went wrong, without a traceback
    press(lab, "Compile")
    told(lab, "Compile failed. KeyError: 'no batch'")
    assert "Traceback" not in lab.output(2).inner_text()
    lab.shoot("panel-error", 2)
    # AND the model runs
    lab.run(3)
    assert "torch.Size([2, 4])" in lab.output(3).inner_text()


@pytest.mark.inductor
def test_inductor_compiles_from_the_panel(lab: Lab) -> None:
    # GIVEN a panel with its settings as they come
    lab.write("inductor.ipynb", SETUP, PANEL)
    lab.open("inductor.ipynb")
    lab.run(0)
    lab.run(1)
    # WHEN Compile is pressed THEN the default compiler runs, and its report shows its phases
    lab.watch(lab.cell(1))
    press(lab, "Compile")
    told(lab, "Compiled in", seconds=180)
    assert any("first call (compiling)" in text for text in lab.seen())
    assert "Kernel compile (C++/Triton)" in lab.figure(1)


def test_panel_in_notebook_7(notebook_7: Lab) -> None:
    # GIVEN a panel in Notebook 7
    lab = notebook_7
    lab.known.append("Cannot read properties of undefined (reading 'schema')")  # Notebook's own, on any notebook
    lab.write("seven.ipynb", SETUP, PANEL)
    lab.open("seven.ipynb")
    lab.run(0)
    lab.run(1)
    # WHEN a backend is chosen and Compile pressed THEN the report is drawn
    choose(lab, "backend", "aot_eager (debug)")
    press(lab, "Compile")
    told(lab, "Compiled in")
    assert "layers" in lab.figure(1)
    lab.shoot("panel-notebook7", 1)
