"""What a block's call costs beside its kernels: that it is this which is measured, and that nothing changes by it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import nbcompile
from nbcompile import compiler, dispatch
from nbcompile.compiler import SLOT, Compilation
from nbcompile.errors import ReportError
from nbcompile.render import charts, series, svg, tables
from nbcompile.report import Report, Strategy
from tests import models
from tests.blocks import Block, BreakingBlock, net, rows
from tests.fake_device import fake_device
from tests.reports import sample_report

PAUSE = 0.001


def compiled(model: nn.Module, step: Any, **more: Any) -> Compilation:
    """A regional compilation of a model that has run its step."""
    nbcompile.compile_regions(model, **{"backend": "aot_eager", **more})
    for _ in range(3):
        step()
    compilation = compiler.current(model)
    assert compilation is not None
    return compilation


def measured(model: nn.Module, step: Any, **more: Any) -> tuple[dispatch.Dispatch | None, list[str]]:
    return dispatch.measure_dispatch(compiled(model, step, **more), step)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def test_a_comparison_tells_what_a_call_costs() -> None:
    # GIVEN a model of four blocks WHEN strategies are compared
    model = net(4)
    report = nbcompile.compare(model, lambda: model(rows()), backend="aot_eager", rounds=2, calls=2)
    # THEN regional compilation's figure is that of four calls, and of what is called once a step there is none
    regional, full = report.strategies["regional"], report.strategies["full"]
    assert regional.dispatch_seconds is not None
    assert 0 < regional.dispatch_seconds < PAUSE / 2
    assert (regional.dispatch_calls, regional.dispatch_repeats) == (4, dispatch._PAIRS)
    assert regional.dispatch_spread is not None
    assert (full.dispatch_seconds, report.strategies["eager"].dispatch_seconds) == (None, None)
    # and it is told
    assert "beside its kernels; 4 calls:" in report.to_text()


def test_what_delays_a_call_before_the_compiled_code_counts() -> None:
    # GIVEN blocks whose call takes a millisecond before it gets to compiled code
    class Slow(Block):
        def __call__(self, *args: Any) -> Any:
            time.sleep(PAUSE)
            return super().__call__(*args)

    model = net(3, Slow)
    found, left_out = measured(model, lambda: model(rows()))
    # THEN that is in the figure
    assert left_out == []
    assert found is not None
    assert PAUSE < found.seconds < 3 * PAUSE
    assert found.calls == 3


def test_what_kernels_take_does_not_count() -> None:
    # GIVEN a backend whose graphs take a millisecond each
    def slow(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            time.sleep(PAUSE)
            return graph.forward(*args)

        return run

    model = net(3)
    found, _ = measured(model, lambda: model(rows()), backend=slow)
    # THEN that is not in the figure
    assert found is not None
    assert found.seconds < PAUSE / 2


def test_the_first_block_of_a_step_and_those_behind_it_count_by_how_many_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a border that takes a millisecond more where a step begins
    model = net(4)
    compilation = compiled(model, lambda: model(rows()))
    monkeypatch.setattr(compilation.groups[0].methods, "check", lambda: time.sleep(PAUSE))
    found, _ = dispatch.measure_dispatch(compilation, lambda: model(rows()))
    # THEN it is a quarter of that for each of four blocks
    assert found is not None
    assert PAUSE / 4 < found.seconds < PAUSE / 2
    assert found.calls == 4


def test_nothing_is_computed_again_and_nothing_changes() -> None:
    # GIVEN a model with dropout and a buffer that counts, in training mode
    class Counting(Block):
        def __init__(self, number: float) -> None:
            super().__init__(number)
            self.drop = nn.Dropout(0.5)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return self.drop(super().forward(x))

    model, runs = net(3, Counting).train(), []

    def counting(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            runs.append(1)
            return graph.forward(*args)

        return run

    def step() -> Any:
        return model(rows())

    compilation = compiled(model, step, backend=counting)
    paths = [list(region.fast) for _, region in compilation.regions()]
    borders = [block.__dict__[SLOT] for block, _ in compilation.regions()]
    compiles, state = compilation.compiles(), torch.get_rng_state()
    runs.clear()
    # WHEN it is measured
    found, _ = dispatch.measure_dispatch(compilation, step)
    # THEN each block has computed once more, as its step ran once more
    assert found is not None
    assert len(runs) == 3
    assert [float(layer.calls) for layer in model.layers] == [4, 4, 4]
    # and random numbers, slots, paths and compiles are as they were
    assert torch.equal(torch.get_rng_state(), state)
    assert [block.__dict__[SLOT] for block, _ in compilation.regions()] == borders
    assert [region.fast for _, region in compilation.regions()] == paths
    assert compilation.compiles() == compiles
    assert all(region.compiled for _, region in compilation.regions())


def test_a_training_step_is_measured_as_it_is_called() -> None:
    # GIVEN a step with gradients
    model = net(3)

    def step() -> None:
        with torch.enable_grad():
            model(rows()).sum().backward()

    compilation = compiled(model, step)
    compiles = compilation.compiles()
    model.zero_grad()
    # WHEN it is measured
    found, left_out = dispatch.measure_dispatch(compilation, step)
    # THEN there is a figure, nothing new was compiled, and gradients are those of one step
    assert (found is not None, left_out, compilation.compiles()) == (True, [], compiles)
    one = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    step()
    assert one
    assert all(map(torch.equal, one, [p.grad for p in model.parameters() if p.grad is not None]))


def test_a_call_that_writes_into_a_cache_is_not_repeated() -> None:
    # GIVEN a decoder that fills a KV cache
    pytest.importorskip("transformers")
    model, inputs = models.llama(2)
    found, left_out = measured(model, lambda: model(**inputs, use_cache=True))
    # THEN there is no figure, and a reason
    assert found is None
    assert left_out == [
        "LlamaDecoderLayer in model.layers: each call changes a KV cache, so it cannot be made again",
    ]


def test_a_block_that_sets_attributes_is_not_repeated() -> None:
    class Noting(Block):
        seen: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen = super().forward(x)
            return self.seen

    model = net(2, Noting)
    found, left_out = measured(model, lambda: model(rows()))
    assert found is None
    assert left_out == ["Noting in layers: each call does more than compute, in Python, so it cannot be made again"]


def test_blocks_that_are_not_called_directly_have_a_reason() -> None:
    model = net(2, BreakingBlock)
    found, left_out = measured(model, lambda: model(rows()))
    assert (found, left_out) == (None, ["BreakingBlock in layers: a graph break splits it"])


def test_a_block_with_hooks_is_not_called_again() -> None:
    # GIVEN blocks with a hook that counts WHEN a step is watched
    model, seen = net(3), []
    for layer in model.layers:
        layer.register_forward_hook(lambda module, args, out: seen.append(module))
    compilation = compiled(model, lambda: model(rows()))
    seen.clear()
    found, left_out = dispatch.measure_dispatch(compilation, lambda: model(rows()))
    # THEN the hooks run once a block, as in any step, and there is no figure, with the reason
    assert seen == [*model.layers]
    assert found is None
    assert left_out == ["Block in layers: it has hooks, which would run again with each call that is timed"]


def test_a_step_that_a_cuda_graph_stands_for_calls_no_blocks() -> None:
    model = net(2)
    with fake_device():
        found, left_out = measured(model, lambda: model(rows()), cuda_graph=True)
    assert found is None
    assert left_out == ["a CUDA graph stands for the whole step, so its blocks are not called one by one"]


def test_a_step_that_fails_leaves_the_blocks_as_they_were() -> None:
    model = net(2)
    compilation = compiled(model, lambda: model(rows()))
    borders = [block.__dict__[SLOT] for block, _ in compilation.regions()]

    def step() -> None:
        model(rows())
        raise OSError("the data set is on a disk that is gone")

    with pytest.raises(OSError, match="disk that is gone"):
        dispatch.measure_dispatch(compilation, step)
    assert [block.__dict__[SLOT] for block, _ in compilation.regions()] == borders


def test_it_takes_less_than_a_second() -> None:
    model = net(24)
    compilation = compiled(model, lambda: model(rows()))
    begin = time.process_time()
    dispatch.measure_dispatch(compilation, lambda: model(rows()))
    assert time.process_time() - begin < 1


def test_the_figure_is_told_wherever_steady_time_is() -> None:
    # GIVEN a report with the figure THEN table, drawing and chart say it in the same words
    report = sample_report()
    said = "a block's call costs 20.0 µs beside its kernels; 30 calls: 600 µs of a step of 50.0 ms"
    built = next(table for table in tables.tables(report, 40) if table.title == "Strategies")
    assert built.footnote.endswith(f"; regional: {said}")
    assert any(said.replace("'", "&#x27;") in drawn for _, drawn in svg.charts(report))
    assert said in str(charts.figure_dict(report)).replace("&#x27;", "'")


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        (Strategy(), ""),
        (Strategy(dispatch_seconds=1e-5), ""),
        (Strategy(dispatch_seconds=1e-5, dispatch_calls=0), ""),
        (Strategy(dispatch_seconds=1e-5, dispatch_calls=1), "a block's call costs 10.0 µs beside its kernels"),
        (
            Strategy(dispatch_seconds=1e-5, dispatch_calls=1, steady_seconds=0.001),
            "a block's call costs 10.0 µs beside its kernels, of a step of 1.00 ms",
        ),
        (
            Strategy(dispatch_seconds=1e-5, dispatch_calls=3),
            "a block's call costs 10.0 µs beside its kernels; 3 calls: 30.0 µs of a step",
        ),
    ],
)
def test_what_is_not_known_is_not_told(figures: Strategy, said: str) -> None:
    assert series.dispatch(figures) == said


def test_a_file_without_the_figure_and_one_with_nonsense() -> None:
    # GIVEN a report of an earlier version THEN it is read
    data = sample_report().to_dict()
    for field in dataclasses.fields(Strategy):
        if field.name.startswith("dispatch"):
            del data["strategies"]["regional"][field.name]
    assert Report.from_dict(data).strategies["regional"].dispatch_seconds is None
    # and one with text for a figure is refused
    data["strategies"]["regional"]["dispatch_seconds"] = "fast"
    with pytest.raises(ReportError, match="dispatch_seconds"):
        Report.from_dict(data)


def test_a_figure_that_cannot_be_had_loses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a measurement that fails WHEN strategies are compared THEN the rest is there, and the reason is told
    def broken(*args: object) -> None:
        raise RuntimeError("no such block")

    monkeypatch.setattr("nbcompile.dispatch.measure_dispatch", broken)
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in range(2)])
    report = nbcompile.compare(model, lambda: model(torch.ones(1, 4)), ["eager", "regional"], backend="eager", rounds=1)
    regional = report.strategies["regional"]
    assert regional.steady_seconds is not None
    assert regional.dispatch_seconds is None
    assert any("no such block" in note for note in regional.notes)


def test_a_graph_that_is_a_module_is_called_as_any_other() -> None:
    # GIVEN a backend that hands the graph back: a module that is there, yet has no length
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in range(2)])
    x = torch.ones(1, 4)
    report = nbcompile.compare(
        model, lambda: model(x), ["eager", "regional"], backend=lambda graph, inputs: graph, rounds=1
    )
    assert report.strategies["regional"].failure in (None, "")
    assert not any("not measured: TypeError" in note for note in report.strategies["regional"].notes)
