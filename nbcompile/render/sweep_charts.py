"""The chart of a sweep, for Plotly and as SVG: for each task the cold starts of all cells, and beside them the speed.

The chart is built as plain JSON data like that of a report, see :mod:`.charts`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..report import Report
from .charts import CLEAR, GRID, INK, escape_plotly, short
from .shapes import FAINT, WIDTH, drawing, legend, rectangle, words
from .sweep_series import Panel, panels, strategies
from .units import clean, middle, ratio, seconds

if TYPE_CHECKING:
    from ..conclusions import Conclusion

_COLD, _SPEED = "First call, empty cache (s)", "Speed against eager"
_BAR, _GAP = 13, 9  # pixels of a bar, and between two cells

# In the figure: margins in pixels, where the two columns lie, and what a panel takes beside its bars.
_LEFT, _RIGHT = 158, 14
_COLUMNS = ((0.0, 0.43), (0.57, 1.0))
_TOP, _TITLE, _AXIS = 44, 44, 30
_LABEL = 22
_WORDS, _LINE = 88, 16  # characters that fit into 600 pixels, and the height of a line


def figure(reports: Sequence[Report], conclusions: Sequence[Conclusion] = ()) -> Any:
    """The chart as a ``plotly.graph_objects.Figure``.

    Raises:
        UsageError: plotly is not installed, or nothing was measured.
    """
    drawn = figure_dict(reports, conclusions)
    if not drawn["data"]:
        raise UsageError("this sweep holds no figures, so there is nothing to be drawn")
    try:
        import plotly.graph_objects as go  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        raise UsageError(
            "a figure needs plotly, which is not installed here: run `pip install plotly`, "
            "or use sweep.to_html(), which draws the same chart without it"
        ) from None
    return go.Figure(data=drawn["data"], layout={**drawn["layout"], "template": "none"})


def figure_dict(reports: Sequence[Report], conclusions: Sequence[Conclusion] = ()) -> dict[str, Any]:
    """The chart as the JSON data of ``application/vnd.plotly.v1+json``; ``data`` is empty if there is none to draw.

    A notebook shows the figure in place of the text, so the conclusions stand above the chart.
    """
    drawn = panels(reports)
    named = strategies(drawn)
    data: list[dict[str, Any]] = []
    axes: dict[str, dict[str, Any]] = {}
    annotations: list[dict[str, Any]] = []
    heights = [len(panel.rows) * (_BAR * len(named) + _GAP) for panel in drawn]
    lines = [line for found in conclusions for line in _said(found)] if drawn else []
    above = float(_LINE * len(lines) + 8 * bool(lines))
    whole = float(above + _TOP + sum(height + _TITLE + _AXIS for height in heights))
    used = above + _TOP
    if lines:
        annotations.append({**_note("<br>".join(lines), 0, 1, -_LEFT + 8, 12), "align": "left"})
    shown: set[str] = set()
    for index, (panel, height) in enumerate(zip(drawn, heights, strict=True)):
        top, bottom = 1 - (used + _TITLE) / whole, 1 - (used + _TITLE + height) / whole
        annotations.append(_note(f"<b>{escape_plotly(panel.task)}</b>", 0, 1 - used / whole, -_LEFT + 8, 14))
        for column, (title, domain) in enumerate(zip((_COLD, _SPEED), _COLUMNS, strict=True)):
            number = str(2 * index + column + 1) if index or column else ""
            annotations.append(_note(title, domain[0], 1 - (used + 20) / whole, 0, 12))
            data += _bars(panel, named, number, column == 0, shown)
            axes |= _axes(panel, named, number, column == 0, domain, (max(0.0, bottom), top))
        used += height + _TITLE + _AXIS
    layout: dict[str, Any] = {
        "autosize": True,
        "height": round(whole) + 12,
        "margin": {"l": _LEFT, "r": _RIGHT, "t": 6, "b": 6},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": {"color": INK, "size": 12},
        "barmode": "overlay",
        "hovermode": "closest",
        "modebar": {"bgcolor": CLEAR, "color": INK},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "yanchor": "top", "bgcolor": CLEAR},
        "annotations": annotations,
        **axes,
    }
    layout["legend"]["y"] = short(1 - above / whole)
    return {"data": data, "layout": layout, "config": {"displaylogo": False}}


def _said(found: Conclusion) -> list[str]:
    """A conclusion as lines: the claim and its verdict in bold, and the figures."""
    head = f"{found.number}. {clean(found.claim)} Borne out: {clean(found.verdict, 40)}."
    bold = [f"<b>{escape_plotly(line)}</b>" for line in textwrap.wrap(head, _WORDS - 6)]
    return bold + [escape_plotly(line) for line in textwrap.wrap(clean(found.sentence, 900), _WORDS)]


def _bars(panel: Panel, named: list[tuple[str, str]], number: str, cold: bool, shown: set[str]) -> list[dict[str, Any]]:
    """A trace for each strategy; its name stands in the legend once."""
    found = []
    for place, (name, colour) in enumerate(named):
        values = [(index, row, (row.cold if cold else row.speed).get(name)) for index, row in enumerate(panel.rows)]
        having = [(index, row, value) for index, row, value in values if value is not None]
        if not having:
            continue
        found.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": escape_plotly(name),
                "legendgroup": escape_plotly(name),
                "showlegend": name not in shown,
                "x": [short(value) for _, _, value in having],
                "y": [_position(index, place, len(named)) for index, _, _ in having],
                "width": 0.9 * _thickness(len(named)),
                "marker": {"color": colour, "line": {"width": 0}},
                "text": [seconds(value) if cold else ratio(value) for _, _, value in having],
                "textposition": "outside",
                "textfont": {"size": 10, "color": INK},
                "cliponaxis": False,
                "hovertext": ["<br>".join(map(escape_plotly, row.hints.get(name, []))) for _, row, _ in having],
                "hoverinfo": "text",
                "xaxis": f"x{number}",
                "yaxis": f"y{number}",
            }
        )
        shown.add(name)
    return found


def _axes(
    panel: Panel,
    named: list[tuple[str, str]],
    number: str,
    cold: bool,
    across: tuple[float, float],
    down: tuple[float, float],
) -> dict[str, dict[str, Any]]:
    common = {"gridcolor": GRID, "zeroline": False, "automargin": False, "linecolor": GRID}
    return {
        f"xaxis{number}": {
            **common,
            "anchor": f"y{number}",
            "domain": list(across),
            "range": [0, short(1.3 * _longest(panel, cold))],
            "nticks": 5,
        },
        f"yaxis{number}": {
            **common,
            "anchor": f"x{number}",
            "domain": list(down),
            "tickvals": list(range(len(panel.rows))),
            "ticktext": [escape_plotly(middle(row.label, _LABEL)) for row in panel.rows],
            "tickfont": {"size": 11},
            "showticklabels": cold,
            "range": [len(panel.rows) - 0.5, -0.5],
            "showgrid": False,
        },
    }


def _note(text: str, x: float, y: float, shift: float, size: int) -> dict[str, Any]:
    return {
        "text": text,
        "xref": "paper",
        "yref": "paper",
        "x": x,
        "y": y,
        "xshift": shift,
        "xanchor": "left",
        "yanchor": "top",
        "showarrow": False,
        "font": {"size": size},
    }


def _thickness(strategies: int) -> float:
    """What one bar takes of the room of a cell, which is 1."""
    return _BAR / (_BAR * strategies + _GAP)


def _position(row: int, place: int, strategies: int) -> float:
    return short(row + (place - (strategies - 1) / 2) * _thickness(strategies))


def _longest(panel: Panel, cold: bool) -> float:
    return max((value for row in panel.rows for value in (row.cold if cold else row.speed).values()), default=1.0)


# -- SVG ---------------------------------------------------------------------------------------------------------------

_SVG_LEFT, _ROOM = 158, 56  # of the labels, and of the figure behind the longest bar
_SVG_COLUMNS = ((_SVG_LEFT, 176), (_SVG_LEFT + 176 + _ROOM + 16, 176))  # where each begins, and its longest bar


def svg_charts(reports: Sequence[Report]) -> list[tuple[str, str]]:
    """Title and SVG of the chart of each task."""
    drawn = panels(reports)
    named = strategies(drawn)
    return [(f"{panel.task}: compile time and speed", _svg(panel, named)) for panel in drawn]


def _svg(panel: Panel, named: list[tuple[str, str]]) -> str:
    body, top = legend([(name, colour, None) for name, colour in named])
    for (left, _), title in zip(_SVG_COLUMNS, (_COLD, _SPEED), strict=True):
        body.append(words(left, top + 8, title, bold=True))
    start = y = top + 18.0
    for row in panel.rows:
        middle_y = y + _BAR * len(named) / 2 + 4
        body.append(words(_SVG_LEFT - 8, middle_y, middle(row.label, _LABEL), anchor="end"))
        for name, colour in named:
            for cold, (left, long) in zip((True, False), _SVG_COLUMNS, strict=True):
                value = (row.cold if cold else row.speed).get(name)
                if value is not None:
                    length = value / _longest(panel, cold) * long
                    body.append(rectangle(left, y + 1, length, _BAR - 2, colour, row.hints.get(name, [])))
                    body.append(words(left + length + 4, y + 11, seconds(value) if cold else ratio(value)))
            y += _BAR
        y += _GAP
    left, long = _SVG_COLUMNS[1]
    level = left + long / _longest(panel, False)
    if level <= WIDTH - 4:
        body.append(f'<path d="M{level:.1f} {start - 2}V{y - _GAP + 2}" stroke="currentColor" stroke-dasharray="3,3"/>')
    for left, _ in _SVG_COLUMNS:
        body.append(f'<path d="M{left} {start - 2}V{y - _GAP + 2}" {FAINT}/>')
    summary = f"First call with an empty cache and speed against eager of {len(panel.rows)} cells: {panel.task}"
    return drawing(y + 4, summary, body)
