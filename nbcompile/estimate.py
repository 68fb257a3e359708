"""How long a setting would take to compile, from what others took: good enough to decide whether to begin with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .report import AXES, Strategy, Trial

#: How much longer a value may take than the usual one: guesses, which give way to the first ratio that is measured.
_GUESSES = {("rest", "compile"): 1.5, ("rest", "eager"): 1.0, ("dynamic", True): 1.3}
_AUTOTUNE = 4.0
#: For each way to compile the whole model the phases that equal blocks go through once, as they do block by block.
#: Kernels of equal blocks are equal, and the compiler finds them in its cache. Marked blocks are traced each.
_UNSHARED = {"full": ("kernels",), "hierarchical": ("kernels", "inductor", "codegen")}


def cold_seconds(settings: Mapping[str, Any], known: Sequence[Trial], blocks: Mapping[str, int]) -> float | None:
    """An estimate of a setting's cold start; ``None`` where nothing it could be made from was measured.

    Args:
        known: what was tried so far.
        blocks: for each group's path the number of its blocks: the whole model is compiled block by block, too, only
            that nothing is shared.
    """
    measured = [trial for trial in known if trial.figures.cold_seconds is not None and not trial.figures.failure]
    measured = [trial for trial in measured if trial.settings.get("strategy") != "eager"]
    same = [trial for trial in measured if trial.settings.get("strategy") == settings["strategy"]]
    if same:
        nearest = min(same, key=lambda trial: _distance(settings, trial.settings))
        base = nearest.figures.cold_seconds
    else:
        others = [trial for trial in measured if trial.settings.get("strategy") == "regional"]
        if not others or settings["strategy"] not in _UNSHARED:
            return None
        nearest = min(others, key=lambda trial: _distance(settings, trial.settings))
        base = _unshared(nearest.figures, blocks, _UNSHARED[settings["strategy"]])
    assert base is not None  # those without are left out above
    for axis, usual in AXES.items():
        ours, theirs = settings.get(axis, usual), nearest.settings.get(axis, usual)
        if axis != "strategy" and ours != theirs and axis in settings:
            base *= _factor(axis, ours, measured) / _factor(axis, theirs, measured)
    return base


def _unshared(figures: Strategy, blocks: Mapping[str, int], shared: Sequence[str]) -> float:
    """What a regional compile would have taken, had each block gone through all phases for itself but ``shared``."""
    assert figures.cold_seconds is not None
    more = 0.0
    for region in figures.regions:
        count = blocks.get(region.path, 1)
        once = max(0.0, region.seconds - sum(region.phases.get(phase, 0.0) for phase in shared))
        more += once * max(0.0, count / max(1, region.graphs) - 1)
    return figures.cold_seconds + more


def _distance(settings: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    return sum(settings.get(axis, usual) != other.get(axis, usual) for axis, usual in AXES.items())


def _factor(axis: str, value: Any, measured: Sequence[Trial]) -> float:
    """How many times as long a value takes as the usual one: measured if two trials differ in nothing else."""
    if value == AXES[axis]:
        return 1.0
    for trial in measured:
        if trial.settings.get(axis) != value:
            continue
        for other in measured:
            alike = {**trial.settings, axis: AXES[axis]} == other.settings
            if alike and trial.figures.cold_seconds and other.figures.cold_seconds:
                return trial.figures.cold_seconds / other.figures.cold_seconds
    if axis == "mode" and str(value).startswith("max-autotune"):
        return _AUTOTUNE
    return _GUESSES.get((axis, value), 1.0)
