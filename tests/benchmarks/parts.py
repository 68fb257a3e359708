"""The parts of the benchmark: each measures some of the judged figures and can be run alone."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks.verdicts import Check, paired_ratio, shown, table
from tests.benchmarks.workers import CacheFolder, Worker, WorkerError


@dataclass
class Bench:
    """The settings of a run, and what its parts have measured so far, for later parts and for the file."""

    quick: bool = False
    repeats: int | None = None
    backend: str | None = None
    timeout: float = 900.0
    measured: dict[str, Any] = field(default_factory=dict)

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


# -- side by side in one process ---------------------------------------------------------------------------------------


@dataclass
class Sides:
    """What was measured of several ways in the same processes; lists hold one item for each process."""

    ways: list[str]
    seconds: dict[str, list[list[float]]] = field(default_factory=dict)
    cpu_seconds: dict[str, list[list[float]]] = field(default_factory=dict)
    graphs: dict[str, int] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    blocks: int = 0

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
    """Measure several ways in one process, and again in further processes that find the first one's cache."""
    sides = Sides(list(ways))
    job = {
        "kind": "side by side",
        "subject": subject,
        "task": task,
        "ways": list(ways),
        "layers": layers,
        "threads": threads,
        "backend": bench.backend,
        "rounds": 2 if bench.quick else rounds,
        "round_seconds": 0.01 if bench.quick else round_seconds,
        "warm_up_calls": warm_up_calls,
    }
    with CacheFolder() as cache:
        for number in range(bench.rounds()):
            say(f"[process {number + 1}/{bench.rounds()}] {subject}, {task}: {', '.join(ways)} ... ", end="")
            with Worker(job, cache, bench.timeout) as worker:
                try:
                    worker.receive()
                    say("compiled ... ", end="")
                    answer = worker.receive()
                except WorkerError as error:
                    say(f"FAILED: {error}")
                    continue
            for way in ways:
                if way in answer["failures"]:
                    sides.failures[way] = answer["failures"][way]
                    continue
                sides.seconds.setdefault(way, []).append(answer["seconds"][way])
                sides.cpu_seconds.setdefault(way, []).append(answer["cpu_seconds"][way])
            sides.graphs.update(answer["graphs"])
            sides.differences.update(answer["differences"])
            sides.blocks = answer["blocks"]
            say(", ".join(f"{way} {sides.medians(way)[-1] * 1e3:.2f} ms" for way in ways if way not in sides.failures))
    for way, failure in sides.failures.items():
        say(f"{way} FAILED: {failure}")
    return sides


def sides_table(sides: Sides, *, by_block: bool = False) -> list[str]:
    """Steady times side by side; each ratio is that of ``regional`` to the way of the line."""
    head = ["way", "wall", "CPU", "regional : it", "graphs", "diff", *(["by block"] if by_block else [])]
    rows = []
    for way in sides.ways:
        against = sides.ratio("regional", way)
        processor = [statistics.median(rounds) for rounds in sides.cpu_seconds.get(way, [])]
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
    return [table(head, rows), *(f"{way} failed: {why}" for way, why in sides.failures.items())]


def dispatch(bench: Bench) -> Result:
    """What a block costs beside its kernels: 24 Llama blocks, 32 wide, 8 tokens, one thread, no gradient.

    All ways are called by turns in one process, a few calls each, many times; three processes.
    """
    sides = side_by_side(
        bench,
        "small-llama",
        ["eager", "regional", "full", "blocks"],
        layers=4 if bench.quick else 24,
        threads=1,
        rounds=100,
        round_seconds=0.04,
        warm_up_calls=60,
    )
    bench.measured["dispatch"] = vars(sides)
    blocks = f"{sides.blocks} small Llama blocks, step"
    return Result(
        [f"{blocks}, one thread", *sides_table(sides, by_block=True)],
        [
            Check(f"{blocks}, regional : plain block.compile()", sides.ratio("regional", "blocks"), 0.8),
            Check(f"{blocks}, regional : full", sides.ratio("regional", "full"), 1.15),
        ],
    )


# -- the parts by name -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A part of the benchmark; ``minutes`` is what it takes on two quiet cores."""

    measure: Callable[[Bench], Result]
    minutes: int
    summary: str


PARTS = {
    "dispatch": Part(dispatch, 3, "what a block costs beside its kernels, against plain block.compile() and full"),
}
DEFAULT = tuple(name for name in PARTS if name != "generate")
