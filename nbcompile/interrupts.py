"""Interrupts while torch's compiler works: none is lost, and none comes where it would end the process.

Python raises :class:`KeyboardInterrupt` between any two of its instructions, and torch's compiler is not written for
that. In a destructor or the callback of a weak reference, of which Dynamo has many, Python drops it and the compile
goes on. And raised between the taking and the putting back of a dispatch mode, it leaves C++ with a stack of modes that
it does not expect: torch 2.13 then ends the whole process ("trying to set the current ProxyTorchDispatchMode, but one
already exists"), and with it all that the user had. So what was dropped is delivered again, and what comes at a bad
moment waits for a better one.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from .errors import leave_out_compiler

#: Seconds until an interrupt that came at a bad moment, or was dropped, is sent again.
_WAIT, _AFTER_DROP = 0.01, 0.05
#: It waits no longer than this: a user who is not heard kills the kernel.
_LONGEST = 2.0

#: Inside of these functions modes are taken and put back.
_BAD = frozenset({"__torch_dispatch__", "__torch_function__"})
_BAD_FILES = ("/torch/utils/_python_dispatch.py",)
#: And while a context is entered or left, what it changes is half changed. Looked for among so many innermost frames.
_CONTEXT, _INNERMOST = frozenset({"__enter__", "__exit__"}), 8


@contextlib.contextmanager
def delivered_safely() -> Iterator[None]:
    """Interrupts of what is done inside are raised where torch's compiler bears them, and are raised in any case.

    Interrupts come to the main thread: on any other this does nothing. Contexts may be nested.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    sending = _Sending()
    hook = sys.unraisablehook

    def arrived(number: int, frame: FrameType | None) -> None:
        if bad_moment(frame) and sending.may_wait():
            sending.again(_WAIT)
        else:
            sending.delivered()
            handler(number, frame)

    def dropped(unraisable: Any) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            sending.again(_AFTER_DROP)  # a moment later: raised at once, it would be raised in here and dropped again
        else:
            hook(unraisable)

    signal.signal(signal.SIGINT, arrived)
    sys.unraisablehook = dropped
    try:
        yield
    except KeyboardInterrupt as interrupt:
        leave_out_compiler(interrupt)
        raise
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, handler)
        if sending.stop():  # one that still waits is for whoever comes next
            signal.raise_signal(signal.SIGINT)


def bad_moment(frame: FrameType | None) -> bool:
    """Whether an exception that is raised in a frame could leave torch's stack of dispatch modes inconsistent."""
    depth = 0
    while frame is not None:
        code = frame.f_code
        if code.co_name in _BAD or code.co_filename.replace("\\", "/").endswith(_BAD_FILES):
            return True
        if depth < _INNERMOST and code.co_name in _CONTEXT:
            return True
        depth += 1
        frame = frame.f_back
    return False


class _Sending:
    """Sends an interrupt to the main thread again, a moment later."""

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._timers: list[_Timer] = []
        self._since: float | None = None

    def may_wait(self) -> bool:
        if self._since is None:
            self._since = time.monotonic()
        return time.monotonic() - self._since < _LONGEST

    def delivered(self) -> None:
        self._since = None

    def again(self, seconds: float) -> None:
        self._timers = [timer for timer in self._timers if timer.is_alive()]
        timer = _Timer(seconds, signal.pthread_kill, (self._main, signal.SIGINT))
        self._timers.append(timer)
        timer.start()

    def stop(self) -> bool:
        """Send nothing more; whether there was something left to be sent."""
        waiting = [timer for timer in self._timers if timer.is_alive()]
        for timer in waiting:
            timer.cancel()
            timer.join()
        return any(not timer.sent for timer in waiting)


class _Timer(threading.Timer):
    """A timer that knows whether its time has come."""

    sent = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.daemon = True

    def run(self) -> None:
        self.finished.wait(self.interval)
        if not self.finished.is_set():
            self.sent = True
            self.function(*self.args, **self.kwargs)
