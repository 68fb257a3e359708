"""What this package does at present and what it did last, as plain data for a front end.

It is asked for from another thread while the main one compiles or times rounds. So it reads plain data of Python and
calls nothing of torch, and it takes no lock: a lock that is held while rounds are timed would leave the question open.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from .. import ongoing
from ..progress import Tally, phase_of

if TYPE_CHECKING:
    from ..compiler import Compilation
    from ..report import Snapshot


class Cells:
    """Whether the main thread runs a cell. Make it there.

    The shell's events tell. ``pre_execute`` and ``post_execute`` would not do: every message of a widget triggers them,
    on whatever thread.

    Attributes:
        running: whether a cell runs.
        ended: how many have, since this was made.
    """

    def __init__(self, shell: Any, *, running: bool) -> None:
        self._shell = shell
        self.running, self.ended = running, 0
        shell.events.register("pre_run_cell", self._begins)
        shell.events.register("post_run_cell", self._ends)

    def forget(self) -> None:
        """Leave the shell as it was before."""
        for event, told in (("pre_run_cell", self._begins), ("post_run_cell", self._ends)):
            if told in self._shell.events.callbacks[event]:
                self._shell.events.unregister(event, told)

    def changed(self) -> None:
        """Called when a cell begins or ends."""

    def _begins(self, info: object = None) -> None:
        if threading.current_thread() is threading.main_thread():  # a subshell runs cells of its own
            ongoing.forget(threading.get_ident())
            self.running = True
            self.changed()

    def _ends(self, result: object = None) -> None:
        if threading.current_thread() is threading.main_thread():
            self.running, self.ended = False, self.ended + 1
            self.changed()


def status(cells: Cells) -> dict[str, Any]:
    """What goes on, and how the model ran that was worked on last. For any thread, at any time."""
    work = ongoing.work()
    last = latest()
    return {
        "busy": cells.running or work is not None,
        "timing": work is not None and work.progress.timing,
        "work": _work(work) if work is not None else _call(last),
        "model": _underway(work) or (None if last is None else _compilation(last)),
    }


def latest() -> Compilation | None:
    """The compilation that was put to work last; ``None`` where nothing was compiled so far."""
    compiler = sys.modules.get("nbcompile.compiler")
    found: Compilation | None = compiler.latest() if compiler is not None and hasattr(compiler, "latest") else None
    return found


def compiling_call(compilation: Compilation | None) -> tuple[str, str, float] | None:
    """The plain call of a compiled model in which the compiler works: the block, the phase, and since when in seconds.

    A call that runs compiled code is none, and neither is what a user's own ``torch.compile`` does.
    """
    if compilation is None:
        return None
    began = compilation.call.get("began", 0.0)  # reset when the call of a block ends
    phase = phase_of(compilation.thread) if began else ""
    return (compilation.call.get("block", ""), phase, began) if phase else None


def _work(work: ongoing.Work) -> dict[str, Any]:
    about, snapshot = work.progress.compile_underway, work.progress.glance()
    return {
        "kind": work.kind,
        "strategy": about.strategy if about is not None else "",
        **_stage(snapshot, phase_of(work.thread)),
        "total_seconds": time.perf_counter() - work.began,
    }


def _stage(snapshot: Snapshot, phase: str) -> dict[str, Any]:
    return {
        "stage": snapshot.stage,
        "region": snapshot.region,
        "phase": snapshot.phase or phase,
        "elapsed_seconds": snapshot.elapsed_seconds,
        "remaining_seconds": snapshot.remaining_seconds,
        "done": snapshot.done,
        "expected": snapshot.expected,
        "at_least": snapshot.at_least,
        "unit": snapshot.unit,
    }


def _call(compilation: Compilation | None) -> dict[str, Any] | None:
    """A plain call of a compiled model, as long as the compiler works in it."""
    found = compiling_call(compilation)
    if found is None or compilation is None:
        return None
    block, phase, began = found
    return {
        "kind": "call",
        "strategy": compilation.strategy,
        "stage": f"{compilation.strategy}: compiling in a call of the model",
        "region": block,
        "phase": phase,
        "elapsed_seconds": max(0.0, time.time() - began),
        "remaining_seconds": None,
        "done": None,
        "expected": None,
        "at_least": False,
        "unit": "",
        "total_seconds": max(0.0, time.time() - began),
    }


def _underway(work: ongoing.Work | None) -> dict[str, Any] | None:
    """How the regions have run so far that are being compiled now."""
    about = work.progress.compile_underway if work is not None else None
    if about is None:
        return None
    return {**_settings(about.strategy, dict(about.settings)), **_counts(about.tally())}


def _compilation(compilation: Compilation) -> dict[str, Any]:
    return {
        **_settings(compilation.strategy, compilation.plugin.to_dict()),
        **_counts(sys.modules["nbcompile.describe"].tally(compilation)),
    }


def _settings(strategy: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "strategy": strategy,
        "backend": str(settings.get("backend") or ""),
        "mode": str(settings.get("mode") or "default"),
    }


def _counts(tally: Tally) -> dict[str, Any]:
    return {"regions": tally.compiled + tally.eager + tally.pending, **tally._asdict()}
