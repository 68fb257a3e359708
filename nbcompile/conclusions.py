"""The five conclusions that Accelerate's compilation guide draws from its benchmark, held against measured figures.

Each becomes a verdict, "yes", "no" or "cannot be told", and a sentence with the figures that decide it. Nothing is
measured here. A ratio of two steady times is as uncertain as half of both times' intervals, relative to the times: of
rounds that were paired with eager's the interval of that ratio (see :mod:`nbcompile.pairs`), else the interquartile
range. A limit that lies within it decides nothing. A cold start is measured once, so its limits are far apart.

Figures of several cells are taken together by their geometric mean, as they are ratios.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .report import Report, Strategy

YES, NO, UNTOLD = "yes", "no", "cannot be told"

#: How much slower a step may be to be called similar: a tenth.
_SIMILAR = 1.10
#: How many times shorter a cold start must be to be called significantly shorter.
_SHORTER = 2.0
#: By how much one saving must exceed another, as cold starts are measured once.
_GROWN = 1.15


@dataclass(frozen=True)
class Conclusion:
    """One of the guide's conclusions.

    Attributes:
        claim: what it says.
        verdict: whether the figures bear it out: :data:`YES`, :data:`NO` or :data:`UNTOLD`.
        sentence: the figures that decide it.
    """

    number: int
    claim: str
    verdict: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.number}. {self.claim} Borne out: {self.verdict}. {self.sentence}"


@dataclass(frozen=True)
class _Cell:
    """What the conclusions need of a report."""

    model: str
    batch: int
    task: str
    weight: float
    eager: Strategy
    regional: Strategy
    full: Strategy


@dataclass(frozen=True)
class _Ratio:
    """A ratio of two times, and by which part of it it is uncertain."""

    value: float
    part: float

    @property
    def words(self) -> str:
        return f"{self.value:.2f} (±{100 * self.part:.0f} %)"


def conclusions(reports: Iterable[Report]) -> list[Conclusion]:
    """The five conclusions of the guide, as these cells of a sweep bear them out.

    Args:
        reports: those of one machine, each with ``settings["sweep"]`` as a sweep writes it.
    """
    cells = [cell for report in reports if (cell := _cell(report)) is not None]
    found: list[tuple[str, Callable[[Sequence[_Cell]], tuple[str, str]]]] = [
        ("Regional compilation makes the step about as fast as full does, above all in larger models.", _comparable),
        ("Regional compilation compiles much faster than full.", _faster_compile),
        ("The difference in speed between the strategies shrinks as the batch grows.", _batches),
        ("What regional compilation saves in compile time grows with the model.", _sizes),
        ("For training, regional compilation is the practical way to a short cold start, above all in large models.",
         _training),
    ]  # fmt: skip
    return [Conclusion(number, claim, *judge(cells)) for number, (claim, judge) in enumerate(found, 1)]


def _cell(report: Report) -> _Cell | None:
    """A report as the conclusions see it; ``None`` where it lacks a strategy that they are about."""
    about: Any = report.settings.get("sweep")
    names = ("eager", "regional", "full")
    if not isinstance(about, dict) or not all(name in report.strategies for name in names):
        return None
    weight, batch = report.model.get("parameters"), about.get("batch")
    if not isinstance(weight, (int, float)) or not isinstance(batch, int):
        return None
    figures = [report.strategies[name] for name in names]
    return _Cell(str(about.get("model")), batch, str(about.get("task")), float(weight), *figures)


# -- 1: as fast as full ------------------------------------------------------------------------------------------------


def _comparable(cells: Sequence[_Cell]) -> tuple[str, str]:
    timed = [cell for cell in cells if _step(cell) is not None]
    if not timed:
        return UNTOLD, _missing("a step under regional and full compilation")
    small, large = _by_size(timed)
    every, largest = _mean(map(_step, timed)), _mean(map(_step, large))
    said = f"A regional step takes {every.words} times a full one's, {_range(map(_step, timed))}"
    if not small:
        return _at_most(every, _SIMILAR), f"{said}; only one size was measured, so nothing is said of larger ones."
    smallest = _mean(map(_step, small))
    said += (
        f"; {smallest.words} in {_names(small)} and {largest.words} in {_names(large)}. "
        f"Against eager, regional is {_speeds(timed, 'regional')} times as fast and full {_speeds(timed, 'full')}."
    )
    similar = _at_most(largest, _SIMILAR)
    if similar != YES:
        return similar, said
    # "above all in larger models": no further behind full there than in the smallest
    further = largest.value / smallest.value
    closer = largest.value <= 1.0 or _at_most(_Ratio(further, largest.part + smallest.part), 1.0) != NO
    return (YES if closer else NO), said


# -- 2: compiles faster ------------------------------------------------------------------------------------------------


def _faster_compile(cells: Sequence[_Cell]) -> tuple[str, str]:
    timed = [cell for cell in cells if _cold(cell) is not None]
    if not timed:
        return UNTOLD, _missing("a cold start under regional and full compilation")
    mean = _mean(map(_cold, timed))
    said = f"A full cold start takes {mean.value:.1f} times a regional one, {_range(map(_cold, timed), 1)}"
    seconds = [f"{_names([cell])}, batch {cell.batch}, {cell.task}" for cell in timed]
    best = max(range(len(timed)), key=lambda index: _cold(timed[index]).value)  # type: ignore[union-attr]
    cell = timed[best]
    said += f": at most {cell.full.cold_seconds:.1f} s against {cell.regional.cold_seconds:.1f} s ({seconds[best]})."
    return (YES if mean.value >= _SHORTER else NO), f"{said} Much faster is taken as {_SHORTER:g} times."


# -- 3: batches --------------------------------------------------------------------------------------------------------


def _batches(cells: Sequence[_Cell]) -> tuple[str, str]:
    pairs = []
    for group in _grouped(cells, lambda cell: (cell.model, cell.task)):
        timed = sorted((cell for cell in group if _step(cell) is not None), key=lambda cell: cell.batch)
        if timed and timed[0].batch < timed[-1].batch:
            pairs.append((timed[0], timed[-1]))
    if not pairs:
        return UNTOLD, _missing("steps of one model at two batch sizes under regional and full compilation")
    apart = [tuple(_apart(_step(cell)) for cell in pair) for pair in pairs]
    small = sum(low for low, _ in apart) / len(apart)
    large = sum(high for _, high in apart) / len(apart)
    unsure = 2 * _mean(_step(cell) for pair in pairs for cell in pair).part
    batches = [sorted({pair[end].batch for pair in pairs}) for end in (0, 1)]
    said = (
        f"Regional and full are {100 * small:.1f} % apart at batch {_list(batches[0])} and {100 * large:.1f} % at "
        f"batch {_list(batches[1])}, each the mean of {_count(len(pairs), 'pair')} of one model and step"
    )
    if abs(large - small) <= unsure:
        return UNTOLD, f"{said}; the rounds vary by {100 * unsure:.1f} %, so the change is within that."
    return (YES if large < small else NO), f"{said}; the rounds vary by {100 * unsure:.1f} %."


# -- 4: sizes ----------------------------------------------------------------------------------------------------------


def _sizes(cells: Sequence[_Cell]) -> tuple[str, str]:
    pairs = []
    for group in _grouped(cells, lambda cell: (cell.batch, cell.task)):
        timed = sorted((cell for cell in group if _cold(cell) is not None), key=lambda cell: cell.weight)
        if timed and timed[0].weight < timed[-1].weight:
            pairs.append((timed[0], timed[-1]))
    if not pairs:
        return UNTOLD, _missing("cold starts of two sizes of a model under regional and full compilation")
    small, large = (sum(_saved(pair[end]) for pair in pairs) / len(pairs) for end in (0, 1))
    shorter = [_mean(_cold(pair[end]) for pair in pairs) for end in (0, 1)]
    said = (
        f"Regional saves {small:.1f} s of a cold start in {_names(p[0] for p in pairs)} and {large:.1f} s in "
        f"{_names(p[1] for p in pairs)}; full takes {shorter[0].value:.1f} and {shorter[1].value:.1f} times as long."
    )
    if large > max(small, 0.0) * _GROWN:
        return YES, said
    if large * _GROWN < small or large <= 0:
        return NO, said
    return UNTOLD, f"{said} The savings are too close for cold starts that were measured once."


# -- 5: training -------------------------------------------------------------------------------------------------------


def _training(cells: Sequence[_Cell]) -> tuple[str, str]:
    timed = [c for c in cells if c.task == "training" and _cold(c) is not None and _step(c) is not None]
    if not timed:
        return UNTOLD, _missing("a training step under regional and full compilation")
    _, large = _by_size(timed)
    cold, step, gain = (_mean(map(part, large)) for part in (_cold, _step, _gain))
    pays = [cell.regional.break_even_calls for cell in large if cell.regional.break_even_calls is not None]
    said = (
        f"In training {_names(large)}, a full cold start takes {cold.value:.1f} times a regional one, a regional step "
        f"{step.words} times a full one's and {gain.words} times eager's; regional pays back against eager in "
        f"{len(pays)} of {_count(len(large), 'cell')}"
    )
    said += f", after {max(pays)} steps at the latest; {_overtakes(large)}." if pays else f"; {_overtakes(large)}."
    verdicts = [YES if cold.value >= _SHORTER else NO, _at_most(step, _SIMILAR), _at_most(gain, 1.0)]
    return next(verdict for verdict in (NO, UNTOLD, YES) if verdict in verdicts), said


def _overtakes(cells: Sequence[_Cell]) -> str:
    """From which step on full, which starts later, has taken less time in all."""
    found = []
    for cell in cells:
        ours, theirs = cell.regional, cell.full
        behind = (theirs.cold_seconds or 0.0) - (ours.cold_seconds or 0.0)
        gain = (ours.steady_seconds or 0.0) - (theirs.steady_seconds or 0.0)
        ratio = _step(cell)
        if gain > 0 and ratio is not None and ratio.value - 1 > ratio.part:
            found.append(max(1, math.ceil(behind / gain) + 1))
    if not found:
        return "full never overtakes it beyond what the rounds vary"
    where = "" if len(found) == len(cells) else f" (in {len(found)} of {_count(len(cells), 'cell')})"
    return f"full overtakes it after {_count(min(found), 'step')} at the earliest{where}"


# -- figures of one cell -----------------------------------------------------------------------------------------------


def _step(cell: _Cell) -> _Ratio | None:
    """A regional step as so many of full's."""
    return _ratio(cell.regional, cell.full)


def _gain(cell: _Cell) -> _Ratio | None:
    """A regional step as so many of eager's."""
    return _ratio(cell.regional, cell.eager)


def _cold(cell: _Cell) -> _Ratio | None:
    """A full cold start as so many regional ones."""
    ours, theirs = _amount(cell.regional.cold_seconds), _amount(cell.full.cold_seconds)
    if ours is None or theirs is None or cell.regional.failure or cell.full.failure:
        return None
    return _Ratio(theirs / ours, 0.0)


def _saved(cell: _Cell) -> float:
    return (cell.full.cold_seconds or 0.0) - (cell.regional.cold_seconds or 0.0)


def _ratio(one: Strategy, other: Strategy) -> _Ratio | None:
    ours, theirs = _amount(one.steady_seconds), _amount(other.steady_seconds)
    if ours is None or theirs is None or one.failure or other.failure:
        return None
    paired = one.band is not None or other.band is not None
    return _Ratio(ours / theirs, _unsure(one, ours, paired) + _unsure(other, theirs, paired))


def _unsure(strategy: Strategy, time: float, paired: bool) -> float:
    """By which part a steady time is uncertain. Eager, which others were paired with, is the measure, so by none."""
    if strategy.band is not None:
        low, middle, high = strategy.band
        return (high - low) / 2 / middle
    return 0.0 if paired else (_amount(strategy.steady_spread) or 0.0) / 2 / time


def _amount(value: float | None) -> float | None:
    """A figure that a measurement can give; a report from a file may hold any number."""
    return value if value is not None and 0.0 < value < 1e9 else None


def _apart(ratio: _Ratio | None) -> float:
    return abs(math.log(ratio.value)) if ratio is not None else 0.0


# -- figures of several ------------------------------------------------------------------------------------------------


def _mean(ratios: Iterable[_Ratio | None]) -> _Ratio:
    found = [ratio for ratio in ratios if ratio is not None]
    if not found:
        return _Ratio(math.nan, 0.0)
    value = math.exp(sum(math.log(ratio.value) for ratio in found) / len(found))
    return _Ratio(value, sum(ratio.part for ratio in found) / len(found))


def _at_most(ratio: _Ratio, limit: float) -> str:
    if not ratio.value > 0:
        return UNTOLD
    if ratio.value * (1 + ratio.part) <= limit:
        return YES
    return NO if ratio.value * (1 - ratio.part) > limit else UNTOLD


def _by_size(cells: Sequence[_Cell]) -> tuple[list[_Cell], list[_Cell]]:
    """The cells of the smallest model and those of the largest; no smallest if there is only one size."""
    weights = sorted({cell.weight for cell in cells})
    large = [cell for cell in cells if cell.weight == weights[-1]]
    return ([cell for cell in cells if cell.weight == weights[0]] if len(weights) > 1 else []), large


def _grouped(cells: Iterable[_Cell], key: Callable[[_Cell], Any]) -> list[list[_Cell]]:
    groups: dict[Any, list[_Cell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return list(groups.values())


def _range(ratios: Iterable[_Ratio | None], digits: int = 2) -> str:
    values = [ratio.value for ratio in ratios if ratio is not None]
    return f"{min(values):.{digits}f} to {max(values):.{digits}f} over {_count(len(values), 'cell')}"


def _speeds(cells: Sequence[_Cell], name: str) -> str:
    speeds = [ratio.value for cell in cells if (ratio := _ratio(cell.eager, getattr(cell, name))) is not None]
    return f"{min(speeds):.2f} to {max(speeds):.2f}" if speeds else "–"


def _names(cells: Iterable[_Cell]) -> str:
    return _list(list(dict.fromkeys(cell.model for cell in cells)))


def _list(items: Sequence[object]) -> str:
    return " and ".join(map(str, items))


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def _missing(what: str) -> str:
    return f"This needs {what}, beside eager; that was not measured."
