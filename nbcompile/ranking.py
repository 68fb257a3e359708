"""Which of several settings takes the least time in all for a number of calls: arithmetic on figures, and nothing else.

A setting costs its cold start and then a steady step for each further call: a straight line over the number of calls.
The best for each number is the lower envelope of these lines. Arithmetic is exact, so what is said of a number of calls
and where the envelope bends can never disagree, whatever figures a file holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Generic, NamedTuple, Protocol, TypeVar

#: Beyond this many calls nobody asks: one a millisecond for thirty years.
MOST_CALLS = 10**12

#: Two steady times that lie no further apart than this part of them are level: nobody would compile for less.
LEVEL = 0.02

#: A steady time as part of eager's: the low end of what it may be, the median, and the high end.
Band = tuple[float, float, float]
_EAGER: Band = (1.0, 1.0, 1.0)


class Figures(Protocol):
    """What is needed to know of a setting: seconds, absent if they were not measured."""

    @property
    def cold_seconds(self) -> float | None: ...

    @property
    def steady_seconds(self) -> float | None: ...

    @property
    def steady_spread(self) -> float | None: ...

    @property
    def band(self) -> Band | None:
        """The steady time as part of eager's, from rounds that were paired; ``None`` if they were not."""
        ...


F = TypeVar("F", bound=Figures)


def total(figures: Figures, calls: int) -> Fraction | None:
    """Seconds that so many calls take in all, the first one cold; ``None`` without both figures."""
    cold, steady = figures.cold_seconds, figures.steady_seconds
    if not (_is_time(cold) and _is_time(steady)) or cold is None or steady is None:
        return None
    return Fraction(cold) + (calls - 1) * Fraction(steady)


def gains(figures: Figures, eager: Figures) -> bool:
    """Whether a call is clearly faster than eager; a gain that the times' own variation can explain counts as none.

    Rounds that were paired with eager's decide by their ratio. Else it has to be more than either's spread.
    """
    if not (_is_time(figures.steady_seconds) and _is_time(eager.steady_seconds)):
        return False
    if figures.band is not None:
        return clearly_less(figures.band, _EAGER)
    assert figures.steady_seconds is not None  # which is what was just found
    assert eager.steady_seconds is not None
    spreads = [s for s in (figures.steady_spread, eager.steady_spread) if s is not None and math.isfinite(s)]
    return eager.steady_seconds - figures.steady_seconds > max([0.0, *spreads])


def verdict(band: Band) -> str:
    """What paired rounds say of a call against eager's: ``"faster"``, ``"level"`` or ``"slower"``."""
    if clearly_less(band, _EAGER):
        return "faster"
    return "slower" if clearly_less(_EAGER, band) else "level"


def clearly_less(one: Band, other: Band) -> bool:
    """Whether one time is less than another: by more than :data:`LEVEL`, and neither's interval holds the other."""
    return one[1] < (1 - LEVEL) * other[1] and one[1] < other[0] and one[2] < other[1]


def band(median: float | None, low: float | None, high: float | None) -> Band | None:
    """The three figures of a band if they can be one."""
    if median is None or low is None or high is None:
        return None
    return (low, median, high) if 0 < low <= median <= high < math.inf else None


def candidates(settings: Sequence[F], eager: F | None) -> list[F]:
    """Those that can be recommended: fully measured, and eager itself or clearly faster than it.

    Of those that are level with one another by paired rounds only the one that compiles the quickest: what another one
    costs more buys nothing that could be measured, and which of them has the lesser median is chance.
    """
    measured = [figures for figures in settings if total(figures, 1) is not None]
    if eager is None or total(eager, 1) is None:
        return measured
    faster = [figures for figures in measured if figures is not eager and gains(figures, eager)]
    kept: list[F] = []
    for figures in sorted(faster, key=lambda found: found.cold_seconds or 0.0):
        if all(_buys(figures, cheaper) for cheaper in kept):
            kept.append(figures)
    return [eager, *(figures for figures in faster if any(figures is one for one in kept))]


def _buys(figures: Figures, cheaper: Figures) -> bool:
    """Whether a setting's calls are clearly faster than those of one that compiles quicker, as far as that is known."""
    if figures.band is None or cheaper.band is None:
        return True
    return clearly_less(figures.band, cheaper.band)


def best(settings: Sequence[F], calls: int) -> F | None:
    """The one with the least total time for so many calls; of equals the first. ``None`` if none was measured."""
    totals = [(time, figures) for figures in settings if (time := total(figures, calls)) is not None]
    return min(totals, key=lambda found: found[0])[1] if totals else None


def envelope(settings: Sequence[F], most: int = MOST_CALLS) -> list[tuple[int, F]]:
    """From how many calls on each is the best, beginning with one call and ending with ``most``."""
    lines = _lines(settings)
    if not lines:
        return []
    current = _least(lines, 1)
    found = [(1, current.figures)]
    # those whose calls are no faster are not faster later on, either; hundreds of settings are searched in no time so
    while lines := [line for line in lines if line.step < current.step]:
        turns = [max(1, (line.first - current.first) // (current.step - line.step) + 2) for line in lines]
        at = min(turns)
        if at > most:
            break
        current = _least([line for line, turn in zip(lines, turns, strict=True) if turn == at], at)
        found.append((at, current.figures))
    return found


class _Line(NamedTuple, Generic[F]):
    """Total times of a setting in whole units, which are the same for all that are compared, so that they are exact."""

    first: int
    step: int
    figures: F


def _lines(settings: Sequence[F]) -> list[_Line[F]]:
    """Those settings that have both figures."""
    known = [
        (Fraction(found.cold_seconds), Fraction(found.steady_seconds), found)
        for found in settings
        if _is_time(found.cold_seconds) and _is_time(found.steady_seconds)
        if found.cold_seconds is not None and found.steady_seconds is not None  # which is what was just found
    ]
    units = math.lcm(*(number.denominator for cold, steady, _ in known for number in (cold, steady)))
    return [_Line(int(cold * units), int(steady * units), found) for cold, steady, found in known]


def _least(lines: Sequence[_Line[F]], calls: int) -> _Line[F]:
    """The one with the least total time for so many calls; of equals the first."""
    return min(lines, key=lambda line: line.first + (calls - 1) * line.step)


def _is_time(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value >= 0
