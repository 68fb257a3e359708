"""Which setting is the best for so many calls, as a panel shows it; the report itself ranks them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..render.units import clean, escape_html, ratio, seconds
from ..report import Report

#: Outcomes of a tuning's trial whose figures count; a wrong result's do not.
_COUNTED = ("measured", "stopped")


@dataclass(frozen=True)
class Row:
    """One setting: seconds in all for the number of calls, ``None`` if it was not measured; ``note`` says why."""

    name: str
    total: float | None
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """The settings of a report, ranked for a number of calls.

    Attributes:
        rows: the settings, least total time first, those without figures last.
        best: the one to take; it need not be the first row, as a gain within the spread counts as none.
        spans: from how many calls on each setting is the best, beginning with one call.
        settings: the settings of the best, for the functions that compile.
    """

    calls: int
    rows: tuple[Row, ...]
    best: str
    spans: tuple[tuple[int, str], ...]
    settings: dict[str, Any]

    @property
    def sentence(self) -> str:
        """The answer in words."""
        total = next(row.total for row in self.rows if row.name == self.best)
        calls = _calls(self.calls)
        if self.settings.get("strategy") == "eager":
            return f"For {calls}: do not compile. Eager takes {seconds(total)} in all."
        return f"For {calls}: {self.best} is the best, {seconds(total)} in all."

    @property
    def passed_over(self) -> str:
        """Which settings are quicker by their figures and yet not the best, in words; ``""`` if none is."""
        best = next(row.total for row in self.rows if row.name == self.best)
        quicker = [row.name for row in self.rows if row.total is not None and best is not None and row.total < best]
        if not quicker:
            return ""
        return f"What {' and '.join(quicker[:3])} would gain is within the spread, which counts as none."

    @property
    def crossings(self) -> str:
        """Where another setting becomes the best, in words."""
        if len(self.spans) < 2:
            return f"{self.best} is the best for any number of calls."
        first, *later = self.spans
        steps = [f"{name} from {_calls(calls)} on" for calls, name in later]
        return f"Crossing points: {first[1]} is the best at first, {', '.join(steps)}."

    def to_html(self) -> str:
        """The ranking as a table without scripts."""
        eager = next((row.total for row in self.rows if row.name == "eager"), None)
        lines = "".join(self._line(row, eager) for row in self.rows)
        below = " ".join(filter(None, (self.passed_over, self.crossings)))
        return (
            f'<div class="nbc-verdict"><p><b>{escape_html(self.sentence, 400)}</b></p><table><thead><tr>'
            f"<th>setting</th><th>{_calls(self.calls)}</th><th>against eager</th></tr></thead>"
            f"<tbody>{lines}</tbody></table><p>{escape_html(below, 800)}</p></div>"
        )

    def _line(self, row: Row, eager: float | None) -> str:
        speed = ratio(eager / row.total) if eager and row.total and row.name != "eager" else ""
        best = ' class="nbc-best"' if row.name == self.best else ""
        total = seconds(row.total) if row.total is not None else row.note
        return f"<tr{best}><td>{escape_html(row.name, 120)}</td><td>{escape_html(total)}</td><td>{speed}</td></tr>"


def _calls(number: int) -> str:
    return f"{number:,} call{'s' * (number != 1)}"


def verdict(report: Report, calls: int) -> Verdict | None:
    """The settings of a report ranked for ``calls`` calls; ``None`` if none was measured."""
    spans = tuple((first, clean(trial.name, 80)) for first, trial in report.crossings())
    if not spans:
        return None
    rows = [
        Row(clean(t.name, 80), t.total_seconds(calls) if t.outcome in _COUNTED else None, t.reason or t.outcome)
        for t in report.trials()
    ]
    best = report.best(calls=calls)
    return Verdict(calls, _sorted(rows), clean(best.name, 80), spans, dict(best.settings))


def _sorted(rows: list[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: math.inf if row.total is None else row.total))
