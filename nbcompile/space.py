"""What a tuning tries: the settings of a space, those that make no difference once, each checked before it is used."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import UsageError
from .plugin import TorchDynamoPlugin, backend_name
from .report import AXES, MOST_TRIALS, that_matter

#: Every way to run a model that can be compared.
STRATEGIES = ("eager", "regional", "full", "hierarchical")
#: Those that are compared and tried unless others are named.
USUAL = ("eager", "regional", "full")
RESTS = ("auto", "compile", "eager")


@dataclass(frozen=True)
class Setting:
    """One way to run a model.

    Attributes:
        values: as in ``report.Trial.settings``: JSON-ready, only what matters.
        plugin: the same for the compiler; ``None`` for eager.
    """

    values: dict[str, Any]
    plugin: TorchDynamoPlugin | None

    @property
    def key(self) -> tuple[tuple[str, Any], ...]:
        """What tells settings apart."""
        return key_of(self.values)

    @property
    def rest(self) -> str:
        """What is done with the parts outside of the blocks."""
        return str(self.values.get("rest", "auto"))


def key_of(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """What tells two settings apart, whatever the order of their entries."""
    return tuple((axis, values[axis]) for axis in AXES if axis in values)


def default_space(device: str) -> dict[str, list[Any]]:
    """The space that is searched if none is given: what can gain something on this kind of device.

    Modes that only record CUDA graphs are left out where there is no CUDA, and so is one that compiles next to nothing.
    """
    import torch._inductor

    modes = [
        name
        for name, options in torch._inductor.list_mode_options().items()
        if not options.get("fallback_by_default") and (device == "cuda" or not options.get("triton.cudagraphs"))
    ]
    return {
        "strategy": list(USUAL),
        "backend": ["inductor"],
        "mode": modes,
        "dynamic": [None],  # false differs only once a size changes, which it does not while one step is timed
        "rest": ["auto", "compile"],
    }


def settings_of(space: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """Every setting of a space, eager first, which is always among them.

    An axis that is not named keeps its usual value, but for the strategies, of which the usual ones are
    tried; hierarchical has to be named.

    Raises:
        UsageError: an axis or a value that does not exist here.
    """
    axes = _checked(space)
    found = {key_of({"strategy": "eager"}): Setting({"strategy": "eager"}, None)}
    refused: dict[tuple[str, str], UsageError] = {}
    accepted: set[tuple[str, str]] = set()
    for combination in itertools.product(*axes.values()):
        values = that_matter(dict(zip(axes, combination, strict=True)))
        names = [(axis, str(value)) for axis, value in values.items()]
        try:
            setting = setting_of(values)
        except UsageError as error:
            refused.update(dict.fromkeys(names, error))
        else:
            accepted.update(names)
            known = found.setdefault(setting.key, setting)
            if known.plugin is not None and setting.plugin is not None and known.plugin != setting.plugin:
                name = setting.values["backend"]
                raise UsageError(f"two backends of the space are called {name!r}; give them different names")
    for value, why in refused.items():  # a mode need not go with each backend, but it must go with one
        if value not in accepted:
            raise why
    if len(found) > MOST_TRIALS:
        raise UsageError(f"the space has {len(found)} settings; a tuning takes {MOST_TRIALS} at most: leave values out")
    return list(found.values())


def setting_of(values: Mapping[str, Any]) -> Setting:
    """One setting, checked against what exists here. A backend may be a callable.

    Raises:
        UsageError: a value that does not exist here.
    """
    _check_values("strategy", [values.get("strategy")])
    if values["strategy"] == "eager":
        return Setting({"strategy": "eager"}, None)
    full = {**AXES, **values}
    for axis in AXES:
        _check_values(axis, [full[axis]])
    plugin = TorchDynamoPlugin(backend=full["backend"], mode=full["mode"], dynamic=full["dynamic"])
    return Setting(that_matter({**full, "backend": backend_name(plugin.backend)}), plugin)


def _checked(space: object) -> dict[str, Sequence[Any]]:
    if not isinstance(space, Mapping):
        raise UsageError(f"space takes a mapping such as {{'mode': ['default']}}, not {type(space).__name__}")
    for axis, values in space.items():
        if axis not in AXES:
            raise UsageError(f"the space has no axis {axis!r}; those that exist: {', '.join(AXES)}")
        if not isinstance(values, (list, tuple)) or not values:
            raise UsageError(f"the axis {axis!r} of the space takes a list of values, not {values!r}")
        _check_values(axis, values)
    usual: dict[str, Sequence[Any]] = {axis: [value] for axis, value in AXES.items()}
    return {**usual, "strategy": USUAL, **space}


def _check_values(axis: str, values: Sequence[Any]) -> None:
    """Refuse what a plugin would not, or would only with another message."""
    known: dict[str, tuple[Any, ...]] = {"strategy": STRATEGIES, "rest": RESTS, "dynamic": (None, True, False)}
    for value in values:
        if axis in known and not any(type(value) is type(other) and value == other for other in known[axis]):
            exist = ", ".join(str(other) for other in known[axis])
            raise UsageError(f"there is no {axis} {value!r}; those that exist: {exist}")
        if axis == "mode" and not isinstance(value, str):
            raise UsageError(f"a mode is a name, not {value!r}; 'default' is the usual one")
