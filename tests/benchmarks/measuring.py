"""How the benchmark measures: starts one after another, or later calls of several ways by turns; each in a process."""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from nbcompile import pairs
from tests.benchmarks.verdicts import Check, paired_ratio, shown, table
from tests.benchmarks.workers import KEEPS_MEMORY, CacheFolder, Worker, WorkerError


@dataclass
class Bench:
    """The settings of a run, and what its parts have measured so far, for later parts and for the file."""

    quick: bool = False
    repeats: int | None = None
    backend: str | None = None
    timeout: float = 1800.0
    measured: dict[str, Any] = field(default_factory=dict)
    cold: dict[Start, Figures] | None = None
    read: bool = False  # whether the libraries are in the system's memory

    def rounds(self, usual: int = 3) -> int:
        """How often processes are started."""
        return self.repeats or (1 if self.quick else usual)


@dataclass
class Result:
    """What a part prints."""

    lines: list[str]
    checks: list[Check]


def say(text: str, *, end: str = "\n") -> None:
    """Tell how the work goes on, apart from the results."""
    print(text, end=end, file=sys.stderr, flush=True)


# -- later calls, side by side -----------------------------------------------------------------------------------------


@dataclass
class Sides:
    """What was measured of several ways by turns; lists hold one item for each set of processes, one for each way."""

    ways: list[str]
    seconds: dict[str, list[list[float]]] = field(default_factory=dict)
    cpu_seconds: dict[str, list[list[float]]] = field(default_factory=dict)
    graphs: dict[str, int] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    blocks: int = 0
    lost: int = 0  # processes that died

    def ratio(self, way: str, other: str) -> float | None:
        """Of two ways' times within each round; ``None`` if one of them was not measured."""
        if way in self.failures or other in self.failures:
            return None
        return paired_ratio(self.seconds.get(way, []), self.seconds.get(other, []))

    def medians(self, way: str) -> list[float]:
        """For each process the median second of a call."""
        return [statistics.median(rounds) for rounds in self.seconds.get(way, []) if rounds]


def side_by_side(
    bench: Bench,
    subject: str,
    ways: Sequence[str],
    *,
    task: str = "forward",
    layers: int | None = None,
    threads: int | None = None,
    rounds: int = 15,
    round_seconds: float = 1.0,
    warm_up_calls: int = 5,
) -> Sides:
    """Measure later calls of several ways, each in a process of its own, by turns; and again with further processes.

    The processes of a set live at the same time, and one of them works while the others wait. A round is some calls of
    each way, equally many, in another order each round, so that ratios can be taken within a round. Further sets find
    the first one's cache. All processes keep the memory that they free, see ``workers.KEEPS_MEMORY``.
    """
    sides = Sides(list(ways))
    rounds, round_seconds = (2, 0.01) if bench.quick else (rounds, round_seconds)
    common = {"kind": "one way", "subject": subject, "task": task, "layers": layers, "threads": threads}
    common |= {"backend": bench.backend, "warm_up_calls": warm_up_calls}
    with CacheFolder() as cache:
        for number in range(bench.rounds()):
            say(f"[processes {number + 1}/{bench.rounds()}] {subject}, {task}: ", end="")
            with contextlib.ExitStack() as stack:
                alive: dict[str, Worker] = {}
                slowest = 0.0
                for way in ways:
                    worker = stack.enter_context(Worker({**common, "way": way}, cache, bench.timeout, KEEPS_MEMORY))
                    try:
                        answer = worker.receive()
                    except WorkerError as error:
                        _lose(sides, way, error)
                        continue
                    if "failure" in answer:
                        sides.failures[way] = answer["failure"]
                        continue
                    alive[way] = worker
                    sides.graphs[way], sides.differences[way] = answer["graphs"], answer["difference"]
                    sides.blocks, slowest = answer["blocks"], max(slowest, answer["seconds"])
                say(f"{', '.join(alive)} ... ", end="")
                measured = _by_turns(sides, alive, rounds, max(1, round(round_seconds / (slowest or 1.0))))
            for way in ways:  # each set is an item of each way's list, or the sets would not fit together
                answers = measured.get(way, [])
                sides.seconds.setdefault(way, []).append([answer["seconds"] for answer in answers])
                sides.cpu_seconds.setdefault(way, []).append([answer["cpu_seconds"] for answer in answers])
            say(", ".join(f"{way} {sides.medians(way)[-1] * 1e3:.2f} ms" for way in measured if measured[way]))
    for way, failure in sides.failures.items():
        say(f"{way} FAILED: {failure}")
    return sides


def _by_turns(sides: Sides, alive: dict[str, Worker], rounds: int, calls: int) -> dict[str, list[dict[str, float]]]:
    """For each way what its process answered in each round; a way whose process died has empty rounds."""
    answers: dict[str, list[dict[str, float]]] = {way: [] for way in alive}
    for order in islice(pairs.turns(list(alive)), rounds):
        for way in order:
            if way not in alive:
                continue
            try:
                answers[way].append(alive[way].ask({"calls": calls}))
            except WorkerError as error:
                _lose(sides, way, error)
                answers[way] = []
                del alive[way]
    return answers


def _lose(sides: Sides, way: str, error: WorkerError) -> None:
    say(f"{way} FAILED: {error}")
    sides.lost += 1


def sides_table(sides: Sides, *, by_block: bool = False) -> list[str]:
    """Steady times side by side; each ratio is that of ``regional`` to the way of the line."""
    head = ["way", "wall", "CPU", "regional : it", "graphs", "diff", *(["by block"] if by_block else [])]
    rows = []
    for way in sides.ways:
        against = sides.ratio("regional", way)
        processor = [statistics.median(rounds) for rounds in sides.cpu_seconds.get(way, []) if rounds]
        row = [
            way,
            shown(sides.medians(way), "{:.2f} ms", 1e3),
            shown(processor, "{:.2f} ms", 1e3),
            "-" if against is None else f"{against:.3f}",
            str(sides.graphs.get(way, "-")),
            f"{sides.differences[way]:.1e}" if way in sides.differences else "-",
        ]
        if by_block:
            row.append(shown(sides.medians(way), "{:.0f} us", 1e6 / max(1, sides.blocks)))
        rows.append(row)
    lines = [table(head, rows), *(f"{way} failed: {why}" for way, why in sides.failures.items())]
    return [*lines, f"{sides.lost} process(es) failed"] if sides.lost else lines


# -- each start in a process of its own --------------------------------------------------------------------------------

#: What was done before the clock started, and how it is told; :func:`tests.benchmarks.worker.alone` does it.
SITUATIONS = {
    "ahead": "after %load_ext",
    "run all": "after %load_ext, run all",
    "started": "after start-up",
    "nothing": "nothing ahead",
}


@dataclass(frozen=True)
class Start:
    """A way of compiling in a situation; ``once`` where one start is enough, because no verdict hangs on it."""

    way: str
    situation: str
    layers: int | None = None
    once: bool = False

    @property
    def label(self) -> str:
        depth = "" if self.layers is None else f", {self.layers} layers"
        return f"{self.way}{depth}, {SITUATIONS[self.situation]}"


@dataclass
class Figures:
    """What was measured of one start; a list holds one value for each process or round."""

    cold: list[float] = field(default_factory=list)
    cold_cpu: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    warm_cpu: list[float] = field(default_factory=list)
    steady: list[float] = field(default_factory=list)
    graphs: list[int] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    loaded_bytes: list[int] = field(default_factory=list)
    differences: list[float] = field(default_factory=list)
    blocks: list[dict[str, int]] = field(default_factory=list)  # instances, compiled, graphs: of nbcompile's own report

    def note(self, answer: dict[str, Any]) -> None:
        """Take in the answer of a process that started with an empty cache."""
        self.cold.append(answer["seconds"])
        self.cold_cpu.append(answer["cpu_seconds"])
        self.graphs.append(answer["graphs"])
        self.differences.append(answer["difference"])
        self.blocks += answer["blocks"]
        for name in ("peak_bytes", "loaded_bytes"):
            if answer[name] is not None:
                getattr(self, name).append(answer[name])


def apart(
    bench: Bench,
    subject: str,
    starts: Sequence[Start],
    *,
    task: str = "forward",
    repeats: int = 3,
    warm: bool = False,
    steady_rounds: int = 0,
) -> dict[Start, Figures]:
    """Start processes that compile with an empty cache, in another order each round; the figures of each start.

    Args:
        warm: after the first cold start of each, start another process on its cache.
        steady_rounds: rounds by turns of the processes of the last round, which stay alive for it.
    """
    repeats = bench.rounds(repeats)
    figures = {start: Figures() for start in starts}
    with contextlib.ExitStack() as stack:
        alive: dict[Start, Worker] = {}

        def begin(start: Start, cache: CacheFolder) -> tuple[Worker, dict[str, Any]] | None:
            job = {"kind": "alone", "subject": subject, "task": task, "backend": bench.backend, **vars(start)}
            worker = stack.enter_context(Worker(job, cache, bench.timeout))
            try:
                return worker, worker.receive()
            except WorkerError as error:
                say(f"FAILED: {error}")
                worker.stop()
                return None

        for turn in range(repeats):
            due = [start for start in starts if turn == 0 or not start.once]
            first = turn % len(due)
            for start in due[first:] + due[:first]:
                say(f"[round {turn + 1}/{repeats}] {subject}, {task}: {start.label} ... ", end="")
                cache = stack.enter_context(CacheFolder())
                begun = begin(start, cache)
                if begun is None:
                    continue
                worker, answer = begun
                figures[start].note(answer)
                say(
                    f"{answer['seconds']:.2f} s" + (f" (start-up {answer['ahead']})" if answer["ahead"] else ""), end=""
                )
                if start in alive:
                    alive[start].stop()
                alive[start] = worker
                if warm and turn == 0 and (again := begin(start, cache)) is not None:
                    figures[start].warm.append(again[1]["seconds"])
                    figures[start].warm_cpu.append(again[1]["cpu_seconds"])
                    say(f", warm {again[1]['seconds']:.2f} s", end="")
                    again[0].stop()
                say("")
                if not steady_rounds:
                    worker.stop()
        _time_by_turns(bench, alive, figures, steady_rounds)
    return figures


def _time_by_turns(bench: Bench, alive: dict[Start, Worker], figures: dict[Start, Figures], rounds: int) -> None:
    """Let each living process time a round in turn, in another order each time."""
    rounds = min(rounds, 2) if bench.quick else rounds
    for turn in range(rounds):
        say(f"[steady {turn + 1}/{rounds}]", end="")
        due = list(alive)
        first = turn % len(due) if due else 0
        for start in due[first:] + due[:first]:
            try:
                seconds = alive[start].ask({"round": 0.05 if bench.quick else 1.0})["seconds"]
            except WorkerError as error:
                say(f" {start.label} FAILED: {error}")
                alive.pop(start).stop()
                continue
            figures[start].steady.append(seconds)
            say(f" {start.way} {seconds * 1e3:.1f} ms", end="")
        say("")


def apart_table(figures: dict[Start, Figures]) -> list[str]:
    """The figures of processes of their own."""
    head = ["way, situation", "starts", "cold", "CPU", "warm", "CPU", "steady", "graphs", "memory at peak", "diff"]
    rows = [
        [
            start.label,
            str(len(f.cold)),
            shown(f.cold, "{:.2f} s"),
            shown(f.cold_cpu, "{:.1f} s"),
            shown(f.warm, "{:.2f} s"),
            shown(f.warm_cpu, "{:.1f} s"),
            shown(f.steady, "{:.1f} ms", 1e3),
            "/".join(str(count) for count in sorted(set(f.graphs))) or "-",
            shown(f.peak_bytes, "{:.0f} MB", 1e-6),
            f"{max(f.differences):.1e}" if f.differences else "-",
        ]
        for start, f in figures.items()
    ]
    return [table(head, rows)]


def as_json(figures: dict[Start, Figures]) -> list[dict[str, Any]]:
    """For the file."""
    return [{"start": vars(start), **vars(f)} for start, f in figures.items()]
