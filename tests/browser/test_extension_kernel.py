"""The extension and the kernel, in a real browser: the live status, the side bar, and a cancel that works."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.browser.lab import SCREENSHOTS, Lab

pytestmark = [pytest.mark.slow]

SETUP = """\
import os, time, torch
from tests.blocks import Block, NumberedBlock, net, ran_eager, rows
model, x = net(12, NumberedBlock).requires_grad_(False), rows()
@torch._dynamo.register_backend
def slow(graph, inputs):
    end = time.monotonic() + 1.5 * (len(inputs) > 1)  # not for the trivial function of the start-up
    while time.monotonic() < end and not os.path.exists("seen-enough"):
        time.sleep(0.05)
    return graph.forward"""
LOAD = "%load_ext nbcompile"
MAGIC = "%%compile_regional model --backend {} -n 1 -r 1\ny = model(x)"
EAGER = "print('blocks that ran eager:', ran_eager(model, x))"


def status(lab: Lab) -> Any:
    """The item in the status bar."""
    return lab.page.locator(".nbcompile-Status")


def side_bar(lab: Lab) -> Any:
    return lab.page.locator("#nbcompile-sidebar")


def open_side_bar(lab: Lab) -> Any:
    """Open it as a user does, by the item in the status bar, if it is not open."""
    if side_bar(lab).is_hidden():
        status(lab).click()
    side_bar(lab).wait_for()
    return side_bar(lab)


def says(lab: Lab, element: Any, words: str | re.Pattern[str], seconds: float = 30) -> None:
    """Wait until an element shows these words."""
    element.filter(has_text=words).first.wait_for(timeout=seconds * 1000)


def shoot(lab: Lab, name: str) -> None:
    """Keep a picture of the page in both themes, to be looked at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for theme in ("dark", "light"):
        lab.theme(theme)
        lab.page.locator("#jupyterlab-splash").wait_for(state="detached")  # Lab fades it in and out
        lab.page.screenshot(
            path=SCREENSHOTS / f"{name}-{theme}.png", clip={"x": 0, "y": 0, "width": 1200, "height": 900}
        )
        lab.page.locator("#jp-main-statusbar").screenshot(path=SCREENSHOTS / f"{name}-bar-{theme}.png")


def opened(lab: Lab, name: str, *cells: str) -> None:
    """A notebook whose first cells, that make a model and load the extension, have run."""
    lab.write(name, SETUP, LOAD, *cells)
    lab.open(name)
    lab.run(0)
    lab.run(1)
    says(lab, status(lab), "nothing compiled")


def test_status_moves_while_a_cell_compiles(lab_with_extension: Lab) -> None:
    # GIVEN a notebook with the extension loaded, and its side bar open
    lab = lab_with_extension
    opened(lab, "live.ipynb", MAGIC.format("slow"))
    bar = open_side_bar(lab)
    says(lab, bar.locator(".nbcompile-model"), "Plan: 12 blocks in 1 group")
    shoot(lab, "sidebar-new")
    # WHEN a cell compiles
    lab.watch(status(lab))
    lab.start(2)
    says(lab, bar.locator(".nbcompile-work"), "layers.2")
    begun, before = time.monotonic(), len(lab.seen())
    shoot(lab, "sidebar-working")
    lab.page.wait_for_timeout(3000)
    taken, lines = time.monotonic() - begun, lab.seen()[before:]
    # THEN the item changes all the time (thrice a second and more where nothing else runs), with what it knows
    assert len(lines) >= taken, lines
    form = re.compile(r"regional · slow · \d+ of 12 regions · [\d.]+ s · 0 recompiles")
    assert all(form.fullmatch(line) for line in lines), lines
    # AND Lab goes on saying that the kernel is busy
    assert (
        lab.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status") == "busy"
    )
    # AND at the end both say what was compiled, and the run is in the history
    enough = lab.server.notebooks / "seen-enough"
    enough.touch()
    try:
        lab.wait_idle()
    finally:
        enough.unlink()
    says(lab, status(lab), re.compile(r"regional · slow · 12 of 12 regions · .* s · 0 recompiles"))
    assert bar.locator(".nbcompile-work").is_hidden()
    says(lab, bar.locator(".nbcompile-model"), "Compiled: regional, slow: 12 of 12 regions compiled in")
    says(lab, bar.locator(".nbcompile-run"), re.compile(r"\[3\].*compared Net"))
    shoot(lab, "sidebar-done")


@pytest.mark.parametrize("backend", ["slow", pytest.param("inductor", marks=pytest.mark.inductor)])
def test_cancel_during_a_compile(lab_with_extension: Lab, backend: str) -> None:
    # GIVEN a cell that compiles
    lab = lab_with_extension
    opened(lab, "cancel.ipynb", MAGIC.format(backend), EAGER)
    bar = open_side_bar(lab)
    lab.start(2)
    says(
        lab,
        bar.locator(".nbcompile-work"),
        re.compile(r"layers\.\d+ · Backend") if backend == "slow" else "Kernel compile",
        60,
    )
    # WHEN Cancel is pressed THEN the side bar says soon what was stopped, and the cell ends
    begun = time.monotonic()
    bar.get_by_role("button", name="Cancel").click()
    says(lab, bar.locator(".nbcompile-message"), "Compile was interrupted", 20)
    lab.cell(2).locator(".jp-InputPrompt", has_text=re.compile(r"\[\d+\]:")).wait_for(timeout=20_000)
    print(f"cancelled in {time.monotonic() - begun:.2f} s")  # 1 to 2 s where nothing else runs
    assert "KeyboardInterrupt" in lab.output(2).inner_text()
    shoot(lab, f"sidebar-cancelled-{backend}")
    # AND the kernel answers, and the model runs eager
    lab.run(3)
    assert "blocks that ran eager: 12" in lab.output(3).inner_text()
    says(lab, status(lab), "nothing compiled")


def test_compile_and_restore_from_the_side_bar(lab_with_extension: Lab) -> None:
    # GIVEN the side bar of a notebook with a model, and one of which nothing repeats
    lab = lab_with_extension
    call = "y = model(x)"
    opened(lab, "buttons.ipynb", "single = torch.nn.Sequential(torch.nn.Linear(2, 2))", call, EAGER, "time.sleep(3)")
    bar = open_side_bar(lab)
    lab.run(2)
    card = bar.get_by_label("model model", exact=True)
    # THEN what this machine cannot do cannot be chosen, and says why
    mode = card.get_by_label("Mode").locator("option", has_text="reduce-overhead")
    assert mode.is_disabled()
    assert "no CUDA device" in mode.inner_text()
    single = bar.get_by_label("model single", exact=True)
    single.wait_for()
    assert single.get_by_label("Strategy").locator("option", has_text="regional").is_disabled()
    assert single.get_by_label("Strategy").input_value() == "full"
    # WHEN a backend without modes is chosen, and Compile pressed
    card.get_by_label("Backend").select_option("aot_eager")
    assert card.get_by_label("Mode").is_disabled()
    card.get_by_role("button", name="Compile").click()
    # THEN the model compiles at its next call
    says(lab, bar.locator(".nbcompile-message"), "The model is prepared; it compiles at its next call.")
    says(lab, card, "Compiled: regional, aot_eager: compiles at the next call")
    lab.run(3)
    says(lab, card, "12 of 12 regions compiled")
    says(lab, status(lab), "regional · aot_eager · 12 of 12 regions")
    card.locator("summary").click()
    shoot(lab, "sidebar-compiled")
    # WHEN Restore is pressed while a cell runs THEN it is done once the cell has ended
    lab.start(5)
    says(lab, lab.page.locator("#jp-main-statusbar"), "| Busy")
    card.get_by_role("button", name="Restore").click()
    says(lab, bar.locator(".nbcompile-work"), "Restore of model waits for the running cell")
    says(lab, bar.locator(".nbcompile-message"), "runs eager again")
    says(lab, card, "Runs eager: not compiled.")
    lab.run(4)
    assert "blocks that ran eager: 12" in lab.output(4).inner_text()


def test_cancel_leaves_the_users_own_cell_alone(lab_with_extension: Lab) -> None:
    # GIVEN a cell of the user's own
    lab = lab_with_extension
    opened(lab, "own.ipynb", "time.sleep(3); print('to its end')")
    lab.start(2)
    says(lab, lab.page.locator("#jp-main-statusbar"), "| Busy")
    # WHEN the command is asked for THEN it cannot be had, and the cell goes on
    assert lab.page.evaluate("() => window.jupyterapp.commands.isEnabled('nbcompile:cancel')") is False
    lab.output(2).get_by_text("to its end").wait_for()


def test_kernel_without_the_extension_restart_and_reload(lab_with_extension: Lab) -> None:
    # GIVEN a kernel in which nothing is loaded
    lab = lab_with_extension
    compiled = "import nbcompile; nbcompile.compile_regions(model, backend='eager'); y = model(x)"
    lab.write("states.ipynb", SETUP, LOAD, compiled, "%unload_ext nbcompile")
    lab.open("states.ipynb")
    lab.run(0)
    # THEN the item is not there, and the side bar says what to do
    assert status(lab).is_hidden()
    lab.page.evaluate("() => window.jupyterapp.commands.execute('nbcompile:open-sidebar')")
    bar = side_bar(lab)
    says(lab, bar.locator(".nbcompile-hint"), "Run in a cell: %load_ext nbcompile")
    shoot(lab, "sidebar-absent")
    # WHEN it is loaded THEN both are there at once
    lab.run(1)
    says(lab, status(lab), "nothing compiled")
    says(lab, bar.locator(".nbcompile-model"), "Runs eager: not compiled.")
    lab.run(2)
    says(lab, status(lab), "regional · eager · 12 of 12 regions")
    # WHEN the page is loaded again THEN the state is the kernel's
    lab.save("states.ipynb")
    lab.reload()
    says(lab, status(lab), "regional · eager · 12 of 12 regions")
    says(lab, open_side_bar(lab).locator(".nbcompile-model"), "Compiled: regional, eager")
    # WHEN the extension is unloaded THEN the item goes
    lab.run(3)
    status(lab).wait_for(state="hidden")
    lab.run(1)
    says(lab, status(lab), "regional · eager · 12 of 12 regions")
    # WHEN the kernel is restarted THEN nothing is loaded, until it is again
    lab.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
    says(lab, side_bar(lab).locator(".nbcompile-hint"), "Run in a cell: %load_ext nbcompile")
    assert status(lab).is_hidden()
    assert side_bar(lab).locator(".nbcompile-model").count() == 0
    lab.wait_idle()
    lab.start(0)
    lab.start(1)
    says(lab, status(lab), "nothing compiled")
    # AND WHEN the kernel dies THEN the same
    lab.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.shutdown()")
    status(lab).wait_for(state="hidden")


def test_page_that_is_loaded_again_during_a_compile(lab_with_extension: Lab) -> None:
    # GIVEN a cell that compiles WHEN the page is loaded again
    lab = lab_with_extension
    opened(lab, "reload.ipynb", MAGIC.format("slow"))
    lab.save("reload.ipynb")
    lab.start(2)
    says(lab, status(lab), "1 of 12 regions")
    lab.page.reload()
    # THEN the item shows what goes on in the kernel, and Cancel works
    says(lab, status(lab), re.compile(r"regional · slow · [2-9] of 12 regions"))
    bar = open_side_bar(lab)
    bar.get_by_role("button", name="Cancel").click()
    says(lab, bar.locator(".nbcompile-message"), "was interrupted", 3)
    says(lab, status(lab), "nothing compiled")
    says(lab, bar.locator(".nbcompile-model"), "Runs eager: not compiled.")


def test_two_notebooks_and_a_console(lab_with_extension: Lab) -> None:
    # GIVEN two notebooks of which one has compiled a model
    lab = lab_with_extension
    compiled = "import nbcompile; nbcompile.compile_regions(model, backend='eager'); y = model(x)"
    lab.write("second.ipynb", SETUP, LOAD, "other = net(2)")
    opened(lab, "first.ipynb", compiled)
    lab.run(2)
    bar = open_side_bar(lab)
    says(lab, status(lab), "regional · eager · 12 of 12 regions")
    lab.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:open', {path: 'second.ipynb'})")
    # WHEN the other is opened, whose kernel has nothing loaded THEN that is what is shown
    says(lab, bar.locator(".nbcompile-hint"), "%load_ext nbcompile")
    says(lab, bar.locator(".nbcompile-where"), "second.ipynb")
    lab.wait_idle()
    execute = (
        "([code]) => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute({code}).done"
    )
    for code in (SETUP, LOAD, "other = net(2)"):
        lab.page.evaluate(execute, [code])
    says(lab, bar.locator(".nbcompile-model").last, "other")
    says(lab, status(lab), "nothing compiled")
    # AND WHEN the first is shown again THEN its own state is
    lab.page.locator(".lm-TabBar-tab", has_text="first.ipynb").click()
    says(lab, status(lab), "regional · eager · 12 of 12 regions")
    says(lab, bar.locator(".nbcompile-where"), "first.ipynb")
    bar.get_by_label("model other", exact=True).wait_for(state="detached")
    # WHEN a console is opened for the first notebook's kernel THEN it shows that kernel
    lab.page.evaluate("() => window.jupyterapp.commands.execute('notebook:create-console')")
    says(lab, bar.locator(".nbcompile-where"), re.compile("Console|first"))
    says(lab, status(lab), "regional · eager · 12 of 12 regions")
    # AND WHEN all are closed THEN nothing is shown
    lab.page.evaluate("() => window.jupyterapp.commands.execute('application:close-all')")


def test_history_leads_to_the_cell(lab_with_extension: Lab) -> None:
    # GIVEN a long notebook with two runs, saved, and opened without a kernel
    lab = lab_with_extension
    compare = 'nbcompile.compare(model, lambda: model(x), ["eager", "regional"], backend="eager", rounds=1, calls=1)'
    opened(lab, "runs.ipynb", "import nbcompile", compare, *["pass\n" * 40] * 6, MAGIC.format("eager"))
    for index in (2, 3, 10):
        lab.run(index)
    lab.save("runs.ipynb")
    lab.server.stop_kernels()
    lab.open("runs.ipynb", kernel=False)
    lab.page.evaluate("() => window.jupyterapp.commands.execute('nbcompile:open-sidebar')")
    # THEN the side bar lists them, with their figures
    runs = side_bar(lab).locator(".nbcompile-run")
    says(lab, runs.first, re.compile(r"\[4\].*compared Net.*eager.*regional", re.DOTALL))
    assert runs.count() == 2
    assert re.search(r"\d (s|ms|µs)", runs.last.inner_text())
    shoot(lab, "sidebar-runs")
    # AND WHEN one is pressed THEN its cell is in view
    runs.last.click()
    lab.page.wait_for_function("() => window.jupyterapp.shell.currentWidget.content.activeCellIndex === 10")
    box = lab.cell(10).bounding_box()
    assert box is not None
    assert 0 <= box["y"] < 2000


def test_side_bar_in_notebook_7(notebook_7_with_extension: Lab) -> None:
    # GIVEN Notebook 7, which has no status bar
    lab = notebook_7_with_extension
    lab.known.append("Cannot read properties of undefined (reading 'schema')")  # Notebook's own, on any notebook
    lab.write("seven.ipynb", SETUP, LOAD)
    lab.open("seven.ipynb")
    lab.run(0)
    lab.run(1)
    # WHEN the side bar is opened THEN it works all the same
    lab.page.evaluate("() => window.jupyterapp.commands.execute('nbcompile:open-sidebar')")
    card = side_bar(lab).get_by_label("model model", exact=True)
    card.wait_for()
    card.get_by_label("Backend").select_option("aot_eager")
    card.get_by_role("button", name="Compile").click()
    says(lab, side_bar(lab).locator(".nbcompile-message"), "it compiles at its next call")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    lab.page.screenshot(path=SCREENSHOTS / "sidebar-notebook7.png")
