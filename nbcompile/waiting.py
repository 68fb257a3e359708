"""What a group's blocks ask for while their code is compiled in the background, and when they go over to it.

A call for which there is no code yet runs eager. What it was made of is noted and sent on, tensors as their kind alone
(:mod:`nbcompile.standins`). When the answer has come, and the next step begins, this process makes the same call with
stand-ins, which finds everything in the cache and takes as long as tracing does; from then on the user's calls fit. A
group takes one such step at a time.
"""

from __future__ import annotations

import contextlib
import queue
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import cores, explain, remembered, standins, startup
from .border import in_backward
from .errors import NbcompileError
from .regions import structure
from .replay import Ambient, replay, shadow
from .variants import Circumstances, Group

if TYPE_CHECKING:
    from .background import Beside
    from .border import Region

CHECKPOINTED = "it is checkpointed, and must not go over between a call and the backward pass that makes it again"
WAITING = "its code is being compiled beside it, in a process of its own"
#: So many calls that differ in sizes alone are sent before the first of them is done: the compiler makes its second
#: version for any size.
_MOST_SIZES = 2
#: Which part of the blocks leaves a core to the helper where there are two or three cores.
_NARROW = 0.4
#: Steps are short below so many seconds.
_SHORT_STEP = 0.1


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
        found_before: whether an earlier process has left word there.
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
    found_before: bool = False


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
            some = [n for n in open_ if n.found_before is before]
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
            known = None
            with contextlib.suppress(Exception):  # it only saves work: no step of the user's is to fail for it
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
                need.found_before = True
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
