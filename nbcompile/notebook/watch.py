"""Tells front ends what goes on, unasked: a thread of its own sends the state as it changes.

A front end that asked again and again would do harm. Each of its messages makes the kernel say that it is idle again
once it is answered, which front ends show although a cell still runs. And where the kernel has no subshells, questions
wait until the cell has ended. What is sent this way arrives in either case.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import Context
from typing import Any

#: Seconds between two states: usually, and while rounds are timed, which a thread that wakes up often would disturb.
_EVERY, _WHILE_TIMING = 0.2, 1.0
#: The least time between two, however often cells begin and end.
_LEAST = 0.05
#: A page that is loaded again does not take leave: the oldest front ends are forgotten.
_MOST = 16

Sender = Callable[[dict[str, Any]], None]


class Watch:
    """Sends the state to whoever watches, for as long as something goes on and whenever that changes.

    Args:
        state: the state; ``"busy"`` and ``"timing"`` in it say how soon to look again. Called in the watch's thread.
    """

    def __init__(self, state: Callable[[], dict[str, Any]]) -> None:
        self._state = state
        self._watchers: dict[str, tuple[Context, Sender]] = {}
        self._awake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = False

    def add(self, key: str, context: Context, send: Sender) -> None:
        """Send to this front end too. What is sent in ``context`` names the message that it answers."""
        with self._lock:
            self._watchers.pop(key, None)
            self._watchers[key] = context, send
            while len(self._watchers) > _MOST:
                del self._watchers[next(iter(self._watchers))]
            if self._thread is None and not self._ended:
                self._thread = threading.Thread(target=self._run, name="nbcompile-watch", daemon=True)
                self._thread.start()
        self._awake.set()

    def remove(self, key: str) -> None:
        """Send to this front end no longer."""
        with self._lock:
            self._watchers.pop(key, None)

    def wake(self) -> None:
        """Look now: something may have begun or ended."""
        self._awake.set()

    def end(self) -> None:
        """Send nothing any more."""
        with self._lock:
            self._ended = True
            self._watchers.clear()
        self._awake.set()

    def _run(self) -> None:
        pause: float | None = None
        sent: dict[str, Any] = {}
        keys: list[str] = []
        while True:
            self._awake.wait(pause)
            self._awake.clear()
            with self._lock:
                watchers = dict(self._watchers)
                if self._ended:
                    return
            pause = None
            if not watchers:
                continue
            try:
                state = self._state()
            except Exception:  # what goes on must not stop because it cannot be shown
                logging.getLogger("nbcompile").exception("the state of the kernel cannot be told")
                continue
            if state != sent or keys != list(watchers):
                sent, keys = state, list(watchers)
                for key, (context, send) in watchers.items():
                    self._send(key, context, send, state)
            if state["busy"]:
                pause = _WHILE_TIMING if state["timing"] else _EVERY
            threading.Event().wait(_LEAST)

    def _send(self, key: str, context: Context, send: Sender, state: dict[str, Any]) -> None:
        try:
            context.copy().run(send, state)
        except Exception:  # a front end that is gone
            self.remove(key)
