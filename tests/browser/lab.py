"""What a user does in JupyterLab and sees there, as a test says it. Nothing here sleeps: it waits for the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat

SCREENSHOTS = Path(__file__).parents[2] / "out" / "screenshots"

THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}

#: Keys that come before the kernel is connected are dropped without a word, whatever the page shows by then.
_CONNECTED_AND_IDLE = """() => {
    const kernel = window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel;
    return kernel?.connectionStatus === 'connected' && kernel?.status === 'idle';
}"""

#: Collects each text that an element shows, from now on.
_WATCH = """(element) => {
    const seen = [];
    const look = () => { const text = element.innerText.trim(); if (text && seen.at(-1) !== text) seen.push(text); };
    new MutationObserver(look).observe(element, {childList: true, subtree: true, characterData: true});
    window.nbcompileSeen = seen;
}"""

#: Collects each state of an element's line of progress and bars, from now on.
_WATCH_BARS = """(element) => {
    window.nbcompileStates = [];
    window.nbcompileObserver?.disconnect();
    const look = () => {
        const line = element.querySelector('.nbc-progress')?.innerText ?? '';
        const bars = Array.from(element.querySelectorAll('.jp-RenderedHTML svg rect'));
        const state = {line, bars: bars.map((bar) => bar.getAttribute('width')).join(' ')};
        const last = window.nbcompileStates.at(-1);
        if (last?.line !== state.line || last?.bars !== state.bars) window.nbcompileStates.push(state);
    };
    window.nbcompileObserver = new MutationObserver(look);
    window.nbcompileObserver.observe(element, {childList: true, subtree: true, characterData: true});
}"""


class Lab:
    """A window of JupyterLab with one notebook in it."""

    where = "lab/tree"

    def __init__(self, page: Any, server: Any) -> None:
        self.page, self.server = page, server
        # What the console may say: more is given by the tests that bring it about. This comes on a busy machine now and
        # then, where an output is replaced while Lab still draws its last state; what is shown in the end is right.
        self.known: list[str] = ["Failed to execute 'removeChild' on 'Node'"]
        self._errors: list[str] = []
        page.on("console", lambda message: self._note(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self._note(f"uncaught: {error}\n{error.stack}"))

    def errors(self) -> list[str]:
        """What the browser's console has told of errors, but for those that the test expects, which are kept in a file.

        The file is for whoever looks for the cause of one that comes now and then.
        """
        expected = [text for text in self._errors if any(known in text for known in self.known)]
        if expected:
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            with (SCREENSHOTS / "known-errors.txt").open("a") as file:
                file.writelines(f"{text}\n\n" for text in expected)
        return [text for text in self._errors if text not in expected]

    def write(self, name: str, *cells: str) -> None:
        """Put a notebook where the server finds it."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, self.server.notebooks / name)

    def read(self, name: str) -> Any:
        """The notebook as it is saved."""
        return nbformat.read(self.server.notebooks / name, as_version=4)

    def open(self, name: str, *, kernel: bool = True) -> None:
        """Open a notebook in a window of its own workspace, with its kernel or without any."""
        self.page.goto(f"{self.server.url}/{self.where}/{name}?reset")
        self.page.locator(".jp-NotebookPanel .jp-Cell").first.wait_for()
        if kernel:
            self.wait_idle()

    def reload(self) -> None:
        """Load the page again, as F5 does."""
        self.page.reload()
        self.page.locator(".jp-NotebookPanel .jp-Cell").first.wait_for()
        self.wait_idle()

    def wait_idle(self, seconds: float = 60) -> None:
        """Wait until the kernel is there and has nothing to do."""
        self.page.wait_for_function(_CONNECTED_AND_IDLE, timeout=seconds * 1000)

    def cell(self, index: int) -> Any:
        """A cell."""
        return self.page.locator(".jp-NotebookPanel .jp-Cell").nth(index)

    def output(self, index: int) -> Any:
        """All that a cell shows."""
        return self.cell(index).locator(".jp-Cell-outputArea")

    def figure(self, index: int) -> list[str]:
        """The words and figures in a cell's chart, once it is drawn.

        From a saved notebook Plotly shows a picture at first, and draws the chart when the pointer comes near.
        """
        self.output(index).locator(".plot-container, .plot-img").locator("visible=true").first.wait_for()
        picture = self.output(index).locator(".plot-img").locator("visible=true")
        if picture.count():
            picture.scroll_into_view_if_needed()
            box = picture.bounding_box()
            if box is not None:  # else the chart has taken its place by now
                self.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
        self.output(index).locator(".plot-container .main-svg").first.wait_for()
        return list(self.output(index).locator(".main-svg text").all_text_contents())

    def start(self, index: int) -> None:
        """Run a cell by its keys, and do not wait."""
        self.cell(index).locator(".cm-content").click()
        self.page.keyboard.press("Shift+Enter")

    def run(self, index: int, seconds: float = 60) -> None:
        """Run a cell and wait until it has ended."""
        before = self.prompt(index)
        self.start(index)
        prompt = self.cell(index).locator(".jp-InputPrompt")
        done = re.compile(r"\[\d+\]:")
        self.page.wait_for_function(
            "([element, before]) => /\\[\\d+\\]:/.test(element.innerText) && element.innerText.trim() !== before",
            arg=[prompt.element_handle(), before],
            timeout=seconds * 1000,
        )
        assert done.search(self.prompt(index))
        self.wait_idle(seconds)

    def prompt(self, index: int) -> str:
        """What stands before a cell, such as ``[3]:``."""
        return str(self.cell(index).locator(".jp-InputPrompt").inner_text()).strip()

    def interrupt(self) -> None:
        """Press the notebook's own button that interrupts the kernel."""
        self.page.locator(".jp-NotebookPanel-toolbar [data-jp-item-name='interrupt']").click()

    def watch(self, element: Any) -> None:
        """Note from now on each text that an element shows; :meth:`seen` tells them."""
        element.evaluate(_WATCH)

    def seen(self) -> list[str]:
        """The texts that the watched element has shown."""
        return list(self.page.evaluate("() => window.nbcompileSeen"))

    def watch_bars(self, element: Any) -> None:
        """Note from now on each state of the live chart that an element shows; :meth:`bars` tells them."""
        if element is None:
            self.page.evaluate("() => window.nbcompileObserver.disconnect()")
        else:
            element.evaluate(_WATCH_BARS)

    def bars(self) -> list[dict[str, str]]:
        """The states that the watched element has shown: its ``line`` of progress, and the widths of its ``bars``."""
        return list(self.page.evaluate("() => window.nbcompileStates"))

    def save(self, name: str) -> None:
        """Save by keys, and wait until the file holds what the page shows."""
        before = (self.server.notebooks / name).stat().st_mtime_ns
        with self.page.expect_response(lambda r: r.request.method == "PUT" and f"/api/contents/{name}" in r.url):
            self.page.keyboard.press("Control+s")
        assert (self.server.notebooks / name).stat().st_mtime_ns > before

    def theme(self, name: str) -> None:
        """Change the theme to light or dark."""
        theme = THEMES[name]
        self.page.evaluate("(theme) => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", arg=theme)
        self.page.locator(f"body[data-jp-theme-name='{theme}']").wait_for(state="attached")

    def shoot(self, name: str, index: int) -> None:
        """Keep a picture of a cell in both themes, to be looked at."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        for theme in ("dark", "light"):
            self.theme(theme)
            if self.output(index).locator(".jp-RenderedPlotly").count():
                self.figure(index)
            self.page.locator("#jupyterlab-splash").wait_for(state="detached")  # it fades over the page at each change
            self.cell(index).screenshot(path=SCREENSHOTS / f"{name}-{theme}.png")

    def _note(self, text: str) -> None:
        self._errors.append(text)


class Notebook7(Lab):
    """A window of Notebook 7."""

    where = "notebooks"
