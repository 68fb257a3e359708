"""The report for a notebook's output: the report itself and three pictures of it.

Each front end takes the richest type it knows: the lab extension draws the report, JupyterLab, VS Code and Colab the
Plotly figure, nbconvert and nbviewer the HTML, a terminal the text. All of it is in the saved file, so no kernel is
needed to see it again.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from ..report import MIME_TYPE, Report
from .charts import figure_dict
from .html import render_html
from .text import render_text

PLOTLY_MIME_TYPE = "application/vnd.plotly.v1+json"


def mime_bundle(report: Report) -> dict[str, Any]:
    """The data of a notebook's output.

    The Plotly figure is left out where nothing is there to be drawn, or where plotly is not installed: then its
    renderer is most likely missing too, and the HTML shows the same charts.
    """
    bundle: dict[str, Any] = {MIME_TYPE: report.to_dict()}
    if importlib.util.find_spec("plotly") is not None:
        drawn = figure_dict(report)
        if drawn["data"]:
            bundle[PLOTLY_MIME_TYPE] = drawn
    bundle["text/html"] = render_html(report)
    bundle["text/plain"] = render_text(report)
    return bundle
