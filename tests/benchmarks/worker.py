"""A process of the benchmark: ``python -m tests.benchmarks.worker JOB``; the job and the answers are JSON.

There are two kinds of job, see :func:`alone` and :func:`one_way`. Torch is imported only after what a job wants
done before.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

from tests.benchmarks import subjects

Tell = Callable[[dict[str, Any]], None]


def alone(job: dict[str, Any], tell: Tell) -> None:
    """Compile one model in one way and call it once; then time a round for each line of input.

    The clock starts when torch is imported, the model loaded and its eager output computed. ``situation`` says what
    was done before that:

    - ``nothing``: nothing that concerns the compiler.
    - ``ahead``: the first thing in the process was ``nbcompile.warm_up()``, as ``%load_ext nbcompile`` does it, and
      after loading came a moment in which no cell runs, as when a user runs cell by cell: by then the start-up's
      process has ended, and this process has done its own part.
    - ``run all``: the same without such a moment; nobody waits for anything.
    - ``started``: a trivial function was compiled in this process, so that what a process pays once is not in it.

    nbcompile's own import is within the clock unless the situation is ``ahead``; accelerate's and diffusers' are not,
    because loading the model has imported them already.
    """
    ahead = None
    if job["situation"] in ("ahead", "run all"):
        import nbcompile

        ahead = nbcompile.warm_up()
    import torch

    torch.manual_seed(0)
    subject = subjects.load(job["subject"], job["task"], job.get("layers"))
    with torch.set_grad_enabled(subject.training):
        expected = subject.call(subject.model)
        if job["situation"] == "started":
            _trivial(job.get("backend"))
        if job["situation"] == "ahead":
            nbcompile.warm_up(wait=True)
        gc.collect()
        new_peak()
        way = job["way"]
        answer: dict[str, Any] = {"ahead": None if ahead is None else ahead.state, "loaded_bytes": peak_bytes()}
        graphs, processor, begin = graph_count(), cpu_seconds(), time.perf_counter()
        compiled = subjects.compiled(way, subject.model, subject.block_modules(subject.model), job.get("backend"))
        subject.call(compiled)
        answer["seconds"] = time.perf_counter() - begin
        answer["cpu_seconds"] = cpu_seconds() - processor
        answer["graphs"] = graph_count() - graphs
        answer["difference"] = (subject.call(compiled) - expected).abs().max().item()
        for _ in range(3):
            subject.call(compiled)
        answer["peak_bytes"] = peak_bytes()  # of compiling and the first steps
        answer["blocks"] = _blocks(subject.model) if way == "regional" else []
        tell(answer)
        for seconds in _rounds(lambda: subject.call(compiled)):
            tell({"seconds": seconds})


def one_way(job: dict[str, Any], tell: Tell) -> None:
    """Compile one model in one way and warm it up; then time as many calls as each line of input asks for.

    A process has one way: Dynamo keeps compiled code and what it has learnt by code object, so ways that compile the
    same blocks would find, and pay for, what one of them has compiled before.
    """
    import torch

    if job.get("threads"):
        torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    subject = subjects.load(job["subject"], job["task"], job.get("layers"))
    blocks = subject.block_modules(subject.model)
    with torch.set_grad_enabled(subject.training):
        expected = subject.call(subject.model)
        before = graph_count()
        try:
            compiled = subjects.compiled(job["way"], subject.model, blocks, job.get("backend"))
            difference = (subject.call(compiled) - expected).abs().max().item()
            for _ in range(job["warm_up_calls"]):
                subject.call(compiled)
        except Exception as error:
            tell({"failure": f"{type(error).__name__}: {error}"[:500]})
            return
        timer = _timer(lambda: subject.call(compiled))
        tell(
            {
                "blocks": len(blocks),
                "difference": difference,
                "graphs": graph_count() - before,
                "seconds": timer.timeit(3).mean,
            }
        )
        gc.collect()
        gc.freeze()  # or each collection would look through all of torch, for longer than a round takes
        for line in sys.stdin:
            calls = json.loads(line)["calls"]
            gc.collect()  # the timer switches the collector off: what one round left is not for the next to clear
            processor = time.process_time()
            taken = timer.timeit(calls)
            # the timer makes a few calls before it looks at the clock
            processor = (time.process_time() - processor) / (calls + max(calls // 100, 2))
            tell({"seconds": taken.mean, "cpu_seconds": processor})


def _timer(step: Callable[[], Any]) -> Any:
    import torch
    from torch.utils.benchmark import Timer

    # Timer's default is one thread; another number than the one compiled for would force a recompile.
    return Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())


def _rounds(step: Callable[[], Any]) -> Iterator[float]:
    """For each line of input, the mean time of a call over a round of about as many seconds as it asks for."""
    timer, calls = _timer(step), None
    for line in sys.stdin:
        if calls is None:
            timer.timeit(3)  # warm-up
            calls = max(1, round(json.loads(line)["round"] / timer.timeit(3).mean))
        yield timer.timeit(calls).mean


def _trivial(backend: str | None) -> None:
    import torch

    torch.compile(lambda x: torch.sin(x) + 1, backend=backend or "inductor")(torch.ones(64))


def _blocks(model: Any) -> list[dict[str, int]]:
    """What nbcompile's report says of the blocks."""
    import nbcompile

    groups = nbcompile.report(model).groups
    return [{"instances": g.instances, "compiled": g.compiled, "graphs": g.graphs} for g in groups]


# -- what is read from the system --------------------------------------------------------------------------------------


def graph_count() -> int:
    """Graphs that Dynamo has made so far in this process. Does not load Dynamo: that is part of a cold start."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils.counters["stats"]["unique_graphs"] if utils is not None else 0


def cpu_seconds() -> float:
    """Processor time of this process and all under it, the compiler's helpers included, finished or not."""
    import psutil

    total = 0.0
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def new_peak() -> None:
    """Let the process's high-water mark of memory start anew; Linux alone can do it."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak_bytes() -> int | None:
    """The most memory that this process has held since :func:`new_peak`; ``None`` where the system does not tell."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def _private_stdout() -> IO[str]:
    """A stream to the parent that no library can print into; what they print goes to standard error."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream


def main() -> None:
    answers = _private_stdout()

    def tell(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    job = json.loads(sys.argv[1])
    {"alone": alone, "one way": one_way}[job["kind"]](job, tell)


if __name__ == "__main__":
    main()
