"""The report as HTML without scripts and without anything to be fetched, for a notebook's output or a file of its own.

Colours are the page's own or half-transparent greys, so that the fragment fits a light and a dark notebook. Where a
site strips the style, plain tables are left. Every string of a report passes :func:`escape_html`.
"""

from __future__ import annotations

import html
from collections.abc import Iterator

from ..report import Report, Snapshot
from .advice import recommendation
from .svg import charts
from .tables import (
    Notice,
    Table,
    environment_line,
    head,
    notes,
    progress_line,
    settings_line,
    tables,
    warnings,
)
from .units import clean, escape_html

_MOST_ROWS = 100
_MOST_LIVE_BARS = 5  # of a strategy, while the output changes many times a second
_MOST_DETAILS = 4000  # characters of a compiler's message

STYLE = """
.nbc-report{font-size:13px;line-height:1.45;max-width:960px;overflow-wrap:anywhere}
.nbc-report .nbc-head{font-size:15px;font-weight:600;margin:0 0 4px}
.nbc-report .nbc-faint{opacity:.75;margin:0 0 4px;font-size:12px}
.nbc-report .nbc-progress{margin:4px 0;padding:4px 10px;border-left:4px solid #0072B2;background:rgba(0,114,178,.13);\
font-variant-numeric:tabular-nums}
.nbc-report .nbc-advice{margin:8px 0;padding:6px 12px;border-left:4px solid #009E73;background:rgba(0,158,115,.13);\
font-weight:600}
.nbc-report .nbc-warnings{margin:8px 0;padding:6px 12px 6px 28px;border-left:4px solid #D55E00;\
background:rgba(213,94,0,.13)}
.nbc-report .nbc-warnings li{margin:2px 0;font-weight:600}
.nbc-report .nbc-warnings details{font-weight:400}
.nbc-report pre{white-space:pre-wrap;max-height:20em;overflow:auto;font-size:12px;color:inherit;background:transparent}
.nbc-report .nbc-figure{margin:14px 0;max-width:760px}
.nbc-report .nbc-figure figcaption{font-weight:600;margin:0 0 4px}
.nbc-report .nbc-chart{display:block;width:100%;height:auto}
.nbc-report .nbc-wide{overflow-x:auto;margin:14px 0}
.nbc-report table.nbc-table{overflow-wrap:break-word;border-collapse:collapse;margin:0;font-size:12px;\
color:inherit;background:transparent}
.nbc-report .nbc-table caption{text-align:left;font-weight:600;font-size:13px;color:inherit;padding:0 0 4px;\
caption-side:top}
.nbc-report .nbc-table th,.nbc-report .nbc-table td{padding:3px 10px;border:0;\
border-bottom:1px solid rgba(128,128,128,.3);text-align:left;vertical-align:top;color:inherit;background:transparent;\
max-width:32em}
.nbc-report .nbc-table thead th{border-bottom-color:rgba(128,128,128,.7);white-space:nowrap}
.nbc-report .nbc-table tbody th{font-weight:400;overflow-wrap:normal}
.nbc-report .nbc-table .nbc-number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.nbc-report .nbc-table .nbc-reason{min-width:14em}
.nbc-report ul.nbc-notes{margin:4px 0;padding-left:20px}
"""

_PAGE_STYLE = """
:root{color-scheme:light dark}
body{margin:24px auto;padding:0 16px;font-family:system-ui,sans-serif;color:#1a1a1a;background:#fff;\
overflow-wrap:anywhere}
@media (prefers-color-scheme:dark){body{color:#e0e0e0;background:#111}}
"""


def render_html(report: Report) -> str:
    """The report as an HTML fragment: warnings first, then the charts, then every figure in tables."""
    if report.progress is not None:
        return render_live(render_charts(report), report.progress)
    parts = [f"<style>{STYLE}</style>", f'<p class="nbc-head">{escape_html(head(report))}</p>']
    for name, line in (("settings", settings_line(report)), ("environment", environment_line(report))):
        if line:
            parts.append(f'<p class="nbc-faint">{name}: {escape_html(line, 600)}</p>')
    if said := recommendation(report):
        parts.append(f'<p class="nbc-advice">{escape_html(said, 900)}</p>')
    if found := warnings(report):
        parts.append(f'<ul class="nbc-warnings" aria-label="Warnings">{"".join(map(_warning, found))}</ul>')
    parts += figures_html(charts(report))
    built = tables(report, _MOST_ROWS)
    parts += map(table_html, built)
    if lines := notes(report, _MOST_ROWS):
        items = "".join(f"<li>{escape_html(line, 400)}</li>" for line in lines)
        parts.append(f'<ul class="nbc-notes" aria-label="Notes">{items}</ul>')
    if not built:
        parts.append("<p>Nothing has been compiled or measured yet.</p>")
    return f'<div class="nbc-report">{"".join(parts)}</div>'


def render_charts(report: Report) -> str:
    """The charts of a report that is not finished, apart from the line that changes all the time."""
    return "".join(figures_html(charts(report, most=_MOST_LIVE_BARS)))


def render_live(charts: str, snapshot: Snapshot) -> str:
    """Where unfinished work stands, above the charts that :func:`render_charts` has drawn of it."""
    line = f'<p class="nbc-progress">{escape_html(progress_line(snapshot), 600)}</p>'
    return f'<div class="nbc-report"><style>{STYLE}</style>{line}{charts}</div>'


def figures_html(drawn: list[tuple[str, str]]) -> Iterator[str]:
    """Titles and drawings as HTML."""
    for title, svg in drawn:
        yield f'<figure class="nbc-figure"><figcaption>{escape_html(title)}</figcaption>{svg}</figure>'


def render_page(report: Report) -> str:
    """The report as a whole HTML page that can be opened from a file, mailed or printed."""
    title = f"Compilation of {clean(report.model.get('class_name') or 'a model', 80)}"
    return page(title, report.created, render_html(report))


def page(title: str, created: str, body: str, *, width: int = 960) -> str:
    """A whole page around a fragment.

    Args:
        title, created: text, not HTML.
        body: HTML.
        width: how wide it may be, in pixels.
    """
    title = escape_html(title)
    when = f'<p style="opacity:.75">{escape_html(created, 60)}</p>' if created else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Should a mistake ever let a report's text through, the browser still fetches and runs nothing.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{_PAGE_STYLE}body{{max-width:{width}px}}</style></head>\n"
        f"<body><h1>{title}</h1>{when}{body}</body></html>\n"
    )


def _warning(notice: Notice) -> str:
    details = ""
    if len(notice.details) > len(clean(notice.details)) or "\n" in notice.details.strip():
        message = "\n".join(clean(line, 1000) for line in notice.details[:_MOST_DETAILS].splitlines())
        cut = "…" if len(notice.details) > _MOST_DETAILS else ""
        details = f"<details><summary>the compiler's message</summary><pre>{html.escape(message)}{cut}</pre></details>"
    return f"<li>{escape_html(notice.text, 600)}{details}</li>"


def table_html(table: Table) -> str:
    """A table as HTML."""
    headers = "".join(
        f'<th scope="col"{_kind(table, column)}>{escape_html(header)}</th>'
        for column, header in enumerate(table.headers)
    )
    rows = "".join(f"<tr>{_cells(table, index)}</tr>" for index in range(len(table.rows)))
    below = [f"… and {table.left_out} more"] if table.left_out else []
    below += [table.footnote] if table.footnote else []
    footer = "".join(f'<p class="nbc-faint">{escape_html(line)}</p>' for line in below)
    return (
        f'<div class="nbc-wide"><table class="nbc-table"><caption>{escape_html(table.title)}</caption>'
        f"<thead><tr>{headers}</tr></thead><tbody>{rows}</tbody></table>{footer}</div>"
    )


def _cells(table: Table, index: int) -> str:
    row = table.rows[index]
    hint = f' title="{escape_html(table.hints[index])}"' if index < len(table.hints) and table.hints[index] else ""
    cells = [f'<th scope="row">{escape_html(row[0])}</th>']
    for column, cell in enumerate(row[1:], start=1):
        shown = hint if column == len(row) - 1 else ""
        cells.append(f"<td{_kind(table, column)}{shown}>{escape_html(cell)}</td>")
    return "".join(cells)


def _kind(table: Table, column: int) -> str:
    if table.align[column] == "r":
        return ' class="nbc-number"'
    return ' class="nbc-reason"' if table.headers[column] == "reason" else ""
