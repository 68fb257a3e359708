"""What a front end has to know before it writes a cell: which models there are, and which functions run one once.

The lab extension asks by a silent request, and only an idle kernel. The answer is read off what is there: no function
of the user's is called, and nothing is left behind.
"""

from __future__ import annotations

import ast
import dis
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from IPython.core.getipython import get_ipython

from ..render.units import clean
from .lookup import is_compiled, modules_in, with_parameters
from .step import names_read

if TYPE_CHECKING:
    from torch.nn import Module

#: More than anyone would look through in a list.
_MOST = 50
_LONGEST = 100

_NOT_A_STEP = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True)
class Names:
    """The answer, as JSON for a front end.

    Attributes:
        loaded: whether the magics are there.
        models: variable, class, whether it is compiled, and whether the cell that was asked about uses it.
        steps: functions of the notebook that can be called without an argument, each with the models that it uses.
    """

    loaded: bool
    models: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {"application/json": vars(self), "text/plain": repr(self)}


def names(cell: str = "") -> Names:
    """The names in the running shell that a cell of this package needs.

    Args:
        cell: source that is to become a step; the models that it uses, itself or in a function that it calls, are told.
    """
    shell: Any = get_ipython()
    namespace: dict[str, Any] = shell.user_ns
    models = with_parameters(modules_in(namespace))
    # Another name for the same object is as good as the first, but the cell has one of them already.
    known = {id(model): name for name, model in models.items()}
    functions = {name: code for name, value in list(namespace.items()) if (code := _own_code(value, namespace))}
    read = _read_by(shell, cell)
    reached = [*read, *(inner for name in read if name in functions for inner in _globals_of(functions[name]))]
    used = {known[id(namespace[name])]: name for name in reversed(reached) if id(namespace.get(name)) in known}
    steps = [
        {
            "name": name,
            "models": list(dict.fromkeys(known[key] for key in _ids(_globals_of(code), namespace) if key in known)),
        }
        for name, code in functions.items()
        if not name.startswith("_") and not _needs_argument(namespace[name]) and not code.co_flags & _NOT_A_STEP
    ]
    steps.sort(key=lambda step: not step["models"])  # those that use a model first, in the order of their definition
    return Names(
        loaded=shell.find_line_magic("nbcompile") is not None,
        models=[
            {
                "name": used.get(name, name),
                "class_name": clean(type(model).__name__, _LONGEST),
                "compiled": _compiled(model),
                "used": name in used,
            }
            for name, model in list(models.items())[:_MOST]
        ],
        steps=steps[:_MOST],
    )


def _compiled(model: Module) -> bool:
    # whoever has compiled a model has loaded the compiler: it takes seconds and is never loaded to find none
    return "nbcompile.compiler" in sys.modules and is_compiled(model)


def _own_code(value: object, namespace: dict[str, Any]) -> CodeType | None:
    """The code of a function that the notebook defines, under its decorators (``@torch.no_grad()``) if it has any."""
    for _ in range(10):
        if type(value) is not FunctionType:
            return None
        if "__wrapped__" not in value.__dict__:
            break
        value = value.__dict__["__wrapped__"]
    return value.__code__ if type(value) is FunctionType and value.__globals__ is namespace else None


def _needs_argument(function: FunctionType) -> bool:
    """Whether a function cannot be called without an argument; one that passes all of them on is asked further in."""
    while "__wrapped__" in function.__dict__ and type(function.__dict__["__wrapped__"]) is FunctionType:
        function = function.__dict__["__wrapped__"]
    code = function.__code__
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    without_default = code.co_argcount - len(function.__defaults__ or ())
    return without_default > 0 or any(name not in (function.__kwdefaults__ or {}) for name in keywords)


def _globals_of(code: CodeType) -> Iterator[str]:
    """The names that code reads from outside of it, those of functions within it too."""
    yield from (line.argval for line in dis.get_instructions(code) if line.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)


def _ids(found: Iterator[str], namespace: dict[str, Any]) -> Iterator[int]:
    return (id(namespace[name]) for name in found if name in namespace)


def _read_by(shell: Any, cell: str) -> list[str]:
    """The names that a cell's source reads; none if it is no Python."""
    try:
        return names_read(ast.parse(shell.transform_cell(cell)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the cell will say so itself when it is run
        return []
