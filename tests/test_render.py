"""The pictures of a report. The reports are made up, see reports.py, so every figure can be asserted exactly."""

from __future__ import annotations

import html.parser
import itertools
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import nbformat
import pytest

from nbcompile.errors import UsageError
from nbcompile.render import units
from nbcompile.render.advice import recommendation
from nbcompile.render.charts import figure, figure_dict
from nbcompile.render.html import render_html, render_page
from nbcompile.render.mime import PLOTLY_MIME_TYPE, LiveBundle, mime_bundle
from nbcompile.render.text import render_text
from nbcompile.report import (
    MIME_TYPE,
    PHASE_TITLES,
    PHASES,
    Group,
    Recompile,
    RegionTime,
    Report,
    Rest,
    Snapshot,
    Strategy,
)

from .reports import HOSTILE, hostile_report, hostile_tuning, many_regions, sample_report, tuned_report

COMPILE = "Compile time by region and phase (s)"
STEADY = "Steady time per call"
PAY_BACK = "Total time against number of calls"

EVERY_REPORT = [
    *(sample_report(), tuned_report(), many_regions(100), Report()),
    *(hostile_report(), hostile_tuning()),
]

HARMLESS = set(
    "html head meta title style body h1 div p ul li details summary pre figure figcaption "  # noqa: SIM905
    "table caption thead tbody tr th td svg rect path circle text".split()
)

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(html.parser.HTMLParser):
    """What a browser would make of a page: its elements, their attributes, the text of its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.caption = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID and not (self.get_starttag_text() or "").endswith("/>"):
            self.open.append(tag)
        if tag == "tr":
            self.tables[self.caption].append([])
        elif tag in ("td", "th"):
            self.tables[self.caption][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes nothing"
        self.open.pop()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        if inside == "caption":
            self.caption = data
            self.tables[data] = []
        elif inside in ("td", "th"):
            self.tables[self.caption][-1][-1] += data


def titles(drawn: dict[str, Any]) -> list[str]:
    return [a["text"] for a in drawn["layout"]["annotations"] if a["xref"] == "paper" and "<b>" in a["text"]]


def words(drawn: dict[str, Any]) -> list[str]:
    """The sentences above the charts, lines joined."""
    found = [a["text"] for a in drawn["layout"]["annotations"] if a["xref"] == "paper" and "<b>" not in a["text"]]
    return [text.replace("<br>", " ") for text in found]


def svgs(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def traces(drawn: dict[str, Any], **wanted: object) -> list[dict[str, Any]]:
    return [trace for trace in drawn["data"] if all(trace.get(key) == value for key, value in wanted.items())]


# -- figures as a reader sees them --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0 s"),
        (1.2345, "1.23 s"),
        (0.99951, "1.00 s"),
        (0.9994, "999 ms"),
        (1.5e-3, "1.50 ms"),
        (2e-6, "2.00 µs"),
        (599.4, "599 s"),
        (600.0, "10.0 min"),
        (1234.6, "20.6 min"),
        (69_800.0, "19.4 h"),
        (1e6, "11.6 d"),
        (-1.0, "–"),
        (float("nan"), "–"),
        (float("inf"), "–"),
    ],
)
def test_a_time_has_three_digits_and_the_unit_that_fits(value: float | None, shown: str) -> None:
    assert units.seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0, "0 B"), (999, "999 B"), (1500, "1.50 kB"), (2_000_000, "2.00 MB"), (10**9, "1.00 GB"), (-5, "–")],
)
def test_a_size_has_three_digits_and_the_unit_that_fits(value: int | None, shown: str) -> None:
    assert units.size(value) == shown


def test_a_spread_is_told_in_the_unit_of_its_time() -> None:
    assert units.spread_seconds(0.0123, 0.00021) == "12.3 ± 0.21 ms"
    assert units.spread_seconds(0.0123, None) == "12.3 ms"
    assert units.spread_seconds(None, 0.1) == "–"


def test_a_number_too_long_for_a_float_is_absent() -> None:
    assert units.count(10**400) == units.size(10**400) == units.seconds(10**400) == "–"


def test_text_is_cut_and_stripped_of_what_does_not_print() -> None:
    assert units.clean("a\x1b[31m\n\tb\ud800\u202ec") == "a [31m b c"
    assert units.clean("x" * 1000) == "x" * 299 + "…"
    assert units.middle("model.decoder.layers.12.self_attention", 20) == "model.…elf_attention"


# -- text -------------------------------------------------------------------------------------------------------


def test_text_of_the_sample() -> None:
    # GIVEN a report of which everything is known
    # WHEN it is printed
    text = render_text(sample_report())
    # THEN the head, the warning and the strategies stand there to the letter
    assert text.startswith(
        "SampleForCausalLM · 135 M parameters · float32 · cpu · torch 9.9.9\n"
        "settings: backend=inductor, mode=default, fullgraph=False\n"
        "environment: python=3.99, cpu=a processor, threads=2\n"
        "Up to 98 calls: do not compile. From 99 calls on: regional. From 3501 calls on: full.\n"
        "! 4 of 30 blocks of model.layers ran eager: recompile limit reached\n"
        "! regional: model.layers.1 is the first region that differs from eager on the same input; 1 of 3 do\n"
        "\n"
        "Strategies\n"
        "  strategy      cold start         steady  vs eager  peak memory  max diff  graphs     break-even\n"
        "  eager             200 ms   100 ± 5.0 ms     1.00x      1.00 GB         0       –              –\n"
        "  regional          5.00 s  50.0 ± 2.0 ms     2.00x      1.50 GB  2.50e-06       3      100 calls\n"
        "  full              40.0 s  40.0 ± 1.0 ms     2.50x      2.00 GB  3.00e-06       1      665 calls\n"
        "  hierarchical      12.0 s  99.0 ± 5.0 ms     1.01x            –         –       1  within spread\n"
        "  (cold start: median of 3; steady: median of 20 rounds; ± half the interquartile range; "
        "regional: a block's call costs 20.0 µs beside its kernels; 30 calls: 600 µs of a step of 50.0 ms)\n"
    )
    # AND so do recompiles of one reason as one row, graph breaks, and notes
    assert "model.layers.1 and 2 more      3  1.00 s, limit reached 1 time  layer_idx differs between blocks" in text
    assert "model.layers.0      1  model.py:12  call of print" in text
    assert "full          (whole model)  40.0 s  8.00 s        4.00 s    10.0 s   3.00 s   14.0 s  1.00 s" in text
    assert text.endswith("Notes\n  - the cache was empty\n  - hierarchical: experimental")


def test_text_aligns_wide_characters() -> None:
    report = Report(rest=[Rest("層", "A", "eager", "x"), Rest("ab", "B", "eager", "y")])
    rows = [line for line in render_text(report).splitlines() if line.endswith(("x", "y"))]
    assert [row.index(name) for row, name in zip(rows, "AB", strict=True)] == [7, 8]  # one character less, as wide


def test_empty_sections_are_absent() -> None:
    text, page = render_text(Report()), render_html(Report())
    assert text == "model\n\nNothing has been compiled or measured yet."
    assert "<table" not in page
    assert "<svg" not in page


@pytest.mark.parametrize(
    ("steady", "spread", "calls", "shown"),
    [
        (0.5, 0.01, 1, "1 call"),
        (0.5, 0.01, 12, "12 calls"),
        (1.0, 0.01, None, "within spread"),
        (1.5, 0.01, None, "never"),
        (0.99, 0.01, None, "within spread"),
        (0.5, 0.01, None, "–"),
        (0.99, None, None, "–"),
        (None, None, None, "–"),
    ],
)
def test_break_even_in_words(steady: float | None, spread: float | None, calls: int | None, shown: str) -> None:
    # GIVEN eager at one second a call, and a strategy beside it
    eager = Strategy(cold_seconds=1.0, steady_seconds=1.0, steady_spread=spread)
    ours = Strategy(cold_seconds=9.0, steady_seconds=steady, steady_spread=spread, break_even_calls=calls)
    # WHEN the table is printed
    page = Page(render_html(Report(strategies={"eager": eager, "regional": ours})))
    # THEN the last cell says when it pays back, or the column is not there as nothing is known
    header, _, row = page.tables["Strategies"]
    assert dict(zip(header, row, strict=True)).get("break-even", "–") == shown


def test_warnings_come_first_with_the_compilers_message_one_click_away() -> None:
    # GIVEN a group of which some blocks ran eager, one that failed, and a strategy without figures
    report = Report(
        groups=[
            Group("a", "A", 12, 8, 4, eager_reason="guard failed"),
            Group("b", "B", 2, 0, 2, failure="first line\n  second <line>"),
        ],
        strategies={"full": Strategy(failure="out of memory")},
    )
    # WHEN it is drawn
    text, page = render_text(report), render_html(report)
    # THEN all three stand before any table
    expected = [
        "4 of 12 blocks of a ran eager: guard failed",
        "2 of 2 blocks of b ran eager: first line second <line>",
        "full failed: out of memory",
    ]
    assert re.findall("^! (.*)$", text.split("\n\n")[0], re.MULTILINE) == expected
    assert page.index("4 of 12 blocks of a ran eager: guard failed") < page.index("<table")
    # AND the message keeps its lines
    assert "<pre>first line\nsecond &lt;line&gt;</pre>" in page


# -- HTML -------------------------------------------------------------------------------------------------------


def test_html_of_the_sample() -> None:
    page = Page(render_page(sample_report()))
    assert page.open == []
    assert page.tables["Strategies"][2] == [
        "regional", "5.00 s", "50.0 ± 2.0 ms", "2.00x", "1.50 GB", "2.50e-06", "3", "100 calls",
    ]  # fmt: skip
    assert page.tables["Repeated blocks"][1] == [
        "model.layers", "SampleLayer", "30", "26", "4", "2", "2", "3", "1", "4.00 s",
    ]  # fmt: skip
    assert page.tables["The rest of the model"][1:] == [
        ["model.embed_tokens", "Embedding", "eager", "no", "–", "a single kernel gains nothing"],
        ["lm_head", "Head", "compile", "yes", "1.00 s", "several kernels"],
    ]
    assert list(page.tables) == [
        "Strategies",
        "Checked region by region",
        "Repeated blocks",
        "Variants",
        "Compile time by phase",
        "The rest of the model",
        "Recompiles",
        "Graph breaks",
    ]
    assert ("td", "title", "L['self'].layer_idx == 0") in page.attributes


def test_text_and_html_hold_the_same_tables() -> None:
    text, page = render_text(sample_report()), Page(render_html(sample_report()))
    for caption, rows in page.tables.items():
        section = text.split(f"\n{caption}\n")[1].split("\n\n")[0]
        found = [re.split("  +", line.strip()) for line in section.splitlines() if not line.startswith("  (")]
        assert found == rows


@pytest.mark.parametrize("report", EVERY_REPORT)
def test_html_runs_and_fetches_nothing(report: Report) -> None:
    page = Page(render_page(report))
    assert page.open == []
    assert page.tags <= HARMLESS
    names = {name for _, name, _ in page.attributes}
    assert not [name for name in names if name.startswith("on") or name in ("href", "src", "xlink:href")]
    assert not [value for _, name, value in page.attributes if name == "style" and "url" in value]


def test_charts_in_html_are_named_and_readable_by_a_screen_reader() -> None:
    found = svgs(render_html(sample_report()))
    assert len(found) == 3
    for svg in found:
        assert svg.get("role") == "img"
        assert svg[0].tag.endswith("title")
        assert svg[0].text == svg.get("aria-label")
    assert found[1].get("aria-label") == (
        "Steady time per call: eager 100 ms, regional 50.0 ms, full 40.0 ms, hierarchical 99.0 ms"
    )
    assert found[2].get("aria-label") == (
        "Total time against number of calls. regional pays back after 100 calls; full pays back after 665 calls"
    )
    scopes = [value for tag, name, value in Page(render_html(sample_report())).attributes if name == "scope"]
    assert set(scopes) == {"row", "col"}


def test_bars_in_html_are_as_long_as_the_figures() -> None:
    # GIVEN two groups, one compiled three times as long as the other
    report = Report(
        groups=[
            Group("a", "A", 2, 2, compile_seconds=1.0, phases={"dynamo": 1.0}),
            Group("b", "B", 2, 2, compile_seconds=3.0, phases={"dynamo": 1.0, "kernels": 2.0}),
        ]
    )
    # WHEN they are drawn
    (svg,) = svgs(render_html(report))
    # THEN the largest comes first and every segment is in proportion
    widths = [float(e.get("width", "")) for e in svg if e.tag.endswith("rect") and len(e)]
    assert widths == pytest.approx([widths[2], 2 * widths[2], widths[2]], rel=1e-3)
    hints = [e[0].text for e in svg if e.tag.endswith("rect") and len(e)]
    assert hints[1] == "b (B)\n3.00 s in all\nKernel compile (C++/Triton): 2.00 s, 67 %"


# -- Plotly -----------------------------------------------------------------------------------------------------


def test_figure_says_where_compile_time_went() -> None:
    # GIVEN the sample, WHEN it is drawn
    drawn = figure_dict(sample_report())
    # THEN the phases are stacked in the order in which they happen, a row for each region under its strategy
    assert [t["name"] for t in traces(drawn, type="bar", legend="legend")] == [
        PHASE_TITLES[phase] for phase in ("dynamo", "aot_autograd", "inductor", "codegen", "kernels", "other")
    ]
    assert drawn["layout"]["yaxis"]["ticktext"] == [
        "<b>regional</b>", "model.layers", "lm_head", "<b>full</b>", "(whole model)", "<b>hierarchical</b>",
        "(whole model)",
    ]  # fmt: skip
    (dynamo,) = traces(drawn, name=PHASE_TITLES["dynamo"])
    assert dict(zip(dynamo["y"], dynamo["x"], strict=True)) == {1: 0.5, 4: 8.0, 6: 6.0}
    assert dynamo["hovertext"][1] == (
        "full: (whole model) (SampleForCausalLM)<br>40.0 s in all, 1 graph<br>"
        "Dynamo (tracing, guards): 8.00 s, 20 &#37;"
    )
    # AND what no phase accounts for is drawn as other, so a bar is as long as its figure
    (other,) = traces(drawn, name=PHASE_TITLES["other"])
    assert (other["x"], other["y"]) == ([1.0], [4])


def test_figure_says_what_compiling_bought() -> None:
    drawn = figure_dict(sample_report())
    (bars,) = traces(drawn, name="steady time")
    assert bars["x"] == [100.0, 50.0, 40.0, 99.0]
    assert bars["error_x"]["array"] == [5.0, 2.0, 1.0, 5.0]
    assert drawn["layout"]["yaxis2"]["ticktext"] == ["eager", "regional", "full", "hierarchical"]
    (labels,) = traces(drawn, mode="text", yaxis="y2")
    assert labels["text"] == [" <b>1.00x</b>", " <b>2.00x</b>", " <b>2.50x</b>", " <b>1.01x</b>"]
    assert f"<b>{STEADY} (ms), and speed against eager</b>" in titles(drawn)


def test_figure_says_when_compiling_is_paid_back() -> None:
    drawn = figure_dict(sample_report())
    lines = {trace["name"]: trace for trace in traces(drawn, mode="lines")}
    assert list(lines) == ["eager", "regional", "full", "hierarchical"]
    at = dict(zip(lines["regional"]["x"], lines["regional"]["y"], strict=True))
    assert (at[1], at[100], at[1000]) == (5.0, pytest.approx(9.95), pytest.approx(54.95))
    assert len({str(trace["line"]) for trace in lines.values()}) == 4
    assert len({trace["line"].get("dash") for trace in lines.values()}) == 4
    marks = traces(drawn, mode="lines+markers")
    assert [(mark["x"][0], mark["y"][0]) for mark in marks] == [(100, 9.95), (665, 66.56)]
    labels = [a["text"] for a in drawn["layout"]["annotations"] if a["xref"] == "x3"]
    assert labels == ["regional: <b>100 calls</b>", "full: <b>665 calls</b>"]


def test_without_strategies_the_bars_are_the_groups_and_the_rest() -> None:
    drawn = figure_dict(replace(sample_report(), strategies={}))
    assert titles(drawn) == [f"<b>{COMPILE}</b>"]
    assert drawn["layout"]["yaxis"]["ticktext"] == ["model.layers", "lm_head"]


@pytest.mark.parametrize("number", [12, 13])
def test_as_many_regions_as_there_is_room_for_stand_for_themselves(number: int) -> None:
    labels = figure_dict(many_regions(number))["layout"]["yaxis"]["ticktext"]
    assert labels == [f"stage{index}.blocks" for index in reversed(range(number))]


@pytest.mark.parametrize("number", [14, 100, 10_000])
def test_many_regions_are_merged_into_the_largest_and_the_others(number: int) -> None:
    # GIVEN so many groups that took 1, 2, 3, ... seconds, WHEN they are drawn
    report = many_regions(number)
    drawn = figure_dict(report)
    # THEN the twelve largest have a bar each and no second is lost
    labels = drawn["layout"]["yaxis"]["ticktext"]
    assert labels[0] == f"stage{number - 1}.blocks"
    assert labels[12:] == [f"{number - 12} others"]
    (bars,) = traces(drawn, type="bar")
    assert sum(bars["x"]) == pytest.approx(number * (number + 1) / 2, rel=1e-5)
    # AND neither text nor page grow without bound
    assert len(json.dumps(drawn)) < 10_000
    assert len(render_text(report)) < 10_000
    assert len(render_html(report)) < 60_000
    if number == 10_000:
        assert "… and 9960 more" in render_text(report)
        assert "… and 9900 more" in render_html(report)


def test_the_figure_is_valid_and_goes_round() -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    for report in EVERY_REPORT:
        drawn = figure(report)
        assert isinstance(drawn, graph_objects.Figure)
        assert len(drawn.data) == len(figure_dict(report)["data"])
        assert len(drawn.to_json()) < 200_000
        assert drawn.layout.width is None
        assert drawn.layout.paper_bgcolor == "rgba(0,0,0,0)"


def test_panels_lie_under_each_other_without_touching() -> None:
    layout = figure_dict(sample_report())["layout"]
    domains = [layout[name]["domain"] for name in ("yaxis", "yaxis2", "yaxis3")]
    assert all(0 <= low < high <= 1 for low, high in domains)
    assert domains[0][0] > domains[1][1]
    assert domains[1][0] > domains[2][1]
    # AND each legend lies between the panel above and its own
    assert domains[0][1] < layout["legend"]["y"] <= 1
    assert domains[2][1] < layout["legend3"]["y"] < domains[1][0]


def test_figure_without_plotly_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN an environment in which plotly cannot be imported
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    # WHEN a figure is asked for, THEN the error says what to install
    with pytest.raises(UsageError, match="pip install plotly"):
        figure(sample_report())
    # AND the bundle goes without it
    assert list(mime_bundle(sample_report())) == [MIME_TYPE, "text/html", "text/plain"]


def test_rendering_imports_neither_torch_nor_plotly() -> None:
    program = (
        "import sys\n"
        "from nbcompile.report import Report\n"
        "from nbcompile.render.mime import mime_bundle\n"
        "mime_bundle(Report())\n"
        "print([name for name in ('torch', 'plotly', 'IPython', 'ipywidgets') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# -- absent figures ---------------------------------------------------------------------------------------------

NAMES = ("eager", "regional", "full", "hierarchical")
SUBSETS = [subset for size in range(5) for subset in itertools.combinations(NAMES, size)]


@pytest.mark.parametrize("names", SUBSETS, ids="-".join)
def test_every_combination_of_strategies(names: tuple[str, ...]) -> None:
    # GIVEN some of the strategies and nothing else
    all_of_them = sample_report().strategies
    report = Report(strategies={name: all_of_them[name] for name in names})
    # WHEN they are drawn
    drawn, page = figure_dict(report), render_html(report)
    # THEN exactly the panels with data are there, in both pictures
    expected = []
    if set(names) - {"eager"}:
        expected.append(COMPILE)
    if names:
        expected.append(STEADY)
    if set(names) - {"eager"}:
        expected.append(PAY_BACK)
    assert [title.removeprefix("<b>").split(" (ms)")[0].removesuffix("</b>") for title in titles(drawn)] == expected
    assert [caption.split(" (ms)")[0] for caption in re.findall("<figcaption>(.*?)</figcaption>", page)] == expected
    assert len(svgs(page)) == len(expected)
    # AND speeds are only told where there is an eager to compare with
    assert ("2.00x" in page) == ({"eager", "regional"} <= set(names))
    assert (PLOTLY_MIME_TYPE in mime_bundle(report)) == bool(names)


@pytest.mark.parametrize("field", ["cold_seconds", "steady_seconds", "steady_spread", "break_even_calls", "regions"])
def test_a_figure_that_was_not_measured_is_absent(field: str) -> None:
    # GIVEN the sample in which one figure was measured for no strategy
    report = sample_report()
    for strategy in report.strategies.values():
        setattr(strategy, field, [] if field == "regions" else None)
    # WHEN it is drawn
    drawn, text = figure_dict(report), render_text(report)
    shown = " ".join(titles(drawn))
    # THEN what depends on it is absent, and only that
    assert (STEADY in shown) == (field != "steady_seconds")
    assert (PAY_BACK in shown) == (field not in ("cold_seconds", "steady_seconds"))
    assert bool(traces(drawn, mode="lines+markers")) == (
        field not in ("cold_seconds", "steady_seconds", "break_even_calls")
    )
    assert ("±" in text) == (field not in ("steady_seconds", "steady_spread"))
    assert COMPILE in shown
    assert len(svgs(render_html(report))) == len(titles(drawn))


def test_zeros_are_drawn_as_nothing_and_break_nothing() -> None:
    report = Report(
        groups=[Group("a", "A", 2)],
        strategies={
            "eager": Strategy(cold_seconds=0.0, steady_seconds=0.0, steady_spread=0.0),
            "full": Strategy(cold_seconds=0.0, steady_seconds=0.0, regions=[RegionTime("", "A", 0.0)]),
        },
    )
    assert figure_dict(report)["data"] == []
    assert svgs(render_html(report)) == []
    assert "0 s" in render_text(report)


# -- hostile reports --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("report", [hostile_report(), hostile_tuning()])
def test_a_hostile_report_is_drawn_as_letters(report: Report) -> None:
    # GIVEN a report in which every string is an attack and every number at its limit
    # WHEN it is drawn in every way
    text, page, drawn = render_text(report), render_page(report), figure_dict(report)
    # THEN nothing of it is markup, a terminal escape, half a character or a number JSON does not have
    for picture in (text, page, json.dumps(drawn, allow_nan=False)):
        picture.encode("utf-8")
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", picture)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert max(len(line) for line in text.splitlines()) < 2000
    # AND nothing is longer than a reader can want
    assert len(page) < 400_000
    assert len(text) < 50_000
    assert len(json.dumps(drawn)) < 200_000
    for svg in svgs(page):
        for element in svg.iter():
            for name in ("x", "y", "width", "height", "cx", "cy", "d"):
                assert not re.search("nan|inf|e[+]", element.get(name, ""))


@pytest.mark.parametrize("report", [hostile_report(), hostile_tuning()])
def test_plotly_is_given_no_markup_of_the_reports(report: Report) -> None:
    # GIVEN the hostile report, WHEN it is drawn, THEN only our own tags reach plotly, which interprets some
    strings: list[str] = []

    def collect(value: Any) -> None:
        if isinstance(value, str):
            strings.append(value)
        elif isinstance(value, dict):
            for item in value.values():
                collect(item)
        elif isinstance(value, list):
            for item in value:
                collect(item)

    collect(figure_dict(report))
    assert any("script" in string for string in strings)
    for string in strings:
        ours = re.sub("</?b>|<br>", "", string)
        assert not set("<>$%") & set(ours), string
        assert re.fullmatch("([^&]|&#[0-9]+;)*", ours), string


def test_a_long_path_keeps_its_ends() -> None:
    path = "model.vision_tower.encoder.stages.3.transformer_layers"
    report = Report(groups=[Group(path, "A", 2, 2, compile_seconds=1.0)])
    (label,) = figure_dict(report)["layout"]["yaxis"]["ticktext"]
    assert label == "model.v…sformer_layers"


# -- a tuning ---------------------------------------------------------------------------------------------------


def test_a_tuning_is_told_as_advice_and_as_a_table() -> None:
    # GIVEN a tuning for 1000 calls WHEN it is drawn as text
    text = render_text(tuned_report())
    # THEN its advice is one sentence with the total times and where something else is better
    assert (
        "For 1000 calls: regional, 67.4 s in total; eager 125 s. "
        "Up to 79 calls: do not compile. From 3002 calls on: full." in text
    )
    # AND each setting is a row with its total time, those that are best for some number of calls first
    rows = [line for line in text.splitlines() if line.startswith("  ")]
    assert [row.split("  ")[1] for row in rows[1:8]] == [
        "eager",
        "regional",
        "full",
        "regional, rest=compile",
        "regional, backend=hasty",
        "regional, backend=broken",
        "full, mode=max-autotune",
    ]
    assert "67.4 s" in rows[2]
    assert rows[4].rstrip().endswith("stopped for a reason")
    # AND a wrong result is a warning, in the page too
    assert "! regional, backend=hasty is never recommended: wrong for a reason" in text
    page = render_html(tuned_report())
    assert "For 1000 calls: regional, 67.4 s in total" in page
    assert "is never recommended" in page


def test_the_advice_may_be_not_to_compile() -> None:
    # GIVEN a tuning in which what compiling gains is within the spread
    report = tuned_report()
    report.tuning = report.tuning[:2]
    report.tuning[1].figures.steady_spread = 0.07
    # THEN the advice is eager, and says why what looks quicker is not
    text = render_text(report)
    assert "For 1000 calls: do not compile, 125 s in total. What regional gains is within the spread" in text
    # AND so it is for few calls
    few = tuned_report()
    few.settings["calls"] = 10
    later = "From 80 calls on: regional. From 3002 calls on: full."
    assert f"For 10 calls: do not compile, 1.25 s in total. {later}" in render_text(few)
    # AND where nothing was measured, nothing is recommended
    none = replace(tuned_report(), tuning=tuned_report().tuning[-2:])
    assert "nothing can be recommended" in render_text(none)


def test_the_charts_show_a_tunings_settings_but_no_wrong_ones() -> None:
    drawn = figure_dict(tuned_report())
    lines = [trace["name"] for trace in drawn["data"] if trace.get("mode") == "lines"]
    assert lines == ["eager", "regional", "full", "regional, rest=compile"]
    assert "hasty" not in json.dumps(drawn["data"])
    page = render_html(tuned_report())
    assert len(svgs(page)) == 3


def test_nothing_of_a_large_tuning_is_large() -> None:
    # GIVEN as many settings as a tuning may have, each with many regions
    report = tuned_report()
    regions = [RegionTime(f"stage{index}.blocks", "Block", 1.0, {"dynamo": 1.0}, 1) for index in range(100)]
    report.tuning = [
        replace(report.tuning[1], settings={"strategy": "regional", "mode": f"mode{index}"}) for index in range(256)
    ]
    for index, trial in enumerate(report.tuning):
        trial.figures = Strategy(float(index), 1, 1.0 / (index + 1), 0.0, 5, regions=regions if index < 4 else [])
    # THEN each way of drawing it is small
    assert len(json.dumps(figure_dict(report))) < 200_000
    assert len(render_html(report)) < 200_000
    assert len(render_text(report)) < 50_000


# -- the bundle -------------------------------------------------------------------------------------------------


def test_the_bundle_carries_the_report_and_three_pictures_of_it() -> None:
    report = sample_report()
    bundle = mime_bundle(report)
    assert list(bundle) == [MIME_TYPE, PLOTLY_MIME_TYPE, "text/html", "text/plain"]
    assert Report.from_dict(bundle[MIME_TYPE]) == report
    assert bundle["text/html"] == render_html(report)
    assert bundle["text/plain"] == render_text(report)
    assert report._repr_mimebundle_() == bundle


@pytest.mark.parametrize("report", [*EVERY_REPORT[:4], hostile_report(50), hostile_tuning(50)])
def test_the_bundle_can_be_saved_in_a_notebook(report: Report) -> None:
    # GIVEN a notebook with the bundle as an output
    bundle = mime_bundle(report)
    output = nbformat.v4.new_output("display_data", data=bundle, metadata={})
    cell = nbformat.v4.new_code_cell("report", outputs=[output])
    notebook = nbformat.v4.new_notebook(cells=[cell])
    # WHEN it goes to JSON and back
    nbformat.validate(notebook)
    again = nbformat.reads(json.dumps(notebook, allow_nan=False), as_version=4)
    # THEN it is the same
    assert json.loads(json.dumps(bundle, allow_nan=False)) == bundle
    assert (
        again.cells[0].outputs[0].data[PLOTLY_MIME_TYPE if PLOTLY_MIME_TYPE in bundle else MIME_TYPE]
        == (bundle[PLOTLY_MIME_TYPE if PLOTLY_MIME_TYPE in bundle else MIME_TYPE])
    )


def test_rendering_leaves_the_report_as_it_was() -> None:
    report, untouched = sample_report(), sample_report()
    mime_bundle(report)
    assert report == untouched


def test_ten_thousand_recompiles_of_one_reason_are_one_row() -> None:
    recompiles = [Recompile(f"layers.{index}", HOSTILE, "guard", 0.001) for index in range(10_000)]
    page = Page(render_html(Report(groups=[Group("layers", "A", 10_000, 10_000, recompiles=recompiles)])))
    (row,) = page.tables["Recompiles"][1:]
    assert row[:3] == ["layers.0 and 9999 more", "10000", "10.0 s"]


# -- a report that is not finished -----------------------------------------------------------------------------------

COMPILING = Snapshot(
    stage="regional: cold start (compiling)",
    region="model.layers.0",
    class_name="SampleLayer",
    phase="kernels",
    elapsed_seconds=12.34,
    last_seconds=100.0,
    remaining_seconds=87.66,
    done=0,
    expected=1,
    at_least=True,
    unit="graphs",
)


@pytest.mark.parametrize(
    ("snapshot", "line"),
    [
        (
            COMPILING,
            "regional: cold start (compiling) · model.layers.0 (SampleLayer), Kernel compile (C++/Triton) · "
            "12.3 s (last time 1 min 40 s) · 0 of at least 1 graph done · about 1 min 28 s left",
        ),
        (Snapshot("full: memory"), "full: memory"),
        (Snapshot("a", elapsed_seconds=0.04, remaining_seconds=0.2), "a · 0.0 s · about 1 s left"),
        (Snapshot("a", phase="backward", done=1, unit="graphs"), "a · Backward · 1 graph done"),
        (Snapshot("a", done=2, expected=6, unit="rounds"), "a · 2 of 6 rounds done"),
        (Snapshot("a", elapsed_seconds=59.96), "a · 1 min 0 s"),
    ],
)
def test_where_work_stands_is_one_line_of_what_is_known(snapshot: Snapshot, line: str) -> None:
    report = Report(progress=snapshot)
    assert render_text(report) == line
    assert f'<p class="nbc-progress">{line}</p>' in render_html(report)


def test_an_unfinished_report_shows_its_line_and_the_charts_that_there_are() -> None:
    # GIVEN a report whose work goes on
    report = replace(sample_report(), progress=COMPILING)
    # WHEN it is shown
    bundle = mime_bundle(report)
    # THEN it has the charts of the finished one, and the report itself, which can be read again
    assert svg_titles(bundle["text/html"]) == svg_titles(render_html(sample_report())) != []
    assert Report.from_dict(json.loads(json.dumps(bundle[MIME_TYPE]))) == report
    # AND the charts need not be drawn anew for another line
    drawn = LiveBundle(report)
    later = replace(COMPILING, elapsed_seconds=13.0)
    assert drawn.at(COMPILING) == bundle
    assert drawn.at(later) == mime_bundle(replace(report, progress=later))


def svg_titles(page: str) -> list[str]:
    return re.findall(r"<figcaption>(.*?)</figcaption>", page)


@pytest.mark.parametrize("regions", [1, 30, 100])
def test_an_unfinished_report_is_small_enough_to_be_sent_often(regions: int) -> None:
    # GIVEN a model of many regions under three strategies WHEN its unfinished report is shown
    times = [
        RegionTime(f"encoder.stage{n}.blocks", "Block", 1.0 + n, dict.fromkeys(PHASE_TITLES, 1.0))
        for n in range(regions)
    ]
    strategies = {name: Strategy(1.0, steady_seconds=0.1, regions=times) for name in ("eager", "regional", "full")}
    report = Report(strategies=strategies, progress=COMPILING)
    # THEN it takes less than 50 kB, and the figure of the finished one less than 200 kB
    live = mime_bundle(report)
    assert len(json.dumps(live)) < 50_000
    assert (MIME_TYPE in live) == (regions == 1)  # a large report is left to the finished output
    assert LiveBundle(report).size == pytest.approx(len(json.dumps(live)), rel=0.2, abs=1000)
    assert len(json.dumps(figure_dict(replace(report, progress=None)))) < 200_000


def test_a_hostile_snapshot_is_drawn_as_letters() -> None:
    # GIVEN a snapshot from anywhere WHEN it is drawn THEN nothing of it is markup or a number that cannot be
    snapshot = Snapshot(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1e308, -1.0, 1e308, 10**400, -(10**400), True, HOSTILE)
    page = render_html(Report(progress=snapshot))
    assert set(Page(page).tags) <= HARMLESS
    assert "<script" not in page
    page.encode()
    assert render_text(Report(progress=snapshot)).isprintable()


@pytest.mark.parametrize(
    ("decade", "shown"), [(-7, "0.1 µs"), (-6, "1 µs"), (-2, "10 ms"), (0, "1 s"), (3, "1000 s"), (6, "1000000 s")]
)
def test_a_decade_is_written_in_the_unit_of_times(decade: int, shown: str) -> None:
    assert units.decade_seconds(decade) == shown


def _measured(cold: float, steady: float, spread: float = 0.001) -> Strategy:
    return Strategy(cold_seconds=cold, steady_seconds=steady, steady_spread=spread, steady_repeats=5)


@pytest.mark.parametrize(
    ("strategies", "said"),
    [
        (
            {"eager": _measured(0.3, 0.3), "regional": _measured(5, 0.28), "full": _measured(30, 0.25)},
            "Up to 236 calls: do not compile. From 237 calls on: regional. From 835 calls on: full.",
        ),
        ({"eager": _measured(0.3, 0.2), "regional": _measured(5, 0.28)}, "Compiling does not pay here"),
        ({"eager": _measured(0.3, 0.3, spread=0.1), "regional": _measured(5, 0.28)}, "Compiling does not pay here"),
        ({"eager": _measured(0.3, 0.3)}, ""),
        ({"regional": _measured(5, 0.28), "full": _measured(30, 0.25)}, ""),
        ({"eager": _measured(0.3, 0.3), "regional": Strategy(failure="no compiler")}, ""),
        ({}, ""),
    ],
)
def test_a_comparison_says_what_is_best_for_how_many_calls(strategies: dict[str, Strategy], said: str) -> None:
    report = Report(strategies=strategies)
    line = recommendation(report)
    assert line.startswith(said)
    assert bool(line) == bool(said)
    assert line in render_text(report)
    assert line in html.unescape(render_html(report))


def test_a_notebooks_figure_says_what_must_not_be_missed() -> None:
    # GIVEN a report with blocks that ran eager: in a notebook the figure is shown in place of tables and warnings
    drawn = figure_dict(sample_report())
    # THEN the figure says so, above the charts, with what is best for how many calls
    assert words(drawn) == [
        "Up to 98 calls: do not compile. From 99 calls on: regional. From 3501 calls on: full.",
        "4 of 30 blocks of model.layers ran eager: recompile limit reached",
        "regional: model.layers.1 is the first region that differs from eager on the same input; 1 of 3 do",
    ]
    tops = [a["y"] for a in drawn["layout"]["annotations"] if a["xref"] == "paper"]
    assert tops == sorted(tops, reverse=True)
    assert len(set(tops)) == len(tops)
    # AND of many warnings the first few, and how many there are
    group = replace(sample_report().groups[0], eager=1, eager_reason="a reason")
    many = replace(sample_report(), groups=[replace(group, path=f"part{i}") for i in range(8)])
    assert words(figure_dict(many))[-1].startswith("… and 6 more warnings")
    assert max(len(line) for a in drawn["layout"]["annotations"] for line in a["text"].split("<br>")) <= 100
    # AND what a report holds is shown as letters
    assert "<script" not in json.dumps(figure_dict(hostile_report()))


def test_a_hundred_regions_in_three_strategies_fit_into_a_notebook() -> None:
    # GIVEN a report of a hundred regions that are all different, measured in three ways
    def regions() -> list[RegionTime]:
        phases = {phase: 1 / (7 + number) for number, phase in enumerate(PHASES)}
        return [RegionTime(f"model.layers.{i}", "DecoderLayer", 1.0 + i / 7, phases) for i in range(100)]

    report = Report(
        strategies={
            name: Strategy(10.0, 1, 0.1, 0.01, 5, regions=regions()) for name in ("eager", "regional", "full", "other")
        }
    )
    # WHEN it is shown THEN neither the figure nor any other picture of it is bigger than 200 kB
    bundle = report._repr_mimebundle_()
    assert {kind: len(json.dumps(data)) for kind, data in bundle.items() if len(json.dumps(data)) > 200_000} == {}
