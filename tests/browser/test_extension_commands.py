"""The extension's commands in JupyterLab and Notebook 7: what they write runs as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.lab import SCREENSHOTS, Lab

pytestmark = [pytest.mark.slow]

MODEL = """\
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
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
model, x = Net(3), torch.ones(2, 8)"""

STEP = """
@torch.no_grad()
def step():
    return model(x)"""

#: Quick to compile, and quick to measure.
QUICK = {"backend": "aot_eager", "rounds": 2, "calls": 10, "budget": 20, "strategies": "eager, regional"}

SOURCES = (
    """() => Array.from(window.jupyterapp.shell.currentWidget.content.widgets, cell => cell.model.sharedModel.source)"""
)


@pytest.fixture
def quick(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Settings of the commands in which a cell takes no time, in the files of the server that a test uses."""
    servers = [name for name in ("extended_server", "extended_notebook_server") if name in request.fixturenames]
    folders = [Path(request.getfixturevalue(name).log).parent / "settings" / "nbcompile" for name in servers]
    for folder in folders:
        folder.mkdir(exist_ok=True)
        (folder / "commands.jupyterlab-settings").write_text(json.dumps(QUICK))
    yield QUICK
    for folder in folders:
        (folder / "commands.jupyterlab-settings").unlink()


def sources(lab: Lab) -> list[str]:
    """The cells' texts, also of those that are not drawn."""
    return list(lab.page.evaluate(SOURCES))


def execute(lab: Lab, command: str) -> None:
    """Give a command, as the palette does, and wait until it is done or asks something."""
    lab.page.evaluate("command => { window.jupyterapp.commands.execute(command); }", arg=command)


def written(lab: Lab, count: int) -> list[str]:
    """Wait until there are so many cells; their texts."""
    lab.page.wait_for_function(f"count => ({SOURCES})().length === count", arg=count)
    return sources(lab)


def run_active(lab: Lab, index: int, seconds: float = 90) -> str:
    """Run the cell that was written; what it shows. It must not fail."""
    lab.run(index, seconds)
    assert not lab.output(index).locator("[data-mime-type='application/vnd.jupyter.stderr']").count()
    assert not lab.output(index).get_by_text("Error").count(), lab.output(index).inner_text()
    return str(lab.output(index).inner_text())


def dialog(lab: Lab) -> Any:
    """The dialog that is open."""
    return lab.page.locator(".jp-Dialog")


def shoot(lab: Lab, name: str) -> None:
    """Keep a picture of the whole window in both themes, to be looked at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for theme in ("dark", "light"):
        lab.theme(theme)
        lab.page.locator("#jupyterlab-splash").wait_for(state="detached")  # it fades over the page at each change
        lab.page.screenshot(path=SCREENSHOTS / f"{name}-{theme}.png")


@pytest.mark.parametrize(
    ("command", "shows"),
    [
        ("insert-plan", "layers"),
        ("insert-compile", "layers"),
        ("insert-compare", "regional"),
        ("insert-tune", "eager"),
        ("insert-panel", "runs eager"),
        ("insert-restore", "Net runs uncompiled again"),
    ],
)
def test_inserted_cell_runs_as_it_is(quick: dict[str, Any], lab_with_extension: Lab, command: str, shows: str) -> None:
    # GIVEN a notebook with a model and a step, in a kernel that has not loaded nbcompile
    lab = lab_with_extension
    name = f"{command}.ipynb"
    lab.write(name, MODEL + STEP, "import nbcompile; _ = nbcompile.compile_regions(model, backend='eager')")
    lab.open(name)
    lab.run(0)
    if command == "insert-restore":
        lab.run(1)
    # WHEN the command is given and its cell is run
    cells = len(sources(lab))
    execute(lab, f"nbcompile:{command}")
    index = next(n for n, text in enumerate(written(lab, cells + 1)) if text.startswith("%load_ext nbcompile"))
    text = run_active(lab, index)
    # THEN it does what it is for
    assert shows in text
    # AND WHEN the command is given again THEN what is loaded is not loaded again
    cells = len(sources(lab))
    execute(lab, f"nbcompile:{command}")
    assert sum("%load_ext" in source for source in written(lab, cells + 1)) == 1
    # AND the kernel counts only the cells
    assert lab.prompt(index) == ("[3]:" if command == "insert-restore" else "[2]:")


def test_toolbar_button_compiles_the_cells_step(quick: dict[str, Any], lab_with_extension: Lab) -> None:
    # GIVEN a notebook whose second cell runs a model
    lab = lab_with_extension
    lab.write(
        "step.ipynb", MODEL, "y = model(x)", "print(y.shape, len(In), [name for name in dir() if 'names' in name])"
    )
    lab.open("step.ipynb")
    lab.run(0)
    lab.cell(1).locator(".cm-content").click()
    # WHEN the toolbar's button is pressed
    button = lab.page.locator(".jp-NotebookPanel-toolbar [data-jp-item-name='nbcompile']")
    assert "Compile the model that this cell runs" in button.evaluate("node => node.outerHTML")
    button.click()
    # THEN the cell is the step of a magic with what is set, and a cell above loads it
    texts = written(lab, 4)
    assert texts[1] == "%load_ext nbcompile"
    assert texts[2] == "%%compile_regional model --backend aot_eager --compare eager -r 2\ny = model(x)"
    shoot(lab, "commands-step")
    # AND both run, and what the cell assigns is there; being asked left no trace in the kernel
    run_active(lab, 1)
    assert "regional" in run_active(lab, 2)
    lab.run(3)
    assert "torch.Size([2, 8]) 5 []" in lab.output(3).inner_text()


def test_one_undo_takes_a_step_back(lab_with_extension: Lab) -> None:
    # GIVEN a cell that was made a step, with a cell above it
    lab = lab_with_extension
    lab.write("undo.ipynb", MODEL, "y = model(x)", "print(y)")
    lab.open("undo.ipynb")
    lab.run(0)
    execute(lab, "nbcompile:compile-step")
    written(lab, 4)
    # WHEN it is undone THEN the cell is as it was, and the other one is gone
    execute(lab, "notebook:undo-cell-action")
    assert written(lab, 3)[1] == "y = model(x)"


def test_commands_are_in_the_menu_and_the_palette(lab_with_extension: Lab) -> None:
    # GIVEN a notebook
    lab = lab_with_extension
    lab.write("menu.ipynb", MODEL)
    lab.open("menu.ipynb")
    # WHEN the Run menu is opened THEN the commands are there, and can be chosen
    lab.page.get_by_role("menuitem", name="Run", exact=True).click()
    lab.page.locator(".lm-Menu-item", has_text="Compile with nbcompile").hover()
    item = lab.page.locator(".lm-Menu-item[data-command='nbcompile:insert-plan']")
    item.wait_for()
    assert "lm-mod-disabled" not in (item.get_attribute("class") or "")
    shoot(lab, "commands-menu")
    lab.page.keyboard.press("Escape")
    lab.page.keyboard.press("Escape")
    # AND WHEN the palette is opened THEN they are there in their own group
    execute(lab, "apputils:activate-command-palette")
    lab.page.locator(".lm-CommandPalette-input").fill("nbcompile insert")
    lab.page.locator(".lm-CommandPalette-item[data-command='nbcompile:insert-tune']").wait_for()
    lab.page.screenshot(path=SCREENSHOTS / "commands-palette.png")  # a change of the theme closes it


def test_without_a_model_it_is_said_what_is_needed(lab_with_extension: Lab) -> None:
    # GIVEN a kernel in which nothing was run
    lab = lab_with_extension
    lab.write("none.ipynb", "y = model(x)")
    lab.open("none.ipynb")
    # WHEN a command needs a model THEN it says so, and writes nothing
    execute(lab, "nbcompile:compile-step")
    dialog(lab).get_by_text("There is no model in this kernel").wait_for()
    shoot(lab, "commands-no-model")
    dialog(lab).get_by_role("button", name="OK").click()
    assert sources(lab) == ["y = model(x)"]


def test_of_two_models_the_user_chooses(lab_with_extension: Lab) -> None:
    # GIVEN two models and no function that runs one
    lab = lab_with_extension
    lab.write("two.ipynb", MODEL + "\nother = Net(2)")
    lab.open("two.ipynb")
    lab.run(0)
    # WHEN something is to be compared THEN it is asked which, and for the step
    execute(lab, "nbcompile:insert-compare")
    dialog(lab).get_by_text("more than one model").wait_for()
    shoot(lab, "commands-names")
    dialog(lab).get_by_label("Model", exact=True).fill("other")
    dialog(lab).get_by_label("Step").fill("lambda: other(x)")
    dialog(lab).get_by_role("button", name="Insert").click()
    # THEN the cell has what was said
    lab.page.wait_for_function(f"() => ({SOURCES})().some(text => text.includes('compare(other, lambda: other(x), '))")


def test_a_busy_kernel_is_not_waited_for(lab_with_extension: Lab) -> None:
    # GIVEN a kernel that is busy with a cell; a question of the side bar makes it so for a moment, too
    lab = lab_with_extension
    lab.write("busy.ipynb", "import time\nprint('begun')\nfor _ in range(600): time.sleep(0.1)")
    lab.open("busy.ipynb")
    lab.start(0)
    lab.output(0).get_by_text("begun").wait_for()
    # WHEN a cell is inserted THEN the names are asked for at once, and the cell is there while the kernel is busy
    execute(lab, "nbcompile:insert-plan")
    dialog(lab).get_by_text("The kernel is busy").wait_for(timeout=10_000)  # the cell takes a minute
    dialog(lab).get_by_label("Model", exact=True).fill("pipe.unet")
    lab.page.keyboard.press("Enter")
    lab.page.wait_for_function(f"() => ({SOURCES})().includes('%load_ext nbcompile\\n%nbcompile plan pipe.unet')")
    assert lab.prompt(0) == "[*]:"
    lab.interrupt()
    lab.wait_idle()


def test_load_runs_once_and_a_cell_with_a_magic_is_refused(lab_with_extension: Lab) -> None:
    # GIVEN a notebook
    lab = lab_with_extension
    lab.write("load.ipynb", MODEL, "%%time\nmodel(x)")
    lab.open("load.ipynb")
    lab.run(0)
    # WHEN nbcompile is loaded THEN a cell does it
    execute(lab, "nbcompile:load")
    lab.page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.content.widgets.some(cell => "
        "cell.model.sharedModel.source === '%load_ext nbcompile' && cell.model.executionCount === 2)"
    )
    # AND a second time it says that it is loaded
    execute(lab, "nbcompile:load")
    dialog(lab).get_by_text("is loaded in this kernel already").wait_for()
    dialog(lab).get_by_role("button", name="OK").click()
    # AND WHEN a cell with a magic of its own shall be a step THEN it is said why it cannot
    lab.page.locator(".jp-Cell", has_text="%%time").locator(".cm-content").click()
    execute(lab, "nbcompile:compile-step")
    dialog(lab).get_by_text("begins with %%time").wait_for()
    dialog(lab).get_by_role("button", name="OK").click()


def test_commands_are_disabled_where_there_is_no_notebook(lab_with_extension: Lab) -> None:
    # GIVEN a notebook, in which the commands are enabled
    lab = lab_with_extension
    lab.write("console.ipynb", MODEL)
    lab.open("console.ipynb")
    enabled = "() => window.jupyterapp.commands.isEnabled('nbcompile:insert-plan')"
    lab.page.wait_for_function(enabled)
    # WHEN a console is in front THEN they are disabled
    lab.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:create-console'); }")
    lab.page.locator(".jp-CodeConsole").wait_for()
    lab.page.wait_for_function("() => !window.jupyterapp.commands.isEnabled('nbcompile:insert-plan')")
    assert not lab.page.evaluate("() => window.jupyterapp.commands.isEnabled('nbcompile:compile-step')")


def test_settings_change_what_is_written_at_once(lab_with_extension: Lab) -> None:
    # GIVEN a model in a window that is open
    lab = lab_with_extension
    lab.write("settings.ipynb", MODEL)
    lab.open("settings.ipynb")
    lab.run(0)
    # WHEN a setting is changed in Lab's editor of settings
    lab.page.evaluate("() => { window.jupyterapp.commands.execute('settingeditor:open', {query: 'nbcompile'}); }")
    editor = lab.page.locator(".jp-SettingsPanel")
    editor.locator("select[id$='_rest']").select_option(label="compile")
    shoot(lab, "commands-settings")
    lab.page.locator(".lm-TabBar-tab", has_text="settings.ipynb").first.click()
    # THEN the next cell has it
    execute(lab, "nbcompile:insert-plan")
    lab.page.wait_for_function(
        f"() => ({SOURCES})().some(text => text.endsWith('%nbcompile plan model --rest compile'))"
    )


def test_commands_in_notebook_7(quick: dict[str, Any], notebook_7_with_extension: Lab) -> None:
    # GIVEN a notebook in Notebook 7
    lab = notebook_7_with_extension
    lab.known.append("Cannot read properties of undefined (reading 'schema')")  # Notebook's own, on any notebook
    lab.write("seven.ipynb", MODEL, "y = model(x)")
    lab.open("seven.ipynb")
    lab.run(0)
    lab.cell(1).locator(".cm-content").click()
    # WHEN the menu is opened THEN the commands are there
    lab.page.get_by_role("menuitem", name="Run", exact=True).click()
    lab.page.locator(".lm-Menu-item", has_text="Compile with nbcompile").hover()
    lab.page.locator(".lm-Menu-item[data-command='nbcompile:insert-plan']").wait_for()
    shoot(lab, "commands-menu-notebook-7")
    # AND WHEN one is chosen there THEN its cell is written, and runs
    lab.page.locator(".lm-Menu-item[data-command='nbcompile:compile-step']").click()
    assert written(lab, 3)[2].startswith("%%compile_regional model --backend aot_eager")
    run_active(lab, 1)
    assert "regional" in run_active(lab, 2)
    # AND the toolbar has its button
    lab.page.locator(".jp-NotebookPanel-toolbar [data-jp-item-name='nbcompile']").wait_for()
