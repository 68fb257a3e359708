"""A sweep as text, as HTML and for a notebook's output: conclusions, chart, table."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..report import Report, Strategy
from .html import STYLE, figures_html, page, table_html
from .mime import PLOTLY_MIME_TYPE
from .series import break_even, eager_of, half_spread, speed
from .sweep_charts import figure_dict, svg_charts
from .sweep_series import about
from .tables import Table, environment_line
from .text import lay_out
from .units import ABSENT, clean, count, difference, escape_html, ratio, seconds, short_count, size, spread_seconds

if TYPE_CHECKING:
    from ..conclusions import Conclusion

_MOST_ROWS = 400
#: A row for each cell and strategy has twelve columns, more than fit where lines of text are still easy to read.
_PAGE_WIDTH = 1320
_STYLE = """
.nbc-report.nbc-sweep{max-width:none}
.nbc-sweep>p,.nbc-sweep>ol,.nbc-sweep>ul{max-width:960px}
.nbc-sweep .nbc-table th,.nbc-sweep .nbc-table td{padding:3px 7px}
.nbc-sweep .nbc-table tbody th{min-width:7em}
"""
_TITLE = "Strategies over model sizes and batch sizes"
_HEADERS = (
    *("model", "parameters", "batch", "task", "strategy", "cold start", "steady", "vs eager", "break-even"),
    *("peak memory", "max diff", "remark"),
)


def table(reports: Sequence[Report]) -> Table:
    """Every figure, a row for each cell and strategy."""
    rows = []
    for report in reports:
        cell, eager = about(report), eager_of(report)
        for name, strategy in report.strategies.items():
            rows.append(
                (
                    clean(cell.get("model"), 40),
                    short_count(report.model.get("parameters")),
                    clean(cell.get("batch"), 12),
                    clean(cell.get("task"), 20),
                    clean(name, 40),
                    seconds(strategy.cold_seconds),
                    spread_seconds(strategy.steady_seconds, half_spread(strategy)),
                    ratio(speed(eager, strategy)),
                    break_even(eager, name, strategy),
                    size(strategy.peak_bytes),
                    difference(strategy.max_abs_diff),
                    _remark(strategy),
                )
            )
    repeats = sorted({f.steady_repeats for report in reports for f in report.strategies.values() if f.steady_repeats})
    footnote = f"steady: median of {' or '.join(map(str, repeats))} rounds; ± half the interquartile range"
    kept, left_out = rows[:_MOST_ROWS], max(0, len(rows) - _MOST_ROWS)
    return Table("Every cell", _HEADERS, "lrrllrrrrrrl", kept, left_out, footnote if repeats else "")


def _remark(strategy: Strategy) -> str:
    """Why there are no figures, or why they are not to be trusted."""
    if strategy.failure:
        return clean(strategy.failure, 120)
    if strategy.disturbed_rounds:
        return f"{count(strategy.disturbed_rounds)} of {count(strategy.steady_repeats)} rounds disturbed"
    return ABSENT


def render_table(reports: Sequence[Report]) -> str:
    """The table as text."""
    return "\n".join(lay_out(table(reports)))


def render_text(reports: Sequence[Report], conclusions: Sequence[Conclusion], notes: Sequence[str]) -> str:
    """The table, the conclusions and the notes as text."""
    lines = [_TITLE, *_environment(reports), ""]
    lines += lay_out(table(reports)) if reports else ["Nothing has been measured."]
    lines += ["", "What Accelerate's compilation guide concludes, and what these figures say"]
    for found in conclusions:
        lines.append(f"  {found.number}. {clean(found.claim)}")
        lines.append(f"     Borne out: {clean(found.verdict, 40)}. {clean(found.sentence, 900)}")
    if said := _notes(reports, notes):
        lines += ["", "Notes", *(f"  - {note}" for note in said)]
    return "\n".join(lines)


def render_html(reports: Sequence[Report], conclusions: Sequence[Conclusion], notes: Sequence[str]) -> str:
    """A sweep as an HTML fragment without scripts."""
    parts = [f"<style>{STYLE}{_STYLE}</style>", f'<p class="nbc-head">{_TITLE}</p>']
    parts += [f'<p class="nbc-faint">{escape_html(line, 600)}</p>' for line in _environment(reports)]
    items = "".join(
        f"<li>{escape_html(found.claim)} <b>Borne out: {escape_html(found.verdict, 40)}.</b> "
        f"{escape_html(found.sentence, 900)}</li>"
        for found in conclusions
    )
    parts.append(
        f"<p><b>What Accelerate's compilation guide concludes, and what these figures say</b></p><ol>{items}</ol>"
    )
    parts += figures_html(svg_charts(reports))
    parts.append(table_html(table(reports)) if reports else "<p>Nothing has been measured.</p>")
    if said := _notes(reports, notes):
        items = "".join(f"<li>{escape_html(note, 400)}</li>" for note in said)
        parts.append(f'<ul class="nbc-notes" aria-label="Notes">{items}</ul>')
    return f'<div class="nbc-report nbc-sweep">{"".join(parts)}</div>'


def render_page(reports: Sequence[Report], conclusions: Sequence[Conclusion], notes: Sequence[str]) -> str:
    """A sweep as a whole HTML page."""
    created = max((report.created for report in reports), default="")
    return page(_TITLE, created, render_html(reports, conclusions, notes), width=_PAGE_WIDTH)


def mime_bundle(reports: Sequence[Report], conclusions: Sequence[Conclusion], notes: Sequence[str]) -> dict[str, Any]:
    """The data of a notebook's output. A notebook that draws the figure shows the conclusions in it, too."""
    bundle: dict[str, Any] = {}
    if importlib.util.find_spec("plotly") is not None:
        drawn = figure_dict(reports, conclusions)
        if drawn["data"]:
            bundle[PLOTLY_MIME_TYPE] = drawn
    bundle["text/html"] = render_html(reports, conclusions, notes)
    bundle["text/plain"] = render_text(reports, conclusions, notes)
    return bundle


def _environment(reports: Sequence[Report]) -> list[str]:
    return list(dict.fromkeys(f"torch={clean(r.environment.get('torch'), 40)}, {environment_line(r)}" for r in reports))


def _notes(reports: Sequence[Report], notes: Sequence[str]) -> list[str]:
    """What was left out, and what holds for many cells, once."""
    found = dict.fromkeys([*notes, *(note for report in reports for note in report.notes)])
    return [shown for note in found if (shown := clean(note))]
