"""The report as plain text: what a terminal, a log and a notebook without a browser show."""

from __future__ import annotations

from ..report import Report
from .advice import recommendation
from .tables import Table, environment_line, head, notes, progress_line, settings_line, tables, warnings
from .units import width

_MOST_ROWS = 40


def render_text(report: Report) -> str:
    """The report as aligned tables, warnings first, sections without content left out."""
    if report.progress is not None:
        return progress_line(report.progress)
    lines = [head(report)]
    if line := settings_line(report):
        lines.append(f"settings: {line}")
    if line := environment_line(report):
        lines.append(f"environment: {line}")
    if line := recommendation(report):
        lines.append(line)
    lines += [f"! {warning.text}" for warning in warnings(report)]
    built = tables(report, _MOST_ROWS)
    for table in built:
        lines += ["", *lay_out(table)]
    if found := notes(report, _MOST_ROWS):
        lines += ["", "Notes", *(f"  - {note}" for note in found)]
    if not built:
        lines += ["", "Nothing has been compiled or measured yet."]
    return "\n".join(lines)


def lay_out(table: Table) -> list[str]:
    """A table as aligned lines."""
    rows = [table.headers, *table.rows]
    widths = [max(width(row[column]) for row in rows) for column in range(len(table.headers))]
    lines = [table.title]
    for row in rows:
        cells = [_pad(cell, widths[column], table.align[column] == "r") for column, cell in enumerate(row)]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    if table.left_out:
        lines.append(f"  … and {table.left_out} more")
    if table.footnote:
        lines.append(f"  ({table.footnote})")
    return lines


def _pad(cell: str, columns: int, right: bool) -> str:
    gap = " " * (columns - width(cell))
    return gap + cell if right else cell + gap
