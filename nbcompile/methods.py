"""Has the code of a block's methods been exchanged since it was compiled?

The compiler guards on what a block's instances hold, and on the functions that it calls by a global name. It takes the
methods of classes as constants. In a notebook they change all the time: ``%autoreload`` puts new code into them, and a
cell says ``Attention.forward = mine``. Compiled code would go on doing what the old method did.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

#: What the methods of each class do, by name.
Code = dict[type, dict[str, object]]

#: Compiled code holds nothing of these.
_NEVER_TRACED = frozenset({"__init__", "__repr__", "extra_repr", "__getstate__", "__setstate__"})


class Methods:
    """The methods of the classes of some blocks' modules.

    Attributes:
        version: number of the code that they have now; the same number again when earlier code comes back.
    """

    def __init__(self) -> None:
        self.version = 0
        self._classes: list[type] = []
        self._places: list[tuple[Mapping[str, Any], str]] = []
        self._seen: list[object] = []
        self._versions: list[Code] = []

    def look_at(self, blocks: Iterable[nn.Module]) -> None:
        """Take the classes of all modules of these blocks, in place of those known before."""
        modules = (module for block in blocks for module in block.modules())
        self._classes = list(dict.fromkeys(base for module in modules for base in type(module).__mro__))
        self._settle()

    def check(self) -> None:
        """Update :attr:`version`. Takes some microseconds, and is meant to be called once a step."""
        if self._now() != self._seen:
            self._settle()

    def _now(self) -> list[object]:
        """The code objects themselves, and how many names each class has: one more may hide an inherited method."""
        found: list[object] = [len(vars(kind)) for kind in self._classes]
        found += [getattr(members.get(name), "__code__", None) for members, name in self._places]
        return found

    def _settle(self) -> None:
        methods = {kind: _methods(kind) for kind in self._classes}
        self._places = [(vars(kind), name) for kind, found in methods.items() for name in found]
        code: Code = {
            kind: {name: _fingerprint(inspect.unwrap(method).__code__) for name, method in found.items()}
            for kind, found in methods.items()
        }
        self._seen = self._now()
        for number, known in enumerate(self._versions):
            if all(code.get(kind, found) == found for kind, found in known.items()):
                known.update(code)  # classes that came with other modules are no change
                self.version = number
                return
        self._versions.append(code)
        self.version = len(self._versions) - 1


def code_of(block: nn.Module) -> list[object]:
    """What the methods of a block's modules do, in terms that are the same in every process."""
    kinds = dict.fromkeys(base for module in block.modules() for base in type(module).__mro__)
    return [
        (f"{kind.__module__}.{kind.__qualname__}", name, _fingerprint(inspect.unwrap(method).__code__))
        for kind in kinds
        for name, method in _methods(kind).items()
    ]


def _methods(kind: type) -> dict[str, types.FunctionType]:
    """A class's own methods; of torch's classes ``forward`` alone, which some exchange."""
    foreign = kind.__module__.partition(".")[0] == "torch"
    return {
        name: value
        for name, value in list(vars(kind).items())
        if isinstance(value, types.FunctionType) and (name == "forward" if foreign else name not in _NEVER_TRACED)
    }


def _fingerprint(code: types.CodeType) -> object:
    """What a function does, whatever lines it stands on: a file that is saved moves them."""
    constants = tuple(_constant(value) for value in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, constants


def _constant(value: object) -> object:
    if isinstance(value, types.CodeType):
        return _fingerprint(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)  # whose order is by chance
