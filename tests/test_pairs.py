"""Rounds held against each other in pairs: on made times of machines that drift, stumble and change their pace.

The made machines multiply the true time of a call by a factor that depends on when the round is taken. Each test also
asks what the medians and spreads of single rounds would have said: they err, or the machine would show nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from torch import nn

from nbcompile import measure, ranking
from nbcompile.compare import Measurement
from nbcompile.measure import Round, Rounds
from nbcompile.pairs import CONFIDENCE, interval, ratio, turns
from nbcompile.progress import Progress
from nbcompile.report import Strategy

#: By place in the order of all rounds, how many times as slow the machine is.
Machine = Callable[[int], float]


def measured(machine: Machine, seed: int, **true: float) -> dict[str, Strategy]:
    """What a comparison finds of candidates whose calls take so many seconds; every round varies by a percent.

    All of it is the comparison's own but for the round itself.
    """
    draw, running = random.Random(seed), []

    class Made(Rounds):
        def _once(self, number: int, *, bare: bool = False) -> Round:
            self._place += 1
            return Round(self._place, true[running[-1]] * machine(self._place) * draw.gauss(1, 0.01), None, number)

    @contextlib.contextmanager
    def under(name: str) -> Iterator[None]:
        running.append(name)
        yield

    compared = Measurement(nn.Linear(1, 1), lambda: None, Progress.of(None))
    compared.figures = {name: Strategy(cold_seconds=1.0) for name in true}
    compared.compilations = dict.fromkeys(true)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "Rounds", Made)
        patch.setattr(compared, "under", lambda name: lambda: under(name))
        compared.steady(list(true), None, None)
    return compared.figures


def by_single_rounds(figures: dict[str, Strategy], name: str) -> str:
    """The verdict of medians and spreads, which know nothing of pairs."""
    ours, eager = figures[name], figures["eager"]
    assert ours.steady_ratio is not None
    lone = Strategy(1.0, 1, ours.steady_seconds, ours.steady_spread)
    if ranking.gains(lone, eager):
        return "faster"
    return "slower" if ranking.gains(eager, lone) else "level"


def drifting(place: int) -> float:
    """Slower by three percent with every round, as a laptop that grows hot."""
    return 1 + 0.03 * place


def stumbling(place: int) -> float:
    """One round in eleven takes three times as long."""
    return 3.0 if place % 11 == 3 else 1.0


def of_two_paces(seed: int) -> Machine:
    """Two paces, one half as slow again as the other, each of which lasts for 12 to 25 rounds."""
    draw, paces = random.Random(seed), []
    while len(paces) < 500:
        paces += [[1.0, 1.5][len(paces) % 2]] * draw.randrange(12, 26)
    return lambda place: paces[place]


MACHINES = {
    "quiet": lambda seed: lambda place: 1.0,
    "drifting": lambda seed: drifting,
    "stumbling": lambda seed: stumbling,
    "of two paces": of_two_paces,
}


@pytest.mark.parametrize("machine", MACHINES)
def test_five_repeats_give_the_same_verdicts(machine: str) -> None:
    # GIVEN candidates that are faster by a tenth, the same, and slower by a tenth, on a machine that is not steady
    for first in range(0, 100, 5):
        verdicts = Counter()
        ratios = []
        # WHEN the same comparison is made five times
        for seed in range(first, first + 5):
            found = measured(MACHINES[machine](seed), seed, eager=0.1, fast=0.088, same=0.1, slow=0.114)
            verdicts[found["fast"].verdict, found["same"].verdict, found["slow"].verdict] += 1
            ratios.append(found["fast"].steady_ratio)
        # THEN each of them says so, and the ratios lie within five percent
        assert verdicts == {("faster", "level", "slower"): 5}
        middle = statistics.median(ratios)
        assert max(abs(one / middle - 1) for one in ratios) <= 0.05


@pytest.mark.parametrize("machine", ["drifting", "of two paces"])
def test_single_rounds_would_not_tell(machine: str) -> None:
    # GIVEN the same machines and candidates WHEN medians and spreads alone decide THEN a gain of a tenth is missed
    found = [measured(MACHINES[machine](seed), seed, eager=0.1, fast=0.088) for seed in range(20)]
    assert {figures["fast"].verdict for figures in found} == {"faster"}
    assert any(by_single_rounds(figures, "fast") != "faster" for figures in found)


def test_a_drift_is_no_verdict() -> None:
    # GIVEN the same thing three times on a machine that drifts
    same = {"eager": 0.1, "second": 0.1, "last": 0.1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure.pairs, "turns", lambda names: itertools.repeat(list(names)))
        in_one_order = measured(drifting, 1, **same)
    in_turns = measured(drifting, 1, **same)
    # WHEN the order is always the same THEN what comes right before eager seems faster than what comes right after it
    assert in_one_order["second"].steady_ratio - in_one_order["last"].steady_ratio > 0.02
    # AND in changing order all are level
    for name in ("second", "last"):
        assert in_turns[name].verdict == "level"
        assert in_turns[name].steady_ratio == pytest.approx(1, abs=0.01)


def test_steady_seconds_are_in_eagers_time() -> None:
    # GIVEN pairs WHEN they are taken into the figures THEN time against eager's is the ratio, in every view alike
    found = measured(of_two_paces(3), 3, eager=0.1, fast=0.05)
    assert found["fast"].steady_seconds == found["eager"].steady_seconds * found["fast"].steady_ratio
    assert found["fast"].steady_ratio == pytest.approx(0.5, abs=0.02)


def test_what_is_not_decided_asks_for_more_rounds() -> None:
    def timing(low: float, high: float) -> measure.Timing:
        found = measure.pairs.Ratio((low + high) / 2, low, high)
        return measure.Timing(0.1, 0.01, 8, 3, ratio=found)

    assert timing(0.5, 0.9).decided  # faster
    assert timing(1.03, 1.5).decided  # slower
    assert timing(0.985, 1.015).decided  # level
    assert not timing(0.9, 1.1).decided  # anything
    assert not timing(0.95, 0.99).decided  # faster, or too little to count
    assert measure.Timing(0.1, 0.01, 8, 3).decided  # the reference


@pytest.mark.parametrize("names", ["ab", "abc", "abcd", "abcde"])
def test_no_turn_favours_anyone(names: str) -> None:
    # GIVEN the orders of as many turns as it takes until they begin anew
    orders = list(itertools.islice(turns(names), 2 * len(names)))
    assert all(sorted(order) == sorted(names) for order in orders)
    # THEN each has every place equally often, and follows every other equally often as it goes before it
    for place in range(len(names)):
        assert set(Counter(order[place] for order in orders).values()) == {2}
    for one, other in itertools.permutations(names, 2):
        assert sum(order.index(one) < order.index(other) for order in orders) == len(names)


@pytest.mark.parametrize(
    ("number", "rank"), [(1, 1), (2, 1), (4, 1), (5, 1), (7, 1), (8, 2), (10, 2), (11, 3), (12, 3), (20, 6)]
)
def test_interval_is_that_of_the_sign_test(number: int, rank: int) -> None:
    # GIVEN so many values WHEN the interval of their median is asked for THEN it leaves out as many at each end
    values = [float(value) for value in range(number)]
    random.Random(number).shuffle(values)
    assert interval(values) == (rank - 1, number - rank)
    # AND it holds the median as often as it says, and would not with one more left out
    if number >= 5:
        missed = [2 * sum(math.comb(number, i) for i in range(left)) / 2**number for left in (rank, rank + 1)]
        assert missed[0] <= 1 - CONFIDENCE < missed[1]


def test_interval_holds_the_median_of_any_distribution() -> None:
    # GIVEN ratios of which one in five is three times as large WHEN intervals are made THEN they hold the true median
    draw, held = random.Random(5), 0
    for _ in range(1000):
        values = [draw.expovariate(1.0) * (3 if draw.random() < 0.2 else 1) for _ in range(8)]
        low, high = interval(values)
        held += low <= 0.833 <= high  # of that mixture: 0.8 exp(-x) + 0.2 exp(-x / 3) = 1 / 2
    assert held >= 1000 * CONFIDENCE


def test_each_round_has_the_nearest_one_beside_it() -> None:
    # GIVEN a reference at places 0, 3 and 9
    reference = [(0, 1.0), (3, 2.0), (9, 4.0)]
    # WHEN rounds at 2, 6 and 10 are held against it THEN of two that are equally near both count
    found = ratio([(2, 1.0), (6, 1.5), (10, 1.0)], reference)
    assert found is not None
    assert (found.low, found.median, found.high) == (0.25, 0.5, 0.5)
    # AND one round alone, or a time of nothing, tells no ratio
    assert ratio([(2, 1.0)], reference) is None
    assert ratio([(2, 1.0), (4, 1.0)], reference[:1]) is None
    assert ratio([(2, 1.0), (4, 0.0)], reference) is None
