"""The search: what it tries, what it leaves out, what it holds to be right, and that a stop loses nothing.

Times are real but made: backends that compile slowly sleep, and so does a step that is to be worth compiling.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nbcompile
from nbcompile import CompilationWarning, Report, UsageError, load_report
from nbcompile.report import Strategy, Trial
from nbcompile.tune import beaten
from tests.blocks import WIDTH, Block, net, ran_eager, rows

Graph = torch.fx.GraphModule
SPACE = {"strategy": ["eager", "regional", "full"], "backend": ["eager"]}


class SlowBlock(Block):
    """A block that takes four milliseconds, but next to nothing once it is compiled."""

    def work(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            time.sleep(0.004)
        return super().work(x)


def plain(graph: Graph, inputs: Any) -> Callable[..., Any]:
    return graph.forward


def dear(graph: Graph, inputs: Any) -> Callable[..., Any]:
    time.sleep(0.4)
    return graph.forward


def hasty(graph: Graph, inputs: Any) -> Callable[..., Any]:
    return lambda *args: tuple(out + 1e-3 for out in graph.forward(*args))


def broken(graph: Graph, inputs: Any) -> Callable[..., Any]:
    raise RuntimeError("no kernels today")


def tune(model: nn.Module, step: Callable[[], Any] | None = None, **more: Any) -> Report:
    """A tuning that takes little time."""
    arguments = {"budget": 10.0, "space": SPACE, **more}
    return nbcompile.tune(model, step or (lambda: model(rows())), **arguments)


def outcomes(report: Report) -> dict[str, str]:
    return {trial.name: trial.outcome for trial in report.tuning}


def named(report: Report, name: str) -> Trial:
    return next(trial for trial in report.tuning if trial.name == name)


@pytest.fixture
def any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier figures are kept although the machine is busier now than it was a second ago."""
    monkeypatch.setattr(sys.modules["nbcompile.tune"], "_SAME_SPEED", 100.0)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


# -- what is found -----------------------------------------------------------------------------------------------------


def test_a_model_that_is_worth_it_is_compiled_for_many_calls_and_not_for_few() -> None:
    # GIVEN blocks that are slow eager
    model = net(4, SlowBlock)
    # WHEN the model is tuned once
    report = tune(model, calls=100_000)
    # THEN for one call nothing is compiled, for many it is
    assert report.best(1).name == "eager"
    assert report.best().settings["strategy"] in ("regional", "full")
    # AND the answer is the least of all lines that were measured, for every number of calls
    for calls in (1, 2, 5, 10, 100, 1000, 100_000):
        measured = [t.total_seconds(calls) for t in report.tuning if t.total_seconds(calls) is not None]
        assert report.best(calls).total_seconds(calls) == min(measured)
    # AND each setting has its figures
    for trial in report.tuning:
        assert trial.outcome in ("measured", "stopped"), trial.reason
        assert trial.figures.steady_repeats >= 2
    assert named(report, "eager").figures.steady_repeats >= named(report, "full, backend=eager").figures.steady_repeats
    assert report.settings == {"calls": 100_000, "budget": 10.0}
    assert Report.from_json(report.to_json()) == report


def test_where_nothing_is_gained_the_answer_is_not_to_compile() -> None:
    # GIVEN blocks that are no faster when compiled by a backend that compiles nothing
    report = tune(net(2), calls=10**9)
    # THEN a gain that paired rounds do not bear out, or that is within the spread, counts as none: eager
    eager = named(report, "eager").figures
    for figures in (trial.figures for trial in report.candidates()[1:]):
        if figures.steady_ratio is not None:
            assert figures.steady_ratio_high is not None
            assert figures.steady_ratio < 0.98
            assert figures.steady_ratio_high < 1
        else:
            assert (eager.steady_seconds or 0) - (figures.steady_seconds or 0) > (eager.steady_spread or 0)
    assert report.best(10).name == "eager"


def test_the_model_is_left_as_it_was() -> None:
    model = net()
    tune(model)
    assert ran_eager(model, rows()) == 4
    nbcompile.compile_regions(model, backend="eager")
    model(rows())
    tune(model, calls=77)
    assert ran_eager(model, rows()) == 0
    report = nbcompile.report(model)
    assert report.settings["backend"] == "eager"
    assert (len(report.tuning), report.tuned_calls) == (3, 77)  # and the tuning is known
    nbcompile.restore(model)
    with pytest.raises(UsageError, match="has not compiled"):
        nbcompile.report(model)


def test_eager_is_eager_although_the_model_is_compiled() -> None:
    # GIVEN a model that is compiled, and a step that tells how many of its blocks ran uncompiled
    model, counted = nbcompile.compile_regions(net(), backend="eager"), []

    def step() -> torch.Tensor:
        counted.append(ran_eager(model, rows()))
        result: torch.Tensor = model(rows())
        return result

    # WHEN nothing but eager is measured THEN all of them did, each time
    tune(model, step, space={"strategy": ["eager"]}, budget=0.5)
    assert set(counted) == {4}


def test_the_best_is_applied() -> None:
    # GIVEN a tuning whose best setting is eager for few calls and compiled for many
    model = net(4, SlowBlock)
    report = tune(model, space={"strategy": ["regional"], "backend": ["eager"], "dynamic": [False]}, calls=1000)
    # WHEN it is applied
    assert report.apply(model) is model
    # THEN the model is compiled so
    assert ran_eager(model, rows()) == 0
    settings = nbcompile.report(model).settings
    assert [settings[axis] for axis in ("strategy", "backend", "dynamic")] == ["regional", "eager", False]
    # AND for one call it is taken off again
    report.apply(model, calls=1)
    assert ran_eager(model, rows()) == 4


# -- what is wrong or fails --------------------------------------------------------------------------------------------


def test_a_setting_that_fails_is_a_line() -> None:
    model = net()
    with pytest.warns(CompilationWarning, match="no kernels today"):
        report = tune(model, space={"strategy": ["regional", "full"], "backend": [broken, "eager"]})
    for name in ("regional, backend=broken", "full, backend=broken"):
        assert named(report, name).outcome == "failed"
        assert "no kernels today" in named(report, name).reason
    assert outcomes(report)["regional, backend=eager"] in ("measured", "stopped")
    assert ran_eager(model, rows()) == 4


def test_a_wrong_result_is_never_recommended() -> None:
    # GIVEN a backend whose code is quick and off by a thousandth
    model = net(4, SlowBlock)
    report = tune(model, space={"strategy": ["full"], "backend": [hasty]}, calls=10**6)
    # THEN it is told, and eager is the answer
    trial = named(report, "full, backend=hasty")
    assert trial.outcome == "wrong"
    assert "differs from eager's by 0.001" in trial.reason
    assert trial.figures.max_abs_diff == pytest.approx(1e-3, rel=1e-2)
    assert report.best().name == "eager"


def test_a_step_that_trains_is_held_against_eager_region_by_region() -> None:
    # GIVEN a step that changes the weights, so that no two results are alike
    def trained(backend: Any) -> Report:
        model = net(2)
        with torch.enable_grad():
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

            def step() -> torch.Tensor:
                loss = model(rows()).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                return loss.detach()

            return tune(model, step, space={"strategy": ["regional"], "backend": [backend]})

    # THEN a right backend is right, and a wrong one is found
    right = trained("aot_eager").tuning[1]
    assert right.outcome in ("measured", "stopped"), right.reason
    assert any("each region was held against eager" in note for note in right.figures.notes)
    wrong = trained(hasty).tuning[1]
    assert wrong.outcome == "wrong"
    assert "layers.0 does not compute what it computes eager" in wrong.reason


@pytest.mark.parametrize(("off", "outcome"), [(-0.5, "measured"), (16, "wrong")])
def test_what_rounding_does_in_a_deep_model_is_not_wrong(off: float, outcome: str) -> None:
    # GIVEN layers each of which makes four times of what rounding did before, and code that is off at its start by half
    # of the last bit, or by sixteen times as much as that is worth
    model = nn.Sequential(*(Amplifying() for _ in range(8)))

    def otherwise(graph: Graph, inputs: Any) -> Callable[..., Any]:
        return lambda *args: graph.forward(*(arg * (1 + off * torch.finfo(arg.dtype).eps) for arg in args))

    def step() -> torch.Tensor:
        result: torch.Tensor = model(torch.linspace(1, 1.0001, WIDTH))
        return result

    trial = tune(model, step, space={"strategy": ["full"], "backend": [otherwise]}).tuning[1]
    # THEN both are outside of the tolerance, and the first is told for what it is
    assert (trial.figures.max_abs_diff or 0) > 1e-3
    assert (trial.outcome == "wrong") == (outcome == "wrong"), trial.reason
    assert any("so it is rounding" in note for note in trial.figures.notes) == (outcome != "wrong")


class Amplifying(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = (self.inner(x) - 1) * 4 + 1
        return result


def test_nothing_that_repeats_is_told() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
    report = tune(model)
    assert named(report, "regional, backend=eager").outcome == "skipped"
    assert "no repeated blocks" in named(report, "regional, backend=eager").reason
    assert outcomes(report)["full, backend=eager"] in ("measured", "stopped")


def test_a_setting_that_fails_later_is_given_up() -> None:
    # GIVEN a step that fails as soon as compiled code has run five times
    model, ran = net(2), []

    def failing(graph: Graph, inputs: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            ran.append(1)
            if len(ran) > 5:
                raise OSError("the licence of the kernel has run out")
            return graph.forward(*args)

        return run

    report = tune(model, space={"strategy": ["full"], "backend": [failing]})
    assert report.tuning[1].outcome == "failed"
    assert "licence" in report.tuning[1].reason
    assert report.best().name == "eager"


# -- the budget --------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_into_the_budget_is_not_begun() -> None:
    # GIVEN a backend that takes 0.4 s for each graph, a model of ten blocks, and two seconds
    began = time.perf_counter()
    report = tune(
        net(10), budget=2.0, space={"strategy": ["regional", "full"], "backend": [dear], "rest": ["auto", "compile"]}
    )
    took = time.perf_counter() - began
    # THEN what was tried took no more than was there, and what was not says how long it would have taken
    assert took < 6
    skipped = [trial for trial in report.tuning if trial.outcome == "skipped"]
    assert skipped
    for trial in skipped:
        assert "budget of 2 s was used up" in trial.reason or "s to compile, too long" in trial.reason
        assert trial.figures == Strategy()
    assert report.best(1).name == "eager"


def test_a_budget_of_nothing_is_an_answer_all_the_same() -> None:
    report = tune(net(), budget=1e-6)
    assert outcomes(report) == {
        "eager": "measured",
        "regional, backend=eager": "skipped",
        "full, backend=eager": "skipped",
    }
    assert report.best().name == "eager"


def test_plain_settings_come_first_and_cheap_before_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["nbcompile.tune"], "_ROUND_SECONDS", 0.03)  # less than the budget gives a round
    lines: list[str] = []
    space = {
        "strategy": ["full", "regional"],
        "backend": ["eager"],
        "dynamic": [None, False],
        "rest": ["auto", "compile"],
    }
    # for so many calls each of them may win, so that no measured time decides about the order
    tune(net(), calls=10**8, budget=60.0, space=space, progress=lines.append)
    tried = [line.removesuffix(": cold start (compiling)") for line in lines if line.endswith("(compiling)")]
    assert set(tried[:2]) == {"regional, backend=eager", "full, backend=eager"}
    assert tried[-1] == "regional, backend=eager, dynamic=False, rest=compile"
    assert lines[0] == "eager: first call"
    assert "steady state: eager" in lines


def figures(cold: float, steady: float, spread: float = 0.0) -> Strategy:
    return Strategy(cold, 1, steady, spread, 5)


def test_what_cannot_be_the_best_for_any_number_of_calls_is_given_up() -> None:
    known = {
        "eager": figures(0.1, 0.1),
        "regional": figures(5.0, 0.05),
        "full": figures(60.0, 0.04),
        "dear": figures(70.0, 0.05),  # never before regional
        "slow": figures(5.0, 0.2),  # never before eager
        "between": figures(15.0, 0.049),  # it may be: between regional and full, if the times vary by 2 %
        "late": figures(10_000.0, 0.039),  # the best, but from more calls on than anyone makes
        "unknown": Strategy(),
    }
    assert beaten(known, 10**6) == ["dear", "slow", "late"]
    # a spread that reaches so far leaves it open
    known["slow"].steady_spread = 0.15
    assert beaten(known, 10**6) == ["dear", "late"]
    assert "late" not in beaten(known, 10**9)


def test_rounds_paired_with_eager_give_up_what_drifting_times_leave_open() -> None:
    # GIVEN times that vary much from minute to minute, while each stays at the same part of eager's beside it
    known = {
        "eager": figures(0.1, 0.1, spread=0.03),
        "regional": figures(5.0, 0.05, spread=0.02),
        "dear": figures(70.0, 0.056, spread=0.02),
        "slow": figures(5.0, 0.11, spread=0.05),
        "open": figures(60.0, 0.049, spread=0.0),
        "cheap": figures(1.0, 0.105, spread=0.03),  # before regional has paid for itself only eager is held against it
    }
    # THEN by their spread all may be the best
    assert beaten(known, 10**6) == []
    # and by the intervals of paired rounds only that one whose interval reaches under another's
    bands = {"regional": (0.49, 0.51), "dear": (0.54, 0.58), "slow": (1.05, 1.15), "open": (0.4, 0.6)}
    for name, (low, high) in {**bands, "cheap": (1.03, 1.07)}.items():
        one = known[name]
        assert one.steady_seconds is not None
        one.steady_ratio, one.steady_ratio_low, one.steady_ratio_high = one.steady_seconds / 0.1, low, high
    assert beaten(known, 10**6) == ["dear", "slow", "cheap"]


# -- stopped, kept, continued ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [1, 2, 3, 4, 7, 12])
def test_an_interrupt_loses_nothing(at: int) -> None:
    # GIVEN a model that the user has compiled, and a step that is interrupted at its n-th call
    model, calls = net(), []
    nbcompile.compile_regions(model, backend="eager")
    model(rows())

    def step() -> torch.Tensor:
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        result: torch.Tensor = model(rows())
        return result

    # WHEN it is tuned
    with pytest.raises(KeyboardInterrupt) as raised:
        tune(model, step, budget=0.5)
    # THEN the user's own compilation is at work again
    assert ran_eager(model, rows()) == 0
    # AND what was measured is there, and can be kept
    report = nbcompile.report(model)
    if at <= 2:  # eager itself was not through
        assert report.tuning == []
        return
    assert [trial.name for trial in report.tuning] == ["eager", "regional, backend=eager", "full, backend=eager"]
    assert named(report, "eager").figures.cold_seconds is not None
    for trial in report.tuning:
        assert (trial.outcome == "measured") == (trial.figures.steady_repeats >= 2)
        assert (
            trial.outcome == "measured" or "stopped by KeyboardInterrupt" in trial.reason or trial.outcome == "stopped"
        )
    assert any("tune(..., resume=it)" in note for note in raised.value.__notes__)
    assert Report.from_json(report.to_json()).tuning == report.tuning


@pytest.mark.parametrize(
    ("line", "turn"),
    [
        ("start-up of", 1),
        ("regional, backend=eager: cold start", 1),
        ("full, backend=eager: cold start", 1),
        ("steady state: full, backend=eager", 2),
        ("steady state: full, backend=eager", 5),
        ("eager: memory", 1),
    ],
)
def test_an_interrupt_at_any_stage_keeps_what_is_complete(line: str, turn: int) -> None:
    # GIVEN a tuning that is interrupted at one of its stages
    model, seen = net(4, SlowBlock), []

    def progress(told: str) -> None:
        if told.startswith(line):
            seen.append(told)
            if len(seen) == turn:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(model, progress=progress)
    # THEN the model is as before, and every setting with two rounds is there to be ranked
    assert ran_eager(model, rows()) == 4
    report = nbcompile.report(model)
    for trial in report.tuning:
        given_up = trial.outcome == "stopped" and "could not be the best" in trial.reason
        assert (trial.figures.steady_repeats >= 2) == (trial.outcome == "measured" or given_up), trial
    assert report.best(1).name == "eager"
    assert any("stopped by KeyboardInterrupt" in note for note in report.notes)


@pytest.mark.usefixtures("any_speed")
def test_what_was_stopped_goes_on(tmp_path: Path) -> None:
    # GIVEN a tuning that was interrupted while the second of three settings was compiled, kept in a file
    model = net(4, SlowBlock)

    def interrupting(graph: Graph, inputs: Any) -> Callable[..., Any]:
        raise KeyboardInterrupt

    space = {"strategy": ["regional"], "backend": ["eager", interrupting]}
    with pytest.raises(KeyboardInterrupt):
        tune(model, space=space)
    first = nbcompile.report(model)
    assert [trial.outcome for trial in first.tuning] == ["measured", "measured", "skipped"]
    file = first.save(tmp_path / "stopped")

    # WHEN it goes on
    def mended(graph: Graph, inputs: Any) -> Callable[..., Any]:
        return graph.forward

    mended.__name__ = "interrupting"
    lines: list[str] = []
    space["backend"] = ["eager", mended]
    second = tune(model, space=space, resume=load_report(file), progress=lines.append)
    # THEN what was measured is kept as it was, and what was missing is there
    assert [trial.name for trial in second.tuning] == [trial.name for trial in first.tuning]
    assert second.tuning[1] == first.tuning[1]
    assert second.tuning[2].figures.steady_repeats > 0  # whether it can still win is for the clock to say
    assert [line for line in lines if "cold start" in line] == [
        "regional, backend=interrupting: cold start (compiling)"
    ]
    assert any("the figures of 1 settings are those of an earlier tuning" in note for note in second.notes)


def test_without_a_space_the_earlier_one_goes_on() -> None:
    # GIVEN a tuning for which there was no time WHEN it goes on without a space
    model = net()
    first = tune(model, budget=1e-6)
    second = tune(model, space=None, resume=first)
    # THEN it is about the same settings
    assert list(outcomes(second)) == list(outcomes(first))
    assert "skipped" not in outcomes(second).values()


def test_figures_of_a_machine_that_ran_at_another_speed_are_not_kept() -> None:
    # GIVEN a tuning in which eager was ten times as fast as now
    model = net(4, SlowBlock)
    first = tune(model)
    first.tuning[0].figures.steady_seconds = (first.tuning[0].figures.steady_seconds or 0) / 10
    lines: list[str] = []
    # WHEN it goes on THEN all is measured anew, and told
    second = tune(model, resume=first, progress=lines.append)
    assert sum("cold start" in line for line in lines) == 2
    assert any("all was measured anew" in note for note in second.notes)


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("model", "class_name", "Other"),
        ("model", "parameters", 7),
        ("environment", "torch", "1.0"),
        ("environment", "device", "cuda"),
        ("environment", "cpu", "abacus"),
        ("environment", "threads", 99),
    ],
)
def test_a_report_of_something_else_is_refused(part: str, key: str, value: object) -> None:
    model = net()
    report = tune(model, budget=1e-6)
    getattr(report, part)[key] = value
    with pytest.raises(UsageError, match=rf"the report to resume does not fit: {key} is .* here and '{value}' there"):
        tune(model, resume=report)


@pytest.mark.usefixtures("any_speed")
def test_of_a_hostile_file_only_what_makes_sense_is_taken(tmp_path: Path) -> None:
    # GIVEN a tuning's file that somebody has written into
    model = net(4, SlowBlock)
    report = tune(model)
    good = named(report, "regional, backend=eager")
    nonsense = [
        Trial({"strategy": "full", "backend": "os.system", "mode": "default", "dynamic": None}, figures(0.0, 1e-9)),
        Trial({"strategy": "full", "backend": "aot_eager", "mode": "default", "dynamic": None}, figures(-5.0, 0.1)),
        Trial({"strategy": "rm -rf", "backend": "eager"}, figures(0.0, 1e-9)),
        Trial({"strategy": "regional", "rest": "../../x"}, figures(0.0, 1e-9)),
        Trial({"strategy": "full", "backend": "eager", "dynamic": True}, figures(0.0, 1e-9)),  # incomplete
    ]
    report.tuning += nonsense
    file = report.save(tmp_path / "hostile")
    # WHEN it goes on
    second = tune(model, space=None, resume=load_report(file))
    # THEN settings that do not exist are left out, figures that cannot be are measured anew, and the good are kept
    assert named(second, good.name) == good
    assert not {"os.system", "rm -rf", "../../x"} & {
        value for t in second.tuning for value in t.settings.values() if isinstance(value, str)
    }
    assert (named(second, "full, backend=aot_eager").figures.cold_seconds or -1) > 0
    assert any("left out" in note for note in second.notes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "full", "backend": "os.system"}, "cannot be applied here: there is no backend 'os.system'"),
        ({"strategy": "full", "backend": "plain"}, "cannot be applied here: there is no backend 'plain'"),
        ({"strategy": "exec", "backend": "eager"}, "there is no strategy 'exec'"),
        ({"strategy": "regional", "mode": "$(x)"}, "there is no mode"),
        ({"strategy": "regional", "rest": "all"}, "there is no rest"),
    ],
)
def test_a_setting_of_a_file_is_checked_before_it_is_applied(settings: dict[str, Any], message: str) -> None:
    model = net()
    with pytest.raises(UsageError, match=message.replace("$(x)", "")):
        Report(tuning=[Trial(settings, figures(0.0, 1e-9))]).apply(model)
    assert ran_eager(model, rows()) == 4


@pytest.mark.parametrize(
    ("trial", "message"),
    [
        ({"settings": {"strategy": "eager"}, "outcome": "great"}, "no outcome 'great'"),
        ({"settings": {}}, "the strategy is missing"),
        ({"settings": {"strategy": 3}}, "the strategy is missing"),
        ({"settings": {"strategy": "full", "mode": ["a"]}}, r"settings\.mode: found list"),
        ({"settings": {"strategy": "full", "dynamic": "no"}}, r"settings\.dynamic: found str"),
        ({"settings": {"strategy": "full", "backend": "x" * 301}}, "a name of 301 characters"),
        ({"figures": {}}, "field 'settings' is missing"),
        ({"settings": {"strategy": "full"}, "figures": {"cold_seconds": "1"}}, "expected float"),
    ],
)
def test_a_file_with_a_trial_that_cannot_be_is_refused(trial: dict[str, Any], message: str) -> None:
    with pytest.raises(nbcompile.ReportError, match=message):
        Report.from_dict({"schema": 1, "tuning": [trial]})
    too_many = [{"settings": {"strategy": "eager"}}] * 257
    with pytest.raises(nbcompile.ReportError, match="257 settings"):
        Report.from_dict({"schema": 1, "tuning": too_many})


def test_fields_of_a_later_version_are_ignored() -> None:
    data = {"schema": 1, "tuning": [{"settings": {"strategy": "full", "precision": [3]}, "colour": "red"}]}
    assert Report.from_dict(data).tuning == [Trial({"strategy": "full"})]


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"calls": 0}, "calls takes a whole number"),
        ({"calls": 1.5}, "calls takes a whole number"),
        ({"budget": 0}, "budget takes seconds"),
        ({"budget": math.inf}, "budget takes seconds"),
        ({"budget": "long"}, "budget takes seconds"),
        ({"space": {"mode": ["fast"]}}, "no mode 'fast'"),
        ({"resume": "run.nbcompile.json"}, "resume takes a report"),
        ({"resume": Report()}, "holds no tuning"),
        ({"step": 3}, "step is to be a function"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tune(net(), **arguments)


def test_a_step_that_never_calls_the_model_leaves_nothing() -> None:
    model = net()
    with pytest.raises(UsageError, match="never called the model"):
        tune(model, lambda: 3)
    with pytest.raises(UsageError, match="has not compiled"):
        nbcompile.report(model)


def test_an_error_of_the_users_own_comes_through_and_loses_nothing() -> None:
    model, calls = net(), []

    def step() -> torch.Tensor:
        calls.append(1)
        if len(calls) > 6:
            raise OSError("the data set is on a disk that is gone")
        result: torch.Tensor = model(rows())
        return result

    with pytest.raises(OSError, match="disk that is gone"):
        tune(model, step)
    assert named(nbcompile.report(model), "eager").figures.cold_seconds is not None
    assert ran_eager(model, rows()) == 4
