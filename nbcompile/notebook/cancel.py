"""Cancel that works while the main thread compiles, and never stops what is the user's own."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time

from .. import ongoing
from ..errors import UsageError
from .status import compiling_call, latest

#: Seconds after which an interrupt that Python has dropped is sent again, and how often at the most.
_AGAIN_AFTER, _MOST_OFTEN = 0.5, 5


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
        _interrupt(main)  # what Python drops of it is delivered again by main_thread.insistent
        return f"{work.kind.capitalize()} was interrupted at: {work.progress.glance().stage or 'its beginning'}"
    call = compiling_call(latest())
    if call is None:
        raise UsageError(
            "nothing of nbcompile goes on, so nothing was interrupted; a running cell is stopped by the notebook's own "
            "Interrupt"
        )
    _interrupt(main)
    threading.Thread(target=_insist, args=(main, call[2]), name="nbcompile-cancel", daemon=True).start()
    return f"The compile of {call[0] or 'the model'} was interrupted; the cell that called the model ends with it"


def _insist(main: threading.Thread, began: float) -> None:
    """Interrupt a plain call again for as long as it goes on compiling.

    Dynamo has many destructors and callbacks of weak references, in which Python drops what an interrupt raises.
    """
    for _ in range(_MOST_OFTEN):
        time.sleep(_AGAIN_AFTER)
        call = compiling_call(latest())
        if call is None or call[2] != began:
            return
        _interrupt(main)


def _interrupt(main: threading.Thread) -> None:
    """Interrupt a thread as the system would: a lock that it waits for is left, which Python's own way does not do."""
    if sys.platform == "win32":
        _thread.interrupt_main()
    else:
        assert main.ident is not None  # it has been started
        signal.pthread_kill(main.ident, signal.SIGINT)
