"""The parts of the benchmark: each measures some of the judged figures and can be run alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.benchmarks import workers
from tests.benchmarks.measuring import (
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
from tests.benchmarks.verdicts import Check, ratio


def cold(bench: Bench) -> Result:
    """SmolLM2, one forward of 1x128 tokens, no gradient, no KV cache: the first call with an empty compiler cache.

    Steady times here are of processes that were kept alive, by turns; they are not judged, see :func:`steady`.
    """
    ours, full = Start("regional", "ahead"), Start("full", "ahead")
    ours_unprepared, accelerate = Start("regional", "nothing"), Start("accelerate", "nothing")
    starts = [ours, full, ours_unprepared, accelerate]
    starts += [Start(way, "nothing", once=True) for way in ("blocks", "full")]
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
        ],
    )


def _read_from_disk(bench: Bench) -> None:
    """Let one start go unmeasured: the first one reads the libraries from the disk, the later ones from memory."""
    if not bench.read:
        say("one start that does not count:")
        apart(bench, "tiny-llama", [Start("accelerate", "nothing", layers=1)], repeats=1)
        bench.read = True


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
    "cold": Part(cold, 15, "SmolLM2's first forward: with start-up ahead, and with nothing ahead"),
    "dispatch": Part(dispatch, 3, "what a block costs beside its kernels, against plain block.compile() and full"),
}
DEFAULT = tuple(name for name in PARTS if name != "generate")
