"""The report as a Plotly figure: where compile time went, what it bought, when it is paid back.

The figure is built as plain JSON data, laid out in pixels from top to bottom, so that a live chart can be redrawn ten
times a second without importing plotly and the saved notebook stays small. Plotly reads a few HTML tags in any text,
therefore all text of the report goes through :func:`escape_plotly`.
"""

from __future__ import annotations

import math
import textwrap
from typing import Any

from ..errors import UsageError
from ..report import PHASE_TITLES, Report
from .advice import recommendation
from .series import (
    PHASE_COLOURS,
    Line,
    Section,
    Steady,
    compile_sections,
    crossings,
    decades,
    describe_bar,
    describe_phase,
    pay_back,
    phases_of,
    steady_times,
)
from .tables import warnings
from .units import clean, count, decade_seconds, middle, ratio, seconds, spread_seconds, time_unit

# Mid-grey has a contrast of about 4 on JupyterLab's white and on its dark background.
INK = "#7d7d7d"
GRID = "rgba(128,128,128,0.25)"
CLEAR = "rgba(0,0,0,0)"

_LEFT, _RIGHT, _TOP, _BOTTOM = 158, 14, 6, 6  # margins in pixels; the left one holds labels of _LABEL characters
_LABEL = 22
_ROW = 22
_TITLE = 30
_AXIS = 30
_GAP = 14
_PAY_BACK_HEIGHT = 230
_LEVEL = 16
_WORDS, _WORDS_LINE = 84, 17  # characters that fit into 600 pixels, and the height of a line
_WARNING = "#d55e00"
_MOST_WARNINGS, _LONGEST_WARNING = 3, 400


def figure(report: Report) -> Any:
    """The report as a ``plotly.graph_objects.Figure``.

    Raises:
        UsageError: plotly is not installed.
    """
    try:
        import plotly.graph_objects as go  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        raise UsageError(
            "a figure needs plotly, which is not installed here: run `pip install plotly`, "
            "or use report.to_html(), which draws the same charts without it"
        ) from None
    drawn = figure_dict(report)
    # Without a word about the template plotly adds its own: seven kilobytes and a white background.
    return go.Figure(data=drawn["data"], layout={**drawn["layout"], "template": "none"})


def figure_dict(report: Report) -> dict[str, Any]:
    """The figure as the JSON data of ``application/vnd.plotly.v1+json``; ``data`` is empty if there is none to draw."""
    page = _Page()
    sections, times, lines = compile_sections(report), steady_times(report), pay_back(report)
    if sections or times or lines:  # else there is no figure, and the tables say it all
        _draw_words(page, report)
    if sections:
        _draw_compile_time(page, sections)
    if times:
        _draw_steady_time(page, times)
    if lines:
        _draw_pay_back(page, lines)
    # Not `responsive`: after the first change of theme JupyterLab draws anew, and a responsive chart then has no height
    # and vanishes. It follows the width of the cell all the same.
    return {"data": page.data, "layout": page.layout(), "config": {"displaylogo": False}}


class _Page:
    """Panels put under each other. Positions are pixels from the top until the height of the whole is known."""

    def __init__(self) -> None:
        self.data: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self._axes: dict[str, dict[str, Any]] = {}
        self._legends: dict[str, dict[str, Any]] = {}
        self._spans: dict[str, tuple[float, float]] = {}
        self._used = 0.0
        self._panels = 0

    def add_panel(self, title: str, plot_height: float, legend_height: float = 0) -> str:
        """Make room for a panel and return the number that its axes end in: ``""``, ``"2"`` or ``"3"``."""
        self._panels += 1
        number = "" if self._panels == 1 else str(self._panels)
        top = self._used + (_GAP if self._used else 0)
        self._spans[f"title{number}"] = (top, top)
        self.annotations.append(
            {
                "text": f"<b>{title}</b>",
                "xref": "paper",
                "yref": "paper",
                "x": 0,
                "y": f"title{number}",
                "xshift": -_LEFT + 8,
                "xanchor": "left",
                "yanchor": "top",
                "showarrow": False,
                "font": {"size": 14},
            }
        )
        if legend_height:
            self._legends[f"legend{number}"] = {
                "orientation": "h",
                "x": 0,
                "xanchor": "left",
                "y": f"legend{number}",
                "yanchor": "top",
                "bgcolor": CLEAR,
                "font": {"size": 11},
                "traceorder": "normal",
            }
            self._spans[f"legend{number}"] = (top + _TITLE - 4, top + _TITLE - 4)
        start = top + _TITLE + legend_height
        self._spans[number] = (start, start + plot_height)
        self._used = start + plot_height + _AXIS  # the last panel has a title under its axis, see layout()
        return number

    def add_words(self, text: str, colour: str) -> None:
        """Put a paragraph below what is there."""
        lines = textwrap.wrap(text, _WORDS)
        top = self._used + (2 if self._used else 0)
        self._spans[f"words{len(self.annotations)}"] = (top, top)
        self.annotations.append(
            {
                "text": "<br>".join(map(escape_plotly, lines)),
                "xref": "paper",
                "yref": "paper",
                "x": 0,
                "y": f"words{len(self.annotations)}",
                "xshift": -_LEFT + 8,
                "xanchor": "left",
                "yanchor": "top",
                "align": "left",
                "showarrow": False,
                "font": {"size": 12, "color": colour},
            }
        )
        self._used = top + _WORDS_LINE * len(lines) + 4

    def set_axes(self, number: str, x: dict[str, Any], y: dict[str, Any]) -> None:
        common = {"gridcolor": GRID, "zeroline": False, "automargin": False, "linecolor": GRID}
        self._axes[f"xaxis{number}"] = {**common, "anchor": f"y{number}", **x}
        self._axes[f"yaxis{number}"] = {**common, "anchor": f"x{number}", **y}

    def layout(self) -> dict[str, Any]:
        height = self._used + 16

        def paper(pixels: float) -> float:
            return round(1 - pixels / height, 5)

        for annotation in self.annotations:
            if annotation["y"] in self._spans:
                annotation["y"] = paper(self._spans[annotation["y"]][0])
        for name, legend in self._legends.items():
            legend["y"] = paper(self._spans[name][0])
        for name, axis in self._axes.items():
            if name.startswith("yaxis"):
                top, bottom = self._spans[name.removeprefix("yaxis")]
                axis["domain"] = [max(0.0, paper(bottom)), paper(top)]
        return {
            "autosize": True,
            "height": round(height) + _TOP + _BOTTOM,
            "margin": {"l": _LEFT, "r": _RIGHT, "t": _TOP, "b": _BOTTOM},
            "paper_bgcolor": CLEAR,
            "plot_bgcolor": CLEAR,
            "font": {"color": INK, "size": 12},
            "barmode": "stack",
            "hovermode": "closest",
            "modebar": {"bgcolor": CLEAR, "color": INK},
            "annotations": self.annotations,
            **self._legends,
            **self._axes,
        }


def _draw_words(page: _Page, report: Report) -> None:
    """What a reader must not miss: a notebook shows the figure in place of the tables and their warnings."""
    if said := recommendation(report):
        page.add_words(said, INK)
    found = warnings(report)
    for notice in found[:_MOST_WARNINGS]:
        page.add_words(clean(notice.text, _LONGEST_WARNING), _WARNING)
    if len(found) > _MOST_WARNINGS:
        page.add_words(f"… and {len(found) - _MOST_WARNINGS} more warnings: report.to_text() has them", _WARNING)


def _draw_compile_time(page: _Page, sections: list[Section]) -> None:
    rows: list[tuple[Section, int | None]] = []  # a section's heading has no bar of its own
    for section in sections:
        rows += [(section, None)] if section.name else []
        rows += [(section, index) for index in range(len(section.bars))]
    phases = phases_of(sections)
    bars = [(row, section, section.bars[i]) for row, (section, i) in enumerate(rows) if i is not None]
    number = page.add_panel(
        "Compile time by region and phase (s)",
        _ROW * len(rows),
        _legend_height([PHASE_TITLES[phase] for phase in phases]),
    )
    for phase in phases:
        having = [(row, section, bar) for row, section, bar in bars if phase in bar.phases]
        page.data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": PHASE_TITLES[phase],
                "legend": f"legend{number}",
                "x": [short(bar.phases[phase]) for _, _, bar in having],
                "y": [row for row, _, _ in having],
                "width": 0.72,
                "marker": {"color": PHASE_COLOURS[phase], "line": {"width": 0}},
                "hovertext": [
                    _lines([*describe_bar(section, bar), describe_phase(bar, phase)]) for _, section, bar in having
                ],
                "hoverinfo": "text",
                "textposition": "none",
                "xaxis": f"x{number}",
                "yaxis": f"y{number}",
            }
        )
    lengths = [sum(bar.phases.values()) for _, _, bar in bars]
    page.data.append(
        _labels(number, lengths, [row for row, _, _ in bars], [seconds(bar.seconds) for _, _, bar in bars])
    )
    page.set_axes(
        number,
        {"range": [0, short(1.2 * max(lengths))], "rangemode": "tozero", "nticks": 7},
        {
            "tickvals": list(range(len(rows))),
            "ticktext": [
                f"<b>{escape_plotly(middle(section.name, _LABEL))}</b>"
                if index is None
                else escape_plotly(middle(section.bars[index].label, _LABEL))
                for section, index in rows
            ],
            "tickfont": {"size": 11},
            "range": [len(rows) - 0.5, -0.5],
            "showgrid": False,
        },
    )


def _draw_steady_time(page: _Page, times: list[Steady]) -> None:
    factor, unit = time_unit(max(steady.seconds for steady in times))
    number = page.add_panel(f"Steady time per call ({unit}), and speed against eager", (_ROW + 6) * len(times))
    ends = [(steady.seconds + (steady.half_spread or 0.0)) / factor for steady in times]
    page.data.append(
        {
            "type": "bar",
            "orientation": "h",
            "name": "steady time",
            "showlegend": False,
            "x": [short(steady.seconds / factor) for steady in times],
            "y": list(range(len(times))),
            "width": 0.66,
            # Bars that let the background through keep the whiskers on top of them readable.
            "marker": {"color": [steady.colour for steady in times], "opacity": 0.65},
            "error_x": {
                "type": "data",
                "array": [short((steady.half_spread or 0.0) / factor) for steady in times],
                "color": INK,
                "thickness": 1.5,
                "width": 4,
            },
            "hovertext": [
                _lines(
                    [
                        steady.name,
                        f"{spread_seconds(steady.seconds, steady.half_spread)} (± half the interquartile range)",
                        *([f"{ratio(steady.speed)} the speed of eager"] if steady.speed is not None else []),
                        *([f"median of {count(steady.repeats)} rounds"] if steady.repeats > 0 else []),
                        *([steady.dispatch] if steady.dispatch else []),
                    ]
                )
                for steady in times
            ],
            "hoverinfo": "text",
            "textposition": "none",
            "xaxis": f"x{number}",
            "yaxis": f"y{number}",
        }
    )
    page.data.append(
        _labels(
            number,
            ends,
            list(range(len(times))),
            [
                f"<b>{ratio(steady.speed)}</b>" if steady.speed is not None else seconds(steady.seconds)
                for steady in times
            ],
        )
    )
    page.set_axes(
        number,
        {"range": [0, short(1.2 * max(ends))], "rangemode": "tozero", "nticks": 7},
        {
            "tickvals": list(range(len(times))),
            "ticktext": [escape_plotly(middle(steady.name, _LABEL)) for steady in times],
            "range": [len(times) - 0.5, -0.5],
            "showgrid": False,
        },
    )


def _draw_pay_back(page: _Page, lines: list[Line]) -> None:
    number = page.add_panel(
        "Total time against number of calls", _PAY_BACK_HEIGHT, _legend_height([line.name for line in lines])
    )
    for line in lines:
        page.data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": escape_plotly(middle(line.name, _LABEL)),
                "legend": f"legend{number}",
                "x": [calls for calls, _ in line.points],
                "y": [short(total) for _, total in line.points],
                "line": {"color": line.colour, "width": 2, "dash": line.dash.replace(",", "px,") + "px"}
                if line.dash
                else {"color": line.colour, "width": 2},
                "hovertext": [
                    _lines([line.name, f"{count(calls)} call{'s' * (calls != 1)}: {seconds(total)}"])
                    for calls, total in line.points
                ],
                "hoverinfo": "text",
                "xaxis": f"x{number}",
                "yaxis": f"y{number}",
            }
        )
    farthest = lines[0].points[-1][0]
    totals = [total for line in lines for _, total in line.points]
    found = crossings(lines)
    floor = _log10(min(totals)) - 0.25 - 0.12 * len(found)  # room for the labels of the crossings
    ceiling = _log10(max(totals)) + 0.1
    for line, even, level in found:
        foot = floor + (ceiling - floor) * (_LEVEL * level + 4) / _PAY_BACK_HEIGHT
        page.data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "showlegend": False,
                "x": [even.calls, even.calls],
                "y": [short(even.seconds), short(10**foot)],
                "line": {"color": line.colour, "width": 1, "dash": "dot"},
                "marker": {"size": [10, 0], "opacity": 1, "color": line.colour, "line": {"color": INK, "width": 1}},
                "hovertext": _lines([f"{line.name} pays back after", even.words, f"{seconds(even.seconds)} in all"]),
                "hoverinfo": "text",
                "xaxis": f"x{number}",
                "yaxis": f"y{number}",
            }
        )
        page.annotations.append(
            {
                "text": f"{escape_plotly(middle(line.name, 14))}: <b>{even.words}</b>",
                "xref": f"x{number}",
                "yref": f"y{number}",
                "x": _log10(even.calls),
                "y": round(foot, 5),
                "xshift": 4,
                "yshift": -3,
                "xanchor": "left",
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"size": 11},
            }
        )
    page.set_axes(
        number,
        {"type": "log", "title": {"text": "calls", "standoff": 4}, "dtick": 1, "range": [0, _log10(farthest) + 0.01]},
        {
            "type": "log",
            "tickvals": [10.0**decade for decade in decades(floor, ceiling)],
            "ticktext": [decade_seconds(decade) for decade in decades(floor, ceiling)],
            "range": [floor, ceiling],
        },
    )


def _labels(number: str, x: list[float], y: list[int], text: list[str]) -> dict[str, Any]:
    """Figures written behind the ends of bars. ``text`` holds nothing that came from the report as text."""
    return {
        "type": "scatter",
        "mode": "text",
        "x": [short(value) for value in x],
        "y": y,
        "text": [f" {words}" for words in text],
        "textposition": "middle right",
        "textfont": {"size": 11, "color": INK},
        "cliponaxis": False,
        "hoverinfo": "skip",
        "showlegend": False,
        "xaxis": f"x{number}",
        "yaxis": f"y{number}",
    }


def _legend_height(names: list[str]) -> float:
    """The pixels that a horizontal legend takes at 600 pixels' width.

    Plotly puts it in one row if it fits; else all its columns are as wide as the widest.
    """
    widths, room = [len(name) * 6 + 46 for name in names], 600 - _LEFT - _RIGHT
    rows = 1 if sum(widths) <= room else -(-len(names) // max(1, room // max(widths)))
    return 20 * rows + 8


def _lines(lines: list[str]) -> str:
    return "<br>".join(escape_plotly(line) for line in lines)


def escape_plotly(text: str) -> str:
    """``text`` as Plotly shows it letter by letter: no tags, no entities, no formulas, no templates."""
    for character in "&<>$%":  # the ampersand first, as the others become entities
        text = text.replace(character, f"&#{ord(character)};")
    return text


def short(value: float) -> float:
    """Six digits are more than a screen can show and a third of the JSON."""
    return float(f"{value:.6g}")


def _log10(value: float) -> float:
    return round(math.log10(value), 5)
