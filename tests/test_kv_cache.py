"""KV caches at the border: one graph per variant whatever the index, and never at the price of a wrong result."""

from __future__ import annotations

import ast
import importlib
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import nbcompile
from nbcompile.integrations import layer_index
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
    assert "layer_idx" in layer_index.other_use(model.layers[0])


class _OwnCache:
    """A cache that is no cache of transformers."""

    def __init__(self) -> None:
        self.kept: list[Any] = [None] * 8

    def update(self, x: torch.Tensor, index: int) -> torch.Tensor:
        self.kept[index] = x
        return x


class _OwnCacheBlock(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.layer_idx, self.fc = index, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, cache: Any = None, other: Any = None) -> torch.Tensor:
        y: torch.Tensor = self.fc(x)
        if isinstance(cache, _OwnCache):
            y = cache.update(y, self.layer_idx)
        elif isinstance(cache, tuple):
            y = y + cache[0].update(y[:, None], y[:, None], self.layer_idx)[0].sum(2)
        elif other is not None:
            y = y + cache.update(y[:, None], y[:, None], self.layer_idx)[0].sum(2)
            y = y + other.update(y[:, None], y[:, None], self.layer_idx)[0].sum(2)
        return x + y


class _OwnCacheStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_OwnCacheBlock(i) for i in range(5))

    def forward(self, x: torch.Tensor, **more: Any) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, **more)
        return x


@pytest.mark.parametrize(
    "caches",
    [
        lambda: {"cache": _OwnCache()},
        lambda: {"cache": (cache_utils.DynamicCache(),)},
        lambda: {"cache": cache_utils.DynamicCache(), "other": cache_utils.DynamicCache()},
    ],
    ids=["own class", "inside a tuple", "two of them"],
)
def test_caches_that_cannot_be_narrowed_are_filled_layer_by_layer(caches: Any) -> None:
    # GIVEN blocks that find their layer of a cache by their index, and caches that no view is made of
    torch.manual_seed(0)
    model, x = _OwnCacheStack().eval(), torch.randn(2, 3, 8)
    own, other = caches(), caches()
    with torch.no_grad():
        expected = model(x, **other)
        nbcompile.compile_regions(model, backend=BACKEND)
        # WHEN the compiled model fills them
        torch.testing.assert_close(model(x, **own), expected)
    # THEN each layer holds what it should
    assert [len(layers) for layers in _layers(own)] == [5] * len(own)
    torch.testing.assert_close(_layers(own), _layers(other))


def _layers(caches: dict[str, Any]) -> list[list[torch.Tensor]]:
    found = []
    for given in caches.values():
        cache = given[0] if isinstance(given, tuple) else given
        found.append(cache.kept[:5] if isinstance(cache, _OwnCache) else [layer.keys for layer in cache.layers])
    return found


def test_a_hook_that_looks_at_the_index_acts_on_its_block_only() -> None:
    # GIVEN one hook on every attention that silences one block, as in steering
    model, inputs = llama(6)

    def silence(module: Any, args: Any, out: Any) -> Any:
        return (out[0] * 0, *out[1:]) if module.layer_idx == 3 else out

    for layer in model.model.layers:
        layer.self_attn.register_forward_hook(silence)
    with torch.no_grad():
        expected = model(**inputs).logits
        # WHEN the model is compiled, THEN the hook acts as in eager
        nbcompile.compile_regions(model, backend=BACKEND)
        torch.testing.assert_close(model(**inputs).logits, expected)


def _uses(code: str) -> list[str]:
    """What is found in a method of this code."""
    tree = layer_index._with_parents(ast.parse(f"def forward(self, x, cache):\n  {code}"))
    return list(layer_index._uses(tree, is_method=True))


@pytest.mark.parametrize(
    "code",
    [
        "getattr(self, f'scale_{self.layer_idx}')",
        "self.table.get(self.layer_idx)",
        "self.adapters.layers[self.layer_idx]",
        "cache.get_seq_length(0)",
        "cache.get_mask_sizes(4, 0)",
        "cache.layers[0]",
        "x * self.layer_idx",
        "helper(self.layer_idx)",
        "getattr(self, 'layer_idx') * x",
    ],
)
def test_other_uses_of_the_index_are_found(code: str) -> None:
    assert _uses(code)


@pytest.mark.parametrize(
    "code",
    [
        "cache.update(x, x, self.layer_idx)",
        "cache.get_seq_length(self.layer_idx)",
        "cache.cross_attention_cache.layers[self.layer_idx].keys",
        "cache.is_updated.get(self.layer_idx)",
        "cache.is_updated[self.layer_idx] = True",
        "assert self.layer_idx is not None",
        "raise ValueError(f'no cache for {self.layer_idx}')",
        "self.table.get('x')",
        "kwargs.update(a=1)",
    ],
)
def test_uses_that_only_find_the_own_layer_are_allowed(code: str) -> None:
    assert _uses(code) == []


def test_an_attention_function_of_the_users_is_read_too() -> None:
    # GIVEN a registered attention function that depends on the layer's index
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def fading(module: Any, *args: Any, **kwargs: Any) -> Any:
        out, weights = sdpa_attention_forward(module, *args, **kwargs)
        return out / (module.layer_idx + 1), weights

    AttentionInterface.register("fading", fading)
    model, inputs = llama(4)
    model.set_attn_implementation("fading")
    with torch.no_grad():
        expected = model(**inputs).logits
        # WHEN the model is compiled, THEN each block keeps its own index
        nbcompile.compile_regions(model, backend=BACKEND)
        torch.testing.assert_close(model(**inputs).logits, expected)
    assert "fading" in layer_index.other_use(model.model.layers[0])


@pytest.mark.parametrize("call", ["fade", "third_file.fade"])
def test_a_helper_of_a_helper_in_other_files_is_read_too(
    call: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a block whose file calls a function of a second file, which calls one of a third, which uses the index
    (tmp_path / "third_file.py").write_text("def fade(module, y):\n    return y / (module.layer_idx + 1)\n")
    (tmp_path / "second_file.py").write_text(
        f"import third_file\nfrom third_file import fade\n\ndef between(module, y):\n    return {call}(module, y)\n"
    )
    (tmp_path / "first_file.py").write_text(
        "from torch import nn\nfrom second_file import between\n\nclass Block(nn.Module):\n"
        "    def forward(self, x, cache=None):\n        return between(self, x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("first_file", "second_file", "third_file"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    first = importlib.import_module("first_file")
    block = first.Block()
    block.layer_idx = 2
    # THEN the use is found
    assert "fade" in layer_index.other_use(block)


def test_the_index_of_a_library_block_only_finds_its_layer() -> None:
    model, _ = llama(2)
    block = model.model.layers[1]
    assert border.own_index(border.index_holders(block)) == 1
    assert layer_index.other_use(block) == ""


def test_views_share_the_layer_and_nothing_else() -> None:
    cache = cache_utils.DynamicCache()
    seen, put_back = border.view(cache, 2, 5)  # type: ignore[misc]
    assert len(seen.layers) == 5
    assert len(cache.layers) == 3
    assert all(layer is cache.layers[2] for layer in seen.layers)
    assert put_back(seen) is cache
    assert put_back((1, seen)) == (1, cache)
    assert put_back({"cache": seen})["cache"] is cache
    assert put_back((1, [(seen,)])) == (1, [(cache,)])
    assert border.view(seen, 1, 5)[0].layers[0] is cache.layers[1]  # type: ignore[index]
    assert border.view(_UnknownCache(), 0, 1) is None


def test_what_a_block_sets_on_its_view_is_set_on_the_cache() -> None:
    cache = cache_utils.DynamicCache()
    cache.tokens_seen = 3
    seen, put_back = border.view(cache, 0, 2)  # type: ignore[misc]
    seen.tokens_seen = 4
    put_back(None)
    assert cache.tokens_seen == 4
    assert len(cache.layers) == 1


def test_layers_pruned_and_numbered_anew_use_their_new_index() -> None:
    # GIVEN a compiled model that has generated
    model, inputs = llama(5)
    nbcompile.compile_regions(model, backend=BACKEND)
    model.generate(**inputs, **SETTINGS)
    # WHEN layers are taken out and the others numbered anew
    model.model.layers = model.model.layers[2:]
    model.config.num_hidden_layers = 3
    for index, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = index
    with nbcompile.eager(model):
        expected = model.generate(**inputs, **SETTINGS)
    # THEN it generates what eager does
    assert torch.equal(model.generate(**inputs, **SETTINGS), expected)
