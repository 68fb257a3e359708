"""What calling a compiled block costs beside its kernels: the module's call, the border, guards, the compiler's code.

It is what regional compilation pays for each block and full compilation once a step. It cannot be had as the difference
of a block's time and its kernels' time: for all but the smallest blocks that difference is lost in how much the kernels
vary. So the kernels are taken out of both. Each block is called once as the model calls it, and what its compiled
graph was given and gave is noted; then the same call is timed with a function in the graph's place that returns that at
once, less the time of this function alone. Nothing is computed while that is timed, so nothing changes.

Two things are not in the figure. What AOT autograd and the backend's own code do around the kernels belongs to the
graph. And after real kernels less of the code is in the processor's caches: on blocks so small that the difference can
be seen it was a quarter more.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import benchmark

from . import check, describe, measure
from .border import Region, region_of
from .compiler import SLOT, Compilation
from .fastpath import FastPath

#: Pairs of rounds for each kind of call, how long a round lasts, and how many kinds are timed: half a second in all.
#: Short rounds, so that most are whole although the process is made to wait now and then.
_PAIRS, _ROUND_SECONDS, _MOST_KINDS = 61, 0.0005, 8


@dataclass(frozen=True)
class Dispatch:
    """What a call of a compiled block costs beside its kernels.

    Attributes:
        seconds: for one call, the mean over the calls of a step.
        spread: interquartile range of that over the timed rounds, in seconds.
        repeats: number of timed rounds.
        calls: how many such calls a step makes.
    """

    seconds: float
    spread: float
    repeats: int
    calls: int


class _Kind(NamedTuple):
    """Calls that cost the same: by the code that they run, and by how much the border looks at beforehand."""

    path: FastPath
    new_step: bool
    fits_again: bool


def measure_dispatch(compilation: Compilation, step: Callable[[], Any]) -> tuple[Dispatch | None, list[str]]:
    """Run the step once, and time in it what calling the blocks of a compilation costs beside their kernels.

    Args:
        compilation: what is measured. It must have run the step, and must be installed.
        step: runs the model once.

    Returns:
        The figures, ``None`` where no call could be timed, and a line for each reason why some could not.
    """
    if compilation.replays is not None:
        return None, ["a CUDA graph stands for the whole step, so its blocks are not called one by one"]
    watch = _Watch()
    with watch.slots(compilation), measure.same_randomness():
        step()
    return watch.result(), list(watch.left_out)


class _Watch:
    """The calls of one step."""

    def __init__(self) -> None:
        self.times: dict[_Kind, list[float]] = {}
        self.calls: Counter[_Kind] = Counter()
        self.left_out: dict[str, None] = {}
        self._tried: set[_Kind] = set()

    def result(self) -> Dispatch | None:
        """The mean over all calls of the kinds that were timed."""
        calls = sum(self.calls[kind] for kind in self.times)
        if not calls:
            return None
        rounds = zip(*self.times.values(), strict=True)
        weights = [self.calls[kind] / calls for kind in self.times]
        means = [sum(w * seconds for w, seconds in zip(weights, taken, strict=True)) for taken in rounds]
        low, middle, high = statistics.quantiles(means, n=4, method="inclusive")
        # A clock's own error may exceed a call that costs next to nothing.
        return Dispatch(max(0.0, middle), high - low, len(means), calls)

    @contextlib.contextmanager
    def slots(self, compilation: Compilation) -> Iterator[None]:
        """A function in each block's slot that looks on; afterwards what was there."""
        filled = []
        for block, region in compilation.regions():
            border = block.__dict__.get(SLOT)
            if border is not None and region_of(border) is region:
                block.__dict__[SLOT] = watcher = self._watcher(block, region, border)
                filled.append((block, border, watcher))
        try:
            yield
        finally:
            for block, border, watcher in filled:
                if block.__dict__.get(SLOT) is watcher:
                    block.__dict__[SLOT] = border

    def _watcher(self, block: nn.Module, region: Region, border: Any) -> Callable[..., Any]:
        position = region.group.regions.index(region)

        def watcher(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or torch.jit.is_tracing():
                return border(*args, **kwargs)
            return self._watched(block, region, position, border, args, kwargs)

        watcher.region, watcher.before = region, border.before  # type: ignore[attr-defined]
        return watcher

    def _watched(
        self,
        block: nn.Module,
        region: Region,
        position: int,
        border: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Make a call, and note what its graph was given and gave."""
        group = region.group
        latest, fitted, known = group.latest, group.fitted, region.fast
        recorded: list[tuple[FastPath, bool, tuple[Any, ...], Any]] = []
        copies = {
            path.with_graph(_recorder(path, hidden, recorded)): path for path, hidden in known if path.graph is not None
        }
        region.fast = recording = [
            (next((copy for copy, original in copies.items() if original is path), path), hidden)
            for path, hidden in known
        ]
        try:
            result = border(*args, **kwargs)
        finally:
            region.fast = known if region.fast is recording else [p for p in region.fast if p[0] not in copies]
            if group.fitted in copies:
                group.fitted = copies[group.fitted]
        if not recorded:
            self.left_out[_why_not_direct(region)] = None
            return result
        if any(region.all_hooks):  # they are the user's, or a library's that gathers weights
            self.left_out[f"{_name(region)}: it has hooks, which would run again with each call that is timed"] = None
            return result
        path, hidden, inputs, outputs = recorded[0]
        new_step = position <= latest
        kind = _Kind(path, new_step, not new_step and fitted is path)
        self.calls[kind] += 1
        if kind not in self._tried and len(self._tried) < _MOST_KINDS:
            self._tried.add(kind)
            before = block.__dict__[SLOT]
            block.__dict__[SLOT] = border
            try:
                self._time(kind, hidden, block, region, latest, (args, kwargs), (inputs, outputs))
            except Exception as error:  # a figure that is missing is no reason to fail the step
                self.left_out[f"{_name(region)}: {type(error).__name__}"] = None
            finally:
                block.__dict__[SLOT] = before
                region.fast, group.fitted, group.latest = known, path, position
        return result

    def _time(
        self,
        kind: _Kind,
        hidden: bool,
        block: nn.Module,
        region: Region,
        latest: int,
        given: tuple[tuple[Any, ...], dict[str, Any]],
        noted: tuple[tuple[Any, ...], Any],
    ) -> None:
        """Time a call that has just been made, its graph replaced by a function that computes nothing."""
        (args, kwargs), (inputs, outputs) = given, noted
        if hidden or not kind.path.only_calls_graph:
            what = "changes a KV cache" if hidden else "does more than compute, in Python"
            self.left_out[f"{_name(region)}: each call {what}, so it cannot be made again"] = None
            return
        if not kind.path.fits({"block": block, "args": args, "kwargs": kwargs}):
            # calling it would run the block once more, or compile it
            self.left_out[f"{_name(region)}: a call changes what the next one is compiled for"] = None
            return

        def graph(*_: Any) -> Any:
            return outputs

        path = kind.path.with_graph(graph)
        region.fast = [(path, hidden)]
        # the border looks at what the block before has left, which here was this block itself
        fitted = path if kind.fits_again else None
        before = {"group": region.group, "latest": latest, "fitted": fitted}
        names = {**before, "block": block, "args": args, "kwargs": kwargs, "graph": graph, "inputs": inputs}
        # The number of threads is one of the compiler's guards; it must be what it is. No kernel runs anyway.
        timers = [
            benchmark.Timer(
                f"group.latest, group.fitted = latest, fitted; {call}",
                globals=names,
                num_threads=torch.get_num_threads(),
            )
            for call in ("block(*args, **kwargs)", "graph(*inputs)")
        ]
        device = describe.device_of(block) or torch.device("cpu")
        with check.as_found(block), check.same_random_numbers(device):
            begin = time.perf_counter()
            timers[0].timeit(10)
            number = max(1, round(_ROUND_SECONDS / max(1e-7, (time.perf_counter() - begin) / 10)))
            pairs = [[timer.timeit(number).mean for timer in timers] for _ in range(_PAIRS)]
        self.times[kind] = [whole - alone for whole, alone in pairs]


def _recorder(
    path: FastPath, hidden: bool, recorded: list[tuple[FastPath, bool, tuple[Any, ...], Any]]
) -> Callable[..., Any]:
    """A function for a graph's place that calls the graph, and notes what goes in and comes out."""
    graph = path.graph
    assert graph is not None  # or nobody would ask

    def record(*inputs: Any) -> Any:
        outputs = graph(*inputs)
        recorded.append((path, hidden, inputs, outputs))
        return outputs

    return record


def _why_not_direct(region: Region) -> str:
    """Why a region's call did not go straight to compiled code."""
    if region.compiled is not True:
        return f"{_name(region)}: it ran eager"
    if any(variant.log.breaks for variant in region.table.values()):
        return f"{_name(region)}: a graph break splits it"
    return f"{_name(region)}: its call goes through the compiler's own entry"


def _name(region: Region) -> str:
    """The blocks of one container alike, so that one reason is one line."""
    return f"{region.group.class_name} in {region.group.path}" if region.group.path else region.group.class_name
