"""The part of the benchmark in which two ranks train one model: DDP and FSDP2, with gloo, on a CPU."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import Bench, Result, say
from tests.benchmarks.verdicts import Check, ratio, shown, table
from tests.benchmarks.workers import ROOT, CacheFolder

RANKS = 2
WAYS = ("eager", "regional", "full", "accelerate")
KINDS = ("ddp", "fsdp2")

#: What the ranks of one launch found, or what they said in place of that.
Launch = list[dict[str, Any]]


def training(bench: Bench) -> Result:
    """Two ranks, a 12-layer Llama shape, 30 steps, every way in fresh processes with an empty cache, by turns.

    The time to the first step is that of the slower rank, from making the accelerator to the optimizer's step, with all
    that is compiled meanwhile. Nothing is done ahead. Losses are held against eager's of the same rank.
    """
    job = (
        {"layers": 2, "width": 32, "tokens": 8, "steps": 4}
        if bench.quick
        else {"layers": 12, "width": 192, "tokens": 64, "steps": 30}
    )
    job["backend"] = bench.backend or "inductor"
    found: dict[tuple[str, str], list[Launch]] = {(kind, way): [] for kind in KINDS for way in WAYS}
    number = bench.rounds(2)
    for round_number in range(number):
        for kind in KINDS:
            for way in WAYS if round_number % 2 == 0 else reversed(WAYS):
                if way == "eager" and found[kind, way]:
                    continue  # for the losses alone
                say(f"[{round_number + 1}/{number}] {kind}, {way} ... ", end="")
                launch = _launch({**job, "kind": kind, "way": way}, bench.timeout)
                if launch:
                    found[kind, way].append(launch)
                    say(f"first step after {_slowest(launch, 'first'):.1f} s")
    bench.measured["training"] = [
        {"kind": kind, "way": way, "launches": launches} for (kind, way), launches in found.items()
    ]
    result = Result([], [])
    for kind in KINDS:
        result.lines += ["", f"{kind}, {job['layers']} layers, {RANKS} ranks", _table(found, kind)]
        result.checks += _checks(found, kind, job)
    return result


def _launch(job: dict[str, Any], timeout: float) -> Launch:
    """Run one job on all ranks with an empty cache; nothing if it failed, which is told."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    with CacheFolder() as cache, tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(cache.path / "cache"),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        log = Path(folder, "log")
        with log.open("w") as out:
            process = subprocess.Popen(
                [*command, "-m", "tests.benchmarks.ranks", folder, json.dumps(job)],
                cwd=ROOT,
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                say(f"FAILED: no answer within {timeout:.0f} s")
            finally:
                process.terminate()  # torchrun ends its ranks, each of which has a session of its own
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        files = [Path(folder, f"rank{rank}.json") for rank in range(RANKS)]
        if process.returncode != 0 or not all(file.exists() for file in files):
            say(f"FAILED: {log.read_text(errors='replace')[-2000:]}")
            return []
        return [json.loads(file.read_text()) for file in files]


def _slowest(launch: Launch, name: str) -> float:
    return max(float(rank[name]) for rank in launch)


def _table(found: dict[tuple[str, str], list[Launch]], kind: str) -> str:
    head = ["way", "first step", "later steps", "all steps", "graphs of a rank", "largest difference of a loss"]
    rows = []
    for way in WAYS:
        launches = found[kind, way]
        difference = _difference(found, kind, way)
        rows.append(
            [
                way,
                *(
                    shown([_slowest(launch, name) for launch in launches], form, scale)
                    for name, form, scale in _COLUMNS
                ),
                "/".join(str(graphs) for graphs in sorted({rank["graphs"] for launch in launches for rank in launch})),
                "-" if difference is None else f"{difference:.1e}",
            ]
        )
    lines = [table(head, rows)]
    phases: dict[str, list[float]] = {}
    for launch in found[kind, "regional"]:
        for phase, seconds in launch[0]["phases"].items():
            phases.setdefault(phase, []).append(seconds)
    if phases:
        told = ", ".join(f"{phase} {statistics.median(seconds):.1f} s" for phase, seconds in phases.items())
        lines.append(f"regional, compiling on the first rank: {told}")
    return "\n".join(lines)


_COLUMNS = (("first", "{:.1f} s", 1.0), ("step", "{:.0f} ms", 1e3), ("all", "{:.1f} s", 1.0))


def _difference(found: dict[tuple[str, str], list[Launch]], kind: str, way: str) -> float | None:
    """The largest difference of a loss from eager's on the same rank; ``None`` if one of them was not measured."""
    if not found[kind, "eager"] or not found[kind, way]:
        return None
    return max(
        abs(one - other)
        for launch in found[kind, way]
        for rank, eager in zip(launch, found[kind, "eager"][0], strict=True)
        for one, other in zip(rank["losses"], eager["losses"], strict=True)
    )


def _checks(found: dict[tuple[str, str], list[Launch]], kind: str, job: dict[str, Any]) -> list[Check]:
    ours, full, accelerate = (
        [_slowest(launch, "first") for launch in found[kind, way]] for way in ("regional", "full", "accelerate")
    )
    launches = found[kind, "regional"]
    apart = max((abs(launch[0]["parameters"] - launch[1]["parameters"]) for launch in launches), default=None)
    eager = max(
        (job["layers"] - sum(group[1] for group in rank["counts"]) for launch in launches for rank in launch),
        default=None,
    )
    return [
        Check(f"{kind}, first step, regional : full", ratio(ours, full), 1 / 3),
        Check(f"{kind}, first step, regional : accelerate", ratio(ours, accelerate), 1.0),
        Check(f"{kind}, largest difference of a loss from eager's", _difference(found, kind, "regional"), 1e-4),
        Check(f"{kind}, difference between the ranks' parameters", apart, 0.0),
        Check(f"{kind}, blocks that did not run compiled on a rank", eager, 0),
    ]


# -- a launch that fails -----------------------------------------------------------------------------------------------

#: What happens to the second of two ranks; the last one happens to the notebook's cell.
FAILURES = ("raises", "raises, the other is stuck", "exits", "killed", "trains, and is interrupted")


def failures(bench: Bench) -> Result:
    """A launch from a notebook's kernel that fails: seconds from the failure to the cell's error.

    By ``nbcompile.notebook_launcher`` in one kernel, one launch after another. An interrupt counts from its signal.
    """
    from tests import test_launcher
    from tests.front import FrontEnd

    rows, slowest = [], []
    environment = {"ACCELERATE_USE_CPU": "yes", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, _set(environment):
        front = FrontEnd(Path(folder))
        try:
            front.run(test_launcher.SETUP)
            file = test_launcher.failed_at(front)
            for how in FAILURES:
                seconds, errors = [], set()
                for _ in range(bench.rounds()):
                    say(f"{how} ... ", end="")
                    file.unlink(missing_ok=True)
                    cell = test_launcher.launch(front, how.partition(",")[0] if "interrupted" in how else how)
                    test_launcher.wait_for(file)
                    began = float(file.read_text())
                    if "interrupted" in how:
                        time.sleep(1)
                        began = time.time()
                        front.manager.interrupt_kernel()
                    errors.add(front.ended(cell, 90))
                    seconds.append(time.time() - began)
                    say(f"{seconds[-1]:.1f} s")
                rows.append([how, "/".join(sorted(errors)), shown(seconds, "{:.1f} s")])
                slowest.append(max(seconds))
        finally:
            front.stop()
    bench.measured["failures"] = [dict(zip(("how", "error", "seconds"), row, strict=True)) for row in rows]
    return Result(
        [table(["what happens", "the cell's error", "after"], rows)],
        [Check("seconds from a failure to the cell's error, the longest", max(slowest), 30.0)],
    )


@contextlib.contextmanager
def _set(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
