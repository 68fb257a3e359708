"""No wall: a model runs eager at once, and its blocks' code is compiled beside it, in a process of its own.

What the blocks ask for is in :mod:`nbcompile.waiting`; here is who does it. A helper process compiles one job after
another into the compiler's cache folder, and a thread of this process talks to it through pipes. The helper is in this
process's session, as Linux shares the cores among sessions first, nice, and in a process group of its own, so that a
notebook's interrupt does not reach it. It ends with this process.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import queue
import threading
import time
import weakref

import torch

from . import cache, remembered, warmup
from .errors import UsageError
from .helperprocess import HelperError, HelperProcess, StandingBy
from .parallel import this_rank
from .plugin import TorchDynamoPlugin, backend_name
from .variants import Group
from .waiting import GroupBeside, Need

_MOST_HELPERS = 3
#: A helper without work ends after so many seconds; the next job starts another.
_IDLE_SECONDS = 60.0
#: How long a rest is, and how long after one there is no other; seconds.
_REST, _BETWEEN_RESTS = 0.03, 0.12


class Beside:
    """A compilation's groups, and the helper that compiles for them.

    Args:
        device: the kind of device that the model is on.

    Attributes:
        busy: whether the helper is at work.
    """

    def __init__(self, groups: list[Group], device: torch.device | None) -> None:
        self.device = device.type if device is not None else "cpu"
        self.groups = [GroupBeside(group, self, number) for number, group in enumerate(groups)]
        for group, beside in zip(groups, self.groups, strict=True):
            group.beside = beside
        self._jobs: queue.SimpleQueue[tuple[GroupBeside, Need] | None] = queue.SimpleQueue()
        self._done: list[Need] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process: HelperProcess | None = None
        self._helpers, self._stopped = 0, threading.Event()
        self.busy, self._rested = False, 0.0
        self._of = os.getpid()  # a process that was forked off this one has no helper
        _all.add(self)

    @property
    def state(self) -> str:
        """How it goes, in a few words."""
        needs = [need for group in self.groups for need in group.needs]
        counts = {s: sum(need.state == s for need in needs) for s in ("waiting", "compiled", "open", "failed")}
        if self._stopped.is_set():
            return "stopped"
        if not needs:
            return "waiting for the first step"
        words = {"waiting": "being compiled", "compiled": "ready", "open": "in use", "failed": "failed"}
        return ", ".join(f"{count} {words[state]}" for state, count in counts.items() if count)

    @property
    def pid(self) -> int | None:
        """The helper's process number while there is one."""
        process = self._process
        return None if process is None else process.pid

    def prepare(self) -> None:
        """Start the helper before there is work, as it takes seconds to be ready; not where there may be none."""
        groups = (beside.group() for beside in self.groups)
        if not remembered.anything_of({group.class_name for group in groups if group is not None}):
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._stopped.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._serve, name="nbcompile-background", daemon=True)
            self._thread.start()

    def ask(self, group: GroupBeside, need: Need) -> None:
        """Send a job."""
        self._jobs.put((group, need))
        self._start()

    def wait(self, timeout: float = 600.0) -> str:
        """Wait until nothing is waiting for the helper any more; :attr:`state` then.

        Code that is ready comes into use when the next step begins.

        Args:
            timeout: in seconds.
        """
        end = time.monotonic() + timeout
        while any(n.state == "waiting" for g in self.groups for n in list(g.needs)) and time.monotonic() < end:
            time.sleep(0.02)
        return self.state

    def rest(self) -> None:
        """Let the helper have all cores for a moment, if it has not had them for a while."""
        if time.monotonic() - self._rested > _BETWEEN_RESTS:
            time.sleep(_REST)
            self._rested = time.monotonic()

    def stop(self) -> None:
        """End the helper, and all that it has started. Twice does no harm."""
        with self._lock:
            self._stopped.set()
        self._jobs.put(None)
        process = self._process
        if process is not None:
            process.stop()

    def told(self) -> list[str]:
        """Lines for the report."""
        lines = [line for group in self.groups for line in group.told()]
        if self.device != "cpu" and any(need.state == "waiting" for group in self.groups for need in group.needs):
            lines.append(f"the helper process holds one block's weights on the {self.device} device while it compiles")
        return lines

    def _serve(self) -> None:
        """The thread's work: hand the helper one job after another, until there are none for a while."""
        job: tuple[GroupBeside, Need] | None = None
        try:
            while not self._stopped.is_set():
                try:
                    self.busy = True
                    if self._process is None and (job is not None or not self._helpers):
                        self._begin()
                    if job is None:
                        self.busy = not self._jobs.empty()
                        job = self._jobs.get(timeout=_IDLE_SECONDS)
                        self.busy = True
                        if job is None:
                            break
                        if self._process is None:
                            continue
                    group, need = job
                    assert self._process is not None
                    answer = self._process.ask(need.job)
                    if "error" not in answer:
                        self._done.append(need)
                except queue.Empty:
                    break
                except HelperError as error:
                    self._end()
                    if self._stopped.is_set():
                        break
                    if job is None:
                        job = self._jobs.get()  # a helper that dies at its start is told with the first job
                        if job is None:
                            break
                    group, need, answer = *job, {"error": f"the helper process {error}"}
                    if self._helpers >= _MOST_HELPERS:
                        group.answered(need, answer)
                        self._refuse(f"the helper process {error}")
                        return
                group.answered(need, answer)
                job = None
        finally:
            self.busy = False
            self._end()
            with self._lock:
                self._thread = None
            if not self._stopped.is_set() and not self._jobs.empty():
                self._start()

    def _begin(self) -> None:
        self._helpers += 1
        standing_by = self._standing_by()
        if standing_by is not None:
            with contextlib.suppress(HelperError):  # it has ended just now
                self._receive_first(HelperProcess(standing_by))
                return
            self._end()
        self._receive_first(HelperProcess())

    def _standing_by(self) -> StandingBy | None:
        """The process of the start-up ahead of time; it is waited for, as another would do the same beside it."""
        begun = warmup.latest()
        if begun is None or begun.folder != cache.cache_folder():
            return None
        while begun.state == "running":
            if self._stopped.wait(0.05):
                return None
        return begun.take_over()

    def _receive_first(self, process: HelperProcess) -> None:
        self._process = process
        if self._stopped.is_set():  # meanwhile
            process.stop()
        process.receive()
        for need in self._done:  # the compiler goes by what it has seen before; all of it is in the cache
            process.ask(need.job)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.stop()

    def _refuse(self, reason: str) -> None:
        while not self._stopped.is_set():
            job = self._jobs.get()
            if job is None:
                return
            group, need = job
            group.answered(need, {"error": reason})


def check_background(plugin: TorchDynamoPlugin, *, cuda_graph: bool, guard_collectives: bool) -> None:
    """Refuse settings with which nothing can be compiled in the background.

    Raises:
        UsageError: what is wrong, and what to do.
    """
    if plugin.backend != "inductor":
        raise UsageError(
            f"background=True compiles with the backend 'inductor', whose cache two processes can share; the backend "
            f"{backend_name(plugin.backend)!r} has none. Leave background out, or use backend='inductor'"
        )
    if cuda_graph or guard_collectives:
        which = "cuda_graph=True" if cuda_graph else "guard_collectives=True"
        raise UsageError(f"background=True and {which} do not go together; leave one of them out")
    if this_rank() is not None:
        raise UsageError(
            "background=True is for one process alone, and this is one of several ranks that train together: ranks "
            "would go over to compiled code at different steps. Leave background out"
        )
    if importlib.util.find_spec("cloudpickle") is None:
        raise UsageError("background=True needs the package cloudpickle: pip install 'cloudpickle>=3,<4'")


_all: weakref.WeakSet[Beside] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for beside in list(_all):
        if beside._of == os.getpid():
            beside.stop()
