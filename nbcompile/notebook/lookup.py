"""Which model a user means: an expression, or the only model there is."""

from __future__ import annotations

import difflib
import sys
import typing
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeGuard

from ..errors import UsageError

if TYPE_CHECKING:
    from torch.nn import Module

_MOST_LISTED = 10

#: The classes that a class inherits from, past whatever its metaclass makes of ``__mro__``.
_bases_of = type.__dict__["__mro__"].__get__


def modules_in(namespace: dict[str, Any], names: Iterable[str] | None = None) -> dict[str, Module]:
    """The torch modules among the variables of ``namespace``, each object once, under the first name it has.

    IPython's own variables (``_``, ``_3``) and a user's private ones are left out unless ``names`` asks for them.
    """
    if names is None:
        names = [name for name in list(namespace) if not name.startswith("_")]
    found: dict[str, Module] = {}
    seen: set[int] = set()
    for name in names:
        value = namespace.get(name)
        if is_module(value) and id(value) not in seen:
            seen.add(id(value))
            found[name] = value
    return found


def is_module(value: object) -> TypeGuard[Module]:
    """Whether a value is a ``torch.nn.Module``. Runs nothing of the value's: ``isinstance`` asks its ``__class__``."""
    if "torch" not in sys.modules:  # whoever holds a model has imported torch: never import it to find none
        return False
    module = getattr(sys.modules.get("torch.nn"), "Module", None)  # it may be half imported
    return module is not None and any(base is module for base in _bases_of(type(value)))


def is_compiled(model: Module) -> bool:
    """Whether this package has compiled the model."""
    from ..compiler import current

    return current(model) is not None


def evaluate_model(expression: str, shell: Any) -> Module:
    """The model that an expression in the user's namespace gives.

    Raises:
        UsageError: the expression fails, or what it gives is no ``torch.nn.Module``.
    """
    expression = unquote(expression)
    try:
        value = eval(expression, shell.user_global_ns, shell.user_ns)  # the user's own expression
    except Exception as error:
        close = difflib.get_close_matches(expression, modules_in(shell.user_ns), n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise UsageError(
            f"the model {expression!r} cannot be evaluated: {type(error).__name__}: {error}.{hint} "
            f"{_existing(shell.user_ns)}"
        ) from None
    if "torch" in sys.modules:
        from torch.nn import Module

        if isinstance(value, Module):
            return value
    if isinstance(value, type):
        what = f"the class {value.__name__}, not an instance of it"
    else:
        what = f"a {type(value).__name__}"
    raise UsageError(f"{expression!r} is {what}; a torch.nn.Module is needed here. {_existing(shell.user_ns)}")


def evaluate_step(expression: str, shell: Any) -> Callable[[], Any]:
    """The function that an expression in the user's namespace gives.

    Raises:
        UsageError: the expression fails, or what it gives cannot be called.
    """
    expression = unquote(expression)
    functions = [name for name, value in shell.user_ns.items() if isinstance(value, FunctionType) and name[0] != "_"]
    existing = f"Functions that exist here: {', '.join(functions[:_MOST_LISTED])}." if functions else ""
    remedy = (
        f"Give a function that runs the model once, as after: def step(): return model(**batch). {existing}".strip()
    )
    try:
        value = eval(expression, shell.user_global_ns, shell.user_ns)  # the user's own expression
    except Exception as error:
        raise UsageError(
            f"the step {expression!r} cannot be evaluated: {type(error).__name__}: {error}. {remedy}"
        ) from None
    if not callable(value):
        raise UsageError(f"the step {expression!r} is a {type(value).__name__}, which cannot be called. {remedy}")
    return typing.cast("Callable[[], Any]", value)


def model_in_body(names: Iterable[str], namespace: dict[str, Any], usage: str) -> Module:
    """The one model among the variables that a cell's body reads.

    Modules without parameters (a loss function, an activation) are passed over where there is one with parameters.

    Raises:
        UsageError: the body reads no model, or more than one; ``usage`` is what to write instead, ending in MODEL.
    """
    found = modules_in(namespace, names)
    candidates = _with_parameters(found)
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    if not found:
        raise UsageError(
            "the cell's body uses no variable that is a torch.nn.Module, so it must be said which model is meant: "
            f"{usage}. {_existing(namespace)}"
        )
    raise UsageError(
        f"the cell's body uses more than one model: {_listed(candidates)}. Say which one is meant, for example "
        f"{usage.removesuffix('MODEL')}{next(iter(candidates))}"
    )


def only_model(namespace: dict[str, Any], usage: str, *, prefer: Callable[[Module], bool] | None = None) -> Module:
    """The one model in ``namespace``; with ``prefer``, the one for which that holds.

    Raises:
        UsageError: there is no model, or more than one; ``usage`` is what to write instead.
    """
    candidates = _with_parameters(modules_in(namespace))
    if prefer is not None:
        candidates = {name: model for name, model in candidates.items() if prefer(model)} or candidates
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    if not candidates:
        raise UsageError(f"{_existing(namespace)} Create a model first, or name it: {usage}")
    raise UsageError(f"there is more than one model here: {_listed(candidates)}. Name the one that is meant: {usage}")


def unquote(word: str) -> str:
    """``word`` without the quotes around it: IPython leaves on an argument the quotes that hold its spaces together."""
    if len(word) >= 2 and word[0] == word[-1] and word[0] in "'\"":
        return word[1:-1]
    return word


def _with_parameters(modules: dict[str, Module]) -> dict[str, Module]:
    # next() instead of counting: a large model has thousands of parameters
    weighty = {name: module for name, module in modules.items() if next(module.parameters(), None) is not None}
    return weighty or modules


def _existing(namespace: dict[str, Any]) -> str:
    modules = modules_in(namespace)
    if not modules:
        return "No variable here is a torch.nn.Module."
    return f"Modules that exist here: {_listed(modules)}."


def _listed(modules: dict[str, Module]) -> str:
    shown = [f"{name} ({type(module).__name__})" for name, module in modules.items()]
    if len(shown) > _MOST_LISTED:
        shown[_MOST_LISTED:] = [f"and {len(shown) - _MOST_LISTED} more"]
    return ", ".join(shown)
