"""The figures behind the chart and the table of a sweep, taken from its reports once, so that all pictures agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..report import Report
from .series import colour, eager_of, half_spread, speed
from .units import amount, clean, count, ratio, seconds, spread_seconds

#: How many cells are drawn. The table lists all.
MOST_CELLS = 48

_ORDER = ("eager", "regional", "hierarchical", "full")


@dataclass(frozen=True)
class Row:
    """One cell: by strategy the seconds of its cold start, its speed against eager, and all that is known of it."""

    label: str
    cold: dict[str, float] = field(default_factory=dict)
    speed: dict[str, float] = field(default_factory=dict)
    hints: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """The cells that do the same thing."""

    task: str
    rows: list[Row]


def panels(reports: Sequence[Report]) -> list[Panel]:
    """What is drawn: a panel for each task, with its cells in the order of their reports."""
    found: dict[str, list[Row]] = {}
    for report in list(reports)[:MOST_CELLS]:
        row = _row(report)
        if row.cold or row.speed:
            found.setdefault(clean(about(report).get("task"), 20), []).append(row)
    return [Panel(task, rows) for task, rows in found.items()]


def strategies(drawn: Sequence[Panel]) -> list[tuple[str, str]]:
    """Name and colour of every strategy that is drawn, eager first."""
    names = dict.fromkeys(name for panel in drawn for row in panel.rows for name in (*row.cold, *row.speed))
    ordered = sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    return [(name, colour(name, index)) for index, name in enumerate(ordered)]


def about(report: Report) -> dict[str, Any]:
    """Which cell a report is of: what a sweep has written about it."""
    found = report.settings.get("sweep")
    return found if isinstance(found, dict) else {}


def label(report: Report) -> str:
    """A cell's model and batch size."""
    cell = about(report)
    return (
        f"{clean(cell.get('model') or report.model.get('class_name') or 'model', 60)}, batch {count(cell.get('batch'))}"
    )


def _row(report: Report) -> Row:
    row, eager = Row(label(report)), eager_of(report)
    for name, strategy in report.strategies.items():
        shown = clean(name, 40) or "(no name)"
        cold, gain = amount(strategy.cold_seconds), speed(eager, strategy)
        if cold:
            row.cold[shown] = cold
        if gain:
            row.speed[shown] = gain
        row.hints[shown] = [
            f"{row.label}: {shown}",
            f"first call {seconds(strategy.cold_seconds)}",
            f"later calls {spread_seconds(strategy.steady_seconds, half_spread(strategy))}",
            f"{ratio(gain)} the speed of eager",
        ]
    return row
