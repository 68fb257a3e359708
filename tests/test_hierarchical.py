"""Hierarchical compilation: one graph of the whole model, in which each distinct block is compiled once."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nbcompile
from nbcompile import NoRepeatedBlocksError, UsageError
from nbcompile.tune import apply_setting
from tests import models
from tests.blocks import Block, BreakingBlock, Net, NumberedBlock, net, ran_eager, rows

BACKEND = "aot_eager"


def hierarchical(model: nn.Module, **more: Any) -> nn.Module:
    return nbcompile.compile_model(model, strategy="hierarchical", **{"backend": BACKEND, **more})


def own_forwards(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if "forward" in vars(module)]


def groups(model: nn.Module) -> list[tuple[str, int, int, int]]:
    return [(g.path, g.compiled, g.eager, g.graphs) for g in nbcompile.report(model).groups]


def result_and_gradients(model: nn.Module, kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The first output, and the gradient of each parameter that gets one, by its name."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(0)
    output = model(**kwargs)
    output = output if isinstance(output, torch.Tensor) else output[0]
    output.float().square().mean().backward()
    return {"output": output.detach(), **{n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}}


@torch.no_grad()
def randomize(model: nn.Module) -> None:
    """Give all parameters values of their own: fresh models have the same biases and norms in each block."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "torch_encoder", "gemma3", "t5", "qwen3_moe"])
def test_each_block_computes_with_its_own_weights(name: str) -> None:
    # GIVEN a model of which no two blocks have the same weights, and what it computes eager
    model, kwargs = getattr(models, name)()
    if name not in ("bert", "torch_encoder"):
        kwargs["use_cache"] = False
    randomize(model)
    expected = result_and_gradients(model, kwargs)
    # WHEN it runs hierarchically compiled, twice
    hierarchical(model)
    for _ in range(2):
        actual = result_and_gradients(model, kwargs)
        # THEN the output and the gradients are the same; what takes no part, as BERT's pooler, the compiler gives zeros
        idle = actual.keys() - expected.keys()
        assert all(name.startswith("pooler.") and not actual.pop(name).any() for name in idle)
        torch.testing.assert_close(actual, expected)
    # and there is one graph of the whole model, in which each distinct block is there once
    whole, *inner = nbcompile.report(model).groups
    assert (whole.path, whole.compiled, whole.graphs) == ("", 1, 1)
    assert all(g.compiled == g.instances and g.graphs >= 1 and g.compile_seconds is None for g in inner)
    # the first block of each of T5's stacks computes the bias that the others are handed, the second one gets it with
    # other strides; the first block of torch's encoder is handed an input without gradient
    shares = [sorted(variant.instances for variant in g.variants) for g in inner]
    assert shares == {"gemma3": [[6]], "t5": [[1, 1, 2], [1, 1, 2]], "torch_encoder": [[1, 3]]}.get(name, [[4]])
    assert own_forwards(model) == []


@pytest.mark.parametrize("name", ["llama", "torch_encoder"])
def test_weights_that_two_blocks_exchange_take_effect(name: str) -> None:
    # GIVEN a compiled model that has run
    model, kwargs = getattr(models, name)()
    if name == "llama":
        kwargs["use_cache"] = False
    randomize(model)
    hierarchical(model)
    before = result_and_gradients(model, kwargs)
    first, second = [model.get_submodule(path) for path in nbcompile.report(model).groups[1].blocks[1:3]]
    # WHEN two of its blocks exchange their weights
    for left, right in zip(first.parameters(), second.parameters(), strict=True):
        left.data, right.data = right.data.clone(), left.data.clone()
    actual = result_and_gradients(model, kwargs)
    # THEN the result is another one, and eager's
    assert not torch.allclose(actual["output"], before["output"])
    with nbcompile.eager(model):
        torch.testing.assert_close(actual, result_and_gradients(model, kwargs))


def test_each_block_drops_out_what_eager_drops() -> None:
    # GIVEN a model with dropout, in training
    model, kwargs = models.torch_encoder()
    model.train()
    expected = result_and_gradients(model, kwargs)
    # WHEN it is compiled by a backend that draws random numbers as eager does THEN the draws are the same
    hierarchical(model)
    torch.testing.assert_close(result_and_gradients(model, kwargs), expected)


class Normed(Block):
    """A block that writes to buffers in training, which the compiler's nested regions cannot where gradients are."""

    def __init__(self, number: float = 0) -> None:
        super().__init__(number)
        self.norm = nn.BatchNorm1d(self.fc.out_features)

    def work(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(self.fc(x))
        return result


def test_blocks_that_write_to_buffers_run_eager_and_say_so() -> None:
    model = net(3, Normed).train()
    expected = result_and_gradients(copy.deepcopy(model), {"x": rows(8)})
    hierarchical(model)
    with pytest.warns(nbcompile.CompilationWarning, match="runs eager"):
        actual = result_and_gradients(model, {"x": rows(8)})
    torch.testing.assert_close(actual, expected)
    assert nbcompile.report(model).groups[0].compiled == 0


class Gelu(Block):
    """A block that writes out one of the function's arguments if its number is odd."""

    def work(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc(x)
        return F.gelu(x, approximate="tanh") if self.number % 2 else F.gelu(x)


class Named(Block):
    """A block that gives one argument by one name or by another."""

    def work(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc(x)
        return torch.clamp(x, min=0) if self.number % 2 else torch.clamp(x, max=0)


class Typed(Block):
    """A block with a constant that equals the other one's, but for its type."""

    def work(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, 1 if self.number % 2 else True) * self.fc(x)


@pytest.mark.parametrize("kind", [Gelu, Named, Typed])
def test_blocks_whose_graphs_look_alike_are_told_apart(kind: type[Block]) -> None:
    # GIVEN blocks whose graphs are equal but for an argument that only one of them has, its name or its type
    model = Net([kind(number) for number in (0, 1, 0, 1)])
    with torch.no_grad():
        expected = model(rows())
        # WHEN they run hierarchically compiled
        hierarchical(model)
        actual = model(rows())
    # THEN none stands in for another
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert [variant.instances for variant in nbcompile.report(model).groups[1].variants] == [2, 2]


def test_blocks_that_differ_are_compiled_apart() -> None:
    model = hierarchical(Net([NumberedBlock(number) for number in (1, 2, 1, 2)]))
    with torch.no_grad():
        model(rows())
    assert [variant.instances for variant in nbcompile.report(model).groups[1].variants] == [2, 2]


def test_more_distinct_blocks_than_the_compilers_limit() -> None:
    model = Net([NumberedBlock(number) for number in range(12)])
    expected = model(rows())
    hierarchical(model)
    torch.testing.assert_close(model(rows()), expected)
    assert groups(model) == [("", 1, 0, 1), ("layers", 12, 0, 12)]


def test_restore_leaves_no_trace() -> None:
    model = net()
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    keys = list(model.state_dict())
    hierarchical(model)
    model(rows())
    # between calls nothing is to be seen on the blocks, and copies are plain models
    assert own_forwards(model) == []
    assert list(model.state_dict()) == keys
    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert ran_eager(clone, rows()) == 4
    nbcompile.restore(model)
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before
    assert ran_eager(model, rows()) == 4


def test_marks_are_taken_off_when_a_call_fails() -> None:
    model = hierarchical(net())
    with pytest.raises(Exception, match="shape"):
        model(torch.zeros(2, 5))
    assert own_forwards(model) == []


def test_later_calls_compile_nothing() -> None:
    model = hierarchical(net())
    with torch.no_grad():
        for _ in range(4):
            model(rows())
    report = nbcompile.report(model)
    assert [len(g.recompiles) for g in report.groups] == [0, 0]
    assert report.groups[0].graphs == 1


def test_two_models_of_one_class_do_not_disturb_each_other() -> None:
    first, second = net(), Net([NumberedBlock(7) for _ in range(3)])
    expected = first(rows()), second(rows())
    hierarchical(first)
    hierarchical(second)
    for _ in range(2):
        torch.testing.assert_close((first(rows()), second(rows())), expected)
    nbcompile.restore(first)
    assert ran_eager(first, rows()) == 4
    torch.testing.assert_close(second(rows()), expected[1])
    assert groups(second) == [("", 1, 0, 1), ("layers", 3, 0, 2)]


def test_another_forward_of_the_blocks_class_takes_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    model = hierarchical(net())
    model(rows())
    monkeypatch.setattr(type(model.layers[0]), "forward", lambda self, x: x + 1)
    torch.testing.assert_close(model(rows()), rows() + 4)


def test_a_block_with_a_forward_of_its_own_is_left_alone() -> None:
    model = net()
    block = model.layers[1]
    own = block.forward
    block.forward = lambda x: own(x) * 2
    expected = model(rows())
    hierarchical(model)
    torch.testing.assert_close(model(rows()), expected)
    report = nbcompile.report(model)
    assert report.groups[1].instances == 3
    assert any("layers.1: not compiled as nested blocks" in note for note in report.notes)
    assert own_forwards(model) == ["layers.1"]


def test_what_cannot_be_done_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    for block in model.layers:
        block.forward = block.forward
    with pytest.raises(UsageError, match="no block of this Net can be marked"):
        hierarchical(model)
    with pytest.raises(NoRepeatedBlocksError, match="nothing that hierarchical compilation could compile once"):
        hierarchical(nn.Linear(4, 4))
    with pytest.raises(UsageError, match="no strategy 'regional'; those that exist: full, hierarchical"):
        nbcompile.compile_model(net(), strategy="regional")
    with pytest.raises(UsageError, match="knows no blocks"):
        nbcompile.compile_model(net(), regions=["layers"])
    monkeypatch.delattr(torch.compiler, "nested_compile_region")
    with pytest.raises(UsageError, match=r"has no torch\.compiler\.nested_compile_region"):
        hierarchical(net())


def test_a_model_that_it_does_not_suit_runs_eager_and_says_so() -> None:
    # GIVEN Gemma 3 with its sliding cache, into which the compiler's nested regions cannot write
    model, kwargs = models.gemma3()
    with torch.no_grad():
        expected = model(**kwargs).logits
        hierarchical(model)
        # WHEN it runs
        with pytest.warns(nbcompile.CompilationWarning, match="runs eager.*strategy='full'"):
            actual = model(**kwargs).logits
    # THEN the result is there, nothing counts as compiled, and the report tells why
    torch.testing.assert_close(actual, expected)
    report = nbcompile.report(model)
    assert [(g.compiled, g.eager) for g in report.groups] == [(0, 1), (0, 6)]
    assert report.groups[1].eager_reason.startswith("compiling failed")
    assert report.groups[0].failure
    assert own_forwards(model) == []


def test_a_graph_break_in_a_block_is_told() -> None:
    model = Net([BreakingBlock(), BreakingBlock()])
    expected = model(rows())
    hierarchical(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nbcompile.CompilationWarning)
        torch.testing.assert_close(model(rows()), expected)
    assert groups(model)[1][1] == 0


def test_it_is_compared_with_the_others() -> None:
    model = net()
    with torch.no_grad():
        report = nbcompile.compare(
            model,
            lambda: model(rows()),
            ("eager", "regional", "hierarchical"),
            backend=BACKEND,
            rounds=2,
            calls=2,
            keep="hierarchical",
            check="regions",
        )
    figures = report.strategies["hierarchical"]
    assert (figures.failure, figures.max_abs_diff, figures.graphs, figures.first_drift) == ("", 0.0, 1, "")
    assert nbcompile.report(model).settings["strategy"] == "hierarchical"
    assert groups(model) == [("", 1, 0, 1), ("layers", 4, 0, 1)]
    # the report goes through its file and shows
    again = nbcompile.report(model)
    assert type(again).from_json(again.to_json()).groups[1].compile_seconds is None
    assert "layers" in again.to_text()


def test_it_is_tuned_and_applied_where_it_is_named() -> None:
    model = net()
    with torch.no_grad():
        space = {"strategy": ["hierarchical"], "backend": [BACKEND]}
        report = nbcompile.tune(model, lambda: model(rows()), budget=30, space=space)
    trials = {trial.settings["strategy"]: trial for trial in report.tuning}
    assert set(trials) == {"eager", "hierarchical"}
    assert (trials["hierarchical"].figures.failure, trials["hierarchical"].figures.max_abs_diff) == ("", 0.0)
    apply_setting(model, trials["hierarchical"].settings)
    model(rows())
    assert groups(model) == [("", 1, 0, 1), ("layers", 4, 0, 2)]


@pytest.mark.parametrize("marked", [False, True])
def test_a_model_that_it_does_not_suit_is_skipped_by_a_tuning(marked: bool) -> None:
    model: nn.Module = nn.Linear(16, 16)
    if marked:
        model = net()
        for block in model.layers:
            block.forward = block.forward
    space = {"strategy": ["hierarchical"], "backend": [BACKEND]}
    report = nbcompile.tune(model, lambda: model(rows()), budget=30, space=space)
    (trial,) = [trial for trial in report.tuning if trial.settings["strategy"] == "hierarchical"]
    assert trial.outcome == "skipped"
    assert ("no block" if marked else "nothing that hierarchical") in trial.reason


@pytest.mark.parametrize("strategy", ["full", "hierarchical"])
def test_other_compiled_models_are_not_guarded_on(strategy: str) -> None:
    # GIVEN a model that makes modules when it is called, compiled, and another one that was compiled before
    class Making(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.Sequential(nn.Identity())(super().forward(x))

    others = [nbcompile.compile_regions(net(), backend=BACKEND)]
    model = nbcompile.compile_model(Making([Block() for _ in range(3)]), strategy=strategy, backend=BACKEND)
    with torch.no_grad():
        model(rows())
        # WHEN others come and go
        others.append(nbcompile.compile_regions(net(), backend=BACKEND))
        model(rows())
        others.clear()
        gc.collect()
        model(rows())
    # THEN nothing is compiled again
    assert nbcompile.report(model).groups[0].recompiles == []
    assert nbcompile.report(model).groups[0].graphs == 1


def test_with_inductor() -> None:
    model = net()
    with torch.no_grad():
        expected = model(rows())
        hierarchical(model, backend="inductor")
        torch.testing.assert_close(model(rows()), expected)
    assert groups(model) == [("", 1, 0, 1), ("layers", 4, 0, 1)]
