"""The compiler's words put into the user's: guards, failures, and what sets variants apart."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from . import cache

RECOMPILE_REMEDY = (
    "Let the compiler trace with dynamic sizes (dynamic=True), pad inputs to a few sizes, or turn a number that "
    "changes into a tensor"
)

_PLAIN = (bool, int, float, str, type(None))
_MISSING = object()
#: The block at the start of a source, not the end of another name such as ``sub_block`` or ``model.block``.
_BLOCK = re.compile(r"(?<![\w.])block\.")
_MODULES = re.compile(r"(?<![\w.])block(?:\._(?:modules|parameters|buffers)\['[^']+'\])+")
_LOCAL = re.compile(r"L\['(\w+)'\]")
_LONGEST = 300


def guarded_attributes(entries: Sequence[Any]) -> Iterator[tuple[str, object]]:
    """The plain values on the block that a compile relied on: pairs of source and value.

    Args:
        entries: what the compiler hands to a ``guard_filter_fn``: one entry a guard, with the source as text.
    """
    for entry in entries:
        source = _LOCAL.sub(r"\1", entry.name)
        plain = entry.has_value and isinstance(entry.value, _PLAIN)
        if plain and entry.guard_type in ("CONSTANT_MATCH", "EQUALS_MATCH") and _steps(source) is not None:
            yield source, entry.value


def dynamic_inputs(graph: torch.fx.GraphModule) -> list[list[str]]:
    """What a graph takes as it comes: sources of sizes and numbers, those that are always equal in one list.

    Args:
        graph: what Dynamo hands to a backend. Its inputs carry their source and an example, in which a size that may
            change is no plain number (``meta["grapharg"]`` and ``meta["example_value"]``; checked on torch 2.11, 2.13).
    """
    alike: dict[str, list[str]] = {}
    for node in graph.graph.nodes:
        source = getattr(node.meta.get("grapharg"), "source", None)
        example = node.meta.get("example_value")
        if node.op != "placeholder" or source is None:
            continue
        name = _LOCAL.sub(r"\1", str(source.name() if callable(source.name) else source.name))
        if isinstance(example, torch.Tensor):
            for dimension, size in enumerate(example.shape):
                if type(size) is not int:  # isinstance would do, but a type checker believes torch's annotation
                    alike.setdefault(str(size), []).append(f"{name}.size()[{dimension}]")
        elif (
            isinstance(example, (torch.SymInt, torch.SymFloat)) and ".size()[" not in name and ".stride()[" not in name
        ):
            alike.setdefault(str(example), []).append(name)
    return list(alike.values())


def dynamic_words(sources: Sequence[str], forward: Callable[..., Any] | None) -> str:
    """Sources that change together, in the user's words: ``dimension 1 of x (and 2 more that go with it)``."""
    first, *others = [guard(source, forward) for source in sources]
    size = re.fullmatch(r"(.+)\.size\(\)\[(\d+)\]", first)
    words = f"dimension {size[2]} of {size[1]}" if size else first
    return words + (f" (and {len(others)} more that go with it)" if others else "")


def read(block: object, source: str) -> object:
    """The value at a source such as ``block._modules['attn'].layer_idx``; a marker of its own if there is none."""
    steps = _steps(source)
    if steps is None:
        return _MISSING
    value = block
    for kind, name in steps:
        try:
            value = getattr(value, name) if kind == "attribute" else value[name]  # type: ignore[index]
        except (AttributeError, KeyError, IndexError, TypeError):
            return _MISSING
    return value


def typed(value: object) -> tuple[type, object]:
    """A value that can be compared strictly: ``True``, ``1`` and ``1.0`` are three values to the compiler."""
    try:
        hash(value)
    except TypeError:
        return type(value), id(value)
    return type(value), value


def _steps(source: str) -> list[tuple[str, Any]] | None:
    """A source taken apart into attributes and keys; ``None`` if it holds anything else. Nothing of it is run."""
    try:
        node: ast.AST = ast.parse(source, mode="eval").body
    except SyntaxError:
        return None
    steps: list[tuple[str, Any]] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            steps.append(("attribute", node.attr))
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            steps.append(("key", node.slice.value))
        else:
            return None
        node = node.value
    return steps[::-1] if node.id == "block" else None


def attribute_name(source: str) -> str:
    """A source as a user would write it: ``block._modules['attn'].layer_idx`` is ``attn.layer_idx``."""
    text = re.sub(r"\._(?:modules|parameters|buffers)\['([^']+)'\]", r".\1", source)
    return text.removeprefix("block.")


def guard(text: str, forward: Callable[..., Any] | None = None) -> str:
    """A failed guard in the user's terms: the block's arguments by their names, its attributes by their paths."""
    text = re.sub(r"^\d+/\d+(_\d+)?: ", "", text.strip())
    text = text.splitlines()[0] if text else "no reason given"
    text = text.split("  # ")[0].strip()
    text = _LOCAL.sub(r"\1", text)
    names = _argument_names(forward)
    text = re.sub(
        r"\bargs\[(\d+)\]",
        lambda match: names[int(match[1])] if int(match[1]) < len(names) else f"argument {match[1]}",
        text,
    )
    text = re.sub(r"\bkwargs\['(\w+)'\]", r"\1", text)
    text = _MODULES.sub(lambda match: attribute_name(match[0]), text)
    text = _BLOCK.sub("", text)
    size = re.search(r"tensor '(.+?)' size mismatch at index (\d+). expected (\S+), actual (\S+)", text)
    if size:
        return f"{size[1]} changed its size in dimension {size[2]} from {size[3].rstrip(',')} to {size[4].rstrip('.')}"
    return text[:_LONGEST]


def _argument_names(forward: Callable[..., Any] | None) -> list[str]:
    if forward is None:
        return []
    try:
        parameters = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def failure(error: BaseException) -> str:
    """The compiler's whole message."""
    return f"{type(error).__name__}: {error}".strip()


def failure_line(error: BaseException) -> str:
    """The message's first line, with the remedy where the cause is known."""
    cause: BaseException | None = error
    while cause is not None:
        text = f"{type(cause).__name__}: {cause}"
        if "InvalidCxxCompiler" in text or "No working C++ compiler" in text:
            return (
                "no working C++ compiler was found, and the inductor backend needs one on a CPU. Install g++ or "
                "clang++ (or point the environment variable CXX at one), or choose a backend that needs none, such as "
                "'aot_eager'"
            )
        if isinstance(cause, OSError) and "No space left" in text:
            return f"the disk of the compiler's cache is full: {text}. Free some space or move TORCHINDUCTOR_CACHE_DIR"
        if isinstance(cause, OSError) and Path(str(cause.filename or "")).is_relative_to(cache.cache_folder()):
            return f"the compiler cannot use its cache folder: {text}; {cache.REMEDY}"
        cause = cause.__cause__ or cause.__context__
    lines = [line.strip() for line in failure(error).splitlines() if line.strip()]
    return lines[0][:_LONGEST] if lines else type(error).__name__


def variant_names(variants: Sequence[Any]) -> list[str]:
    """A name for each variant that says what sets it apart from the others of its group.

    Args:
        variants: objects with ``structure``, ``circumstances`` and ``guarded`` as ``variants.Variant`` has them.
    """
    if len(variants) == 1:
        return ["all blocks"]
    parts: list[list[str]] = [[] for _ in variants]
    _tell_structures([variant.structure for variant in variants], parts)
    sources = {source for variant in variants for source in variant.guarded}
    for source in sorted(sources):
        seen = [_values(variant.guarded.get(source)) for variant in variants]
        if len({text for text in seen if text}) > 1:
            for part, text in zip(parts, seen, strict=True):
                if text:
                    part.append(f"{attribute_name(source)}: {text}")
    _tell_circumstances([variant.circumstances for variant in variants], parts)
    return [", ".join(part[:4]) or "other blocks" for part in parts]


def _tell_circumstances(circumstances: Sequence[Any], parts: list[list[str]]) -> None:
    """Name what differs between the circumstances that the variants are for."""
    words = [
        [("training" if c.training else "evaluation") for c in circumstances],
        [c.gradients for c in circumstances],
        [c.cache or "no cache" for c in circumstances],
        [("hooked" if c.hooks or c.hooked else "not hooked") for c in circumstances],
        [f"version {c.code + 1} of the methods' code" for c in circumstances],
    ]
    absent = [set(c.absent) for c in circumstances]
    for name in sorted(set.union(*absent) - set.intersection(*absent)):
        words.append([f"{'without' if name in names else 'with'} {name}" for names in absent])
    for told in words:
        if len(set(told)) > 1:
            for part, word in zip(parts, told, strict=True):
                part.append(word)


def _values(values: set[tuple[type, object]] | None) -> str:
    return " or ".join(sorted(str(value) for _, value in values)) if values else ""


def _tell_structures(structures: Sequence[tuple[object, ...]], parts: list[list[str]]) -> None:
    """Name modules that only some blocks have, or that are of another class, or tensors of another size."""
    if len(set(structures)) == 1:
        return
    modules = [{item[0]: item[1] for item in s if isinstance(item, tuple) and len(item) == 2} for s in structures]
    everywhere = set.intersection(*(set(m) for m in modules))
    told = False
    for index, found in enumerate(modules):
        extra = [name for name in found if name not in everywhere]
        outermost = [name for name in extra if not any(name.startswith(f"{other}.") for other in extra)]
        if outermost:
            parts[index].append("with " + ", ".join(outermost[:2]))
            told = True
        elif any(len(other) > len(found) for other in modules):
            parts[index].append("without")
    if told:
        return
    for name in sorted(everywhere):
        kinds = [getattr(m[name], "__name__", str(m[name])) for m in modules]
        if len(set(kinds)) > 1:
            for part, kind in zip(parts, kinds, strict=True):
                part.append(f"{name}: {kind}")
            return
    for part, tensors in zip(parts, structures, strict=True):
        shape = next((item[1] for item in tensors if isinstance(item, tuple) and len(item) == 5), None)
        if shape is not None:
            part.append(f"first tensor {list(shape)}")
