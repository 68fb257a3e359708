"""Honest timing: clock, memory, difference.

Timing is left to ``torch.utils.benchmark``, which waits for the device before it reads the clock. What is added here is
the order of things: rounds of several candidates are interleaved, so that a drift of the machine hits all alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import benchmark

from .errors import UsageError
from .progress import Progress

#: How long a round should last, in seconds, when the number of calls is not given.
_ROUND_SECONDS = 0.5
_MOST_CALLS = 10_000
_SEED = 20_240_229


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median and interquartile range over rounds of ``calls`` calls each."""

    median: float
    spread: float
    rounds: int
    calls: int


def first_call(step: Callable[[], Any], device: torch.device | None) -> tuple[Any, float]:
    """Call once: its result, and its wall time in seconds. The device is waited for before and after."""
    synchronize(device)
    begin = time.perf_counter()
    result = step()
    synchronize(device)
    return result, time.perf_counter() - begin


def interleaved(
    candidates: Mapping[str, AbstractContextManager[Any] | Callable[[], AbstractContextManager[Any]]],
    step: Callable[[], Any],
    *,
    rounds: int,
    calls: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Timing]:
    """Time one step under several conditions, a round of each in turn.

    Args:
        candidates: for each name a function that makes the context in which the step is called.
        rounds: number of rounds; the figures are their median and spread.
        calls: calls per round; by default as many as take half a second.
    """
    numbers: dict[str, int] = {}
    times: dict[str, list[float]] = {name: [] for name in candidates}
    timer = benchmark.Timer(stmt="step()", globals={"step": step}, num_threads=torch.get_num_threads())
    told = Progress.of(progress)
    with told.quiet():  # a live chart stands still but for what is told between the rounds
        for turn in range(rounds):
            for position, (name, condition) in enumerate(candidates.items()):
                told.round_begins(
                    f"steady state: round {turn + 1} of {rounds}, {name}",
                    done=turn * len(candidates) + position,
                    of=rounds * len(candidates),
                    timed=times,
                )
                # the other way round would not do: a context made by contextlib.contextmanager is callable too
                with condition if isinstance(condition, AbstractContextManager) else condition():
                    if name not in numbers:
                        estimate = timer.timeit(1).median
                        wanted = math.ceil(_ROUND_SECONDS / max(estimate, 1e-9))
                        numbers[name] = calls or max(1, min(_MOST_CALLS, wanted))
                    times[name].append(timer.timeit(numbers[name]).median)
    return {name: Timing(statistics.median(t), _spread(t), rounds, numbers[name]) for name, t in times.items()}


def _spread(times: Sequence[float]) -> float:
    """Interquartile range; of fewer than four rounds, the whole range."""
    if len(times) < 4:
        return max(times) - min(times)
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return high - low


def break_even(cold: float, steady: float, eager: float, spread: float) -> int | None:
    """Number of calls after which compiling has cost no more time than eager.

    Args:
        cold: seconds of the first compiled call.
        steady: seconds of a later one.
        eager: seconds of an eager call.
        spread: how far two measurements of the same thing may lie apart; a gain within it counts as none.
    """
    gain = eager - steady
    if gain <= max(spread, 0.0):
        return None
    return max(1, math.ceil((cold - steady) / gain))


def synchronize(device: torch.device | None) -> None:
    """Wait until the device has done all that was asked of it."""
    if device is not None and device.type != "cpu":
        torch.accelerator.synchronize(device)


def peak_bytes(step: Callable[[], Any], device: torch.device | None) -> int | None:
    """Largest memory in use during one call, in bytes: the device's allocator, or on a CPU the whole process.

    ``None`` where the system does not tell.
    """
    if device is not None and device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        step()
        synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    if device is not None and device.type != "cpu":
        return None
    try:
        with open("/proc/self/clear_refs", "w") as file:  # Linux: starts the process's high-water mark anew
            file.write("5")
    except OSError:
        return None
    step()  # outside of the try: an error of the step is the caller's
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


@contextlib.contextmanager
def same_randomness() -> Iterator[None]:
    """The same random numbers each time, and afterwards the generators as they were."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        yield


def snapshot(value: Any) -> Any:
    """A step's result kept safe from being overwritten by later calls (CUDA graphs reuse their memory)."""
    value = _as_tensor(value)
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    children = _children(value)
    return value if children is None else [snapshot(child) for child in children]


def max_abs_diff(one: Any, other: Any) -> float | None:
    """Largest absolute difference between two results, through lists, dictionaries, dataclasses and model outputs.

    ``None`` if they hold no numbers to compare; infinite if they differ in shape or kind.
    """
    one, other = _as_tensor(one), _as_tensor(other)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape:
            return math.inf
        if one.numel() == 0:
            return None
        precise = torch.complex128 if one.is_complex() or other.is_complex() else torch.float64
        left, right = one.detach().to(precise).cpu(), other.detach().to(precise).cpu()
        # equal infinities and NaN in the same place are no difference
        unequal = ~((left == right) | (left.isnan() & right.isnan()))
        if not bool(unequal.any()):
            return 0.0
        difference = float((left - right)[unequal].abs().max())
        return math.inf if math.isnan(difference) else difference
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        if one == other or (math.isnan(one) and math.isnan(other)):
            return 0.0
        difference = abs(float(one) - float(other))
        return math.inf if math.isnan(difference) else difference
    left_children, right_children = _children(one), _children(other)
    if left_children is None or right_children is None:
        return None if type(one) is type(other) and left_children is right_children else math.inf
    if len(left_children) != len(right_children):
        return math.inf
    found = [max_abs_diff(a, b) for a, b in zip(left_children, right_children, strict=True)]
    known = [value for value in found if value is not None]
    return max(known) if known else None


def _as_tensor(value: Any) -> Any:
    """An array of another library (NumPy) as a tensor; anything else as it is."""
    if isinstance(value, torch.Tensor) or not hasattr(value, "__array__"):
        return value
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):  # an array of text or of objects
        return value


def _children(value: Any) -> list[Any] | None:
    if isinstance(value, Mapping):  # a transformers ModelOutput is an ordered dictionary
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return None


@contextlib.contextmanager
def empty_compiler_cache() -> Iterator[None]:
    """An empty folder for the compiler's cache, and nothing remembered in memory, so that a compile is really cold.

    Code that is compiled already goes on working. The folder is removed afterwards. ``fresh_cache`` is what torch's own
    tests use; there is no public one. Checked on torch 2.11 and 2.13.
    """
    from torch._inductor import utils

    fresh = getattr(utils, "fresh_cache", None) or getattr(utils, "fresh_inductor_cache", None)
    if fresh is None:
        raise UsageError(
            f"torch {torch.__version__} has no fresh_cache in torch._inductor.utils, which is needed to measure a cold "
            "start; it was checked on torch 2.11 and 2.13"
        )
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    failure: BaseException | None = None
    try:
        with fresh():
            try:
                yield
            except BaseException as error:
                failure = error  # seen by fresh_cache, it would leave the folder behind and say so
        if failure is not None:
            raise failure
    finally:
        failure = None  # or error and frame would hold each other
        if before is not None and os.environ.get("TORCHINDUCTOR_CACHE_DIR") != before:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = before


def start_up(backend: Any) -> float:
    """Have a backend do what it does once a process, by compiling a trivial function; seconds it took.

    For inductor on a CPU: importing its parts, probing the vector instructions, building the precompiled header.
    """

    def trivial(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + 1

    begin = time.perf_counter()
    with torch.no_grad():
        torch.compile(trivial, backend=backend)(torch.ones(64))
    return time.perf_counter() - begin
