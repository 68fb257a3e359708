"""KV caches at a block's border: each block is handed its own layer of the cache, whatever its index.

A decoder block finds its layer of the cache by an index (``cache.layers[self.layer_idx]``). To the compiler that makes
each block another graph, although the blocks differ in nothing else. Two things together remove the difference:

- The block is given a view of the cache, an object of the same class whose every entry is this block's own layer. The
  layer is the user's own object, so what the block writes into it lands in the user's cache.
- The guard on the index is dropped. Code that was traced with index 3 reads entry 3, which is the own layer again.

That is right only if the block uses its index for nothing but finding its layer, see :mod:`.layer_index`. Where a use
of another kind is found, or the cache's class is not one of those below, everything is left as it is and the report
says what it costs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from .layer_index import INDEXES

#: Attributes in which a view differs from its cache.
_VIEWED = frozenset({"layers", "self_attention_cache", "cross_attention_cache", "is_updated", "_nbcompile_origin"})
#: Where a view keeps the cache that it was made from.
_ORIGIN = "_nbcompile_origin"

PutBack = Callable[[Any], Any]


def index_holders(block: nn.Module) -> list[dict[str, Any]]:
    """The attributes of those of a block's modules that carry a layer index."""
    return [vars(module) for module in block.modules() if not INDEXES.isdisjoint(vars(module))]


def own_index(holders: Sequence[dict[str, Any]]) -> int | None:
    """The index that a block's modules carry now; ``None`` if they carry none, or several."""
    found = {attributes[name] for attributes in holders for name in INDEXES if isinstance(attributes.get(name), int)}
    return found.pop() if len(found) == 1 else None


def cache_class() -> type | None:
    """The class of all caches, once the user has imported transformers; nothing here imports it for the first time."""
    module = sys.modules.get("transformers.cache_utils")
    return getattr(module, "Cache", None)


def find_caches(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[int | str, Any]]:
    """The caches among a call's arguments, each with its position or name. The name differs between versions."""
    kind = cache_class()
    if kind is None:
        return []
    found: list[tuple[int | str, Any]] = [(name, value) for name, value in kwargs.items() if isinstance(value, kind)]
    found += [(position, value) for position, value in enumerate(args) if isinstance(value, kind)]
    return found


def view(cache: Any, index: int, length: int) -> tuple[Any, PutBack] | None:
    """A view of a cache whose every entry is one layer, and what to do with the block's result.

    Args:
        cache: the user's cache.
        index: the layer that the block owns.
        length: number of entries of the view; the same for all blocks, since the compiler guards on it.

    Returns:
        ``None`` for a class of cache that is not known, or one that has no such layer.
    """
    cache = vars(cache).get(_ORIGIN, cache)  # should a model hand a view on to the next block
    module = sys.modules["transformers.cache_utils"]
    known = tuple(getattr(module, name, None) for name in ("DynamicCache", "StaticCache"))
    if type(cache) is getattr(module, "EncoderDecoderCache", None):
        return _encoder_decoder_view(cache, index, length)
    if type(cache) not in known or getattr(cache, "offloading", False):
        return None
    seen = _one_layer(cache, index, length)
    return None if seen is None else (seen, functools.partial(_give_back, cache, seen))


def layer_kind(seen: Any) -> str:
    """What kind of layer a view holds: blocks with other kinds (sliding window, full attention) need other graphs."""
    inner = getattr(seen, "self_attention_cache", seen)
    return type(inner.layers[0]).__name__


def _one_layer(cache: Any, index: int, length: int) -> Any:
    layers = cache.layers
    if index >= len(layers):
        new_layer = getattr(cache, "layer_class_to_replicate", None)
        if new_layer is None:
            return None
        while len(layers) <= index:  # as the cache itself does when the layer is first updated
            layers.append(new_layer())
    seen = cache.__class__.__new__(cache.__class__)
    seen.__dict__.update(cache.__dict__)
    seen.layers = [layers[index]] * length
    seen.__dict__[_ORIGIN] = cache
    return seen


def _encoder_decoder_view(cache: Any, index: int, length: int) -> tuple[Any, PutBack] | None:
    own, cross = view(cache.self_attention_cache, index, length), view(cache.cross_attention_cache, index, length)
    if own is None or cross is None:
        return None
    seen = cache.__class__.__new__(cache.__class__)
    seen.__dict__.update(cache.__dict__)
    seen.self_attention_cache, seen.cross_attention_cache = own[0], cross[0]
    updated = cache.is_updated.get(index, False)
    seen.is_updated = dict.fromkeys(range(length), updated)
    seen.__dict__[_ORIGIN] = cache

    def give_back(result: Any) -> Any:
        changed = next((value for value in seen.is_updated.values() if value != updated), None)
        if changed is not None or index not in cache.is_updated:
            cache.is_updated[index] = updated if changed is None else changed
        return _give_back(cache, seen, cross[1](own[1](result)))

    return seen, give_back


def _give_back(cache: Any, seen: Any, result: Any) -> Any:
    """The block's result with the user's cache in the view's place, and on the cache what the block set on the view."""
    for name, value in vars(seen).items():
        if name not in _VIEWED and vars(cache).get(name, seen) is not value:
            setattr(cache, name, value)
    return _exchange(result, seen, cache)


def _exchange(value: Any, seen: Any, cache: Any) -> Any:
    """A result with ``cache`` wherever it holds ``seen``; the result itself if it holds none."""
    if value is seen:
        return cache
    if isinstance(value, (tuple, list)):
        items = [_exchange(item, seen, cache) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        for key, item in list(value.items()):
            new = _exchange(item, seen, cache)
            if new is not item:
                value[key] = new
    return value
