"""What has been compiled in the background by processes that are gone, so that a restarted kernel needs no helper.

The code is in the compiler's cache, whose keys can only be had by tracing. So a small file is left beside it for each
kind of call that a helper has compiled, under a number made of all that is known to matter. If such a file is there,
the kernel makes the switch at once. Should the code be gone after all, or other code be needed, the switch compiles it,
which takes longer and is told; nothing wrong is ever run for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import nn

from . import cache, explain, misses
from .methods import code_of
from .regions import structure

#: The folder in the compiler's cache folder that the files are in.
FOLDER = "nbcompile-background"
_MOST_ENTRIES, _MOST_SOURCES = 64, 1000


class Known(NamedTuple):
    """What the helper has found out.

    Attributes:
        sources: what of the block the code depends on, see ``explain.read``.
        free: whether the calls have no direct way to their code.
    """

    sources: list[str]
    free: bool


class Place:
    """Where it is remembered that a kind of call of a block has been compiled.

    Args:
        class_name: of the block.
        block: the block.
        options: the user's options of the backend.
        rest: all else that the code depends on; classes count by their names, everything else by its ``repr``.
    """

    def __init__(self, class_name: str, block: nn.Module, options: object, *rest: object) -> None:
        facts = misses.facts(structure(block), (), {}, options)
        number = _number([facts, code_of(block), *rest])
        self._file = cache.cache_folder() / FOLDER / f"{_prefix(class_name)}{number}.json"

    def find(self, block: nn.Module) -> Known | None:
        """What is remembered for a block with these values; ``None`` if nothing is."""
        for known, values in self._entries():
            if values == _values(block, known.sources):
                return known
        return None

    def note(self, block: nn.Module, known: Known) -> None:
        """Remember that the code for such a block has been compiled. Failing to is no error."""
        temporary = self._file.with_name(f".{os.getpid()}.{self._file.name}.tmp")
        with contextlib.suppress(Exception):  # a value may have a repr that fails
            entries = [*self._entries(), (known, _values(block, known.sources))][-_MOST_ENTRIES:]
            content = [{"sources": k.sources, "free": k.free, "values": values} for k, values in entries]
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(content), encoding="utf-8")
            temporary.replace(self._file)

    def _entries(self) -> list[tuple[Known, str]]:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):  # or another's file
            content = json.loads(self._file.read_text(encoding="utf-8"))
            return [
                (Known([str(s) for s in entry["sources"][:_MOST_SOURCES]], bool(entry["free"])), str(entry["values"]))
                for entry in content[:_MOST_ENTRIES]
            ]
        return []


def anything_of(class_names: Iterable[str]) -> bool:
    """Whether something is remembered for blocks of each of these classes."""
    folder = cache.cache_folder() / FOLDER
    with contextlib.suppress(OSError):
        return all(next(folder.glob(f"{_prefix(name)}*.json"), None) is not None for name in class_names)
    return False


def _prefix(class_name: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in class_name)[:60] + "-"


def _values(block: nn.Module, sources: Iterable[str]) -> str:
    """A number for what the block holds there: the values themselves are the user's, and stay out of the file."""
    return _number([explain.typed(explain.read(block, source)) for source in sources])


def _number(value: object) -> str:
    return hashlib.sha256(repr(_by_name(value)).encode()).hexdigest()[:32]


def _by_name(value: Any) -> Any:
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, dict):
        return [(_by_name(key), _by_name(inner)) for key, inner in value.items()]
    if isinstance(value, (list, tuple)):
        return [_by_name(inner) for inner in value]
    return value
