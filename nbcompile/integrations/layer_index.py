"""Does a block use its layer index for nothing but finding its own layer of a KV cache?

Read from code: of every function of the classes of a block's modules, of the plain functions beside those classes, of
the attention function that the model's config selects, and of the functions that any of these name. Functions that do
not mention the index are not read further; of the others the source is parsed. A use that is not recognised counts as
another use: then nothing is hidden.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
import types
import weakref
from collections.abc import Iterator
from typing import Any

from torch import nn

#: Attributes in which libraries keep a module's layer index.
INDEXES = frozenset({"layer_idx", "layer_id", "layer_index"})

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
#: Names without which a method cannot have to do with the index or with another layer's entry.
_TELLING = _NEED_INDEX | INDEXES | {"layers"}

_FOREIGN = frozenset({"torch", "numpy", *sys.stdlib_module_names})

_found: weakref.WeakKeyDictionary[types.CodeType, str] = weakref.WeakKeyDictionary()


def other_use(block: nn.Module) -> str:
    """A use of the index for something else than finding the own layer, as code; ``""`` if there is none."""
    pending, seen = list(_functions(block)), set[types.CodeType]()
    while pending:
        function = _plain(pending.pop())
        code = getattr(function, "__code__", None)
        if not isinstance(code, types.CodeType) or code in seen:
            continue
        seen.add(code)
        if code not in _found:
            _found[code] = _read(code)
        if _found[code]:
            return _found[code]
        pending += _named_functions(function, code)
    return ""


def _named_functions(function: Any, code: types.CodeType) -> list[Any]:
    """The plain functions that a function names, in whatever file they are; torch and Python's own know no index."""
    names = _mentioned(code)
    named = [function.__globals__.get(name) for name in names]
    for module in [item for item in named if isinstance(item, types.ModuleType)]:  # as in `helpers.scale(...)`
        named += [vars(module).get(name) for name in names]
    return [helper for helper in named if isinstance(helper, types.FunctionType) and _package(helper) not in _FOREIGN]


def _package(function: types.FunctionType) -> str:
    return (function.__module__ or "").partition(".")[0]


def _functions(block: nn.Module) -> Iterator[Any]:
    """Every function that may be handed one of the block's modules."""
    seen: set[type] = set()
    for module in block.modules():
        yield vars(module).get("forward")  # replaced on the instance
        yield _attention_function(module)
        for base in type(module).__mro__:
            if base in seen or base.__module__.startswith("torch.nn.") or base is object:
                continue
            seen.add(base)
            yield from (member for name, member in vars(base).items() if name != "__init__")
            beside = vars(sys.modules.get(base.__module__, sys)).values()
            for helper in list(beside):
                if isinstance(helper, types.FunctionType):
                    yield helper
                elif isinstance(helper, type) and helper.__module__ == base.__module__ and not _is_module(helper):
                    yield from vars(helper).values()


def _is_module(kind: type) -> bool:
    return issubclass(kind, nn.Module)  # a module has an index of its own, and is judged where it is a block's part


def _attention_function(module: nn.Module) -> Any:
    """The attention function that a module's config selects by name; it is handed the module."""
    chosen = getattr(getattr(module, "config", None), "_attn_implementation", None)
    functions = getattr(sys.modules.get("transformers.modeling_utils"), "ALL_ATTENTION_FUNCTIONS", {})
    return functions.get(chosen) if isinstance(chosen, str) else None


def _plain(function: Any) -> Any:
    """The function behind a method's or a decorator's wrapping."""
    if isinstance(function, (staticmethod, classmethod)):
        function = function.__func__
    elif isinstance(function, property):
        function = function.fget
    elif isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function) if callable(function) else None


def _read(code: types.CodeType) -> str:
    """The first other use in a function's code."""
    mentioned = _mentioned(code)
    is_method = code.co_varnames[:1] == ("self",)
    if not mentioned & INDEXES and not (is_method and mentioned & _TELLING):
        return ""
    try:
        tree = _with_parents(ast.parse(textwrap.dedent(inspect.getsource(code))))
    except (TypeError, OSError, SyntaxError):
        return f"{code.co_qualname}, whose source cannot be read"
    use = next(_uses(tree, is_method=is_method), "")
    return f"{code.co_qualname}: {use}" if use else ""


def _mentioned(code: types.CodeType) -> set[str]:
    """Names and text in a function's code, that of functions inside it included."""
    found = {*code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, str):
            found.add(constant)
        elif isinstance(constant, types.CodeType):
            found |= _mentioned(constant)
    return found


def _with_parents(tree: ast.Module) -> ast.Module:
    """A tree whose every node knows the node above it."""
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            child.parent = node  # type: ignore[attr-defined]
    return tree


def _uses(tree: ast.Module, *, is_method: bool) -> Iterator[str]:
    """Code in a function that could make a view tell something else than the cache."""
    for node in ast.walk(tree):
        named = (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in INDEXES
        )  # getattr(self, "layer_idx")
        if named or (_is_own(node) and not _finds_own_layer(node)):
            yield ast.unparse(_statement(node)).splitlines()[0][:120]
        elif is_method and _asks_another_layer(node):
            yield ast.unparse(node)[:120]


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
    if isinstance(node, ast.Attribute) and node.attr == "layers" and not _is_of_self(node):  # all of them, in a loop
        return not isinstance(node.parent, ast.Subscript)  # type: ignore[attr-defined]
    return False


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in INDEXES


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
