"""The report for a notebook's output: the report itself and three pictures of it.

Each front end takes the richest type it knows: the lab extension draws the report, JupyterLab, VS Code and Colab the
Plotly figure, nbconvert and nbviewer the HTML, a terminal the text. All of it is in the saved file, so no kernel is
needed to see it again.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from typing import Any

from ..report import MIME_TYPE, Report, Snapshot
from .charts import figure_dict
from .html import render_charts, render_html, render_live
from .tables import progress_line
from .text import render_text

#: Bytes of a report that an output carries along while it changes, and of what else is in it beside the charts.
_MOST_LIVE = 16_000
_REST_OF_LIVE = 3_500

PLOTLY_MIME_TYPE = "application/vnd.plotly.v1+json"


def mime_bundle(report: Report) -> dict[str, Any]:
    """The data of a notebook's output.

    Of a report that is not finished it is a small one, see :class:`LiveBundle`.

    The Plotly figure is left out where nothing is there to be drawn, or where plotly is not installed: then its
    renderer is most likely missing too, and the HTML shows the same charts.
    """
    if report.progress is not None:
        return LiveBundle(report).at(report.progress)
    bundle: dict[str, Any] = {MIME_TYPE: report.to_dict()}
    if importlib.util.find_spec("plotly") is not None:
        drawn = figure_dict(report)
        if drawn["data"]:
            bundle[PLOTLY_MIME_TYPE] = drawn
    bundle["text/html"] = render_html(report)
    bundle["text/plain"] = render_text(report)
    return bundle


class LiveBundle:
    """The data of an output that changes several times a second: charts drawn once for many states of the line.

    It has no Plotly figure: to change one in place takes a page far longer than a tenth of a second, and costs the
    reader's pointer its place. The charts are those of the HTML; they show the same figures. The report itself is left
    out as long as it is too large to be sent that often.

    Attributes:
        size: about how many bytes it takes.
    """

    def __init__(self, report: Report) -> None:
        self._charts = render_charts(report)
        data = dataclasses.replace(report, progress=None).to_dict()
        size = len(json.dumps(data))
        self._data = data if size <= _MOST_LIVE else None
        self.size = len(self._charts) + (size if self._data is not None else 0) + _REST_OF_LIVE

    def at(self, snapshot: Snapshot) -> dict[str, Any]:
        """The output where the work stands as the snapshot says."""
        bundle: dict[str, Any] = {}
        if self._data is not None:
            bundle[MIME_TYPE] = {**self._data, "progress": dataclasses.asdict(snapshot)}
        bundle["text/html"] = render_live(self._charts, snapshot)
        bundle["text/plain"] = progress_line(snapshot)
        return bundle
