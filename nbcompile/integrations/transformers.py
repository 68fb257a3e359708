"""KV caches at a block's border: each block is handed its own layer of the cache, whatever its index.

A decoder block finds its layer of the cache by an index (``cache.layers[self.layer_idx]``). To the compiler that makes
each block another graph, although the blocks differ in nothing else. Two things together remove the difference:

- The block is given a view of the cache, an object of the same class whose every entry is this block's own layer. The
  layer is the user's own object, so what the block writes into it lands in the user's cache.
- The guard on the index is dropped. Code that was traced with index 3 reads entry 3, which is the own layer again.

That is right only if the block uses its index for nothing but finding its layer. Whether it does is read from the
source of its classes; where a use of another kind is found (an index in arithmetic, say), or the cache's class is not
one of those below, everything is left as it is and the report says what it costs.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

INDEX = "layer_idx"

#: Methods of a cache that take the index to find one layer.
_BY_INDEX = frozenset(
    {
        "update",
        "update_conv_state",
        "update_recurrent_state",
        "update_indexer",
        "get_conv_state",
        "get_recurrent_state",
        "get_seq_length",
        "get_max_length",
        "get_mask_sizes",
        "has_previous_state",
        "is_recording_past",
        "get",
    }
)
#: What may be subscripted with the index.
_BY_SUBSCRIPT = frozenset({"layers", "is_updated"})
#: Methods of a cache that mean another layer, or all of them, unless they are given the index. ``update`` and ``get``
#: are not among them: dictionaries have methods of these names, and a cache's own cannot do without the index.
_NEED_INDEX = _BY_INDEX - {"update", "get"}

#: Attributes in which a view differs from its cache.
_VIEWED = frozenset({"layers", "self_attention_cache", "cross_attention_cache", "is_updated", "_nbcompile_origin"})
#: Where a view keeps the cache that it was made from.
_ORIGIN = "_nbcompile_origin"

PutBack = Callable[[Any], Any]


def loaded() -> bool:
    """Whether the user has imported transformers; nothing here imports it for the first time."""
    return "transformers.cache_utils" in sys.modules


def own_index(block: nn.Module) -> int | None:
    """The index that a block's modules carry; ``None`` if they carry none, or several."""
    found = {vars(module)[INDEX] for module in block.modules() if isinstance(vars(module).get(INDEX), int)}
    return found.pop() if len(found) == 1 else None


def other_use(block: nn.Module) -> str:
    """A use of the index for something else than finding the own layer, as ``class: code``; ``""`` if there is none."""
    for module in block.modules():
        kind = type(module)
        if kind.__module__.startswith("torch.nn."):
            continue
        if "forward" in vars(module):
            return f"{kind.__name__}: its forward was replaced on the instance"
        for base in kind.__mro__:
            if base is not nn.Module and base.__module__ != "builtins":
                use = _other_use_in_class(base)
                if use:
                    return f"{base.__name__}: {use}"
        use = _other_use_in_attention(module)
        if use:
            return use
    return ""


def _other_use_in_attention(module: nn.Module) -> str:
    """The same for the attention function that a module's config selects: it is handed the module."""
    chosen = getattr(getattr(module, "config", None), "_attn_implementation", None)
    functions = getattr(sys.modules.get("transformers.modeling_utils"), "ALL_ATTENTION_FUNCTIONS", {})
    function = functions.get(chosen) if isinstance(chosen, str) else None
    if function is None:
        return ""  # "eager": a function beside the class, which has been read with it
    try:
        uses = list(_uses(_source_of(inspect.getsourcefile(inspect.unwrap(function)) or ""), ""))
    except (TypeError, OSError, SyntaxError):
        return f"the attention function {chosen!r}: its source cannot be read"
    return f"the attention function {chosen!r}: {uses[0]}" if uses else ""


def find_caches(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[int | str, Any]]:
    """The caches among a call's arguments, each with its position or name. The name differs between versions."""
    cache_class = sys.modules["transformers.cache_utils"].Cache
    found: list[tuple[int | str, Any]] = [(n, value) for n, value in kwargs.items() if isinstance(value, cache_class)]
    found += [(position, value) for position, value in enumerate(args) if isinstance(value, cache_class)]
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


# -- reading the classes' source --------------------------------------------------------------------------------------


_uses_known: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def _other_use_in_class(kind: type) -> str:
    if kind not in _uses_known:
        _uses_known[kind] = _read_class(kind)
    return _uses_known[kind]


def _read_class(kind: type) -> str:
    try:
        file = inspect.getsourcefile(kind) or ""
        tree = _source_of(file)
    except (TypeError, OSError, SyntaxError):
        return "its source cannot be read"
    if not any(isinstance(node, ast.ClassDef) and node.name == kind.__name__ for node in tree.body):
        return "its source cannot be found"
    for name, member in vars(kind).items():
        code = getattr(inspect.unwrap(member), "__code__", None) if callable(member) else None
        if code is not None and not _is_library(code.co_filename) and code.co_filename != file:
            return f"{name} was replaced by a function from elsewhere"
    uses = list(_uses(tree, kind.__name__))
    return uses[0] if uses else ""


def _is_library(file: str) -> bool:
    """Whether code is of torch or transformers itself: what they put into classes they have made for them."""
    return any(f"{os.sep}{name}{os.sep}" in file for name in ("torch", "transformers"))


@functools.lru_cache(maxsize=64)
def _source_of(file: str) -> ast.Module:
    import linecache

    lines = linecache.getlines(file)
    if not lines:
        raise OSError(f"no source for {file}")
    return _with_parents(ast.parse("".join(lines)))


def _with_parents(tree: ast.Module) -> ast.Module:
    """A tree whose every node knows the node above it."""
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            child.parent = node  # type: ignore[attr-defined]
    return tree


def _uses(tree: ast.Module, class_name: str) -> Iterator[str]:
    """Code in a class, or in a plain function beside it, that could make the view tell something else."""
    for top in tree.body:
        if isinstance(top, ast.ClassDef) and top.name != class_name:
            continue
        for node in ast.walk(top):
            if _is_index(node) and not _finds_own_layer(node):
                yield ast.unparse(_statement(node)).splitlines()[0][:120]
            elif isinstance(top, ast.ClassDef) and _asks_another_layer(node):
                yield ast.unparse(node)[:120]


def _is_index(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Attribute) and node.attr == INDEX and isinstance(node.ctx, ast.Load)):
        return False
    return all(not isinstance(p, ast.FunctionDef) or p.name != "__init__" for p in _parents(node))


def _finds_own_layer(node: ast.AST) -> bool:
    """Whether the index finds a layer of a cache that the block was handed, or is only told in an error."""
    user = node.parent  # type: ignore[attr-defined]
    if isinstance(user, ast.keyword):
        user = user.parent  # type: ignore[attr-defined]
    if isinstance(user, ast.Call) and isinstance(user.func, ast.Attribute):
        if user.func.attr == "get":  # of the dictionary of an encoder-decoder's cache, and of no other
            return isinstance(user.func.value, ast.Attribute) and user.func.value.attr == "is_updated"
        return user.func.attr in _BY_INDEX and not _is_of_self(user.func)
    if isinstance(user, ast.Subscript) and isinstance(user.value, ast.Attribute):
        return user.value.attr in _BY_SUBSCRIPT and not _is_of_self(user.value)
    if isinstance(user, ast.Compare):
        return all(isinstance(side, ast.Constant) and side.value is None for side in user.comparators)
    return any(isinstance(parent, ast.Raise) or _is_logging(parent) for parent in _parents(node))


def _asks_another_layer(node: ast.AST) -> bool:
    """A call such as ``cache.get_seq_length()``, which means the first layer, or an entry by another index."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _NEED_INDEX:
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        return not _is_of_self(node.func) and not any(_is_own(argument) for argument in given)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "layers":
        return not _is_of_self(node.value) and not _is_own(node.slice)
    return False


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == INDEX


def _is_of_self(node: ast.AST) -> bool:
    """Whether a chain of attributes begins at ``self``: a cache is an argument, never the block's own."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id == "self"


def _is_logging(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("logger.", "warnings.", "logging."))


def _parents(node: ast.AST) -> Iterator[ast.AST]:
    while (node := getattr(node, "parent", None)) is not None:  # type: ignore[assignment]
        yield node


def _statement(node: ast.AST) -> ast.AST:
    return next((parent for parent in _parents(node) if isinstance(parent, ast.stmt)), node)
