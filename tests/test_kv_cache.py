"""KV caches at the border: one graph per variant whatever the index, and never at the price of a wrong result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import nbcompile
from nbcompile.integrations import transformers as border
from tests.models import gemma3, llama, t5

cache_utils = pytest.importorskip("transformers.cache_utils")
BACKEND = "aot_eager"
SETTINGS: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}


@pytest.mark.parametrize(
    "more",
    [{}, {"num_beams": 3}, {"cache_implementation": "static"}, {"do_sample": True, "top_k": 5}],
    ids=["greedy", "beams", "static", "sampling"],
)
@pytest.mark.parametrize("build", [llama, gemma3], ids=["llama", "gemma3"])
def test_generate_in_all_ways_equals_eager(build: Any, more: dict[str, Any]) -> None:
    # GIVEN a model with more blocks than the recompile limit
    model, inputs = build(12)

    def generate() -> torch.Tensor:
        torch.manual_seed(7)
        return model.generate(**inputs, **{**SETTINGS, **more})

    expected = generate()
    # WHEN it generates compiled, twice
    nbcompile.compile_regions(model, backend=BACKEND)
    assert torch.equal(generate(), expected)
    assert torch.equal(generate(), expected)
    # THEN all blocks ran compiled
    (group,) = nbcompile.report(model).groups
    assert (group.instances, group.compiled, group.eager) == (12, 12, 0)


def test_the_users_cache_is_filled_and_comes_back() -> None:
    # GIVEN a compiled model and a cache of the user's
    model, inputs = llama(6)
    own, other = cache_utils.DynamicCache(), cache_utils.DynamicCache()
    with torch.no_grad():
        expected = model(**inputs, past_key_values=other)
        nbcompile.compile_regions(model, backend=BACKEND)
        # WHEN the model is called with it
        result = model(**inputs, past_key_values=own)
    # THEN every layer of that very cache holds what eager would have put there
    assert result.past_key_values is own
    assert len(own.layers) == len(other.layers) == 6
    for mine, theirs in zip(own.layers, other.layers, strict=True):
        torch.testing.assert_close(mine.keys, theirs.keys)
        torch.testing.assert_close(mine.values, theirs.values)
    torch.testing.assert_close(result.logits, expected.logits)


def test_both_caches_of_an_encoder_decoder() -> None:
    # GIVEN an encoder-decoder with 10 blocks in each stack
    model, inputs = t5(10)
    expected = model.generate(inputs["input_ids"], **SETTINGS)
    # WHEN it generates compiled
    nbcompile.compile_regions(model, backend=BACKEND)
    counters.clear()
    assert torch.equal(model.generate(inputs["input_ids"], **SETTINGS), expected)
    # THEN the two stacks together need no more graphs than at four blocks
    assert counters["stats"]["unique_graphs"] <= 8
    assert all((g.compiled, g.eager) == (10, 0) for g in nbcompile.report(model).groups)


class _UnknownCache(cache_utils.DynamicCache):  # type: ignore[misc]
    """A cache that nobody has heard of."""


def test_an_unknown_cache_is_left_alone_and_told() -> None:
    # GIVEN a compiled model that has run without and with a cache that is known
    model, inputs = llama(4)
    with torch.no_grad():
        expected = model(**inputs, past_key_values=_UnknownCache())
        nbcompile.compile_regions(model, backend=BACKEND)
        model(**inputs, use_cache=False)
        model(**inputs)
        # WHEN it is handed one that is not
        cache = _UnknownCache()
        result = model(**inputs, past_key_values=cache)
    # THEN the result is right, every layer is filled, and the report says what that cost
    torch.testing.assert_close(result.logits, expected.logits)
    for mine, theirs in zip(cache.layers, expected.past_key_values.layers, strict=True):
        torch.testing.assert_close(mine.keys, theirs.keys)
    report = nbcompile.report(model)
    assert any("_UnknownCache is not a cache that nbcompile knows" in note for note in report.notes)
    assert (report.groups[0].compiled, report.groups[0].eager) == (4, 0)


class _IndexInArithmetic(nn.Module):
    """A block that uses its index for more than its layer of the cache."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.layer_idx = index
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, cache: Any = None) -> torch.Tensor:
        y: torch.Tensor = self.fc(x) / (self.layer_idx + 1)
        if cache is not None:
            keys, _ = cache.update(y[:, None], y[:, None], self.layer_idx)
            y = y + keys.sum(2)
        return x + y


class _Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_IndexInArithmetic(i) for i in range(5))

    def forward(self, x: torch.Tensor, cache: Any = None) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, cache=cache)
        return x


@pytest.mark.parametrize("with_cache", [True, False])
def test_an_index_used_in_arithmetic_is_never_hidden(with_cache: bool) -> None:
    # GIVEN blocks whose result depends on their index
    torch.manual_seed(0)
    model, x = _Stack().eval(), torch.randn(2, 3, 8)

    def cache() -> Any:
        return cache_utils.DynamicCache() if with_cache else None

    with torch.no_grad():
        expected = model(x, cache())
        # WHEN they are compiled
        nbcompile.compile_regions(model, backend=BACKEND)
        # THEN the result is right, with a graph per index
        torch.testing.assert_close(model(x, cache()), expected)
    (group,) = nbcompile.report(model).groups
    assert (group.compiled, group.graphs) == (5, 5)
    assert "layer_idx" in border.other_use(model.layers[0])


def test_the_index_of_a_library_block_only_finds_its_layer() -> None:
    model, _ = llama(2)
    block = model.model.layers[1]
    assert border.own_index(block) == 1
    assert border.other_use(block) == ""


def test_views_share_the_layer_and_nothing_else() -> None:
    cache = cache_utils.DynamicCache()
    seen, put_back = border.view(cache, 2, 5)  # type: ignore[misc]
    assert len(seen.layers) == 5
    assert len(cache.layers) == 3
    assert all(layer is cache.layers[2] for layer in seen.layers)
    assert put_back(seen) is cache
    assert put_back((1, seen)) == (1, cache)
    assert put_back({"cache": seen})["cache"] is cache
    assert border.view(_UnknownCache(), 0, 1) is None


def test_what_a_block_sets_on_its_view_is_set_on_the_cache() -> None:
    cache = cache_utils.DynamicCache()
    cache.tokens_seen = 3
    seen, put_back = border.view(cache, 0, 2)  # type: ignore[misc]
    seen.tokens_seen = 4
    put_back(None)
    assert cache.tokens_seen == 4
    assert len(cache.layers) == 1
