"""What reports and figures are in words: held in words.json, which the tests of both languages read.

``python -m tests.words`` writes the file anew after a change of the words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nbcompile.render import tables, units
from nbcompile.render.advice import recommendation
from nbcompile.report import Report, Snapshot

from .reports import HOSTILE, many_regions, paired_report, sample_report, several_ranks, tuned_report

FILE = Path(__file__).with_name("words.json")

_NUMBERS: list[Any] = [
    *(0, 1, 2, 0.5, 1.005, 1.115, 9.995, 12.345, 59.94, 59.95, 60, 61.5, 99.95, 119.5, 120.5, 599.9, 600, 999.5, 1000),
    *(
        3599,
        3600,
        48 * 3600 - 1,
        48 * 3600,
        69_840,
        1e6,
        1_234_567,
        9_999_999,
        1e7,
        135_000_000,
        1.5e9,
        7e9,
        1e12,
        1e15,
    ),
    *(1e-3, 9.996e-4, 0.9996, 1.5e-6, 2.5e-7, 1e-9, 1e-31, 1e99, 1e100, 1e101, 1e308, 0.05, 0.125, 0.0625, 2.675),
    *(-1, -0.0, None, True, False, "12", [], {}),
]

_TEXTS: list[Any] = [
    *(
        "",
        "plain",
        "  two\n words\t",
        "x" * 299,
        "x" * 300,
        "x" * 301,
        "x" * 1201,
        "é" * 400,
        "😀" * 400,
        "a" * 900 + "\n",
    ),
    *(HOSTILE, HOSTILE * 50, "model.layers.1.self_attn.q_proj", "a\u200bb\u202ec\ufeffd", "\x1b[31mred\x1b[0m"),
    *(None, True, 3, 0.1, 1e20, -2.5, [1, "a", None], list(range(12)), {"a": {"b": {"c": 1}}}, {"k" * 60: "v" * 100}),
]

_SNAPSHOTS = [
    Snapshot("regional: first call"),
    Snapshot("full", "model.layers.3", "Layer", "inductor", 8.44, 12.0, 3.2, 1, 6, True, "graphs"),
    Snapshot("timing", elapsed_seconds=125.0, remaining_seconds=75.0, done=1, expected=1, unit="rounds"),
    Snapshot("timing", phase="backend", remaining_seconds=0.2, done=3, unit="rounds"),
    Snapshot(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1e308, -1.0, 1e99, 7, None, False, HOSTILE),
]

_SHARED_FOOTNOTES = ("Settings tried", "Strategies", "Ranks")


def words() -> dict[str, Any]:
    """Every case, as the Python side says it."""
    found: dict[str, Any] = {"units": [], "progress": [], "reports": []}
    for name in ("seconds", "clock", "size", "short_count", "count", "difference"):
        found["units"] += [[name, [value], getattr(units, name)(value)] for value in _NUMBERS]
    numbers = [value for value in _NUMBERS if isinstance(value, (int, float)) and units.amount(value)]
    found["units"] += [["digits", [value], units.digits(value)] for value in numbers]
    found["units"] += [
        ["spread_seconds", [value, half], units.spread_seconds(value, half)]
        for value in (0, 0.1, 12.0, None, 0.00123)
        for half in (None, 0.0, 0.00021, 0.005)
    ]
    found["units"] += [
        ["clean", [value, limit], units.clean(value, limit)] for value in _TEXTS for limit in (300, 40, 1)
    ]
    found["units"] += [["middle", [value, 48], units.middle(value, 48)] for value in _TEXTS if isinstance(value, str)]
    found["units"] += [["brief", [value], units.brief(value)] for value in _TEXTS]
    found["units"] += [["decade_seconds", [decade], units.decade_seconds(decade)] for decade in range(-7, 8)]
    found["progress"] = [
        [Report(progress=snapshot).to_dict()["progress"], tables.progress_line(snapshot)] for snapshot in _SNAPSHOTS
    ]
    shown = (sample_report(), tuned_report(), paired_report(), many_regions(3), several_ranks(), Report())
    found["reports"] = [_report(report) for report in shown]
    return found


def _report(report: Report) -> dict[str, Any]:
    built = {table.title: [list(table.headers), *map(list, table.rows)] for table in tables.tables(report, 200)}
    shared = ("Settings tried", "Strategies", "Checked region by region", "Ranks", "Variants", "Graph breaks")
    return {
        "data": report.to_dict(),
        "head": tables.head(report),
        "advice": recommendation(report),
        "settings": tables.settings_line(report),
        "environment": tables.environment_line(report),
        "warnings": [notice.text for notice in tables.warnings(report)],
        "notes": tables.notes(report, 100),
        "footnotes": {
            table.title: table.footnote for table in tables.tables(report, 200) if table.title in _SHARED_FOOTNOTES
        },
        "tables": {title: built.get(title, []) for title in shared},
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(words(), indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
