"""No wall: a model runs eager at once, and its blocks' code is compiled beside it, in a process of its own.

A call for which there is no code yet runs eager. What it was made of is noted and sent to a helper process, tensors as
their kind alone (:mod:`nbcompile.standins`). The helper compiles for it, into the compiler's cache folder. When it has
answered, and the next step begins, this process makes the same call with stand-ins, which finds everything in the cache
and takes as long as tracing does; from then on the user's calls fit. A group takes one such step at a time.

The helper is in this process's session, as Linux shares the cores among sessions first, nice, and in a process group of
its own, so that a notebook's interrupt does not reach it. It is talked to through pipes, and ends with this process.
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import cache, cores, explain, remembered, standins, startup, warmup
from .border import in_backward
from .errors import NbcompileError, UsageError
from .helperprocess import HelperError, HelperProcess, StandingBy
from .parallel import this_rank
from .plugin import TorchDynamoPlugin, backend_name
from .regions import structure
from .replay import Ambient, replay, shadow
from .variants import Circumstances, Group

if TYPE_CHECKING:
    from .border import Region

CHECKPOINTED = "it is checkpointed, and must not go over between a call and the backward pass that makes it again"
WAITING = "its code is being compiled beside it, in a process of its own"
#: So many calls that differ in sizes alone are sent before the first of them is done: the compiler makes its second
#: version for any size.
_MOST_SIZES = 2
_MOST_HELPERS = 3
#: Which part of the blocks leaves a core to the helper where there are two or three cores.
_NARROW = 0.4
#: Steps are short below so many seconds. Of so many of them, so many are rest.
_SHORT_STEP, _BETWEEN_RESTS, _REST = 0.1, 0.12, 0.03
#: A helper without work ends after so many seconds; the next job starts another.
_IDLE_SECONDS = 60.0


@dataclass(eq=False)
class Need:
    """A call for which code is needed.

    Attributes:
        state: ``"waiting"`` for the helper, ``"compiled"`` by it, ``"open"``: in use, or ``"failed"``.
        values: by source what the representative block held, as far as it is known to matter.
        stall: seconds that the switch took, in which the user's step waited.
        misses: how many graphs had to be compiled at the switch after all.
        free: whether only the compiler's own entry can tell if the code fits a call.
        place: where it is remembered for other processes that its code has been compiled.
        remembered: whether an earlier process has left word there.
    """

    block: str
    key: tuple[object, ...]
    loose: tuple[object, ...]
    circumstances: Circumstances
    ambient: Ambient
    index_hidden: bool
    holder: weakref.ref[nn.Module]
    job: dict[str, Any]
    state: str = "waiting"
    reason: str = ""
    values: dict[str, object] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    stall: float = 0.0
    misses: int = 0
    free: bool = False
    place: remembered.Place | None = None
    remembered: bool = False


class GroupBeside:
    """What a group's blocks ask for while they wait.

    Attributes:
        due: whether there is something to do when the group's next step begins.
    """

    def __init__(self, group: Group, owner: Beside, number: int) -> None:
        self.group = weakref.ref(group)
        self.owner = owner
        self.number = number
        self.due = self._begun = self._short = False
        self._latest, self._stepped = -1, 0.0
        self.needs: list[Need] = []
        self._by_key: dict[tuple[object, ...], list[Need]] = {}
        self._sources: dict[tuple[object, ...], set[str]] = {}
        self._messages: queue.SimpleQueue[str] = queue.SimpleQueue()

    def may_call(
        self,
        region: Region,
        block: nn.Module,
        circumstances: Circumstances,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        index_hidden: bool,
    ) -> bool:
        """Whether a call for which no code was found may go to the compiler; if not, it is to run eager."""
        ambient = Ambient.now(self.owner.device)
        if in_backward() or (ambient.grad and _made_again()):
            region.ran(False, CHECKPOINTED)
            return False
        if circumstances.hooks:
            region.ran(False, "modules inside it have hooks, with which nothing is compiled in the background")
            return False
        given = standins.signature(args, kwargs)
        kind = structure(block, by_identity=True), circumstances, ambient
        key, loose = (*kind, given), (*kind, _without_sizes(given))
        need = self._find(block, key)
        if need is None and any(n.free for n in self.needs if n.loose == loose):
            return True
        if need is None:
            known = [n for n in self.needs if n.loose == loose and n.state in ("waiting", "compiled")]
            if len(known) < _MOST_SIZES or any(n.key == key for n in known):
                need = self._ask(region, block, key, loose, circumstances, ambient, args, kwargs, index_hidden)
        if need is not None and need.state == "open":
            return True
        region.ran(False, WAITING if need is None or need.state != "failed" else need.reason)
        return False

    def room_for_helper(self, position: int) -> contextlib.AbstractContextManager[None]:
        """A context for an eager call of the group's block at this position, which may leave a core to the helper.

        Where the model's threads keep all cores busy, a nice process gets a fiftieth of one, and a model that is called
        without a pause would wait minutes for its code. If the helper got more by its priority, threads would wait for
        each other at the end of every operation: a tenth of one core costs a fifth of the time. A thread less costs its
        own work alone. So that a step takes at most about a quarter longer, only two of five blocks do without it where
        there are two or three. In short steps that is no help, for threads without work keep a core for a while before
        they sleep; there, a step now and then begins with a rest. The first step does neither, whose time is what the
        user waits for.
        """
        group, threads = self.group(), torch.get_num_threads()
        if not self.owner.busy or self.owner.device != "cpu" or threads < max(2, cores.usable()) or group is None:
            return contextlib.nullcontext()
        if position <= self._latest:  # a new step
            now = time.monotonic()
            self._short, self._stepped = now - self._stepped < _SHORT_STEP, now
            if self._begun and self._short:
                self.owner.rest()
        self._latest = position
        if not self._begun or self._short or (threads < 4 and position >= _NARROW * len(group.regions)):
            return contextlib.nullcontext()
        return _threads(threads - 1)

    def at_step(self) -> None:
        """Do what was put off until a step begins: at most one switch, so that no step waits for long."""
        if in_backward():
            return
        self._begun = True
        self.due = False  # first: an answer that arrives from here on sets it again
        while not self._messages.empty():
            group = self.group()
            if group is not None:
                group.warn(self._messages.get())
        need = next((n for n in self.needs if n.state in ("waiting", "compiled")), None)
        if need is None:
            return
        if need.state == "compiled":
            self._open(need)
            self.due = True
        elif startup.ahead().step():  # what this process has to do anyway
            self.due = True

    def answered(self, need: Need, answer: dict[str, Any]) -> None:
        """Take the helper's answer. Called in the thread that talks to the helper."""
        need.seconds = time.monotonic() - need.began
        if "error" in answer:
            need.reason = f"compiling failed: {answer['error']}"
            need.state = "failed"
            self._messages.put(f"could not be compiled in the background and runs eager: {answer['error']}")
        else:
            # calls that have no direct way to their code: whether it fits, only the compiler's own entry can tell
            known = remembered.Known(sorted(answer["guarded"]), not answer["compiles"] and not answer["direct"])
            self._take(need, known)
            block = need.holder()
            if need.place is not None and block is not None:
                need.place.note(block, known)
        self.due = True

    def _take(self, need: Need, known: remembered.Known) -> None:
        """Take note that the code is in the cache."""
        need.free = known.free
        self._sources.setdefault(need.key, set()).update(known.sources)
        need.state = "compiled"

    def told(self) -> list[str]:
        """Lines for the report."""
        group = self.group()
        path = (group.path if group is not None else "") or "the model"
        open_, waiting = ([n for n in self.needs if n.state in s] for s in (("open",), ("waiting", "compiled")))
        lines = []
        for before in (True, False):
            some = [n for n in open_ if n.remembered is before]
            if not some:
                continue
            number, stall, misses = len(some), max(n.stall for n in some), sum(n.misses for n in some)
            lines.append(
                f"{path}: {number} kind(s) of call had been compiled in the background by an earlier process"
                if before
                else f"{path}: compiled in the background for {number} kind(s) of call, in "
                f"{max(n.seconds for n in some):.1f} s"
            )
            lines[-1] += f"; the switch took {stall:.2f} s of a step"
            if misses:
                lines[-1] += f"; {misses} graph(s) were not found in the cache and compiled at the switch"
        if waiting:
            lines.append(f"{path}: {len(waiting)} kind(s) of call run eager, {WAITING}")
        lines += dict.fromkeys(f"{path}: {n.reason}" for n in self.needs if n.state == "failed")
        return lines

    def _find(self, block: nn.Module, key: tuple[object, ...]) -> Need | None:
        """The need that a block's call belongs to: blocks that differ in what is known to matter have their own."""
        sources = self._sources.get(key, ())
        values = {source: explain.typed(explain.read(block, source)) for source in sources}
        for need in self._by_key.get(key, ()):
            holder = need.holder()
            for source in sources:
                if source not in need.values and holder is not None:
                    need.values[source] = explain.typed(explain.read(holder, source))
            if need.index_hidden:  # the index is in no guard
                return need
            if all(need.values.get(source) == value for source, value in values.items()):
                return need
        return None

    def _ask(
        self,
        region: Region,
        block: nn.Module,
        key: tuple[object, ...],
        loose: tuple[object, ...],
        circumstances: Circumstances,
        ambient: Ambient,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        index_hidden: bool,
    ) -> Need:
        group = region.group
        need = Need(region.path, key, loose, circumstances, ambient, index_hidden, weakref.ref(block), {})
        self.needs.append(need)
        self._by_key.setdefault(key, []).append(need)
        try:
            bare = shadow(block, to_call=False)
            for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
                bare.__dict__[hooks] = type(vars(bare)[hooks])()  # they run around the code, in this process
            need.job = {
                "group": self.number,
                "path": group.path,
                "class_name": group.class_name,
                "plugin": standins.dumps(group.plugin),
                "block": standins.dumps(bare),
                "block_path": region.path,
                "circumstances": circumstances,
                "ambient": ambient,
                "index_hidden": index_hidden,
                "call": standins.dumps((args, kwargs)),
                "settings": _settings(),
            }
        except standins.CannotSendError as error:
            need.state, need.reason = "failed", f"it cannot be compiled in the background: {error}"
            group.warn(f"runs eager: {need.reason}. compile_regions without background=True compiles it")
        else:
            self.due = True
            earlier = [n.key for n in self.needs if n.loose == loose and n.state in ("compiled", "open")]
            need.place = remembered.Place(
                group.class_name,
                block,
                group.plugin.options,
                circumstances._replace(code=0),
                *(ambient, index_hidden, standins.signature(args, kwargs), repr(group.plugin), earlier),
            )
            known = need.place.find(block)
            if known is not None:
                need.remembered = True
                self._take(need, known)
            else:
                self.owner.ask(self, need)
        return need

    def _open(self, need: Need) -> None:
        """Let this process find the code in the cache, by the call for which it was made."""
        group, block = self.group(), need.holder()
        region = next((r for r in group.regions if r.path == need.block), None) if group is not None else None
        if region is None or block is None or structure(block, by_identity=True) != need.key[0]:
            self._forget(need)  # changed meanwhile: calls of what it is now are noted anew
            return
        begin = time.perf_counter()
        try:
            args, kwargs = standins.loads(need.job["call"])
            device = torch.device(self.owner.device)
            devices = [device] if device.type == "cuda" else []
            with torch.random.fork_rng(devices):
                outcome = replay(
                    region,
                    shadow(block),
                    need.circumstances,
                    need.ambient,
                    args,
                    kwargs,
                    index_hidden=need.index_hidden,
                )
            need.misses = outcome.misses
            if outcome.variant.failure:
                raise NbcompileError(outcome.variant.failure)
        except Exception as error:
            need.state, need.reason = "failed", f"compiling failed: {explain.failure_line(error)}"
            region.group.warn(f"could not be switched to its compiled code and runs eager: {need.reason}")
        else:
            need.state = "open"
        need.stall = time.perf_counter() - begin

    def _forget(self, need: Need) -> None:
        self.needs.remove(need)
        self._by_key[need.key].remove(need)


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


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    """Compute with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _made_again() -> bool:
    """Whether a call's tensors are not kept for the backward pass but computed again, as under checkpointing.

    Any hooks on saved tensors count. Private; checked on torch 2.11 and 2.13.
    """
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(True) is not None


def _without_sizes(told: Any) -> Any:
    """A signature less sizes, strides and numbers."""
    if isinstance(told, tuple):
        if told and isinstance(told[0], torch.dtype):
            return *told[:4], len(told)
        return tuple(_without_sizes(part) for part in told)
    return int if type(told) is int else told


def _settings() -> list[str]:
    """What is not at its default in the compiler's settings, as statements. ``codegen_config`` is torch's way to it."""
    lines = []
    for module in (torch._dynamo.config, torch._inductor.config, torch._functorch.config):
        with contextlib.suppress(Exception):
            lines.append(module.codegen_config())
    return [line for line in lines if line]
