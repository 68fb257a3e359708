"""The part of the benchmark about waiting: compiled beside the steps, started again, carried to another machine."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import Bench, Result, Start, apart, apart_table, as_json, say, side_by_side, sides_table
from tests.benchmarks.verdicts import Check, ratio, shown, table
from tests.benchmarks.workers import CacheFolder, Worker, WorkerError


def nowall(bench: Bench) -> Result:
    """SmolLM2, one forward of 1x128 tokens: what is left of the waiting.

    The background runs and the cold starts that they are held against take turns, each in a process of its own with an
    empty cache, after ``%load_ext`` and the model's loading. The user of a background run steps on without a pause.
    """
    subject = "tiny-llama" if bench.quick else "smollm2"
    regional, full = Start("regional", "ahead"), Start("full", "ahead", once=True)
    beside: list[dict[str, Any]] = []
    figures = {}
    for turn in range(bench.rounds()):
        for start, found in apart(
            bench, subject, [regional, full] if turn == 0 else [regional], repeats=1, warm=True
        ).items():
            known = figures.setdefault(start, found)
            if known is not found:
                known.cold += found.cold
                known.warm += found.warm
        say(f"[round {turn + 1}/{bench.rounds()}] {subject}: in the background ... ", end="")
        with CacheFolder() as cache:
            answer = _answer(bench, {"kind": "beside", "subject": subject, "task": "forward"}, cache)
        if answer is not None:
            beside.append(answer)
            say(f"first step {answer['first'] * 1e3:.0f} ms, all compiled after {answer['until']:.1f} s")
    carried = [seconds for _ in range(bench.rounds()) if (seconds := _carried(bench, subject)) is not None]
    sides = side_by_side(bench, subject, ["eager", "regional", "background"], rounds=30)
    bench.measured["nowall"] = {
        "starts": as_json(figures),
        "beside": beside,
        "portable": carried,
        "steady": vars(sides),
    }
    cold, warm = figures[regional].cold, figures[regional].warm
    rows = [
        ["eager step, alone", shown([b["eager"] for b in beside], "{:.1f} ms", 1e3)],
        ["first step", shown([b["first"] for b in beside], "{:.1f} ms", 1e3)],
        ["eager steps while the helper compiles", shown([b["meanwhile"] for b in beside], "{:.1f} ms", 1e3)],
        ["longest stall of a step at the switch", shown([b["stall"] for b in beside], "{:.3f} s")],
        ["longest step after the first, before the switch", shown([b["longest_before"] for b in beside], "{:.3f} s")],
        ["until all blocks run compiled", shown([b["until"] for b in beside], "{:.1f} s")],
        ["the call of compile_regions itself", shown([b["prepared"] for b in beside], "{:.3f} s")],
        ["largest difference to eager", f"{max((b['difference'] for b in beside), default=0):.1e}"],
        ["first step from a portable cache", shown(carried, "{:.2f} s")],
    ]

    def part(name: str, of: str) -> float | None:
        return statistics.median(b[name] / b[of] for b in beside) if beside else None

    return Result(
        [
            f"{subject}, forward, compiled in the background",
            table(["what", "median (range)"], rows),
            "",
            *apart_table(figures),
            "",
            *sides_table(sides),
        ],
        [
            Check("first step with background=True, empty cache : eager step", part("first", "eager"), 1.5),
            Check(
                "longest stall at the switch : cold start of regional", ratio([b["stall"] for b in beside], cold), 0.1
            ),
            Check(
                "until all blocks run compiled : cold start of regional",
                ratio([b["until"] for b in beside], cold),
                1.5,
            ),
            Check("steady step after the switch : regional's", sides.ratio("background", "regional"), 1.02),
            Check("eager steps while the helper compiles : alone", part("meanwhile", "eager"), 1.3),
            Check("restarted kernel, cache kept, regional : full", ratio(warm, figures[full].warm), 0.1),
            Check("portable cache on an emptied machine : cache kept", ratio(carried, warm), 1.3),
            Check("largest difference to eager", max((b["difference"] for b in beside), default=None), 1e-3),
        ],
    )


def _carried(bench: Bench, subject: str) -> float | None:
    """The first step's seconds from a file that another process, with another folder, has saved."""
    job = {"kind": "portable", "subject": subject, "task": "forward"}
    with tempfile.TemporaryDirectory() as folder, CacheFolder() as one, CacheFolder() as other:
        file = str(Path(folder) / "cache")
        if _answer(bench, {**job, "save": file}, one) is None:
            return None
        answer = _answer(bench, {**job, "load": file}, other)
    if answer is None:
        return None
    say(f"from a portable cache {answer['seconds']:.2f} s")
    return float(answer["seconds"])


def _answer(bench: Bench, job: dict[str, Any], cache: CacheFolder) -> dict[str, Any] | None:
    with Worker(job, cache, bench.timeout) as worker:
        try:
            return worker.receive()
        except WorkerError as error:
            say(f"FAILED: {error}")
            return None
