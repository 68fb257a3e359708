"""Every model of the zoo, compiled by blocks: all blocks compiled, few graphs, nothing else about the model changed."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import nbcompile
from tests.models import CAUSAL, ZOO

#: Graphs that the blocks of each model need for one forward without a cache: one per kind of block.
GRAPHS = {
    "gpt2": 1,
    "llama": 1,
    "gemma3": 2,  # blocks with sliding attention are handed a mask, those with full attention none
    "t5": 4,  # in each of the two stacks the first block alone has the position bias
    "bert": 1,
    "vit": 1,
    "resnet": 7,  # four stages; in three of them the first block changes the width
    "torch_encoder": 1,
    "module_dict": 1,
    "qwen3_moe": 1,
    "gpt_neo": 1,
}
BACKEND = "aot_eager"


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of a result, in order; caches left out."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in ("past_key_values", "cache"):
                yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def call(model: nn.Module, inputs: dict[str, Any]) -> list[torch.Tensor]:
    if "input_ids" in inputs and hasattr(model, "generate"):
        inputs = {**inputs, "use_cache": False}
    return list(tensors(model(**inputs)))


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.fixture(params=sorted(ZOO))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_block_compiles_with_the_graphs_its_variants_need(name: str) -> None:
    # GIVEN a model and its eager output
    model, inputs = ZOO[name]()
    with torch.no_grad():
        expected = call(model, inputs)
        # WHEN it is compiled by blocks and called twice
        assert nbcompile.compile_regions(model, backend=BACKEND) is model
        counters.clear()
        for _ in range(2):
            torch.testing.assert_close(call(model, inputs), expected)
    # THEN every block ran compiled, with as many graphs as there are kinds of block, and the report says the same
    report = nbcompile.report(model)
    groups = report.groups
    assert groups
    for group in groups:
        assert (group.compiled, group.eager) == (group.instances, 0), group
        assert not group.recompiles
        assert not group.graph_breaks
    assert sum(group.graphs for group in groups) == GRAPHS[name]
    assert counters["stats"]["unique_graphs"] == GRAPHS[name] + sum(part.graphs for part in report.rest)
    assert all(part.compiled for part in report.rest if part.decision == "compile")


def test_compiling_leaves_no_mark_on_the_model(name: str) -> None:
    # GIVEN a model
    model, inputs = ZOO[name]()
    before, keys = state(model), {path: set(vars(module)) for path, module in model.named_modules()}
    # WHEN it is compiled, called and restored
    nbcompile.compile_regions(model, backend="eager")
    with torch.no_grad():
        call(model, inputs)
        compiled_state = state(model)
        nbcompile.restore(model)
    # THEN its state was the same throughout, and no module has an attribute more or less
    for after in (compiled_state, state(model)):
        assert list(after) == list(before)
        assert all(torch.equal(after[key], before[key]) for key in before)
    assert {path: set(vars(module)) for path, module in model.named_modules()} == keys
    with pytest.raises(nbcompile.UsageError, match="has not compiled"):
        nbcompile.report(model)


def test_copies_work_on_their_own(name: str) -> None:
    # GIVEN a compiled model that has run
    model, inputs = ZOO[name]()
    nbcompile.compile_regions(model, backend="eager")
    with torch.no_grad():
        expected = call(model, inputs)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        # WHEN it is copied in each of the usual ways
        clones = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]
        # THEN each copy gives the same result, is uncompiled, and does not share weights
        for clone in clones:
            torch.testing.assert_close(call(clone, inputs), expected)
            with pytest.raises(nbcompile.UsageError, match="copy"):
                nbcompile.report(clone)
            for parameter in clone.parameters():
                parameter.zero_()
        torch.testing.assert_close(call(model, inputs), expected)


def test_forward_hooks_fire(name: str) -> None:
    # GIVEN a compiled model with a hook on a block, on a layer inside another block, and on the model
    model, inputs = ZOO[name]()
    blocks = nbcompile.plan_regions(model).groups[0].blocks
    inner = next(
        module
        for path, module in model.get_submodule(blocks[1]).named_modules()
        # torch's own attention uses the weights of the layer inside it without calling it
        if type(module).__name__ in ("Linear", "Conv2d", "Conv1D") and "out_proj" not in path
    )
    seen: list[str] = []
    nbcompile.compile_regions(model, backend="eager")
    model.get_submodule(blocks[0]).register_forward_hook(lambda *_: seen.append("block"))
    inner.register_forward_hook(lambda *_: seen.append("inner"))
    model.register_forward_hook(lambda *_: seen.append("model"))
    # WHEN the model is called twice
    with torch.no_grad():
        call(model, inputs)
        call(model, inputs)
    # THEN each hook fired each time
    assert sorted(set(seen)) == ["block", "inner", "model"]
    assert all(seen.count(which) >= 2 for which in ("block", "inner", "model"))


def test_a_training_step_gives_eagers_gradients(name: str) -> None:
    # GIVEN a model in training mode without dropout, and eager's gradients
    model, inputs = ZOO[name]()
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0

    def gradients() -> dict[str, torch.Tensor]:
        model.zero_grad()
        buffers = [buffer.clone() for buffer in model.buffers()]
        sum(t.float().pow(2).mean() for t in call(model, inputs) if t.is_floating_point()).backward()  # type: ignore[union-attr]
        for buffer, old in zip(model.buffers(), buffers, strict=True):  # running statistics of batch norms
            buffer.data.copy_(old)
        return {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}

    expected = gradients()
    # WHEN the compiled model makes the same step
    nbcompile.compile_regions(model, backend=BACKEND)
    found = gradients()
    # THEN the same parameters have the same gradients, and every block ran compiled
    assert list(found) == list(expected)
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], atol=1e-5, rtol=1e-4)
    assert all((g.compiled, g.eager) == (g.instances, 0) for g in nbcompile.report(model).groups)


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "resnet"])
def test_saved_and_loaded_again(name: str, tmp_path: Any) -> None:
    # GIVEN a compiled model of transformers that has run
    model, inputs = ZOO[name]()
    nbcompile.compile_regions(model, backend="eager")
    with torch.no_grad():
        expected = call(model, inputs)
        # WHEN it is saved and loaded as its library does
        model.save_pretrained(tmp_path)
        again = type(model).from_pretrained(tmp_path).eval()
        # THEN the result is the same
        torch.testing.assert_close(call(again, inputs), expected)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("layers", [4, 10])
def test_generate_needs_no_more_graphs_in_a_deeper_model(name: str, layers: int) -> None:
    # GIVEN a language model, and the tokens that eager gives
    model, inputs = ZOO[name](layers) if name != "gemma3" else ZOO[name](layers + layers % 3)
    settings = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    expected = model.generate(**inputs, **settings)
    # WHEN it generates compiled, with the cache it uses by default
    nbcompile.compile_regions(model, backend=BACKEND)
    counters.clear()
    assert torch.equal(model.generate(**inputs, **settings), expected)
    # THEN prefill, first decode step and later ones are three graphs for each kind of layer, at any depth
    kinds = 2 if name == "gemma3" else 1
    assert counters["stats"]["unique_graphs"] <= 3 * kinds
    (group,) = nbcompile.report(model).groups
    assert (group.compiled, group.eager) == (group.instances, 0)
