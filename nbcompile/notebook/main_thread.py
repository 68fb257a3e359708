"""Work that a button starts: on the kernel's main thread, in the user's own context, and stopped by its interrupt.

A front end may send a click to a subshell, and ipykernel 7.0 to 7.3 then calls back on that subshell's thread, beside
a cell that runs. Torch's compiler is not thread safe, and its settings, gradients and default device are those of a
thread or a context: compiled there, a model would be compiled with other settings than the user made. So the work is
handed to the main thread, where it waits for the running cell. Other versions call back on the main thread, and it runs
at once.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from types import FrameType
from typing import Any

from ..errors import UsageError
from ..interrupts import delivered_safely


class MainThread:
    """Runs functions on the main thread, as the latest cell would.

    Make it in a cell. What its functions print goes to that cell's output.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._parent: Any = shell.get_parent() if hasattr(shell, "get_parent") else None
        self._context = copy_context()
        shell.events.register("post_run_cell", self._remember)

    def forget(self) -> None:
        """Leave the shell as it was before."""
        with contextlib.suppress(ValueError):  # forgotten already
            self._shell.events.unregister("post_run_cell", self._remember)

    @property
    def here(self) -> bool:
        """Whether the caller is on the main thread, so that :meth:`run` returns only when the function has."""
        return threading.current_thread() is threading.main_thread()

    def run(self, work: Callable[[], None], finished: Callable[[BaseException | None], None]) -> None:
        """Call ``work`` on the main thread: at once if this is it, else when its running cell has ended.

        Args:
            work: an interrupt raises :class:`KeyboardInterrupt` in it.
            finished: called after it, with what it raised if it did; nothing it raised goes further, as in the
                kernel's loop an interrupt would end the kernel. Interrupts are ignored meanwhile.
        """
        if self.here:
            self._run(work, finished)
        elif (loop := loop_of(self._shell)) is not None:
            loop.call_soon_threadsafe(self._run, work, finished)
        else:
            raise UsageError("this shell has no loop that could take over work from another thread")

    def _run(self, work: Callable[[], None], finished: Callable[[BaseException | None], None]) -> None:
        # a copy: a context cannot be entered twice, and what the work sets in it is not for the next work
        self._context.copy().run(self._work, work, finished)

    def _work(self, work: Callable[[], None], finished: Callable[[BaseException | None], None]) -> None:
        with self._output_to_cell():
            _interruptible(work, finished)

    def _remember(self, result: object = None) -> None:
        """Take over what the cell that has just run set, such as ``torch._dynamo.config``."""
        if self.here:
            self._context = copy_context()

    @contextlib.contextmanager
    def _output_to_cell(self) -> Iterator[None]:
        """What is printed meanwhile goes to the cell in which this object was made."""
        if self._parent is None:
            yield
            return
        before = self._shell.get_parent()
        self._shell.set_parent(self._parent)
        try:
            yield
        finally:
            self._shell.set_parent(before)


def loop_of(shell: Any) -> Any:
    """The asyncio loop of the kernel's main thread, ``None`` outside of a kernel."""
    return getattr(getattr(getattr(shell, "kernel", None), "io_loop", None), "asyncio_loop", None)


def _interruptible(work: Callable[[], None], finished: Callable[[BaseException | None], None]) -> None:
    """Let SIGINT raise ``KeyboardInterrupt`` in ``work``, which a kernel does only while it handles a message."""
    working = True
    error: BaseException | None = None

    def interrupt(number: int, frame: FrameType | None) -> None:
        if working:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        try:
            try:
                with delivered_safely():
                    work()
            finally:
                working = False
        except BaseException as raised:
            working = False  # an interrupt may have come before the line above
            error = raised
        finished(error)
    finally:
        error = None  # or error and frame would hold each other, and with them the step's tensors
        signal.signal(signal.SIGINT, before)
