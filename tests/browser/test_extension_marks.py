"""The extension's marks on cells that recompiled, in JupyterLab and Notebook 7."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from nbcompile.render.mime import mime_bundle
from nbcompile.report import MIME_TYPE, Group, Recompile, Report
from tests.browser.conftest import SETTINGS
from tests.browser.lab import SCREENSHOTS, Lab
from tests.browser.test_extension_commands import MODEL

pytestmark = [pytest.mark.slow]

TRACKER = "@jupyterlab/notebook-extension/tracker"

#: Whether each cell with an output has one mark and no other has any: for notebooks whose outputs all recompiled.
RIGHT = """() => window.jupyterapp.shell.currentWidget.content.widgets.every(
    cell => cell.node.querySelectorAll('.nbcompile-Mark').length === (cell.model.outputs.length > 0 ? 1 : 0)
)"""


def report_of(count: int, reason: str = "x changed its size in dimension 0") -> Report:
    """A report of so many recompiles."""
    recompiles = [
        Recompile(f"layers.{n}", reason, "L['x'].size()[0] == 2", 0.5, str(n), str(n + 1), "pass dynamic=True")
        for n in range(count)
    ]
    return Report(model={"class_name": "Net"}, groups=[Group("layers", "Block", 3, compiled=3, recompiles=recompiles)])


def output(report: Report, *, short: bool = False) -> Any:
    """A cell's output: a report, or a few lines with the report in the metadata, as `%nbcompile marks on` gives."""
    if short:
        data, metadata = {"text/plain": "Net was compiled again"}, {MIME_TYPE: report.to_dict()}
    else:
        data, metadata = mime_bundle(report), {}
    return nbformat.v4.new_output("display_data", data=data, metadata=metadata)


def write(lab: Lab, name: str, *outputs: list[Any]) -> None:
    """A saved notebook whose cells have these outputs."""
    cells = [
        nbformat.v4.new_code_cell(f"cell = {number}", outputs=found, execution_count=number + 1)
        for number, found in enumerate(outputs)
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, lab.server.notebooks / name)


def marks(lab: Lab) -> dict[str, str]:
    """By a cell's text what its mark says, of the cells that are in the page."""
    found: dict[str, str] = lab.page.evaluate(
        """() => Object.fromEntries(window.jupyterapp.shell.currentWidget.content.widgets.flatMap(cell => {
            const marks = Array.from(cell.node.querySelectorAll('.nbcompile-Mark-button'), node => node.textContent);
            return marks.length ? [[cell.model.sharedModel.source, marks.join('|')]] : [];
        }))"""
    )
    return found


def wait_marks(lab: Lab, expected: dict[str, str]) -> None:
    """Wait until the cells have these marks and no others."""
    for _ in range(100):
        if marks(lab) == expected:
            return
        lab.page.wait_for_timeout(100)
    assert marks(lab) == expected


def execute(lab: Lab, command: str) -> None:
    lab.page.evaluate("command => window.jupyterapp.commands.execute(command)", arg=command)


def activate(lab: Lab, index: int) -> None:
    """Make a cell the active one, wherever it is."""
    lab.page.evaluate("n => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = n; }", arg=index)


def scroll_to(lab: Lab, index: int) -> None:
    """Make a cell the active one and bring it into view."""
    lab.page.evaluate(
        """async index => {
            const { content } = window.jupyterapp.shell.currentWidget;
            content.activeCellIndex = index;
            await content.scrollToItem(index, 'center');
        }""",
        arg=index,
    )


@pytest.fixture
def windowed(extended_server: Any) -> Iterator[None]:
    """Only the cells in view are in the page."""
    file = Path(extended_server.log).parent / "settings" / f"{TRACKER}.jupyterlab-settings"
    file.write_text(json.dumps({**SETTINGS[TRACKER], "windowingMode": "full"}))
    yield
    file.write_text(json.dumps(SETTINGS[TRACKER]))


def test_cells_are_marked_from_their_own_outputs(lab_with_extension: Lab) -> None:
    # GIVEN a saved notebook without a kernel: a report with recompiles, one without, a few lines, and nothing
    lab = lab_with_extension
    write(lab, "marks.ipynb", [output(report_of(3))], [output(report_of(0))], [output(report_of(1), short=True)], [])
    # WHEN it is opened THEN those cells are marked that recompiled
    lab.open("marks.ipynb", kernel=False)
    wait_marks(lab, {"cell = 0": "↻ 3 recompiles", "cell = 2": "↻ 1 recompile"})
    # AND below what the cell shows
    assert lab.cell(0).locator("> :last-child.nbcompile-Mark").count() == 1
    # AND the reasons are told on hover and, after a click, below
    button = lab.cell(2).locator(".nbcompile-Mark-button")
    assert "layers: x changed its size in dimension 0 (0 → 1)" in button.get_attribute("title")
    reasons = lab.cell(2).locator(".nbcompile-Mark-list")
    assert not reasons.is_visible()
    button.click()
    assert all(words in reasons.inner_text() for words in ("layers.0", "0 → 1", "pass dynamic=True"))
    lab.shoot("marks-open", 2)
    button.click()
    assert not reasons.is_visible()
    # AND to whoever comes by the keyboard, whose keys are not the notebook's
    lab.page.keyboard.press("Tab")
    button.focus()
    lab.page.keyboard.press("Enter")
    lab.page.keyboard.press("b")
    assert reasons.is_visible()
    assert len(lab.page.locator(".jp-NotebookPanel .jp-Cell").all()) == 4
    lab.shoot("marks-report", 0)


def test_marks_follow_their_cells(lab_with_extension: Lab) -> None:
    # GIVEN a marked cell between two others
    lab = lab_with_extension
    write(lab, "moved.ipynb", [], [output(report_of(2), short=True)], [])
    lab.open("moved.ipynb", kernel=False)
    wait_marks(lab, {"cell = 1": "↻ 2 recompiles"})
    # WHEN it is moved up THEN its mark is there too, once
    activate(lab, 1)
    execute(lab, "notebook:move-cell-up")
    wait_marks(lab, {"cell = 1": "↻ 2 recompiles"})
    assert lab.cell(0).locator(".nbcompile-Mark").count() == 1
    # AND WHEN it is copied THEN both are marked
    execute(lab, "notebook:duplicate-below")
    lab.page.wait_for_function("() => document.querySelectorAll('.nbcompile-Mark').length === 2")
    # AND WHEN one is deleted, and that is undone THEN there are as many marks as such cells
    execute(lab, "notebook:delete-cell")
    lab.page.wait_for_function("() => document.querySelectorAll('.nbcompile-Mark').length === 1")
    execute(lab, "notebook:undo-cell-action")  # Lab takes what was done within half a second back as one
    lab.page.wait_for_function("() => document.querySelectorAll('.nbcompile-Mark').length > 0")
    lab.page.wait_for_function(RIGHT)
    # AND WHEN the outputs are cleared THEN no mark is left
    execute(lab, "notebook:clear-all-cell-outputs")
    wait_marks(lab, {})


def test_a_cell_that_is_split_leaves_its_mark_with_its_output(lab_with_extension: Lab) -> None:
    # GIVEN a marked cell of two lines
    lab = lab_with_extension
    write(lab, "split.ipynb", [output(report_of(1), short=True)])
    lab.open("split.ipynb", kernel=False)
    wait_marks(lab, {"cell = 0": "↻ 1 recompile"})
    # WHEN it is split THEN as many cells are marked as have its output
    lab.cell(0).locator(".cm-content").click()
    lab.page.keyboard.press("Home")
    for _ in range(4):
        lab.page.keyboard.press("ArrowRight")
    execute(lab, "notebook:split-cell-at-cursor")
    lab.page.wait_for_function("() => window.jupyterapp.shell.currentWidget.content.widgets.length === 2")
    lab.page.wait_for_function(RIGHT)


def test_marks_in_a_windowed_notebook(windowed: None, lab_with_extension: Lab) -> None:
    # GIVEN a notebook of a hundred cells in which only those in view are in the page; the last two are marked
    lab = lab_with_extension
    cells: list[list[Any]] = [[nbformat.v4.new_output("stream", name="stdout", text="line\n" * 12)] for _ in range(98)]
    write(lab, "windowed.ipynb", *cells, [output(report_of(2), short=True)], [output(report_of(1), short=True)])
    lab.open("windowed.ipynb", kernel=False)
    assert lab.page.locator(".jp-NotebookPanel .jp-Cell").count() < 60
    assert lab.page.locator(".nbcompile-Mark").count() == 0
    # WHEN the last one comes into view THEN its mark is there, below its output
    scroll_to(lab, 99)
    last = lab.page.locator(".jp-Cell", has_text="cell = 99")
    last.locator(".nbcompile-Mark-button").wait_for()
    assert last.locator(".nbcompile-Mark").count() == 1
    below = last.evaluate(
        """node => node.querySelector('.nbcompile-Mark').getBoundingClientRect().top
            >= node.querySelector('.jp-OutputArea-output').getBoundingClientRect().bottom - 1"""
    )
    assert below
    # AND WHEN it is moved out of view to the top THEN it has its mark there
    lab.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.moveCell(99, 0)")
    scroll_to(lab, 0)
    first = lab.page.locator(".jp-Cell[data-windowed-list-index='0']")
    first.locator(".nbcompile-Mark-button").wait_for()
    assert "cell = 99" in first.inner_text()
    # AND WHEN it is scrolled away and back THEN there is still one
    scroll_to(lab, 60)
    first.wait_for(state="hidden")
    scroll_to(lab, 0)
    first.locator(".nbcompile-Mark-button").wait_for()
    assert first.locator(".nbcompile-Mark").count() == 1


def test_setting_takes_the_marks_away_at_once_and_brings_them_back(lab_with_extension: Lab) -> None:
    # GIVEN a marked cell
    lab = lab_with_extension
    write(lab, "off.ipynb", [output(report_of(1), short=True)])
    lab.open("off.ipynb", kernel=False)
    wait_marks(lab, {"cell = 0": "↻ 1 recompile"})
    # WHEN the setting is turned off THEN the mark is gone, and when it is turned on again it is there
    lab.page.evaluate(
        "() => { window.jupyterapp.commands.execute('settingeditor:open', {query: 'nbcompile: marks'}); }"
    )
    box = lab.page.locator(".jp-SettingsPanel input[id$='_enabled']")
    box.uncheck()
    lab.page.locator(".nbcompile-Mark").wait_for(state="detached")
    box.check()
    lab.page.locator(".nbcompile-Mark").wait_for(state="attached")


@pytest.mark.parametrize("front_end", ["lab_with_extension", "notebook_7_with_extension"])
def test_a_cell_that_recompiles_is_marked_and_after_a_reload_without_kernel_too(
    front_end: str, request: pytest.FixtureRequest
) -> None:
    # GIVEN a compiled model in a kernel that was asked for marks
    lab: Lab = request.getfixturevalue(front_end)
    lab.known.append("Cannot read properties of undefined (reading 'schema')")  # Notebook's own, on any notebook
    setup = f"{MODEL}\nimport nbcompile\n%load_ext nbcompile\n%nbcompile marks on"
    compiled = "nbcompile.compile_regions(model, backend='eager', dynamic=False)\ny = model(x)"
    lab.write("again.ipynb", setup, compiled, "y = model(torch.ones(3, 8))", "%nbcompile report model")
    lab.open("again.ipynb")
    lab.run(0)
    lab.run(1)
    # WHEN a cell runs it on another size THEN that cell is marked; so is one that shows the report
    lab.run(2)
    lab.cell(2).locator(".nbcompile-Mark-button", has_text="2 recompiles").wait_for()
    lab.run(3)
    lab.cell(3).locator(".nbcompile-Mark-button", has_text="2 recompiles").wait_for()
    assert lab.cell(1).locator(".nbcompile-Mark").count() == 0
    lab.cell(2).locator(".nbcompile-Mark-button").click()
    shoot(lab, f"marks-{lab.where.split('/')[0]}")
    # AND WHEN it is run again, which compiles nothing THEN the mark is gone
    lab.run(2)
    lab.page.wait_for_function("() => document.querySelectorAll('.nbcompile-Mark').length === 1")
    # AND WHEN the page is loaded again with no kernel THEN the marks are those of the saved outputs
    lab.save("again.ipynb")
    lab.server.stop_kernels()
    lab.open("again.ipynb", kernel=False)
    lab.cell(3).locator(".nbcompile-Mark-button", has_text="2 recompiles").wait_for()
    assert lab.page.locator(".nbcompile-Mark").count() == 1


def shoot(lab: Lab, name: str) -> None:
    """Keep a picture of the whole window in both themes, to be looked at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for theme in ("dark", "light"):
        lab.theme(theme)
        lab.page.locator("#jupyterlab-splash").wait_for(state="detached")
        lab.page.screenshot(path=SCREENSHOTS / f"{name}-{theme}.png")
