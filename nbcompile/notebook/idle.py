"""What a kernel does for the first compile while it waits for its user's next cell."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any

from .. import warmup
from .main_thread import loop_of

if TYPE_CHECKING:
    from ..startup import Ahead

#: Seconds after a cell has ended before something is begun: in "run all" the next cell has come by then.
_QUIET = 0.3


class WhileIdle:
    """Does this process's own start-up, a step at a time, when no cell runs and torch has been imported.

    A step is on the main thread and keeps a cell that comes in that moment waiting, by about a second at most; so it is
    begun only when some time has passed since the last cell, and a cell that has come before is let by.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._ahead: Ahead | None = None
        self._next: Any = None
        shell.events.register("pre_run_cell", self._stop)
        shell.events.register("post_run_cell", self._later)

    def forget(self) -> None:
        """Leave the shell as it was before."""
        self._stop()
        for event, told in (("pre_run_cell", self._stop), ("post_run_cell", self._later)):
            with contextlib.suppress(ValueError):  # forgotten already
                self._shell.events.unregister(event, told)

    def _stop(self, info: object = None) -> None:
        if self._next is not None and threading.current_thread() is threading.main_thread():
            self._next.cancel()
            self._next = None

    def _later(self, result: object = None) -> None:
        loop = loop_of(self._shell)
        if loop is not None and threading.current_thread() is threading.main_thread():
            self._stop()
            self._next = loop.call_later(_QUIET, self._step)

    def _step(self) -> None:
        self._next = None
        if "torch" not in sys.modules:
            return  # the next cell may import it
        begun = warmup.latest()
        if begun is not None and begun.state == "running":
            self._later()  # beside it all of this would take longer
            return
        if self._ahead is None:
            from ..startup import ahead

            self._ahead = ahead()
        if self._ahead.step():
            self._later()
        else:
            self.forget()
