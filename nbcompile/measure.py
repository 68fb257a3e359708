"""Honest timing: clock, memory, difference.

Timing is left to ``torch.utils.benchmark``, which waits for the device before it reads the clock. What is added here is
the order of things: rounds of several candidates are interleaved, so that a drift of the machine hits all alike; each
is held against eager's round beside it; and one in which the process lacked the cores is taken again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import statistics
import time
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import benchmark

from . import cores, pairs, ranking
from .errors import UsageError
from .progress import Progress

#: How long a round should last, in seconds, when the number of calls is not given.
_ROUND_SECONDS = 0.5
_MOST_CALLS = 10_000
#: Interleaved rounds where their number is not given: at first, how many are added while they do not decide which is
#: faster, and at most. Of two calls one right after the other, each takes some percent more or less than the other, and
#: after some seconds a machine that others use may be 10 % slower: many short rounds tell more than few long ones.
_ROUNDS, _MORE_ROUNDS, _MOST_ROUNDS = 24, 12, 48
#: How long one lasts then.
_SHORT_ROUND_SECONDS = 0.1
#: Of calls that take longer there are fewer rounds: as many as fit into this, but no fewer than eight, or twelve.
_STEADY_SECONDS, _LEAST_ROUNDS = (12.0, 24.0), (8, 12)
#: A call that takes so long needs no calls before it that are not timed: what the one before left in the cores' caches
#: is no part of it that could be seen.
_LONG_CALL = 0.1
#: How often a disturbed round is taken again, and how often in all while none comes out undisturbed.
_MOST_REPEATS, _PATIENCE = 2, 6
_SEED = 20_240_229


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median and interquartile range over rounds of ``calls`` calls each.

    Attributes:
        cpu: CPU seconds of one call, all threads of the process: the median over rounds.
        ratio: the seconds as part of the reference's, from pairs of rounds; ``None`` for the reference itself, and
            without two rounds of each.
        disturbed: how many of the rounds lacked the cores although they were repeated.
        lost: the largest part of the time that was lost to that in one of them; ``None`` if the system does not tell.
    """

    median: float
    spread: float
    rounds: int
    calls: int
    cpu: float | None = None
    ratio: pairs.Ratio | None = None
    disturbed: int = 0
    lost: float | None = None

    @property
    def decided(self) -> bool:
        """Whether it is clear that this is faster than the reference, level with it, or slower."""
        if self.ratio is None:
            return self.rounds > 1  # the reference
        low, high, level = self.ratio.low, self.ratio.high, ranking.LEVEL
        return high < 1 - level or low > 1 + level or (low >= 1 - level and high <= 1 + level)


@dataclass(frozen=True)
class Round:
    """One timed round: its place in the order of all, the seconds of a call in it, and what it cost on the cores."""

    place: int
    seconds: float
    use: cores.Use | None = None
    calls: int = 1
    disturbed: bool = False


def first_call(step: Callable[[], Any], device: torch.device | None) -> tuple[Any, cores.Use]:
    """Call once: its result, and its wall time, CPU time (compilers that were started included) and lack of cores.

    The device is waited for before and after.
    """
    synchronize(device)
    before, begin = cores.read(children=True), time.perf_counter()
    result = step()
    synchronize(device)
    seconds = time.perf_counter() - begin  # the second reading takes time too
    return result, dataclasses.replace(cores.Use.between(before, cores.read(children=True)), wall=seconds)


class _Clock:
    """The clock of ``torch.utils.benchmark``, which also reads what the time between two of its readings costs.

    Counts are read before the time at the start of a stretch and after it at the end, so that they are no part of it.
    """

    def __init__(self) -> None:
        self._begin: cores.Reading | None = None
        self.use: cores.Use | None = None

    def __call__(self) -> float:
        if self._begin is None:
            self._begin = cores.read()
            return benchmark.timer()
        now = benchmark.timer()
        self.use, self._begin = cores.Use.between(self._begin, cores.read()), None
        return now

    def reset(self) -> None:
        """Forget a stretch that was begun and failed."""
        self._begin = self.use = None


class Rounds:
    """Timed rounds of several candidates, kept apart by name, to which more can be added at any time.

    A round in which the process lacked the cores (see :mod:`nbcompile.cores`) is taken again, at most twice; of all
    tries the least disturbed counts. Where nothing helps, as on a machine that is busy all the time, that ends too.

    A round of long calls, of 0.1 s or more, is timed without the calls that torch's timer makes before it looks at the
    clock: they would take as long again as those that count, and more rounds tell more.

    Args:
        step: runs the model once.
        calls: calls per round; by default as many as take ``seconds``.
        seconds: how long a round should last.
        reference: the name of the candidate that all others are held against, round by round.

    Attributes:
        times: by name the seconds of a call in each round.
    """

    def __init__(
        self,
        step: Callable[[], Any],
        calls: int | None = None,
        seconds: float = _ROUND_SECONDS,
        reference: str = "eager",
    ) -> None:
        self._clock = _Clock()
        self._timer = benchmark.Timer(
            stmt="step()", timer=self._clock, globals={"step": step}, num_threads=torch.get_num_threads()
        )
        self._bare_timer = timeit.Timer("step()", timer=self._clock, globals={"step": step})
        self._calls, self._seconds, self._reference = calls, seconds, reference
        self._numbers: dict[str, int] = {}
        self._long: set[str] = set()
        self._rounds: dict[str, list[Round]] = {}
        self._place, self._patience = 0, _PATIENCE
        self.times: dict[str, list[float]] = {}

    def take(self, name: str) -> None:
        """Time one more round under the conditions that hold now."""
        if name not in self._numbers:
            estimate = self._once(1).seconds
            self._numbers[name] = self._calls or max(
                1, min(_MOST_CALLS, math.ceil(self._seconds / max(estimate, 1e-9)))
            )
            if self._calls is None and estimate >= _LONG_CALL:
                self._long.add(name)
        number = self._numbers[name]
        taken = self._undisturbed(number, self.best(name), bare=name in self._long)
        self.add(name, taken)
        if self._calls is None and taken.seconds * number > 2 * self._seconds:  # the call timed first was a quick one
            self._numbers[name] = max(1, math.ceil(self._seconds / taken.seconds))

    def add(self, name: str, taken: Round) -> None:
        """Take a round into the figures."""
        self._rounds.setdefault(name, []).append(taken)
        self._numbers.setdefault(name, taken.calls)
        self.times.setdefault(name, []).append(taken.seconds)

    def cost(self, name: str) -> float | None:
        """Seconds that a round of a candidate takes, calls that are not timed included; ``None`` if it had none."""
        if name not in self._rounds:
            return None
        number = self._numbers[name]
        untimed = 0 if name in self._long else max(2, number // 100)
        return statistics.median(self.times[name]) * (number + untimed)

    def best(self, name: str) -> cores.Use | None:
        """What a call of the quickest round so far cost, for a system that tells nothing of waiting."""
        quickest = min(self._rounds.get(name, ()), key=lambda taken: taken.seconds, default=None)
        return None if quickest is None or quickest.use is None else _of_one_call(quickest.use, quickest.calls)

    def timing(self, name: str) -> Timing | None:
        """The figures of all rounds of a candidate so far; ``None`` if it had none."""
        rounds = self._rounds.get(name)
        if not rounds:
            return None
        times = [taken.seconds for taken in rounds]
        used = [taken.use.cpu / taken.calls for taken in rounds if taken.use is not None]
        disturbed = [taken for taken in rounds if taken.disturbed]
        lost = [taken.use.lost for taken in disturbed if taken.use is not None and taken.use.lost is not None]
        return Timing(
            statistics.median(times),
            _spread(times),
            len(times),
            self._numbers[name],
            statistics.median(used) if used else None,
            None if name == self._reference else pairs.ratio(self._at(name), self._at(self._reference)),
            len(disturbed),
            max(lost, default=None),
        )

    def _at(self, name: str) -> list[tuple[int, float]]:
        return [(taken.place, taken.seconds) for taken in self._rounds.get(name, ())]

    def _once(self, number: int, *, bare: bool = False) -> Round:
        self._clock.reset()
        seconds = self._bare_timer.timeit(number) / number if bare else self._timer.timeit(number).median
        self._place += 1
        return Round(self._place, seconds, self._clock.use, number)

    def _undisturbed(self, number: int, best: cores.Use | None, *, bare: bool) -> Round:
        """A round, taken again while it is disturbed and there is patience for that."""
        tried: list[Round] = []
        for _ in range(1 + _MOST_REPEATS):
            taken = self._once(number, bare=bare)
            if taken.use is None or not taken.use.disturbed(number, best):
                self._patience = _PATIENCE
                return taken
            tried.append(dataclasses.replace(taken, disturbed=True))
            if self._patience <= 0:
                break
            self._patience -= 1
        return min(tried, key=lambda one: (one.use.lost if one.use else None) or one.seconds)


def _of_one_call(use: cores.Use, calls: int) -> cores.Use:
    return dataclasses.replace(use, wall=use.wall / calls, cpu=use.cpu / calls)


def interleaved(
    candidates: Mapping[str, AbstractContextManager[Any] | Callable[[], AbstractContextManager[Any]]],
    step: Callable[[], Any],
    *,
    rounds: int | None = None,
    calls: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Timing]:
    """Time one step under several conditions, a round of each in turn, in changing order.

    Args:
        candidates: for each name a function that makes the context in which the step is called. ``"eager"``, if it is
            among them, is what the others are held against.
        rounds: number of rounds; the figures are their median and spread. By default 24, and up to 48 while they do
            not decide which is faster; fewer of calls that take long, but eight at least.
        calls: calls per round; by default as many as take half a second, or 0.1 s where ``rounds`` is not given.
    """
    taken = Rounds(step, calls, _SHORT_ROUND_SECONDS if rounds is None else _ROUND_SECONDS)
    told = Progress.of(progress)
    wanted, most = (_ROUNDS, _MOST_ROUNDS) if rounds is None else (rounds, rounds)
    open_end = rounds is None
    with told.quiet():  # a live chart stands still but for what is told between the rounds
        for turn, order in enumerate(pairs.turns(list(candidates))):
            if open_end and turn == 1:
                wanted, most = _numbers_of_rounds(max((taken.cost(name) or 0.0 for name in candidates), default=0.0))
            if turn >= wanted:
                timings = [taken.timing(name) for name in candidates]
                if turn >= most or all(timing is None or timing.decided for timing in timings):
                    break
                # not after each round: who looks often enough will see some chance pass for a difference
                wanted = min(most, wanted + _MORE_ROUNDS)
            for position, name in enumerate(order):
                told.round_begins(
                    f"steady state: round {turn + 1} of {wanted}, {name}",
                    done=turn * len(candidates) + position,
                    of=wanted * len(candidates),
                    timed=taken.times,
                )
                condition = candidates[name]
                # the other way round would not do: a context made by contextlib.contextmanager is callable too
                with condition if isinstance(condition, AbstractContextManager) else condition():
                    taken.take(name)
    found = {name: taken.timing(name) for name in candidates}
    return {name: timing for name, timing in found.items() if timing is not None}


def _numbers_of_rounds(seconds: float) -> tuple[int, int]:
    """How many rounds at first and at most, if one lasts so many seconds."""
    first, most = (
        min(number, max(least, int(whole / max(seconds, 1e-9))))
        for number, least, whole in zip((_ROUNDS, _MOST_ROUNDS), _LEAST_ROUNDS, _STEADY_SECONDS, strict=True)
    )
    return first, most


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


def random_state(device: torch.device | None) -> list[torch.Tensor]:
    """The state of torch's random number generators, of the CPU and of a device: equal if nothing was drawn between."""
    states = [torch.get_rng_state()]
    if device is not None and device.type not in ("cpu", "meta"):
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states


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


def drifts(expected: Any, actual: Any) -> bool:
    """Whether any number in two results differs by more than ``torch.testing.assert_close`` allows for its dtype.

    Results are looked through as by :func:`max_abs_diff`; what holds no numbers does not drift.
    """
    expected, actual = _as_tensor(expected), _as_tensor(actual)
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        return tensor_drifts(expected, actual, max_abs_diff(expected, actual))
    if isinstance(expected, (int, float)) and isinstance(actual, (int, float)):
        return tensor_drifts(torch.tensor(expected), torch.tensor(actual), max_abs_diff(expected, actual))
    left, right = _children(expected), _children(actual)
    if left is None or right is None:
        return max_abs_diff(expected, actual) is not None
    return len(left) != len(right) or any(drifts(a, b) for a, b in zip(left, right, strict=True))


def tensor_drifts(expected: torch.Tensor, actual: torch.Tensor, difference: float | None) -> bool:
    """Whether two tensors differ by more than ``torch.testing.assert_close`` allows for their dtype.

    Args:
        difference: the largest absolute difference of their elements.
    """
    try:
        torch.testing.assert_close(actual, expected, equal_nan=True)
    except AssertionError:
        pass
    else:
        return False
    same_kind = expected.dtype == actual.dtype and expected.shape == actual.shape and expected.is_floating_point()
    if not same_kind or difference is None or math.isinf(difference):
        return True
    # Sums taken in another order differ by a part of what was summed, not of what is left of it: a small element beside
    # large ones may. So the difference is held against the tensor's largest element; where dtypes differ,
    # assert_close allows what it allows for the wider tolerance of both, here that of the tensors' own.
    largest = torch.tensor(magnitude(expected) or 0.0, dtype=torch.float64)
    try:
        torch.testing.assert_close(largest + difference, largest.to(expected.dtype), check_dtype=False)
    except AssertionError:
        return True
    return False


def magnitude(tensor: torch.Tensor) -> float | None:
    """The largest absolute value among a tensor's finite ones."""
    values = tensor.detach().abs()
    values = values[values.isfinite()]
    return float(values.max()) if values.numel() else None


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
