"""Which work of this package goes on in this process: whoever shows it or stops it need not have begun it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .progress import Progress


@dataclass(frozen=True, eq=False)
class Work:
    """A long piece of work.

    Attributes:
        kind: what its user has asked for: ``"compile"``, ``"compare"``, ``"tune"`` or ``"restore"``.
        began: when, by ``time.perf_counter``.
        thread: where it is done.
    """

    kind: str
    progress: Progress
    began: float = field(default_factory=time.perf_counter)
    thread: int = field(default_factory=threading.get_ident)


#: Outermost first: what the user has asked for, and what that is made of.
_works: list[Work] = []
_listeners: list[Callable[[], None]] = []


@contextlib.contextmanager
def working(kind: str, progress: Progress) -> Iterator[None]:
    """Say that work goes on inside a ``with`` block."""
    mine = Work(kind, progress)
    try:
        _works.append(mine)
        _tell()
        yield
    finally:
        with contextlib.suppress(ValueError):
            _works.remove(mine)
        _tell()


def work() -> Work | None:
    """The work that goes on, as its user has asked for it; ``None`` if there is none."""
    return next(iter(list(_works)), None)


def forget(thread: int) -> None:
    """Forget the work of a thread that does something else by now: an interrupt can leave it, at an unlucky moment."""
    _works[:] = [known for known in _works if known.thread != thread]


def listen(told: Callable[[], None]) -> None:
    """Have ``told`` called as work begins and ends, in the work's thread. It must be quick, and not raise."""
    _listeners.append(told)


def listen_no_more(told: Callable[[], None]) -> None:
    """Undo :func:`listen`."""
    with contextlib.suppress(ValueError):
        _listeners.remove(told)


def listened() -> bool:
    """Whether anyone listens."""
    return bool(_listeners)


def _tell() -> None:
    for told in list(_listeners):
        told()
