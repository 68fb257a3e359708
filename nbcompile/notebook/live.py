"""The one output of a cell: charts and a line that move while the work goes on, and in their place the report.

In a kernel a thread of its own looks at the work up to ten times a second and replaces the output, so that it moves
also while the main thread is inside of the compiler. What is shown first is published by the cell itself; front ends
then find the output by its id, whichever cell runs by then. The thread publishes in a copy of the cell's context, as
ipykernel 7 keeps the cell that an output belongs to in a context variable (ipykernel 6 in the publisher itself).

Everywhere else (a terminal, a captured output) each stage is a line, printed by the work itself as it begins.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from .. import progress
from ..interrupts import delivered_safely
from ..progress import Progress
from .output import CellOutput

if TYPE_CHECKING:
    from ..render.mime import LiveBundle
    from ..report import Report, Strategy
    from ..sweep import Sweep

#: Seconds between two states of the line, and between two drawings of the charts, at the least.
_LINE_EVERY = 0.1
_CHARTS_EVERY = 0.5

#: The longest pause. A garbage collection may run in the thread by chance, and is not what its drawing costs.
_LONGEST_PAUSE = 0.4

#: The share of one core that the thread may take, and the bytes a second that it may send: a server passes a kernel's
#: outputs on at up to a million (jupyter_server's iopub_data_rate_limit), and the way to the browser may be long.
_MOST_OF_A_CORE = 0.02
_MOST_BYTES = 250_000


class Live:
    """An output that moves while work is done.

    The work is done inside of ``with live.working:`` and is given ``live.progress``. Afterwards :meth:`report` or
    :meth:`end` puts the last state there. One ``Live`` is for one piece of work.

    Args:
        output: where to show it, if that is there already.
        on_stage: called with the line of each stage, in the work's thread.

    Attributes:
        progress: what the work fills.
        working: the context for the work. It is a plain lock, which is released by the interpreter itself, so no
            interrupt can come between the end of the work and that of the thread that waits for it.
    """

    def __init__(
        self,
        shell: Any,
        *,
        quiet: bool = False,
        output: CellOutput | None = None,
        on_stage: Callable[[str], None] | None = None,
    ) -> None:
        self._output = CellOutput(shell, quiet=quiet) if output is None else output
        self._on_stage = on_stage
        self._ended = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.progress = Progress(self._stage, watched=self._output.in_kernel and not quiet)
        self._drawn: LiveBundle | None = None
        self._drawn_at = self._shown_at = 0.0
        self._figures: dict[str, Strategy] = {}
        self._timing = False
        self._shown: dict[str, Any] = {}

    @property
    def working(self) -> AbstractContextManager[Any]:
        return self._lock

    def report(self, report: Report | Sweep) -> None:
        """Show a finished report, or all those of a sweep, in all forms."""
        self.stop()
        self._output.report(report)

    def end(self, text: str) -> None:
        """Replace a state that would otherwise stand there for ever; shows nothing if there is none."""
        self.stop()
        self._output.end(text)

    def so_far(self) -> Report | None:
        """What the work had found when it was cut short; ``None`` if it had measured nothing."""
        found = self.progress.look()
        found.progress = None
        return found if any(figures.cold_seconds for figures in found.strategies.values()) else None

    def _stage(self, line: str) -> None:
        """A stage begins, in the work's own thread."""
        if self._on_stage is not None:
            self._on_stage(line)
        if not self.progress.watched:
            self._output.line(line)
            return
        with self.progress.lock:
            # While rounds are timed the thread waits, and only this shows anything: the first of them in any case.
            first = self.progress.timing and not self._timing
            self._timing = self.progress.timing
            if first or time.monotonic() - self._shown_at >= _LINE_EVERY:
                self._show()
            if self._thread is None:
                context = contextvars.copy_context()
                self._thread = threading.Thread(target=context.run, args=(self._tick,), name="nbcompile-live")
                self._thread.daemon = True  # an interpreter that exits does not wait for it
                self._thread.start()

    def _tick(self) -> None:
        wait = _LINE_EVERY
        while not self._lock.acquire(timeout=wait):  # the work holds it until it ends
            try:
                with self.progress.lock:  # held by the work while rounds are timed: this waits without waking up
                    if self._ended:
                        return
                    used = time.thread_time()
                    self._show()
                    used = time.thread_time() - used
                size = 0 if self._drawn is None else self._drawn.size
                wait = min(_LONGEST_PAUSE, max(_LINE_EVERY, used / _MOST_OF_A_CORE, size / _MOST_BYTES))
            except Exception:  # a chart that cannot be drawn must not stop the work; the report says what is wrong
                logging.getLogger("nbcompile").exception("the live chart stopped")
                return
        self._lock.release()

    def _show(self) -> None:
        """Publish the present state. The charts are drawn anew only if a figure has changed."""
        from ..render.mime import LiveBundle

        now = time.monotonic()
        state = self.progress.look()
        line = state.progress
        assert line is not None  # look() always puts one there
        redraw = state.strategies != self._figures and now - self._drawn_at >= _CHARTS_EVERY
        if self._drawn is None or redraw:
            self._drawn, self._figures, self._drawn_at = LiveBundle(state), state.strategies, now
        data = self._drawn.at(line)
        if data != self._shown:
            self._output.publish(data, {})
            self._shown, self._shown_at = data, now

    def stop(self) -> None:
        """Let the output stand still."""
        with self.progress.lock:
            self._ended = True
        if self._thread is not None:
            self._thread.join(timeout=2)
            # JupyterLab draws in its own time; an output replaced while it is drawn leaves an error in its console.
            time.sleep(max(0.0, _LINE_EVERY - (time.monotonic() - self._shown_at)))


# -- work that is called plainly in a cell, as in `nbcompile.compare(model, step)` ------------------------------------

_REPORT = "nbcompile.report", "Report"


def install(shell: Any) -> Callable[[], bool]:
    """Watch all work of this process that is given no ``progress``, if ``shell`` is a kernel's.

    Returns:
        Tells whether the running cell shows a report.
    """
    if getattr(shell.display_pub, "pub_socket", None) is None:
        return lambda: False
    on_display = _OnDisplay(shell)
    shell.display_formatter.mimebundle_formatter.for_type_by_name(*_REPORT, on_display.bundle)
    progress.install(lambda: _onlooker(shell, on_display))
    return on_display.shows_report


def uninstall(shell: Any) -> None:
    """Undo :func:`install`."""
    shell.display_formatter.mimebundle_formatter.pop(".".join(_REPORT), None)
    progress.install(None)


@contextlib.contextmanager
def _onlooker(shell: Any, on_display: _OnDisplay) -> Iterator[Progress]:
    live = Live(shell)
    if not live.progress.watched:  # captured: what is wanted there is the report, which is returned
        yield Progress()
        return
    try:
        with live.working, delivered_safely():
            yield live.progress
    except BaseException:
        found = live.so_far()
        if found is None:
            live.end("stopped")
        else:
            live.report(found)
        raise
    if live.progress.result is not None:
        live.report(live.progress.result)
        on_display.note(live.progress.result)
    else:  # work whose result is no report shows it itself
        live.end(live.progress.glance().stage)


class _OnDisplay:
    """Keeps a report that stands in a cell's output already from standing there twice, as the cell's result too."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._cell = ""
        self._formatted_in = ""
        self._report: Callable[[], Report | None] = lambda: None

    def note(self, report: Report) -> None:
        self._report, self._cell = weakref.ref(report), self._running()

    def bundle(self, report: Report) -> dict[str, Any]:
        """The data for IPython; none for a report that is on display: then only its short text is shown."""
        self._formatted_in = self._running()
        if report is self._report() and self._cell == self._formatted_in:
            return {}
        return report._repr_mimebundle_()

    def shows_report(self) -> bool:
        """Whether the running cell shows a report."""
        return self._formatted_in == self._running()

    def _running(self) -> str:
        return str(self._shell.get_parent().get("header", {}).get("msg_id", ""))
