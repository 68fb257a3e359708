"""A process of the benchmark: ``python -m tests.benchmarks.worker JOB``; the job and the answers are JSON.

There are several kinds of job, see :func:`alone`, :func:`one_way`, :func:`beside` and :func:`portable`. Torch is
imported only after what a job wants done before.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import statistics
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
            if job["way"] == "background":
                _step_until_compiled(subject)
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


def beside(job: dict[str, Any], tell: Tell) -> None:
    """Compile in the background, after ``%load_ext`` and loading, while the user steps on without a pause.

    The stall of a step at the switch is what it took longer than an eager step.
    """
    import nbcompile

    nbcompile.warm_up()
    import torch

    torch.manual_seed(0)
    subject = subjects.load(job["subject"], job["task"], job.get("layers"))
    with torch.set_grad_enabled(subject.training):
        expected = subject.call(subject.model)
        nbcompile.warm_up(wait=True)
        alone = [_seconds(lambda: subject.call(subject.model)) for _ in range(20)][5:]
        gc.collect()
        begin = time.perf_counter()
        nbcompile.compile_regions(subject.model, background=True)
        prepared = time.perf_counter() - begin
        steps, until = _step_until_compiled(subject, begin)
        eager = statistics.median(alone)
        before, switching = [s for s, switched in steps[1:] if not switched], [s for s, sw in steps if sw]
        result = subject.call(subject.model)
    tell(
        {
            "eager": eager,
            "prepared": prepared,
            "first": steps[0][0],
            "meanwhile": statistics.median(before) if before else steps[0][0],
            "longest_before": max(before, default=steps[0][0]),
            "stall": max([s - eager for s in switching], default=0.0),
            "until": until,
            "steps": len(steps),
            "difference": (result - expected).abs().max().item(),
            "notes": nbcompile.report(subject.model).notes,
        }
    )


def _step_until_compiled(subject: Any, begin: float = 0.0) -> tuple[list[tuple[float, bool]], float]:
    """Each step's seconds, and whether code came into use in it; then the seconds since ``begin``."""
    from nbcompile.compiler import current

    compilation = current(subject.model)
    assert compilation is not None
    assert compilation.beside is not None
    steps: list[tuple[float, bool]] = []
    end = time.perf_counter() + 600
    while time.perf_counter() < end:
        needs = [need for group in compilation.beside.groups for need in group.needs]
        in_use = sum(need.state == "open" for need in needs)
        seconds = _seconds(lambda: subject.call(subject.model))
        needs = [need for group in compilation.beside.groups for need in group.needs]
        steps.append((seconds, sum(need.state == "open" for need in needs) > in_use))
        if all(region.compiled for _, region in compilation.regions()):
            return steps, time.perf_counter() - begin
    raise RuntimeError(f"not compiled after 600 s: {compilation.beside.state}; {compilation.beside.told()}")


def portable(job: dict[str, Any], tell: Tell) -> None:
    """Compile and save a portable cache, or load one into an empty folder, after start-up, and time the first step."""
    import nbcompile

    nbcompile.warm_up()
    import torch

    torch.manual_seed(0)
    subject = subjects.load(job["subject"], job["task"])
    with torch.set_grad_enabled(subject.training):
        subject.call(subject.model)
        nbcompile.warm_up(wait=True)
        if "load" in job:
            nbcompile.load_cache(job["load"])
        gc.collect()
        begin = time.perf_counter()
        nbcompile.compile_regions(subject.model)
        subject.call(subject.model)
        seconds = time.perf_counter() - begin
    if "save" in job:
        nbcompile.save_cache(job["save"])
    tell({"seconds": seconds})


def _seconds(step: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


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
    {"alone": alone, "one way": one_way, "beside": beside, "portable": portable}[job["kind"]](job, tell)


if __name__ == "__main__":
    main()
