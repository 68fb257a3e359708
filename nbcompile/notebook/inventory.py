"""The models among a user's variables, with what is and what could be compiled of them. For the main thread alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..render.units import clean
from .choices import Offer, Offers, offers_for, takes_modes, tree_of
from .lookup import is_module, modules_in

if TYPE_CHECKING:
    from torch import nn

#: A notebook has a few models; a namespace full of them must not keep the main thread busy, nor fill a side bar.
_MOST_MODELS, _MOST_PARTS, _LONGEST = 30, 50, 300


def inventory(namespace: dict[str, Any]) -> dict[str, Any]:
    """The models that are compiled or could be, those with something to compile: each once, under its first name."""
    found: list[dict[str, Any]] = []
    more = 0
    for name, model in modules_in(namespace).items():
        if not _worth_listing(model):
            continue
        if len(found) == _MOST_MODELS:
            more += 1
            continue
        found.append(entry(name, model))
    return {"models": found, "more": more}


def model_named(namespace: dict[str, Any], name: str) -> nn.Module:
    """The model under a variable's name; nothing is evaluated.

    Raises:
        UsageError: there is none.
    """
    value = namespace.get(name)
    if is_module(value):
        return value
    known = ", ".join(list(modules_in(namespace))[:_MOST_MODELS]) or "none"
    what = "is no torch.nn.Module" if name in namespace else "does not exist"
    raise UsageError(f"the variable {clean(name, 60)!r} {what} in this kernel; models that exist: {known}")


def entry(name: str, model: nn.Module) -> dict[str, Any]:
    """One model, as in :func:`inventory`."""
    try:
        return _entry(name, model)
    except Exception as error:  # a model's own code, such as its `parameters`, may do anything
        return _broken(name, model, error)


def _worth_listing(model: nn.Module) -> bool:
    """Whether it is more than a lone layer: a loss or an activation has nothing to compile."""
    try:
        return next(iter(model._modules.values()), None) is not None and next(model.parameters(), None) is not None
    except Exception:  # an uninitialised module has no such attribute
        return False


def _entry(name: str, model: nn.Module) -> dict[str, Any]:
    from ..describe import model_facts
    from ..regions import class_name

    facts, tree = model_facts(model), tree_of(model)
    groups, rest = _plan(model)
    return {
        "name": name,
        "class_name": clean(class_name(model), _LONGEST),
        "parameters": facts["parameters"],
        "dtype": facts["dtype"],
        "device": facts["device"],
        "compiled": _compiled(model),
        "groups": groups,
        "rest": rest,
        "reason": clean(tree.reason, _LONGEST),
        "offers": _offered(offers_for(model, tree)),
    }


def _plan(model: nn.Module) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    from ..errors import NoRepeatedBlocksError
    from ..regions import plan_regions

    try:
        plan = plan_regions(model)
    except NoRepeatedBlocksError:  # told by the tree's reason
        return [], []
    groups = [
        {
            "path": clean(group.path, _LONGEST),
            "class_name": clean(group.class_name, _LONGEST),
            "count": len(group.blocks),
        }
        for group in plan.groups[:_MOST_PARTS]
    ]
    rest = [
        {
            "path": clean(part.path, _LONGEST),
            "class_name": clean(part.class_name, _LONGEST),
            "decision": part.decision,
            "reason": clean(part.reason, _LONGEST),
        }
        for part in plan.rest[:_MOST_PARTS]
    ]
    return groups, rest


def _compiled(model: nn.Module) -> dict[str, Any] | None:
    from ..compiler import current
    from ..describe import backend_of, tally

    compilation = current(model)
    if compilation is None:
        return None
    plugin = compilation.plugin
    return {
        "strategy": compilation.strategy,
        "backend": backend_of(plugin),
        "mode": plugin.mode or "default",
        "dynamic": plugin.dynamic,
        "rest": compilation.rest,
        **tally(compilation)._asdict(),
    }


def _broken(name: str, model: nn.Module, error: Exception) -> dict[str, Any]:
    """A model that cannot be looked at, with the reason."""
    reason = clean(f"{type(error).__name__}: {error}", _LONGEST)
    return {
        "name": name,
        "class_name": clean(type(model).__name__, _LONGEST),
        "parameters": None,
        "dtype": None,
        "device": None,
        "compiled": None,
        "groups": [],
        "rest": [],
        "reason": f"it cannot be looked at: {reason}",
        "offers": _offered(Offers((), (), ())),
    }


def _offered(offers: Offers) -> dict[str, Any]:
    """What can be chosen, each value with the reason if it is not to be had here."""

    def told(values: tuple[Offer, ...]) -> list[dict[str, Any]]:
        return [{"value": each.value, "label": each.label, "reason": clean(each.reason, _LONGEST)} for each in values]

    return {
        "strategies": told(offers.strategies),
        "backends": [
            {**each, "modes": takes_modes(offer.value)}
            for each, offer in zip(told(offers.backends), offers.backends, strict=True)
        ],
        "modes": told(offers.modes),
        "dynamic": told(offers.dynamic),
        "rest": told(offers.rest),
    }
