"""Hierarchical compilation: one graph of the whole model, in which each distinct block is compiled once."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import nbcompile
from nbcompile import NoRepeatedBlocksError, UsageError
from tests import models
from tests.blocks import BreakingBlock, Net, NumberedBlock, net, ran_eager, rows

BACKEND = "aot_eager"


def hierarchical(model: nn.Module, **more: Any) -> nn.Module:
    return nbcompile.compile_model(model, strategy="hierarchical", **{"backend": BACKEND, **more})


def own_forwards(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if "forward" in vars(module)]


def groups(model: nn.Module) -> list[tuple[str, int, int, int]]:
    return [(g.path, g.compiled, g.eager, g.graphs) for g in nbcompile.report(model).groups]


def result_and_gradients(model: nn.Module, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    model.zero_grad()
    output = model(**kwargs)[0]
    output.float().square().mean().backward()
    return [output.detach(), *(torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "gemma3", "t5"])
def test_forward_and_gradients_are_eagers(name: str) -> None:
    # GIVEN a model and what it computes eager
    model, kwargs = getattr(models, name)()
    if name != "bert":
        kwargs["use_cache"] = False
    expected = result_and_gradients(model, kwargs)
    # WHEN it runs hierarchically compiled, twice
    hierarchical(model)
    for _ in range(2):
        actual = result_and_gradients(model, kwargs)
        # THEN outputs and gradients are the same
        torch.testing.assert_close(actual, expected)
    # and there is one graph of the whole model, in which each distinct block is there once
    whole, *inner = nbcompile.report(model).groups
    assert (whole.path, whole.compiled, whole.graphs) == ("", 1, 1)
    assert all(g.compiled == g.instances and g.graphs == 1 and g.compile_seconds is None for g in inner)
    # the first block of each of T5's stacks computes the bias that the others are handed
    shares = [[variant.instances for variant in g.variants] for g in inner]
    assert shares == {"gemma3": [[6]], "t5": [[3, 1], [3, 1]]}.get(name, [[4]])
    assert own_forwards(model) == []


def test_blocks_that_differ_are_compiled_apart() -> None:
    model = hierarchical(Net([NumberedBlock(number) for number in (1, 2, 1, 2)]))
    model(rows())
    assert [variant.instances for variant in nbcompile.report(model).groups[1].variants] == [2, 2]


def test_more_distinct_blocks_than_the_compilers_limit() -> None:
    model = Net([NumberedBlock(number) for number in range(12)])
    expected = model(rows())
    hierarchical(model)
    torch.testing.assert_close(model(rows()), expected)
    # torch makes no region of what is there once: it is part of the model's own code
    assert groups(model) == [("", 1, 0, 1), ("layers", 12, 0, 0)]


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
    assert groups(second) == [("", 1, 0, 1), ("layers", 3, 0, 1)]


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


def test_with_inductor() -> None:
    model = net()
    with torch.no_grad():
        expected = model(rows())
        hierarchical(model, backend="inductor")
        torch.testing.assert_close(model(rows()), expected)
    assert groups(model) == [("", 1, 0, 1), ("layers", 4, 0, 1)]
