"""Honest timing: what is counted, in which order, and what is left as it was."""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from nbcompile import measure
from nbcompile.measure import break_even, max_abs_diff, same_randomness, snapshot

#: Calls that torch.utils.benchmark makes before it times a round of fewer than 300.
WARM_UP = 2

needs_proc = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="this system has no /proc")

# -- break-even --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cold", "steady", "eager", "calls"),
    [
        (10.0, 0.25, 0.75, 20),  # (10 - 0.25) / 0.5 = 19.5
        (10.25, 0.25, 0.75, 20),  # exactly 20: the call at which both have cost the same counts
        (10.5, 0.25, 0.75, 21),
        (5.0, 0.5, 1.0, 9),
        (1.0, 0.5, 1.0, 1),  # the first call takes no longer than eager's
        (0.25, 0.5, 1.0, 1),  # never fewer than one call
        (0.0, 0.0, 1.0, 1),
    ],
)
def test_break_even(cold: float, steady: float, eager: float, calls: int) -> None:
    # GIVEN times that a float holds exactly WHEN the number of calls is asked for
    assert break_even(cold, steady, eager, 0.0) == calls
    # THEN after as many calls compiling has cost no more than eager, and after one fewer it has cost more
    assert cold + (calls - 1) * steady <= calls * eager
    assert calls == 1 or cold + (calls - 2) * steady > (calls - 1) * eager


@pytest.mark.parametrize(
    ("steady", "eager", "spread"),
    [
        (0.75, 0.75, 0.0),  # nothing gained
        (1.0, 0.75, 0.0),  # slower than eager
        (0.5, 0.75, 0.25),  # a gain of exactly the spread
        (0.5, 0.75, 1.0),  # a gain within the spread
        (1.0, 0.75, -1.0),  # a spread cannot make a loss a gain
        (0.75, 0.75, -1.0),
    ],
)
def test_never_breaks_even(steady: float, eager: float, spread: float) -> None:
    # GIVEN no gain beyond the spread WHEN the number of calls is asked for THEN there is none
    assert break_even(1.0, steady, eager, spread) is None


def test_gain_beyond_the_spread_counts() -> None:
    # GIVEN a gain just above the spread WHEN the number of calls is asked for THEN the whole gain counts
    assert break_even(10.25, 0.25, 0.75, 0.49) == 20


# -- differences -------------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "first second")


@dataclass
class Output:
    logits: torch.Tensor
    loss: Any = None


def t(*values: float, **kwargs: Any) -> torch.Tensor:
    return torch.tensor(values, **kwargs)


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        (t(1.0, 2.0), t(1.0, 2.0), 0.0),
        (t(1.0, 2.0, 3.0), t(1.5, 2.0, 1.0), 2.0),
        (t(1.0, requires_grad=True), t(1.25), 0.25),
        (t(1.0, dtype=torch.bfloat16), t(1.5, dtype=torch.float64), 0.5),
        (t(1, 2), t(1, 5), 3.0),
        (t(2**31 - 1, dtype=torch.int32), t(-(2**31), dtype=torch.int32), float(2**32 - 1)),
        (t(0, dtype=torch.uint8), t(255, dtype=torch.uint8), 255.0),
        (t(True, False), t(True, False), 0.0),
        (t(True, False), t(True, True), 1.0),
        (t(1 + 2j), t(1 + 2j), 0.0),
        (t(1 + 2j), t(1 - 2j), 4.0),
        (t(1 + 2j), t(1.0), 2.0),
        (torch.tensor(2.0), torch.tensor(2.5), 0.5),
        # NaN and infinities: no difference where both have the same, else as large as can be
        (t(math.nan, 1.0), t(math.nan, 1.0), 0.0),
        (t(math.nan, 1.0), t(math.nan, 1.5), 0.5),
        (t(math.nan), t(1.0), math.inf),
        (t(1.0), t(math.nan), math.inf),
        (t(math.inf, -math.inf), t(math.inf, -math.inf), 0.0),
        (t(math.inf), t(-math.inf), math.inf),
        (t(math.inf), t(1.0), math.inf),
        (t(math.inf, 1.0), t(math.inf, 3.0), 2.0),
        (t(math.nan), t(math.inf), math.inf),
        # shapes
        (t(1.0), t(1.0, 1.0), math.inf),
        (torch.zeros(2, 1), torch.zeros(1, 2), math.inf),
        (torch.zeros(0), torch.zeros(0), None),
        (torch.zeros(0, 2), torch.zeros(0), math.inf),
        # plain values
        (1, 1, 0.0),
        (1, 3.5, 2.5),
        (True, False, 1.0),
        (math.nan, math.nan, 0.0),
        (math.nan, 1.0, math.inf),
        (math.inf, math.inf, 0.0),
        (math.inf, -math.inf, math.inf),
        (None, None, None),
        ("a", "a", None),
        ("a", "b", None),
        (torch.float32, torch.float32, None),
        # kinds
        (None, t(1.0), math.inf),
        (t(1.0), 1.0, math.inf),
        (1.0, "1.0", math.inf),
        (None, "a", math.inf),
        ([t(1.0)], t(1.0), math.inf),
        # nested
        ([], [], None),
        ({}, {}, None),
        ([None, "a"], [None, "b"], None),
        ([None, t(1.0)], [None, t(3.0)], 2.0),
        ((t(1.0), [t(2.0), {"a": t(3.0)}]), (t(1.0), [t(2.5), {"a": t(4.0)}]), 1.0),
        ([t(1.0)], [t(1.0), t(1.0)], math.inf),
        ([t(5.0), t(1.0)], [t(1.0), t(1.0, 1.0)], math.inf),
        ({"a": t(1.0)}, {"a": None}, math.inf),
        (Pair(t(1.0), 2), Pair(t(1.0), 4), 2.0),
        (Output(t(1.0)), Output(t(1.125)), 0.125),
        (Output(t(1.0), t(9.0)), Output(t(1.0), t(4.0)), 5.0),
        (Output, Output, None),
    ],
    ids=lambda value: str(value).replace("\n", "")[:40],
)
def test_largest_difference(one: Any, other: Any, difference: float | None) -> None:
    # GIVEN two results WHEN they are compared, either way round THEN the largest difference is exactly this
    assert max_abs_diff(one, other) == difference
    assert max_abs_diff(other, one) == difference


def test_difference_of_model_outputs() -> None:
    # GIVEN what a model of transformers returns WHEN two are compared THEN tensors inside of tuples are too
    from transformers.modeling_outputs import BaseModelOutput

    def output(value: float) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=t(1.0), hidden_states=(t(1.0), t(2.0, value)))

    assert max_abs_diff(output(3.0), output(3.0)) == 0.0
    assert max_abs_diff(output(3.0), output(3.5)) == 0.5


def test_difference_below_the_precision_of_the_results() -> None:
    # GIVEN half-precision results that lie one step apart WHEN they are compared THEN the step is not rounded away
    one = t(1.0, dtype=torch.float16)
    assert max_abs_diff(one, torch.nextafter(one, t(2.0, dtype=torch.float16))) == 2**-10


# -- snapshots ---------------------------------------------------------------------------------------------------------


def test_snapshot_does_not_see_later_changes() -> None:
    # GIVEN a nested result WHEN its tensors are overwritten, as CUDA graphs do
    inner, outer = t(1.0, 2.0), t(3.0)
    kept = snapshot({"a": [inner, (outer,)], "b": Output(outer)})
    inner.zero_()
    outer.zero_()
    # THEN the snapshot holds the old values
    assert max_abs_diff(kept, [[t(1.0, 2.0), [t(3.0)]], [t(3.0), None]]) == 0.0


def test_snapshot_keeps_no_graph_alive() -> None:
    # GIVEN a result with a gradient's graph WHEN it is kept THEN the graph is not
    result = t(1.0, requires_grad=True) * 2
    assert result.grad_fn is not None
    assert snapshot(result).grad_fn is None
    assert not snapshot(result).requires_grad


@pytest.mark.parametrize("value", [None, 5, "text", 1.5, torch.float32])
def test_snapshot_of_plain_values(value: Any) -> None:
    # GIVEN something that nothing can overwrite WHEN it is kept THEN it is the same
    assert snapshot(value) is value


def test_snapshot_compares_like_the_result() -> None:
    # GIVEN two results WHEN their snapshots are compared THEN the difference is that of the results
    one, other = {"a": (t(1.0), None)}, {"a": (t(2.5), None)}
    assert max_abs_diff(snapshot(one), snapshot(other)) == max_abs_diff(one, other) == 1.5


# -- random numbers ----------------------------------------------------------------------------------------------------


def test_same_random_numbers_each_time() -> None:
    # GIVEN generators in two states WHEN numbers are drawn under same_randomness THEN they are the same
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with same_randomness():
            drawn.append(torch.rand(4).tolist())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("fails", [False, True])
def test_generator_is_as_it_was(fails: bool) -> None:
    # GIVEN a generator's state WHEN numbers are drawn under same_randomness, and perhaps the step fails
    torch.manual_seed(7)
    before = torch.get_rng_state()
    with contextlib.suppress(ZeroDivisionError), same_randomness():
        torch.rand(4)
        if fails:
            1 / 0
    # THEN the state is the same, and Python's own generator was not touched
    assert torch.equal(torch.get_rng_state(), before)


def test_pythons_generator_is_left_alone() -> None:
    # GIVEN the state of Python's own generator WHEN same_randomness is used THEN it has not changed
    state = random.getstate()
    with same_randomness():
        pass
    assert random.getstate() == state


# -- clock -------------------------------------------------------------------------------------------------------------


def busy(seconds: float) -> None:
    """Use up time without giving the processor away."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_first_call_is_timed_and_its_result_kept() -> None:
    # GIVEN a step that takes at least 20 ms WHEN it is called for the first time
    calls = []

    def step() -> str:
        calls.append(1)
        busy(0.02)
        return "result"

    begin = time.perf_counter()
    result, use = measure.first_call(step, None)
    # THEN it was called once, and the time lies between the step's own and that of the whole
    assert (result, len(calls)) == ("result", 1)
    assert 0.02 <= use.wall <= time.perf_counter() - begin


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_nothing_to_wait_for_on_a_cpu(device: torch.device | None) -> None:
    # GIVEN no accelerator WHEN the device is waited for THEN there is nothing to wait for, and no error
    measure.synchronize(device)


class Recorder:
    """A step that notes under which condition it was called."""

    def __init__(self) -> None:
        self.condition = "none"
        self.calls: list[str] = []

    def __call__(self) -> None:
        self.calls.append(self.condition)

    @contextlib.contextmanager
    def under(self, name: str) -> Iterator[None]:
        self.condition = name
        try:
            yield
        finally:
            self.condition = "none"

    def candidates(self, *names: str) -> dict[str, Any]:
        return {name: lambda name=name: self.under(name) for name in names}


def test_rounds_are_interleaved() -> None:
    # GIVEN three candidates WHEN they are timed in two rounds of five calls
    step = Recorder()
    timings = measure.interleaved(step.candidates("a", "b", "c"), step, rounds=2, calls=5)
    # THEN the rounds take turns, the second the other way round; the first of each has one more call, by which the
    # rounds' length is estimated
    first, later = ["*"] * (WARM_UP + 1 + WARM_UP + 5), ["*"] * (WARM_UP + 5)
    expected = [name for name in "abc" for _ in first] + [name for name in "cba" for _ in later]
    assert step.calls == expected
    assert {name: (timing.rounds, timing.calls) for name, timing in timings.items()} == dict.fromkeys("abc", (2, 5))
    # AND no condition was left in force
    assert step.condition == "none"


def test_candidate_may_be_a_context() -> None:
    # GIVEN contexts themselves instead of functions that make them WHEN they are timed THEN they are entered
    step = Recorder()
    measure.interleaved({"a": step.under("a"), "b": contextlib.nullcontext()}, step, rounds=1, calls=1)
    assert dict.fromkeys(step.calls) == {"a": None, "none": None}


def test_condition_is_taken_off_when_the_step_fails() -> None:
    # GIVEN a step that fails WHEN it is timed THEN its error comes through, and no condition is left in force
    recorder = Recorder()

    def step() -> None:
        recorder()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measure.interleaved(recorder.candidates("a"), step, rounds=1, calls=1)
    assert (recorder.calls, recorder.condition) == (["a"], "none")


def test_progress_is_told_before_each_round() -> None:
    # GIVEN someone who wants to know WHEN rounds are timed THEN each is told before it begins
    step, lines = Recorder(), []

    def tell(line: str) -> None:
        lines.append((line, len(step.calls)))

    measure.interleaved(step.candidates("a", "b"), step, rounds=2, calls=1, progress=tell)
    first = WARM_UP + 1 + WARM_UP + 1
    assert lines == [
        ("steady state: round 1 of 2, a", 0),
        ("steady state: round 1 of 2, b", first),
        ("steady state: round 2 of 2, b", 2 * first),
        ("steady state: round 2 of 2, a", 2 * first + WARM_UP + 1),
    ]


def test_quick_step_is_called_often() -> None:
    # GIVEN a step that takes next to nothing WHEN the number of calls is left open THEN it is the largest allowed
    assert measure.interleaved({"a": contextlib.nullcontext}, lambda: None, rounds=1)["a"].calls == 10_000


def test_round_lasts_about_half_a_second() -> None:
    # GIVEN a step that takes at least 0.2 s WHEN the number of calls is left open THEN a round has at most three
    timing = measure.interleaved({"a": contextlib.nullcontext}, lambda: busy(0.2), rounds=1)["a"]
    assert 1 <= timing.calls <= 3
    assert timing.median >= 0.2


@pytest.mark.alone
def test_a_quick_first_call_does_not_make_rounds_that_last() -> None:
    # GIVEN a step whose calls are quick at first, and slow once it is timed in earnest
    waits = [0.0, 0.0, 0.0005, *[0.03] * 1000]  # torch's timer calls twice before it times
    rounds = measure.Rounds(lambda: time.sleep(waits.pop(0)), seconds=0.06)
    # WHEN rounds are taken
    numbers = []
    for _ in range(3):
        before = len(waits)
        rounds.take("a")
        numbers.append(before - len(waits))
    # THEN the first, with its trial call, is as long as that call had it, and the later are as long as they should be
    assert numbers[0] >= 2 * max(numbers[1:])
    assert max(numbers[1:]) <= 2 + 2
    timing = rounds.timing("a")
    assert timing is not None
    assert timing.rounds == 3
    assert rounds.timing("b") is None


def test_a_long_call_needs_none_before_it() -> None:
    # GIVEN a call that takes longer than a round should, and a short one
    step = Recorder()

    def slowly() -> None:
        step()
        time.sleep(0.12 if step.condition == "long" else 0.001)

    rounds = measure.Rounds(slowly, seconds=0.01)
    for name in ("long", "short"):
        with step.under(name):
            rounds.take(name)
    step.calls.clear()
    assert (rounds.cost("long") or 0.0) >= 0.12
    assert rounds.cost("other") is None
    # WHEN another round of each is taken
    for name in ("long", "short"):
        with step.under(name):
            rounds.take(name)
    # THEN the long call is made once, and the short one after some that do not count
    assert step.calls.count("long") == 1
    assert step.calls.count("short") > WARM_UP
    timing = rounds.timing("long")
    assert timing is not None
    assert (timing.calls, timing.rounds) == (1, 2)
    assert 0.12 <= timing.median < 0.24
    # AND what a round costs is told with those
    short = rounds.timing("short")
    assert short is not None
    assert rounds.cost("short") == pytest.approx(short.median * (short.calls + WARM_UP))
    # AND of calls whose number is given nothing is left out
    step.calls.clear()
    given = measure.Rounds(slowly, calls=1)
    with step.under("long"):
        given.take("long")
    assert step.calls.count("long") == WARM_UP + 1 + WARM_UP + 1


@pytest.mark.parametrize(
    ("seconds", "numbers"), [(0.0, (24, 48)), (0.1, (24, 48)), (0.8, (15, 30)), (1.2, (10, 20)), (30.0, (8, 12))]
)
def test_of_long_rounds_there_are_fewer(seconds: float, numbers: tuple[int, int]) -> None:
    assert measure._numbers_of_rounds(seconds) == numbers


def test_rounds_go_on_until_they_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN calls that take twice as long as eager's, and calls of which each second one takes half or twice as long
    step = Recorder()

    def once(self: measure.Rounds, number: int, *, bare: bool = False) -> measure.Round:
        self._place += 1
        step()
        often = step.calls.count(step.condition)
        seconds = {"eager": 0.002, "twice": 0.004, "shaky": (0.001, 0.004)[often // 2 % 2]}[step.condition]
        return measure.Round(self._place, seconds, None, number)

    monkeypatch.setattr(measure.Rounds, "_once", once)
    # WHEN they are timed without a number of rounds
    decided = measure.interleaved(step.candidates("eager", "twice"), step)
    open_end = measure.interleaved(step.candidates("eager", "shaky"), step)
    # THEN there are as few as there may be where that decides, and as many where nothing is decided
    assert {name: timing.rounds for name, timing in decided.items()} == {"eager": 24, "twice": 24}
    assert {name: timing.rounds for name, timing in open_end.items()} == {"eager": 48, "shaky": 48}


@pytest.mark.parametrize(
    ("times", "spread"),
    [
        ([1.0], 0.0),
        ([3.0, 1.0], 2.0),
        ([4.0, 1.0, 2.0], 3.0),
        ([4.0, 1.0, 3.0, 2.0], 1.5),  # quartiles 1.75 and 3.25
        ([1.0, 2.0, 3.0, 4.0, 100.0], 2.0),  # quartiles 2 and 4: one outlier does not count
        ([5.0] * 9, 0.0),
    ],
)
def test_spread(times: list[float], spread: float) -> None:
    # GIVEN times WHEN their spread is asked for THEN it is the interquartile range, of few rounds the whole range
    assert measure._spread(times) == spread


# -- memory ------------------------------------------------------------------------------------------------------------


@needs_proc
def test_peak_grows_with_what_a_step_allocates() -> None:
    # GIVEN a step that fills 200 MB and lets go of them, and one that does not
    cpu = torch.device("cpu")
    idle = measure.peak_bytes(lambda: None, cpu)
    filled = measure.peak_bytes(lambda: torch.ones(50_000_000), cpu)
    idle_again = measure.peak_bytes(lambda: None, cpu)
    # THEN the first one's peak is that much higher, and does not count for the one after it
    assert idle is not None
    assert filled is not None
    assert idle_again is not None
    assert 190_000_000 < filled - idle < 260_000_000
    assert filled - idle_again > 150_000_000


@needs_proc
def test_error_of_the_step_comes_through() -> None:
    # GIVEN a step that cannot find its data WHEN its memory is measured THEN its error is not taken for a system's
    def step() -> None:
        raise FileNotFoundError("data.bin")

    with pytest.raises(FileNotFoundError, match="data"):
        measure.peak_bytes(step, None)


def test_memory_of_an_unknown_device_is_absent() -> None:
    # GIVEN a device whose memory cannot be asked for WHEN it is THEN the figure is absent, and the step not run
    assert measure.peak_bytes(lambda: pytest.fail("was run"), torch.device("meta")) is None


# -- the compiler's cache ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_cache_folder_is_put_back(fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a cache folder of the user's with something in it
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    (tmp_path / "kept").write_text("kept")
    # WHEN something is done with an empty cache, and perhaps fails
    with contextlib.suppress(ZeroDivisionError), measure.empty_compiler_cache():
        inside = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        assert inside != tmp_path
        assert not inside.exists() or list(inside.iterdir()) == []
        if fails:
            1 / 0
    # THEN the user's folder is the cache again, with what was in it, and the empty one is gone
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]
    assert not inside.exists()


def test_start_up_compiles_once() -> None:
    # GIVEN a backend WHEN it is started up THEN it is given one graph, outside of any gradient, and the time is told
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(torch.is_grad_enabled())
        busy(0.02)
        return graph.forward

    begin = time.perf_counter()
    seconds = measure.start_up(backend)
    assert 0.02 <= seconds <= time.perf_counter() - begin
    assert graphs == [False]


def test_arrays_of_numpy_are_compared_too() -> None:
    # GIVEN results that are arrays, as those of a library that hands out embeddings
    numpy = pytest.importorskip("numpy")
    one = numpy.array([1.0, 2.0])
    # WHEN they are compared THEN they are told apart by their values, and a snapshot is a copy
    kept = snapshot({"embedding": one})
    one[0] = 4.0
    assert max_abs_diff(kept, [numpy.array([1.0, 2.0])]) == 0.0
    assert max_abs_diff(kept, {"embedding": one}) == 3.0
    assert max_abs_diff(numpy.array(["a"]), numpy.array(["a"])) is None
