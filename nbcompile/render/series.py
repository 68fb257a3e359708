"""The figures behind the three charts, taken from a report once, so that Plotly and SVG draw the same.

Each chart answers one question: where did compile time go, what did it buy, and when is it paid back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..report import PHASE_TITLES, PHASES, Group, Report, Rest, Strategy, Trial
from .units import ABSENT, amount, clean, count, middle, seconds

#: How many strategies are drawn. Their tables list more.
MOST_STRATEGIES = 8

#: How many bars of regions are drawn altogether, and for one strategy.
MOST_BARS = 36
MOST_BARS_OF_ONE = 12

#: Okabe and Ito's palette, made to be told apart by colour-blind readers. The order in a bar is that of PHASES.
PHASE_COLOURS = {
    "dynamo": "#56B4E9",
    "aot_autograd": "#E69F00",
    "inductor": "#009E73",
    "codegen": "#F0E442",
    "kernels": "#0072B2",
    "backward": "#D55E00",
    "other": "#CC79A7",
}

# Paul Tol's "bright" palette: also safe, and not that of the phases, as a colour ought to mean one thing.
_NAMED_COLOURS = {"eager": "#888888", "regional": "#4477AA", "full": "#EE6677", "hierarchical": "#228833"}
_OTHER_COLOURS = ("#AA3377", "#CCBB44", "#66CCEE", "#EE8866", "#77AADD", "#99DDFF", "#44BB99", "#BBCC33")

#: Line patterns as dashes and gaps in pixels, so that no line depends on its colour alone.
DASHES = ("", "6,3", "2,2", "8,3,2,3", "10,4", "4,2", "1,3", "12,3,3,3")

_FARTHEST = 10**8  # calls; nobody waits longer


@dataclass(frozen=True)
class Bar:
    """The compile time of one region, or of several that are too small to be drawn one by one."""

    label: str
    class_name: str
    seconds: float
    phases: dict[str, float]
    graphs: int
    merged: int = 0


@dataclass(frozen=True)
class Section:
    """The bars of one strategy; ``name`` is ``""`` where the report holds no strategies."""

    name: str
    bars: list[Bar]

    @property
    def seconds(self) -> float:
        return sum(bar.seconds for bar in self.bars)


@dataclass(frozen=True)
class Steady:
    """One strategy's steady time: the median and half of its interquartile range."""

    name: str
    seconds: float
    half_spread: float | None
    speed: float | None
    repeats: int
    colour: str
    dispatch: str = ""


@dataclass(frozen=True)
class Crossing:
    """The call at which compiling has paid for itself, and the seconds that have gone by then."""

    calls: int
    seconds: float

    @property
    def words(self) -> str:
        return f"{count(self.calls)} call{'s' * (self.calls != 1)}"


@dataclass(frozen=True)
class Line:
    """Total time against the number of calls. ``even`` is where compiling has paid for itself."""

    name: str
    cold: float
    steady: float
    points: list[tuple[int, float]]
    even: Crossing | None
    colour: str
    dash: str


def compile_sections(report: Report, *, most: int | None = None) -> list[Section]:
    """Where compile time went, largest first: by strategy if that was measured, else by group and rest.

    Args:
        most: how many bars a strategy may have before its smallest are merged; chosen to fit if ``None``.
    """
    every = ordered_strategies(report) if report.tuning else list(report.strategies.items())
    measured = [(name, strategy) for name, strategy in every if strategy.regions][:MOST_STRATEGIES]
    if most is None:
        most = min(MOST_BARS_OF_ONE, MOST_BARS // max(1, len(measured)))
    found: list[tuple[str, list[Bar | None]]]
    if measured:
        found = [
            (
                clean(name, 40) or "(no name)",
                [
                    _bar(r.path or "(whole model)", r.class_name, r.seconds, r.phases, r.graphs)
                    for r in strategy.regions
                ],
            )
            for name, strategy in measured
        ]
    else:
        parts: list[Group | Rest] = [*report.groups, *report.rest]
        found = [("", [_bar(p.path or "(model)", p.class_name, p.compile_seconds, p.phases, p.graphs) for p in parts])]
    sections = [Section(name, _merge([bar for bar in bars if bar], most)) for name, bars in found]
    return [section for section in sections if section.bars]


def phases_of(sections: list[Section]) -> list[str]:
    """The phases that took any time in ``sections``, in the order in which they happen."""
    return [phase for phase in PHASES if any(phase in bar.phases for section in sections for bar in section.bars)]


def steady_times(report: Report) -> list[Steady]:
    """What compiling bought, eager first."""
    found: list[Steady] = []
    for index, (name, strategy) in enumerate(ordered_strategies(report)):
        value = amount(strategy.steady_seconds)
        if value is not None and len(found) < MOST_STRATEGIES:
            found.append(
                Steady(
                    clean(name, 40) or "(no name)",
                    value,
                    half_spread(strategy),
                    speed(eager_of(report), strategy),
                    strategy.steady_repeats,
                    colour(name, index),
                    dispatch(strategy),
                )
            )
    return found if any(steady.seconds for steady in found) else []


def pay_back(report: Report) -> list[Line]:
    """When compiling is paid back, eager first; empty unless a strategy other than eager has both figures."""
    measured = [
        (index, name, strategy, cold, steady, _even_calls(strategy))
        for index, (name, strategy) in enumerate(ordered_strategies(report))
        for steady in [amount(strategy.steady_seconds)]
        for cold in [steady if name == "eager" else amount(strategy.cold_seconds)]  # as Trial.total_seconds counts
        if cold and steady
    ][:MOST_STRATEGIES]
    if not any(name != "eager" for _, name, *_ in measured):
        return []
    latest = max((even or 0 for *_, even in measured), default=0)
    decades = max(3, math.ceil(math.log10(latest or 1) / 0.62))  # leaves room for a label behind the last crossing
    calls = sorted({round(10 ** (step / 6)) for step in range(6 * decades + 1)})
    return [
        Line(
            clean(name, 40) or "(no name)",
            cold,
            steady,
            [(n, cold + (n - 1) * steady) for n in calls],
            Crossing(even, cold + (even - 1) * steady) if even else None,
            colour(name, index),
            DASHES[index % len(DASHES)],
        )
        for index, name, _, cold, steady, even in measured
    ]


def crossings(lines: list[Line]) -> list[tuple[Line, Crossing, int]]:
    """Where lines pay back, earliest first, each with the level of its label above the foot of the chart.

    Crossings lie close together. Each label stands to the right of its own line, which ends there; the later the
    crossing the higher its label, so that no label lies on another one's line.
    """
    found = sorted(((line, line.even) for line in lines if line.even), key=lambda item: item[1].calls)
    return [(line, even, level) for level, (line, even) in enumerate(found)]


def decades(lowest: float, highest: float) -> list[int]:
    """The powers of ten to write at a logarithmic axis between two of them, at most seven."""
    first, last = math.ceil(lowest), math.floor(highest)
    return list(range(first, last + 1, max(1, math.ceil((last - first) / 6))))


def ordered_strategies(report: Report) -> list[tuple[str, Strategy]]:
    """What was measured, with eager, which the others are compared with, in front.

    Of a tuning those are its settings: those that are the best for some number of calls next, then the quicker before
    the slower, and of settings with a wrong result none.
    """
    if not report.tuning:
        return sorted(report.strategies.items(), key=lambda item: item[0] != "eager")
    return [(trial.name, trial.figures) for trial in ordered_trials(report) if trial.outcome in ("measured", "stopped")]


def ordered_trials(report: Report) -> list[Trial]:
    """A tuning's settings: eager, the best for some number of calls, then by total time, then those without figures."""
    winners = [id(trial) for _, trial in report.crossings()]

    def place(trial: Trial) -> tuple[bool, bool, float]:
        total = trial.total_seconds(report.tuned_calls) if trial.outcome in ("measured", "stopped") else None
        return trial.name != "eager", id(trial) not in winners, math.inf if total is None else total

    return sorted(report.tuning, key=place)


def eager_of(report: Report) -> Strategy | None:
    """The figures that the others are compared with."""
    return next((figures for name, figures in ordered_strategies(report) if name == "eager"), None)


def half_spread(strategy: Strategy) -> float | None:
    """What is drawn and written after "±": half of the interquartile range, so that both ends together span it."""
    spread = amount(strategy.steady_spread)
    return None if spread is None else spread / 2


def speed(eager: Strategy | None, strategy: Strategy) -> float | None:
    """How many times as fast as eager a call is."""
    theirs, ours = amount(eager.steady_seconds) if eager else None, amount(strategy.steady_seconds)
    return amount(theirs / ours) if theirs and ours else None


def dispatch(strategy: Strategy) -> str:
    """What calling a strategy's compiled blocks costs beside their kernels, in words; ``""`` if it was not measured."""
    one, calls, step = map(amount, (strategy.dispatch_seconds, strategy.dispatch_calls, strategy.steady_seconds))
    if one is None or not calls:
        return ""
    words = f"a block's call costs {seconds(one)} beside its kernels"
    if calls == 1:
        return words if step is None else f"{words}, of a step of {seconds(step)}"
    of = "a step" if step is None else f"a step of {seconds(step)}"
    return f"{words}; {count(calls)} calls: {seconds(calls * one)} of {of}"


def break_even(eager: Strategy | None, name: str, strategy: Strategy) -> str:
    """When compiling has paid for itself, in words.

    Without a number of calls, a difference that the times' own variation can explain is the answer, and else "never"
    where later calls are slower; what is left was not measured.
    """
    if name == "eager":
        return ABSENT
    if strategy.break_even_calls is not None:
        calls = count(strategy.break_even_calls)
        return calls if calls == ABSENT else f"{calls} call{'s' * (calls != '1')}"
    theirs, ours = amount(eager.steady_seconds) if eager else None, amount(strategy.steady_seconds)
    if eager is None or theirs is None or ours is None:
        return ABSENT
    if strategy.verdict:
        return {"level": "level", "slower": "never"}.get(strategy.verdict, ABSENT)
    spreads = [spread for spread in (amount(eager.steady_spread), amount(strategy.steady_spread)) if spread is not None]
    if spreads and abs(theirs - ours) <= sum(spreads):
        return "within spread"
    return "never" if ours >= theirs else ABSENT


def describe_bar(section: Section, bar: Bar) -> list[str]:
    """All that is known about a bar, line by line: what a reader sees who points at it."""
    strategy = f"{section.name}: " if section.name else ""
    graphs = f", {count(bar.graphs)} graph{'s' * (bar.graphs != 1)}" if bar.graphs > 0 else ""
    class_name = f" ({clean(bar.class_name, 60)})" if bar.class_name else ""
    return [f"{strategy}{middle(bar.label, 80)}{class_name}", f"{seconds(bar.seconds)} in all{graphs}"]


def describe_phase(bar: Bar, phase: str) -> str:
    """One phase of a bar and its share."""
    taken = bar.phases[phase]
    return f"{PHASE_TITLES[phase]}: {seconds(taken)}, {100 * taken / sum(bar.phases.values()):.0f} %"


def _bar(path: str, class_name: str, total: float | None, phases: dict[str, float], graphs: int) -> Bar | None:
    """One region's bar. What its phases do not account for, and phases of a newer version, count as ``other``."""
    split = dict.fromkeys(PHASES, 0.0)
    for phase, taken in phases.items():
        split[phase if phase in split else "other"] += amount(taken) or 0.0
    named = sum(split.values())
    whole = amount(total)
    if whole and whole - named > 1e-3 * whole:
        split["other"] += whole - named
    shown = {phase: taken for phase, taken in split.items() if taken > 0}
    if len(shown) > 1 and shown.get("other", 0.0) < 1e-3 * sum(shown.values()):
        shown.pop("other", None)  # rounding between the compiler's clocks: nobody could see it, yet it has a legend
    if not shown:
        return None
    return Bar(path, class_name, whole or named, shown, graphs)


def _merge(bars: list[Bar], most: int) -> list[Bar]:
    bars = sorted(bars, key=lambda bar: -bar.seconds)
    if len(bars) <= most + 1:  # one bar of "1 other" would take the room of the bar it hides
        return bars
    small = bars[most:]
    phases: dict[str, float] = {}
    for phase in PHASES:
        if taken := sum(bar.phases.get(phase, 0.0) for bar in small):
            phases[phase] = taken
    total, graphs = sum(bar.seconds for bar in small), sum(bar.graphs for bar in small)
    return [*bars[:most], Bar(f"{len(small)} others", "", total, phases, graphs, len(small))]


def _even_calls(strategy: Strategy) -> int | None:
    calls = strategy.break_even_calls
    return calls if calls is not None and 1 <= calls <= _FARTHEST else None


def colour(name: str, index: int) -> str:
    """A strategy's colour: its own if it is a known one, else one for its place."""
    return _NAMED_COLOURS.get(name) or _OTHER_COLOURS[index % len(_OTHER_COLOURS)]
