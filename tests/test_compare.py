"""Strategies side by side: what is measured, what is refused, and that nothing a user had is lost."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

import nbcompile
from nbcompile import UsageError, measure
from tests.blocks import BreakingBlock, Net, net, ran_eager, rows
from tests.fake_device import fake_device

BACKEND = "aot_eager"


def compare(model: nn.Module, step: Any = None, strategies: Any = ("eager", "regional", "full"), **more: Any) -> Any:
    """A comparison that takes little time."""
    return nbcompile.compare(
        model, step or (lambda: model(rows())), strategies, **{"backend": BACKEND, "rounds": 2, "calls": 2, **more}
    )


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def test_every_strategy_has_its_figures() -> None:
    # GIVEN a model, WHEN all strategies are compared
    report = compare(net())
    # THEN each has a cold start, a steady state with its rounds, memory, and its difference from eager
    assert list(report.strategies) == ["eager", "regional", "full"]
    for figures in report.strategies.values():
        assert figures.failure == ""
        assert figures.cold_seconds > 0
        assert figures.steady_seconds > 0
        assert figures.steady_spread >= 0
        assert figures.steady_repeats == 2
    eager, regional, full = report.strategies.values()
    assert (eager.max_abs_diff, regional.max_abs_diff, full.max_abs_diff) == (None, 0.0, 0.0)
    assert (eager.graphs, regional.graphs, full.graphs) == (0, 1, 1)
    # and each compiled strategy says what it compiled
    assert [(r.path, r.graphs) for r in regional.regions] == [("layers", 1)]
    assert [r.path for r in full.regions] == ["(whole model)"]
    # the groups are those of the regional compilation
    assert [(g.path, g.compiled, g.eager) for g in report.groups] == [("layers", 4, 0)]
    assert report.settings["backend"] == BACKEND


def test_what_was_compiled_before_is_there_again() -> None:
    # GIVEN a model that the user has compiled and run
    model = net()
    nbcompile.compile_regions(model, backend="eager")
    model(rows())
    # WHEN strategies are compared
    compare(model)
    # THEN the user's own compilation is at work again, with nothing compiled anew
    assert ran_eager(model, rows()) == 0
    report = nbcompile.report(model)
    assert (report.settings["backend"], report.groups[0].graphs) == ("eager", 1)


def test_a_model_that_was_not_compiled_is_not_compiled_afterwards() -> None:
    model = net()
    compare(model)
    assert ran_eager(model, rows()) == 4


def test_a_strategy_can_be_kept() -> None:
    model = net()
    compare(model, keep="regional")
    assert ran_eager(model, rows()) == 0
    assert nbcompile.report(model).settings["strategy"] == "regional"
    compare(model, keep="eager")
    assert ran_eager(model, rows()) == 4


def test_a_step_that_fails_late_does_not_lose_what_is_to_be_kept() -> None:
    # GIVEN a step that fails once everything is compiled
    model, calls = net(), []

    def step() -> Any:
        calls.append(1)
        if len(calls) > 8:
            raise OSError("the data set is on a disk that is gone")
        return model(rows())

    with pytest.raises(OSError, match="disk that is gone"):
        compare(model, step, keep="regional")
    # THEN the strategy that was to stay is on the model
    assert ran_eager(model, rows()) == 0


def test_a_strategy_that_fails_is_a_line_in_the_report() -> None:
    # GIVEN a backend that fails
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no kernels today")

    model = net()
    with pytest.warns(nbcompile.CompilationWarning, match="no kernels today"):
        report = compare(model, strategies=["eager", "regional"], backend=broken)
    # THEN it has no steady figures, and eager has
    assert "no kernels today" in report.strategies["regional"].failure
    assert report.strategies["regional"].steady_seconds is None
    assert report.strategies["eager"].steady_seconds is not None
    assert ran_eager(model, rows()) == 4


def test_a_wrong_result_shows() -> None:
    # GIVEN a backend that computes something else
    def wrong(graph: Any, inputs: Any) -> Any:
        return lambda *args: tuple(out + 0.5 for out in graph.forward(*args))

    report = compare(net(1, kind=TwoBlocks), strategies=["eager", "full"], backend=wrong)
    assert report.strategies["full"].max_abs_diff == pytest.approx(0.5)


class TwoBlocks(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](x)


def test_an_interrupt_puts_the_model_back() -> None:
    model, calls = net(), []
    nbcompile.compile_regions(model, backend="eager")

    def step() -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return model(rows())

    with pytest.raises(KeyboardInterrupt):
        compare(model, step)
    assert ran_eager(model, rows()) == 0
    assert nbcompile.report(model).settings["backend"] == "eager"


def test_a_step_that_returns_nothing_is_told() -> None:
    model = net()

    def step() -> None:
        model(rows())

    report = compare(model, step, ["eager", "regional"])
    assert report.strategies["regional"].max_abs_diff is None
    assert any("returns nothing" in note for note in report.notes)


def test_a_step_that_differs_from_itself_is_told() -> None:
    model, calls = net(), []

    def step() -> Any:
        calls.append(1)
        return model(rows()) + len(calls)

    report = compare(model, step, ["eager", "regional"])
    assert any("two eager runs of the step differ by 1" in note for note in report.notes)


def test_only_the_steps_own_calls_draw_from_the_users_random_numbers() -> None:
    # GIVEN a step that draws one number
    model, drawn = net(), []

    def step() -> torch.Tensor:
        drawn.append(torch.rand(1))
        return model(rows())

    torch.manual_seed(3)
    stream = torch.rand(1000)
    torch.manual_seed(3)
    # WHEN strategies are compared
    compare(model, step, ["eager", "regional"], calls=1, rounds=1)
    following = torch.rand(1)
    # THEN the generator has moved on by the step's calls, but for those under a seed of our own, and by no other
    from_the_stream = [float(number) for number in drawn if bool((stream == number).any())]
    assert from_the_stream == stream[: len(from_the_stream)].tolist()
    assert following == stream[len(from_the_stream)]


def test_eager_against_eager_comes_out_even() -> None:
    # GIVEN the same code under two names
    model = net(6)
    same = {"one": contextlib.nullcontext, "other": contextlib.nullcontext}
    # WHEN their times are held against each other
    timings = measure.interleaved(same, lambda: model(rows()), rounds=8, calls=20)
    # THEN they differ by no more than rounds of one differ among themselves
    one, other = timings["one"], timings["other"]
    assert abs(one.median - other.median) <= 4 * max(one.spread, other.spread) + 0.05 * one.median


def test_each_strategy_compiles_anew_behind_graph_breaks() -> None:
    # GIVEN blocks with a graph break, behind which the compiler keeps code by the blocks' own functions
    model = net(3, BreakingBlock)
    # WHEN two strategies with equal settings are compared, in either order
    forth = compare(model, strategies=["eager", "regional", "full"]).strategies
    back = compare(model, strategies=["eager", "full", "regional"]).strategies
    # THEN neither finds the other's code
    assert forth["regional"].graphs == back["regional"].graphs > 0
    assert forth["full"].graphs == back["full"].graphs > 0


def test_eager_is_eager_although_a_part_was_compiled_by_itself() -> None:
    model, counted = nn.Sequential(net(2), net(2)), []
    nbcompile.compile_regions(model[0], backend="eager")

    def step() -> torch.Tensor:
        counted.append(ran_eager(model, rows()))
        return model(rows())

    compare(model, step, ["eager"])
    assert set(counted) == {4}
    assert ran_eager(model, rows()) == 2  # and the part is compiled again


def test_progress_is_told() -> None:
    lines: list[str] = []
    compare(net(), progress=lines.append)
    assert lines[0] == "eager: first call"
    assert "regional: cold start (compiling)" in lines
    assert "steady state: round 2 of 2, full" in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategies": ["regionl"]}, "no strategy 'regionl'; those that exist: eager, regional, full"),
        ({"strategies": "eager"}, "takes a list of names"),
        ({"strategies": []}, "takes a list of names"),
        ({"keep": "full", "strategies": ["eager"]}, "keep='full' is not among"),
        ({"rounds": 0}, "rounds takes a whole number"),
        ({"calls": 1.5}, "calls takes a whole number"),
        ({"step": 3}, "step is to be a function"),
        ({"backend": "inductr"}, "no backend 'inductr'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compare(net(), **arguments)


def test_a_cuda_graph_is_recorded_before_the_rounds_and_its_blocks_cost_nothing() -> None:
    # GIVEN a device that records WHEN the regionally compiled step is to be recorded
    with fake_device() as fake:
        report = compare(net(), cuda_graph=True)
        # THEN the rounds are replays, and only of that strategy
        (graph,) = fake.graphs
        assert graph.replays > 4
    assert report.settings["cuda_graph"] is True
    regional = report.strategies["regional"]
    assert (regional.max_abs_diff, regional.dispatch_seconds) == (0.0, None)
    assert any("a CUDA graph stands for the whole step" in note for note in regional.notes)


def test_a_cuda_graph_of_what_is_not_measured_is_refused() -> None:
    with pytest.raises(UsageError, match="add 'regional' to strategies"):
        compare(net(), strategies=["eager", "full"], cuda_graph=True)
    with pytest.raises(UsageError, match="records a CUDA graph for each block"):
        compare(net(), backend="inductor", mode="reduce-overhead", cuda_graph=True)
