"""Which setting is the best for how many calls: held against trying every number of calls."""

from __future__ import annotations

import math
import random

import pytest

from nbcompile import UsageError, ranking
from nbcompile.measure import break_even
from nbcompile.report import Report, Strategy, Trial
from tests.reports import hostile_tuning, paired_report, tuned_report


def trial(
    name: str, cold: float | None, steady: float | None, spread: float | None = 0.0, outcome: str = "measured"
) -> Trial:
    strategy = "eager" if name == "eager" else "regional"
    settings = {"strategy": strategy} if name == "eager" else {"strategy": strategy, "backend": name}
    return Trial(settings, Strategy(cold, 1, steady, spread, 5), outcome)


def report(*trials: Trial) -> Report:
    return Report(tuning=list(trials))


@pytest.mark.parametrize("seed", range(200))
def test_the_best_is_what_trying_each_finds(seed: int) -> None:
    # GIVEN up to seven settings with figures at random, some of them alike
    draw = random.Random(seed)
    trials = [trial("eager", draw.choice([0.0, 0.1, 0.5]), draw.choice([0.05, 0.1]), 0.001)]
    for index in range(draw.randrange(7)):
        trials.append(
            trial(str(index), draw.choice([0.5, 1.0, draw.random()]), draw.choice([0.02, 0.1 * draw.random()]), 0.001)
        )
    tuned = report(*trials)
    eager = trials[0].figures
    allowed = [
        t for t in trials if t is trials[0] or (eager.steady_seconds or 0) - (t.figures.steady_seconds or 0) > 0.001
    ]
    crossings = tuned.crossings()
    # WHEN every number of calls up to 300, and some beyond, is asked for
    for calls in [*range(1, 301), 1000, 12345, 10**6, 10**9]:
        least = min(total for t in allowed if (total := t.total_seconds(calls)) is not None)
        best = tuned.best(calls)
        on_envelope = [t for start, t in crossings if start <= calls][-1]
        # THEN the best takes no longer than any that may be recommended, and the envelope says the same
        assert any(best is t for t in allowed)
        assert best.total_seconds(calls) == pytest.approx(least, rel=1e-12)
        assert on_envelope.total_seconds(calls) == best.total_seconds(calls)
    assert [start for start, _ in crossings] == sorted({start for start, _ in crossings})


def test_crossings_are_exact() -> None:
    crossings = [(calls, t.name) for calls, t in tuned_report().crossings()]
    assert crossings == [(1, "eager"), (80, "regional"), (3002, "full")]
    # at one call less both take the same
    regional, full = tuned_report().tuning[1:3]
    assert regional.total_seconds(3001) == full.total_seconds(3001) == 192.5


@pytest.mark.parametrize("seed", range(50))
def test_the_crossing_is_where_compiling_has_paid_back(seed: int) -> None:
    # GIVEN eager, whose first call took longer than later ones, and a setting that is faster
    draw = random.Random(seed)
    cold, steady, eager = draw.uniform(1, 60), draw.uniform(0.01, 0.1), draw.uniform(0.11, 0.2)
    tuned = report(trial("eager", draw.uniform(0.2, 3), eager), trial("fast", cold, steady))
    # WHEN it is asked when the setting is the best THEN that is its break-even, as the tables tell it
    assert tuned.crossings()[1][0] == break_even(cold, steady, eager, 0.0)
    # AND one call of eager takes what any of its calls takes
    assert tuned.tuning[0].total_seconds(1) == pytest.approx(eager)


def test_a_gain_within_the_spread_is_none() -> None:
    # GIVEN a setting that is faster by a quarter second, and times that vary by as much
    eager, compiled = trial("eager", 1.0, 1.0, 0.001), trial("a", 2.0, 0.75, 0.25)
    # THEN it is never the best, for however many calls
    assert report(eager, compiled).best(10**9) is eager
    # AND whichever of the two varies counts
    eager.figures.steady_spread, compiled.figures.steady_spread = 0.25, 0.0
    assert report(eager, compiled).best(10**9) is eager
    # AND it is once they vary less
    eager.figures.steady_spread = 0.24
    assert report(eager, compiled).best(10**9) is compiled


@pytest.mark.parametrize("outcome", ["wrong", "failed", "skipped"])
def test_what_is_not_right_is_never_recommended(outcome: str) -> None:
    eager, compiled = trial("eager", 0.1, 0.1), trial("a", 0.1, 0.001, outcome=outcome)
    assert report(eager, compiled).best(1000) is eager
    compiled.outcome = "stopped"  # given up early, but what it has is measured
    assert report(eager, compiled).best(1000) is compiled


@pytest.mark.parametrize("figure", [None, math.nan, math.inf, -1.0])
def test_figures_that_are_none_do_not_count(figure: float | None) -> None:
    eager = trial("eager", 0.1, 0.1)
    assert report(eager, trial("a", figure, 0.001)).best(1000) is eager
    assert report(eager, trial("a", 0.1, figure)).best(1000) is eager
    assert report(trial("eager", 0.1, figure), slow := trial("a", 0.1, 9.0)).best(1000) is slow


def test_nothing_measured_is_told() -> None:
    for empty in (Report(), report(trial("a", None, 0.1)), report(trial("a", 0.1, 0.1, outcome="wrong"))):
        assert empty.crossings() == []
        with pytest.raises(UsageError, match=r"no setting with both a cold start and a steady time.*nbcompile\.tune"):
            empty.best(5)


@pytest.mark.parametrize("calls", [0, -1, 1.5, True, "10", 10**13])
def test_a_number_of_calls_that_is_none_is_refused(calls: object) -> None:
    with pytest.raises(UsageError, match="calls takes a whole number from 1"):
        tuned_report().best(calls)  # type: ignore[arg-type]


def test_the_number_of_calls_is_by_default_what_the_tuning_was_for() -> None:
    tuned = tuned_report()
    assert tuned.best().name == "regional"
    tuned.settings["calls"] = 79
    assert tuned.best().name == "eager"
    for nonsense in (None, "many", -5, True, 10**400):
        tuned.settings["calls"] = nonsense
        assert tuned.tuned_calls == 1000


def test_a_comparison_is_ranked_too() -> None:
    # GIVEN a comparison's report: strategies, and one setting for all of them
    compared = Report(
        settings={"strategy": "regional", "backend": "aot_eager", "mode": "default", "dynamic": None, "rest": "eager"},
        strategies={
            "eager": Strategy(0.125, 1, 0.125, 0.001, 5),
            "regional": Strategy(1.125, 1, 0.0625, 0.001, 5),
            "full": Strategy(failure="no kernels today"),
        },
    )
    # THEN its best is a trial with what matters to the strategy
    assert compared.best(5).settings == {"strategy": "eager"}
    assert compared.best(100).settings == {
        **{"strategy": "regional", "backend": "aot_eager", "mode": "default", "dynamic": None, "rest": "eager"}
    }
    assert [(calls, t.name.split(",")[0]) for calls, t in compared.crossings()] == [(1, "eager"), (18, "regional")]


def test_a_hostile_tuning_is_ranked_in_no_time() -> None:
    tuned = hostile_tuning()
    assert tuned.best().total_seconds(10) is not None
    assert len(tuned.crossings()) < 10
    assert ranking.envelope([]) == []


def test_of_settings_that_are_level_the_quickest_to_compile_is_taken() -> None:
    # GIVEN rounds paired with eager's: full level with regional and dearer, another clearly faster than both
    paired = paired_report()
    names = [found.name for found in paired.candidates()]
    # THEN full is not recommended, however many calls; nor is what is level with eager or slower
    assert names == ["eager", "regional", "regional, rest=compile", "full, backend=wrong-way"]
    assert [found.name for _, found in paired.crossings()] == ["eager", "regional", "regional, rest=compile"]
    # AND each says what its pairs say; ends that cannot be an interval's say nothing
    verdicts = {found.name: found.figures.verdict for found in paired.tuning}
    assert verdicts == {
        **{"eager": "", "regional": "faster", "full": "faster", "regional, rest=compile": "faster"},
        **{"full, mode=max-autotune": "level", "full, backend=wrong-way": "", "full, backend=slow": "slower"},
    }


@pytest.mark.parametrize(
    ("median", "low", "high", "verdict"),
    [
        (0.97, 0.96, 0.979, "faster"),
        (0.985, 0.98, 0.99, "level"),  # surely faster, but by less than anyone compiles for
        (0.9, 0.8, 1.0, "level"),  # the interval holds 1
        (1.1, 1.0, 1.2, "level"),
        (1.1, 1.05, 1.2, "slower"),
        (0.9, 0.95, 1.0, ""),
        (0.9, -0.1, 1.0, ""),
        (0.9, None, 1.0, ""),
        (math.nan, 0.8, 1.0, ""),
    ],
)
def test_verdict_of_pairs(median: float, low: float | None, high: float, verdict: str) -> None:
    figures = Strategy(steady_ratio=median, steady_ratio_low=low, steady_ratio_high=high)
    assert figures.verdict == verdict
