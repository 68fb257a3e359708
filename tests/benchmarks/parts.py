"""The parts of the benchmark: each measures some of the judged figures and can be run alone."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import workers
from tests.benchmarks.measuring import (
    SITUATIONS,
    Bench,
    Result,
    Start,
    apart,
    apart_table,
    as_json,
    say,
    side_by_side,
    sides_table,
)
from tests.benchmarks.nowall import nowall
from tests.benchmarks.training import failures, training
from tests.benchmarks.verdicts import Check, ratio, shown, table


def cold(bench: Bench) -> Result:
    """SmolLM2, one forward of 1x128 tokens, no gradient, no KV cache: the first call with an empty compiler cache.

    Steady times here are of processes that were kept alive, by turns; they are not judged, see :func:`steady`.
    """
    ours, full = Start("regional", "ahead"), Start("full", "ahead")
    ours_unprepared, accelerate = Start("regional", "nothing"), Start("accelerate", "nothing")
    starts = [ours, full, ours_unprepared, accelerate]
    starts += [Start(way, "nothing", once=True) for way in ("blocks", "full")]
    starts += [Start(way, "run all", once=True) for way in ("regional", "full")]
    if workers.knows_hierarchical():
        starts.append(Start("hierarchical", "ahead", once=True))
    _read_from_disk(bench)
    subject = "tiny-llama" if bench.quick else "smollm2"
    figures = apart(bench, subject, starts, warm=True, steady_rounds=5)
    bench.measured["cold"] = as_json(figures)
    bench.cold = figures
    return Result(
        [f"{subject}, first forward with an empty cache, and what follows", *apart_table(figures)],
        [
            Check(f"{text}, cold", ratio(figures[one].cold, figures[other].cold), limit)
            for text, one, other, limit in (
                ("after %load_ext and loading, regional : full", ours, full, 1 / 8),
                ("regional after %load_ext : accelerate as its users run it", ours, accelerate, 1 / 2.5),
                ("nothing ahead, regional : accelerate", ours_unprepared, accelerate, 0.85),
            )
        ]
        + [Check("largest difference between regional and eager", max(figures[ours].differences, default=None), 1e-3)],
    )


def _read_from_disk(bench: Bench) -> None:
    """Let one start go unmeasured: the first one reads the libraries from the disk, the later ones from memory."""
    if not bench.read:
        say("one start that does not count:")
        apart(bench, "tiny-llama", [Start("accelerate", "nothing", layers=1)], repeats=1)
        bench.read = True


def steady(bench: Bench) -> Result:
    """SmolLM2 and MiniLM, 1x128 tokens, a forward and a training step: later calls, by turns, each way in a process.

    A training step is forward, loss and backward, with the model in training mode and no optimizer. What
    regional is held against is full or accelerate, whichever is faster. Others are in :func:`peers`.
    """
    ways = ["eager", "regional", "full", "accelerate"]
    result = Result([], [])
    for name, small in (("smollm2", "tiny-llama"), ("minilm", "tiny-bert")):
        for task in ("forward", "train"):
            subject = small if bench.quick else name
            sides = side_by_side(bench, subject, ways, task=task)
            bench.measured[f"steady {subject} {task}"] = vars(sides)
            against = [sides.ratio("regional", other) for other in ("full", "accelerate")]
            known = [value for value in against if value is not None]
            text = f"{subject}, {task}, steady, regional : best of full and accelerate"
            result.lines += [f"{subject}, {task}, later calls", *sides_table(sides), ""]
            result.checks.append(Check(text, max(known) if len(known) == 2 else None, 1.02))
    return result


def depth(bench: Bench) -> Result:
    """Llama of SmolLM2's width, random weights, after start-up: does a deeper model take longer to compile?

    Part of the difference is the first call's own work, which is four times as much.
    """
    few, many = (3, 12) if bench.quick else (12, 48)
    shallow, deep = (Start("regional", "started", layers) for layers in (few, many))
    starts = [shallow, deep, *(Start("blocks", "started", layers, once=True) for layers in (few, many))]
    _read_from_disk(bench)
    figures = apart(bench, "small-llama" if bench.quick else "wide-llama", starts)
    bench.measured["depth"] = as_json(figures)
    value = ratio(figures[deep].cold, figures[shallow].cold)
    return Result(
        ["Llama, first forward with an empty cache", *apart_table(figures)],
        [Check(f"regional, cold, {many} : {few} layers", value, 1.15)],
    )


def dispatch(bench: Bench) -> Result:
    """What a block costs beside its kernels: 24 Llama blocks, 32 wide, 8 tokens, one thread, no gradient.

    All ways are called by turns, a few calls each, many times; each in a process of its own, three sets of them.
    """
    sides = side_by_side(
        bench,
        "small-llama",
        ["eager", "regional", "regional-entry", "full", "blocks"],
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


def instrumentation(bench: Bench) -> Result:
    """SmolLM2, one forward: what watching the compiler costs, against ``block.compile()`` on the same blocks.

    Steady: regional as it is, which calls compiled code directly and so may be quicker than ``block.compile()``
    although it watches; and ``regional-entry``, without that, of which watching alone makes the difference. Plain
    ``block.compile()`` is there twice: its two lines tell how far two processes that do the same lie apart, and what is
    judged is the mean of the ratios to both. Cold: after start-up, in processes of their own.
    """
    subject = "tiny-llama" if bench.quick else "smollm2"
    sides = side_by_side(bench, subject, ["regional", "regional-entry", "blocks", "blocks#2"], rounds=30)
    ours, plain = Start("regional", "started"), Start("blocks", "started")
    _read_from_disk(bench)
    figures = apart(bench, subject, [ours, plain], repeats=5)
    bench.measured["instrumentation"] = {"steady": vars(sides), "cold": as_json(figures)}
    text = "instrumentation, regional : plain block.compile()"

    def against_both(way: str) -> float | None:
        ratios = [sides.ratio(way, other) for other in ("blocks", "blocks#2")]
        known = [value for value in ratios if value is not None]
        return statistics.fmean(known) if len(known) == len(ratios) else None

    return Result(
        [f"{subject}, forward", *sides_table(sides), "", *apart_table(figures)],
        [
            Check(f"{text}, steady", against_both("regional"), 1.01),
            Check(f"{text}, steady, both by the compiler's entry", against_both("regional-entry"), 1.01),
            Check(f"{text}, cold", ratio(figures[ours].cold, figures[plain].cold), 1.03),
        ],
    )


def memory(bench: Bench) -> Result:
    """SmolLM2, one forward: the most memory that the process has held while compiling and in the first five calls.

    It is the kernel's own high-water mark (VmHWM) of the process with the model in it, begun anew once the model was
    loaded. The compiler's helper processes are not in it. Where ``cold`` ran before, its processes have told it.
    """
    ours, full = Start("regional", "ahead"), Start("full", "ahead")
    subject = "tiny-llama" if bench.quick else "smollm2"
    figures = bench.cold or apart(bench, subject, [ours, full])
    bench.measured["memory"] = as_json({start: figures[start] for start in (ours, full)})
    rows = [
        [start.label, shown(figures[start].loaded_bytes, "{:.0f} MB", 1e-6), peak]
        for start in (ours, full)
        for peak in [shown(figures[start].peak_bytes, "{:.0f} MB", 1e-6)]
    ]
    value = ratio(figures[ours].peak_bytes, figures[full].peak_bytes)
    return Result(
        [f"{subject}, forward", table(["way, situation", "model loaded", "at peak"], rows)],
        [Check("memory at peak, regional : full", value, 1.0)],
    )


def repeats(bench: Bench) -> Result:
    """SmolLM2, one forward: does the package's own comparison, made five times over, say the same each time?

    Judged are its verdicts and the medians as parts of eager's in the same rounds. How far the seconds themselves lie
    apart is told; in that is what the machine did between one repeat and the next.
    """
    subject, number = ("tiny-llama", 2) if bench.quick else ("smollm2", 5)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "repeats.json"
        command = [sys.executable, "tests/benchmarks/repeats.py", "--model", subject, "--out", str(out)]
        command += ["--repeats", str(number), *(["--backend", bench.backend] if bench.backend else [])]
        done = subprocess.run(
            command, cwd=workers.ROOT, stdout=subprocess.PIPE, text=True, timeout=bench.timeout, check=False
        )
        found = json.loads(out.read_text()) if out.exists() else []
    bench.measured["repeats"] = found
    differing = sum(not one["same_verdict"] for one in found)
    apart_by = [one["ratio_off"] for one in found]
    measured = bool(found) and None not in apart_by
    return Result(
        [f"{subject}, {number} times the same comparison", done.stdout.rstrip()],
        [
            Check("strategies of which repeated comparisons give different verdicts", differing if found else None, 0),
            Check("repeats, medians in parts of eager's, the farthest off", max(apart_by) if measured else None, 0.05),
        ],
    )


def peers(bench: Bench) -> Result:
    """Flux of diffusers, 32 wide, random weights: beside diffusers' own ``compile_repeated_blocks``. Nothing is judged.

    optimum-benchmark is left out. Its regions target calls ``accelerate.utils.compile_regions``, which is measured
    here. And its latest release, 0.6.0, cannot be imported beside transformers 5: its PyTorch backend imports
    ``SpecialTokensMixin``, which transformers 5 no longer has.
    """
    layers = 2 if bench.quick else 8
    ways = ["regional", "diffusers", "accelerate", "full"]
    starts = [Start(way, "nothing", layers, once=way in ("accelerate", "full")) for way in ways]
    _read_from_disk(bench)
    figures = apart(bench, "flux", starts, warm=True)
    sides = side_by_side(bench, "flux", ["eager", *ways], layers=layers, round_seconds=0.3)
    bench.measured["peers"] = {"cold": as_json(figures), "steady": vars(sides)}
    return Result(["Flux, forward", *apart_table(figures), "", *sides_table(sides)], [])


def generate(bench: Bench) -> Result:
    """SmolLM2, ``generate`` of 32 tokens from 32, with the KV cache; full is left out, it compiles for many minutes.

    A difference between tokens is one between their numbers.
    """
    ways, situations = ("regional", "accelerate", "blocks"), ("nothing", "started")
    starts = {(way, situation): Start(way, situation) for way in ways for situation in situations}
    _read_from_disk(bench)
    subject = "tiny-llama" if bench.quick else "smollm2"
    figures = apart(bench, subject, list(starts.values()), task="generate", repeats=1, steady_rounds=5)
    bench.measured["generate"] = as_json(figures)
    found = {key: figures[start] for key, start in starts.items()}
    ours, theirs = ([found[way, s] for s in situations] for way in ("regional", "accelerate"))
    blocks = [block for f in ours for block in f.blocks]
    steady_of = [[seconds for f in side for seconds in f.steady] for side in (ours, theirs)]
    eager = max((block["instances"] - block["compiled"] for block in blocks), default=None)
    difference = max((value for f in ours for value in f.differences), default=None)
    return Result(
        [f"{subject}, generate", *apart_table(figures)],
        [
            *(
                Check(f"first generate, {SITUATIONS[s]}, regional : accelerate", ratio(a.cold, b.cold), 0.85)
                for s, a, b in zip(situations, ours, theirs, strict=True)
            ),
            Check("later generate, regional : accelerate", ratio(*steady_of), 1.0),
            Check("generate, blocks that ran eager", eager, 0),
            Check("generate, graphs of the blocks", max((b["graphs"] for b in blocks), default=None), 3),
            Check("generate, largest difference between regional's tokens and eager's", difference, 0),
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
    "cold": Part(cold, 15, "SmolLM2's first forward: with start-up ahead, and with nothing ahead"),
    "steady": Part(steady, 30, "later calls of SmolLM2 and MiniLM, forward and training step"),
    "depth": Part(depth, 4, "cold start of 48 layers beside 12"),
    "dispatch": Part(dispatch, 3, "what a block costs beside its kernels, against plain block.compile() and full"),
    "instrumentation": Part(instrumentation, 14, "what watching the compiler costs"),
    "memory": Part(memory, 5, "the most memory held; nothing more to do where cold ran before"),
    "repeats": Part(repeats, 6, "five repeats of the package's own comparison: the same verdicts and medians?"),
    "peers": Part(peers, 8, "a model of diffusers beside diffusers' own regional compilation; not judged"),
    "training": Part(training, 15, "two ranks, DDP and FSDP2: time to the first step, losses, what ran compiled"),
    "failures": Part(failures, 2, "a launch from a notebook that fails: seconds until the cell has its error"),
    "generate": Part(generate, 6, "text generation with the KV cache; not among the judged, run by name only"),
    "nowall": Part(nowall, 15, "compiled in the background, restarted, from a portable cache: make bench-nowall"),
}
DEFAULT = tuple(name for name in PARTS if name not in ("generate", "nowall"))
