"""What a report says in words: its head, its warnings and its tables, as strings that text and HTML only lay out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..report import PHASE_TITLES, PHASES, Rank, Recompile, RegionCheck, Report, Snapshot, Strategy
from .advice import is_eager, number_of_calls
from .series import break_even, compile_sections, dispatch, half_spread, ordered_trials, speed
from .units import (
    ABSENT,
    amount,
    brief,
    clean,
    clock,
    count,
    difference,
    middle,
    ratio,
    seconds,
    short_count,
    size,
    spread_seconds,
)

_PATH = 48  # columns that a module's path may take
_MOST_WARNINGS = 20
_MOST_CHECKS = 12  # of one strategy; beyond that, regions with one verdict are one row


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        align: a letter for each column: ``l`` for text, ``r`` for figures.
        left_out: how many rows were too many to be shown.
        footnote: how the figures were taken.
        hints: for each row, more about its last cell, where there is room for that.
    """

    title: str
    headers: tuple[str, ...]
    align: str
    rows: Sequence[tuple[str, ...]]
    left_out: int = 0
    footnote: str = ""
    hints: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Notice:
    """Something that did not go as asked, and the compiler's own message about it if there is one."""

    text: str
    details: str = field(default="", repr=False)


def head(report: Report) -> str:
    """What was compiled, in one line: class, parameters, dtype, device and torch's version."""
    model, environment = report.model, report.environment
    parameters = amount(model.get("parameters"))
    parts = [
        clean(model.get("class_name") or "model", 80),
        f"{short_count(parameters)} parameters" if parameters is not None else "",
        _text(model, "dtype"),
        _text(model, "device") or _text(environment, "device"),
        f"torch {_torch(environment)}" if _torch(environment) else "",
    ]
    return " · ".join(part for part in parts if part)


def progress_line(snapshot: Snapshot) -> str:
    """Where unfinished work stands; what is not known is left out."""
    region = middle(snapshot.region, _PATH)
    if region and snapshot.class_name:
        region = f"{region} ({clean(snapshot.class_name, 40)})"
    phase = PHASE_TITLES.get(snapshot.phase, clean(snapshot.phase, 40))
    parts = [clean(snapshot.stage, 120), ", ".join(filter(None, (region, phase)))]
    if amount(snapshot.elapsed_seconds) is not None:
        last = f" (last time {clock(snapshot.last_seconds)})" if amount(snapshot.last_seconds) is not None else ""
        parts.append(f"{clock(snapshot.elapsed_seconds)}{last}")
    if snapshot.done is not None:
        every = "" if snapshot.expected is None else f" of {'at least ' * snapshot.at_least}{count(snapshot.expected)}"
        unit = clean(snapshot.unit, 20)
        one = (snapshot.done if snapshot.expected is None else snapshot.expected) == 1
        parts.append(f"{count(snapshot.done)}{every} {unit.removesuffix('s') if one else unit} done")
    left = amount(snapshot.remaining_seconds)
    if left is not None:
        parts.append(f"about {clock(left) if left >= 60 else f'{max(1, round(left))} s'} left")
    return " · ".join(part for part in parts if part)


def settings_line(report: Report) -> str:
    """The settings as ``name=value``, ``""`` if the report has none."""
    return _pairs(report.settings)


def environment_line(report: Report) -> str:
    """What else is known about the machine and the versions."""
    shown = {"torch", "torch_version"} | ({"device"} if not _text(report.model, "device") else set())
    return _pairs({key: value for key, value in report.environment.items() if key not in shown})


def warnings(report: Report) -> list[Notice]:
    """What ran eager although it was to be compiled, and what failed: the first thing a reader must see."""
    found = []
    for group in report.groups:
        where = middle(group.path, _PATH) or "the model"
        if group.eager > 0:
            reason = clean(group.eager_reason or group.failure) or "the report does not say why"
            blocks = f"{count(group.eager)} of {count(group.instances)} blocks of {where}"
            ran = (
                "have not run compiled" if reason.startswith("not called yet") and group.compiled == 0 else "ran eager"
            )
            found.append(Notice(f"{blocks} {ran}: {reason}", group.failure))
        elif group.failure:
            found.append(Notice(f"{where} failed to compile: {clean(group.failure)}", group.failure))
    for name, strategy in report.strategies.items():
        if strategy.failure:
            found.append(Notice(f"{clean(name, 40)} failed: {clean(strategy.failure)}", strategy.failure))
        if strategy.first_drift:
            where = f"{clean(name, 40)}: {middle(strategy.first_drift, _PATH)}"
            drifting = f"{count(sum(check.drifts for check in strategy.checks))} of {count(len(strategy.checks))} do"
            found.append(Notice(f"{where} is the first region that differs from eager on the same input; {drifting}"))
    for straggler in report.stragglers():
        took = seconds(straggler.compile_seconds)
        found.append(
            Notice(f"{_rank_name(straggler)} compiled for {took}, clearly longer than the others: they waited")
        )
    for rank, again in report.recompiled_alone():
        why = f"{middle(again.block, _PATH)}: {clean(again.reason)}"
        found.append(Notice(f"{_rank_name(rank)} compiled again while others did not, and they waited ({why})"))
    for trial in report.tuning:
        if trial.outcome in ("failed", "wrong"):
            said = "failed" if trial.outcome == "failed" else "is never recommended"
            found.append(Notice(f"{clean(trial.name, 80)} {said}: {clean(trial.reason)}", trial.reason))
    if len(found) > _MOST_WARNINGS:
        found[_MOST_WARNINGS:] = [Notice(f"and {len(found) - _MOST_WARNINGS} more like these")]
    return found


def notes(report: Report, most: int) -> list[str]:
    """What a reader must know about the figures."""
    found = [clean(note) for note in report.notes]
    for name, strategy in report.strategies.items():
        found += [f"{clean(name, 40)}: {clean(note)}" for note in strategy.notes]
    for trial in report.tuning:
        found += [f"{clean(trial.name, 80)}: {clean(note)}" for note in trial.figures.notes]
    found = [note for note in dict.fromkeys(found) if note]
    return found if len(found) <= most else [*found[:most], f"… and {len(found) - most} more"]


def tables(report: Report, most: int) -> list[Table]:
    """Every table that has something in it, with at most ``most`` rows each."""
    built = (
        _tuning(report),
        _strategies(report),
        _checks(report),
        _ranks(report),
        _groups(report),
        _variants(report),
        _phases(report, most),
        _rest(report),
        _recompiles(report),
        _graph_breaks(report),
    )
    return [_cut(table, most) for table in built if table is not None and table.rows]


def _tuning(report: Report) -> Table | None:
    """Every setting of a tuning; eager first, then those that are the best for some number of calls."""
    if not report.tuning:
        return None
    trials, calls = ordered_trials(report), report.tuned_calls
    eager = next((trial.figures for trial in trials if is_eager(trial)), None)
    rows = [
        (
            clean(trial.name, 80),
            seconds(trial.figures.cold_seconds),
            spread_seconds(trial.figures.steady_seconds, half_spread(trial.figures)),
            ratio(speed(eager, trial.figures)),
            seconds(trial.total_seconds(calls)),
            size(trial.figures.peak_bytes),
            difference(trial.figures.max_abs_diff),
            break_even(eager, "eager" if is_eager(trial) or trial.outcome == "wrong" else trial.name, trial.figures),
            clean(trial.outcome, 20),
            clean(trial.reason) or ABSENT,
        )
        for trial in trials
    ]
    headers = (
        *("setting", "cold start", "steady", "vs eager", f"total of {number_of_calls(calls)}"),
        *("peak memory", "max diff", "break-even", "outcome", "reason"),
    )
    footnote = _repeats([trial.figures for trial in trials])
    return _without_empty_columns(Table("Settings tried", headers, "lrrrrrrrll", rows, footnote=footnote), keep=5)


def _strategies(report: Report) -> Table | None:
    strategies = sorted(report.strategies.items(), key=lambda item: item[0] != "eager")
    eager = report.strategies.get("eager")
    rows = [
        (
            clean(name, 40),
            seconds(strategy.cold_seconds),
            spread_seconds(strategy.steady_seconds, half_spread(strategy)),
            ratio(speed(eager, strategy)),
            size(strategy.peak_bytes),
            difference(strategy.max_abs_diff),
            count(strategy.graphs),
            break_even(eager, name, strategy),
        )
        for name, strategy in strategies
    ]
    headers = ("strategy", "cold start", "steady", "vs eager", "peak memory", "max diff", "graphs", "break-even")
    calls = [f"{clean(name, 40)}: {said}" for name, strategy in strategies if (said := dispatch(strategy))]
    footnote = "; ".join(filter(None, [_repeats([strategy for _, strategy in strategies]), *calls]))
    return _without_empty_columns(Table("Strategies", headers, "lrrrrrrr", rows, footnote=footnote), keep=4)


def _checks(report: Report) -> Table | None:
    checked = [(name, strategy) for name, strategy in report.strategies.items() if strategy.checks]
    checked += [(trial.name, trial.figures) for trial in report.tuning if trial.figures.checks]
    rows = [(clean(name, 40), *row) for name, strategy in checked for row in _check_rows(strategy)]
    headers: tuple[str, ...]
    headers = ("strategy", "block", "class", "largest difference", "gradient difference", "largest value", "verdict")
    align = "lllrrrl"
    footnote = (
        "each block on the inputs that it received; drifts: differs by more than torch.testing.assert_close allows for "
        "the largest value"
    )
    if len(checked) == 1:
        rows, headers, align = [row[1:] for row in rows], headers[1:], align[1:]
    table = Table("Checked region by region", headers, align, rows, footnote=footnote)
    return _without_empty_columns(table, keep=len(headers) - 4)


def _check_rows(strategy: Strategy) -> list[tuple[str, ...]]:
    """A row for each region; of many, those that drift, and a row for each verdict on the others."""
    alike: dict[str, list[RegionCheck]] = {}
    rows = []
    for check in strategy.checks:
        verdict = _verdict(check, strategy)
        if check.drifts or len(strategy.checks) <= _MOST_CHECKS:
            rows.append(_check_row(check, verdict))
        else:
            alike.setdefault(verdict, []).append(check)
    for verdict, checks in alike.items():
        if len(checks) == 1:
            rows.append(_check_row(checks[0], verdict))
            continue
        classes = dict.fromkeys(check.class_name for check in checks)
        rows.append(
            (
                f"{count(len(checks))} others",
                clean(next(iter(classes)), 40) if len(classes) == 1 else ABSENT,
                _at_most([check.max_abs_diff for check in checks]),
                _at_most([check.max_abs_grad_diff for check in checks]),
                _at_most([check.largest for check in checks]),
                verdict,
            )
        )
    return rows


def _check_row(check: RegionCheck, verdict: str) -> tuple[str, ...]:
    return (
        middle(check.block, _PATH),
        clean(check.class_name, 40),
        difference(check.max_abs_diff),
        difference(check.max_abs_grad_diff),
        difference(check.largest),
        verdict,
    )


def _verdict(check: RegionCheck, strategy: Strategy) -> str:
    said = clean(check.note)
    if check.drifts:
        drifts = "drifts, the first to do so" if check.block == strategy.first_drift else "drifts"
        return f"{drifts}: {said}" if said else drifts
    if said:
        return said
    different = [amount(figure) for figure in (check.max_abs_diff, check.max_abs_grad_diff)]
    return "within tolerance" if any(different) else "equal"


def _at_most(values: Iterable[float | None]) -> str:
    known = [number for number in map(amount, values) if number is not None]
    return f"at most {difference(max(known))}" if known else ABSENT


def _ranks(report: Report) -> Table:
    """The processes of a training side by side."""
    several = len({rank.host for rank in report.ranks}) > 1
    rows = [
        (
            count(rank.rank),
            clean(rank.host, 40) if several else ABSENT,
            count(rank.instances),
            count(rank.compiled),
            count(rank.eager),
            count(rank.graphs),
            count(len(rank.recompiles)),
            seconds(rank.compile_seconds),
            seconds(rank.backward_seconds),
        )
        for rank in report.ranks
    ]
    headers = ("rank", "host", "blocks", "compiled", "eager", "graphs", "recompiles", "compile time", "backward's part")
    table = Table("Ranks", headers, "rlrrrrrrr", rows, footnote="the other tables are those of the first rank")
    return _without_empty_columns(table, keep=1)


def _rank_name(rank: Rank) -> str:
    return f"rank {count(rank.rank)}" + (f" on {clean(rank.host, 40)}" if rank.host else "")


def _groups(report: Report) -> Table:
    headers = (
        "path",
        "class",
        "blocks",
        "compiled",
        "eager",
        "variants",
        "graphs",
        "recompiles",
        "breaks",
        "compile time",
    )
    rows = [
        (
            middle(group.path, _PATH) or "(model)",
            clean(group.class_name, 40),
            count(group.instances),
            count(group.compiled),
            count(group.eager),
            count(len(group.variants)),
            count(group.graphs),
            count(len(group.recompiles)),
            count(len(group.graph_breaks)),
            seconds(group.compile_seconds),
        )
        for group in report.groups
    ]
    return Table("Repeated blocks", headers, "llrrrrrrrr", rows)


def _variants(report: Report) -> Table:
    rows = [
        (
            middle(group.path, _PATH) or "(model)",
            clean(variant.name, 60),
            count(variant.instances),
            count(variant.graphs),
            seconds(variant.compile_seconds),
            clean("; ".join(variant.dynamic)) or ABSENT,
        )
        for group in report.groups
        if len(group.variants) > 1 or any(variant.dynamic for variant in group.variants)
        for variant in group.variants
    ]
    headers = ("path", "variant", "blocks", "graphs", "compile time", "compiled for any size of")
    return _without_empty_columns(Table("Variants", headers, "llrrrl", rows), keep=5)


def _phases(report: Report, most: int) -> Table | None:
    rows = [
        (
            section.name,
            middle(bar.label, _PATH),
            seconds(bar.seconds),
            *(seconds(bar.phases.get(phase)) for phase in PHASES),
        )
        for section in compile_sections(report, most=most - 2)
        for bar in section.bars
    ]
    headers = ("strategy", "region", "total", *(phase.replace("_", " ") for phase in PHASES))
    if not any(row[0] for row in rows):
        rows, headers = [row[1:] for row in rows], headers[1:]
    align = "l" * (len(headers) - 1 - len(PHASES)) + "r" * (1 + len(PHASES))
    return _without_empty_columns(Table("Compile time by phase", headers, align, rows), keep=2)


def _rest(report: Report) -> Table:
    rows = [
        (
            middle(rest.path, _PATH) or "(model)",
            clean(rest.class_name, 40),
            clean(rest.decision, 20),
            "yes" if rest.compiled else "no",
            seconds(rest.compile_seconds) if rest.compiled or rest.compile_seconds else ABSENT,
            clean(rest.reason),
        )
        for rest in report.rest
    ]
    headers = ("path", "class", "decision", "compiled", "compile time", "reason")
    return Table("The rest of the model", headers, "llllrl", rows)


def _recompiles(report: Report) -> Table:
    """Recompiles with one reason are one row: thirty layers that fail the same guard are one thing to mend."""
    alike: dict[str, list[Recompile]] = {}
    for group in report.groups:
        for recompile in group.recompiles:
            alike.setdefault(clean(recompile.reason) or clean(recompile.guard), []).append(recompile)
    rows = []
    for reason, members in alike.items():
        times = [member.seconds for member in members if member.seconds is not None]
        forbidden = len(members) - len(times)
        limit = f"limit reached {forbidden} time{'s' * (forbidden != 1)}" if forbidden else ""
        took = seconds(sum(times)) if times else ""
        rows.append(
            (
                _blocks(member.block for member in members),
                count(len(members)),
                ", ".join(filter(None, (took, limit))),
                reason,
                middle(members[0].caller, 60) or ABSENT,
                clean(members[0].remedy) or ABSENT,
            )
        )
    headers = ("block", "times", "took", "reason", "first at", "what to do")
    return Table("Recompiles", headers, "lrrlll", rows, hints=[clean(members[0].guard) for members in alike.values()])


def _graph_breaks(report: Report) -> Table:
    alike: dict[tuple[str, str, str], list[str]] = {}
    for group in report.groups:
        for graph_break in group.graph_breaks:
            key = clean(graph_break.reason), middle(graph_break.location, 60), clean(graph_break.remedy)
            alike.setdefault(key, []).append(graph_break.block)
    rows = [
        (_blocks(blocks), count(len(blocks)), where or ABSENT, reason, remedy or ABSENT)
        for (reason, where, remedy), blocks in alike.items()
    ]
    return Table("Graph breaks", ("block", "times", "at", "reason", "what to do"), "lrlll", rows)


def _blocks(paths: Iterable[str]) -> str:
    different = list(dict.fromkeys(paths))
    first = middle(different[0], _PATH) or "(model)"
    return first if len(different) == 1 else f"{first} and {len(different) - 1} more"


def _repeats(strategies: list[Strategy]) -> str:
    """How often each figure was taken, and what "±" means."""
    cold = [s.cold_repeats for s in strategies if amount(s.cold_seconds) is not None and s.cold_repeats > 0]
    steady = [s.steady_repeats for s in strategies if amount(s.steady_seconds) is not None and s.steady_repeats > 0]
    parts = []
    if cold:
        parts.append(f"cold start: median of {_range(cold)}")
    if steady:
        parts.append(f"steady: median of {_range(steady)} rounds")
    if any(amount(s.steady_seconds) is not None and amount(s.steady_spread) is not None for s in strategies):
        parts.append("± half the interquartile range")
    return "; ".join(parts)


def _range(numbers: list[int]) -> str:
    least, greatest = count(min(numbers)), count(max(numbers))
    return least if least == greatest else f"{least} to {greatest}"


def _without_empty_columns(table: Table, *, keep: int) -> Table:
    """The table without the columns in which every figure is absent; the first ``keep`` always stay."""
    kept = [
        column
        for column in range(len(table.headers))
        if column < keep or any(row[column] != ABSENT for row in table.rows)
    ]
    return replace(
        table,
        headers=tuple(table.headers[column] for column in kept),
        align="".join(table.align[column] for column in kept),
        rows=[tuple(row[column] for column in kept) for row in table.rows],
    )


def _cut(table: Table, most: int) -> Table:
    if len(table.rows) <= most:
        return table
    return replace(table, rows=table.rows[:most], left_out=len(table.rows) - most)


def _pairs(values: dict[str, Any]) -> str:
    """``name=value`` of a dictionary that may hold anything, one level of nesting laid flat."""
    flat: dict[str, Any] = {}
    for key, value in list(values.items())[:40]:
        if isinstance(value, dict) and value:
            flat.update({f"{clean(key, 40)}.{clean(inner, 40)}": item for inner, item in list(value.items())[:20]})
        else:
            flat[clean(key, 40)] = value
    shown = [f"{key}={brief(value, 80)}" for key, value in flat.items() if value is not None and value != ""]
    return clean(", ".join(shown), 600)


def _text(values: dict[str, Any], key: str) -> str:
    value = values.get(key)
    return clean(value, 60) if value is not None and value != "" else ""


def _torch(environment: dict[str, Any]) -> str:
    versions = environment.get("versions")
    nested = _text(versions, "torch") if isinstance(versions, dict) else ""
    return _text(environment, "torch") or _text(environment, "torch_version") or nested
