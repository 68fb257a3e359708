"""Cancel that works while the main thread compiles, and never stops what is the user's own."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable

from .. import ongoing
from ..errors import UsageError
from ..progress import phase_of
from .status import compiling_call, latest

#: Seconds after which an interrupt that has not ended the work is sent again, and how often at the most.
_AGAIN_AFTER, _MOST_OFTEN = 1.0, 5


def cancel() -> str:
    """Interrupt the work of this package that goes on; what was stopped, in words. For any thread.

    Raises:
        UsageError: nothing of this package goes on that could be stopped.
    """
    main = threading.main_thread()
    work = ongoing.work()
    if work is not None:
        if work.thread != main.ident:
            raise UsageError(
                f"the {work.kind} that goes on runs in a thread of its own, which cannot be interrupted; it ends by "
                "itself"
            )
        # only while it compiles: what puts the model back afterwards must not be interrupted
        _insist(main, lambda: ongoing.work() is work and bool(phase_of(work.thread)))
        return f"{work.kind.capitalize()} was interrupted at: {work.progress.glance().stage or 'its beginning'}"
    call = compiling_call(latest())
    if call is None:
        raise UsageError(
            "nothing of nbcompile goes on, so nothing was interrupted; a running cell is stopped by the notebook's own "
            "Interrupt"
        )
    began = call[2]
    _insist(main, lambda: (now := compiling_call(latest())) is not None and now[2] == began)
    return f"The compile of {call[0] or 'the model'} was interrupted; the cell that called the model ends with it"


def _insist(main: threading.Thread, goes_on: Callable[[], bool]) -> None:
    """Interrupt now, and again for as long as the same goes on: there are many places in which Python drops one."""

    def again() -> None:
        for _ in range(_MOST_OFTEN):
            time.sleep(_AGAIN_AFTER)
            if not goes_on():
                return
            _interrupt(main)

    _interrupt(main)
    threading.Thread(target=again, name="nbcompile-cancel", daemon=True).start()


def _interrupt(main: threading.Thread) -> None:
    """Interrupt a thread as the system would: a lock that it waits for is left, which Python's own way does not do."""
    if sys.platform == "win32":
        _thread.interrupt_main()
    else:
        assert main.ident is not None  # it has been started
        signal.pthread_kill(main.ident, signal.SIGINT)
