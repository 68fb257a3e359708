"""From what was measured to what is printed: ratios, tables, and each judged figure with its limit."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Check:
    """A judged figure with its limit. ``value`` is ``None`` where something it needs was not measured."""

    text: str
    value: float | None
    limit: float
    below: bool = False  # the limit itself is not allowed

    @property
    def met(self) -> bool:
        if self.value is None:
            return False
        return self.value < self.limit if self.below else self.value <= self.limit


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Of the medians: for figures of processes that ran one after another."""
    return statistics.median(ours) / statistics.median(theirs) if ours and theirs else None


def paired_ratio(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float | None:
    """For figures of one process: the median over the processes of the median over each one's rounds.

    A ratio within a round is hardly touched by what slows the machine for a while.

    Args:
        ours: for each process the seconds by round.
        theirs: likewise, of the same rounds.
    """
    medians = [
        statistics.median(a / b for a, b in zip(one, other, strict=True))
        for one, other in zip(ours, theirs, strict=True)
        if one and other
    ]
    return statistics.median(medians) if medians else None


def shown(values: Sequence[float], form: str, scale: float = 1.0) -> str:
    """The median, and the range in brackets if there are several; ``-`` if there are none."""
    if not values:
        return "-"
    low, middle, high = (form.format(f(values) * scale) for f in (min, statistics.median, max))
    return middle if len(values) == 1 else f"{middle} ({low}–{high})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as text; the first column is set to the left, the others to the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in (head, *rows)]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def verdicts(checks: Sequence[Check]) -> str:
    """A line for each judged figure: met or not, the figure, the limit."""
    lines = []
    for check in checks:
        value = "not measured" if check.value is None else f"{check.value:.3g}"
        sign = "<" if check.below else "<="
        lines.append(f"{'met    ' if check.met else 'NOT met'}  {check.text}: {value} ({sign} {check.limit:.3g})")
    return "\n".join(lines)
