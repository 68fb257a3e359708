"""The page of a sweep in a real browser: its table, which has more columns than any other, is seen whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nbcompile.render.sweep import render_page
from nbcompile.report import Report, Strategy

_RIGHT_END = "table => table.getBoundingClientRect().right"
_SCROLLS = "place => place.scrollWidth > place.clientWidth && getComputedStyle(place).overflowX === 'auto'"


def _cell(**more: Any) -> Report:
    """A cell with figures as wide as they come."""
    figures = {
        name: Strategy(
            cold_seconds=123.4,
            steady_seconds=0.0123,
            steady_spread=0.00123,
            steady_repeats=5,
            peak_bytes=512_000_000,
            max_abs_diff=1.19e-6,
            break_even_calls=12_345,
            disturbed_rounds=3,
        )
        for name in ("eager", "regional", "full", "hierarchical")
    }
    figures["full"] = Strategy(failure="out of memory: " + "the process took more than there is, " * 3)
    about = {"model": "Llama 8x320", "batch": 4, "task": "inference"}
    return Report(model={"parameters": 135_000_000}, settings={"sweep": about}, strategies=figures)


@pytest.mark.parametrize(("width", "whole"), [(1200, True), (700, False)])
def test_the_last_column_can_be_seen(browser: Any, tmp_path: Path, width: int, whole: bool) -> None:
    # GIVEN the page of a sweep, whose last column says what failed
    file = tmp_path / "sweep.html"
    file.write_text(render_page([_cell()], [], []), encoding="utf-8")
    # WHEN it is opened in a window
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(file.as_uri())
    # THEN its end is inside of a window of usual width, and a smaller one scrolls the table and not the page
    assert (page.locator("table").evaluate(_RIGHT_END) <= width) is whole
    assert page.locator(".nbc-wide").evaluate(_SCROLLS) is not whole
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.close()
