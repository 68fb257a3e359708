"""Cold start and steady state of regional compilation, beside torch.compile and accelerate, on the CPU.

    make bench                                              # SmolLM2, the figures that are judged
    make bench BENCH_ARGS='--task generate'                 # 32 tokens from 32, with the KV cache
    make bench BENCH_ARGS='--model tiny-llama --layers 4'   # a quick look at whether everything works

One forward of a causal language model without a cache, or one ``generate`` with it, no gradient, by four strategies
(``full`` is left out of ``generate``: it compiles for many minutes):

- ``regional``: ``nbcompile.compile_regions``
- ``full``: ``torch.compile`` on the model
- ``accelerate``: ``accelerate.utils.compile_regions``
- ``blocks``: ``block.compile()`` on each block, nothing else

**Cold start** is the wall time of compiling and of the first call, with an empty compiler cache, in its own process
in which torch is imported, the model loaded and its eager output computed before the clock starts. It is told twice:
"with start-up", where nothing had been compiled in the process before, and "after start-up", where a trivial function
had, so that what a process or an empty cache folder pays once is not in it. nbcompile's own import is within the clock;
accelerate's is not, because loading the model has imported it already. **CPU s** is the processor time of the start
with start-up, of all processes taken together.

**Steady state** is measured side by side: one process for each strategy stays alive, and they are told in turn to time
a round of calls, in another order each round. So a machine that slows down slows all of them.

Run nothing beside it. The exit status is 1 if a judged ratio is above its limit or could not be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
STRATEGIES = ("regional", "full", "accelerate", "blocks")
REFERENCE = "eager"  # timed in steady state, never compiled
MODELS = ("smollm2", "tiny-llama")
TASKS = ("forward", "generate")
TOKENS = 32  # of the prompt, and of what is generated


# -- the parent: starts the workers, prints what they measured --------------------------------------------------------


@dataclass
class Figures:
    """What was measured for one strategy; a list holds one value for each repeat or round."""

    cold: list[float] = field(default_factory=list)
    cold_after: list[float] = field(default_factory=list)
    steady: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    diffs: list[float] = field(default_factory=list)
    graphs: list[int] = field(default_factory=list)
    blocks: list[dict[str, int]] = field(default_factory=list)  # instances, compiled, graphs: of nbcompile's own report


@dataclass
class Check:
    """A figure with its limit. ``value`` is ``None`` where something it needs was not measured."""

    text: str
    value: float | None
    limit: float
    below: bool = False  # the limit itself is not allowed

    @property
    def met(self) -> bool:
        if self.value is None:
            return False
        return self.value < self.limit if self.below else self.value <= self.limit


class WorkerError(Exception):
    """A worker died, took too long or answered nonsense; the message holds the end of what it wrote."""


class Worker:
    """A process that has compiled one model by one strategy and then times it when told to."""

    def __init__(self, strategy: str, arguments: argparse.Namespace, *, warm: bool) -> None:
        self._timeout: float = arguments.timeout
        self._folder = tempfile.TemporaryDirectory(prefix="nbcompile-bench-", ignore_cleanup_errors=True)
        cache = Path(self._folder.name, "cache")
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        command = [sys.executable, __file__, "--worker", strategy, "--warm" if warm else "--no-warm"]
        command += ["--model", arguments.model, "--task", arguments.task]
        if arguments.layers is not None:
            command += ["--layers", str(arguments.layers)]
        self._log = open(Path(self._folder.name, "stderr"), "w+", encoding="utf-8")  # noqa: SIM115  (closed in stop)
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def receive(self) -> dict[str, Any]:
        """The worker's next answer."""
        assert self._process.stdout is not None
        watchdog = threading.Timer(self._timeout, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        try:
            answer = json.loads(line)
        except ValueError:
            code = self._process.wait(timeout=10)
            self._log.seek(0)
            tail = "".join(self._log.readlines()[-15:]).strip()
            raise WorkerError(
                f"the worker ended with exit status {code} (time limit {self._timeout:g} s):\n{tail}"
            ) from None
        assert isinstance(answer, dict)
        return answer

    def time_round(self, seconds: float) -> float:
        """Seconds for one call, the mean of one round."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"round": seconds}) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has died: receive() says how
        return float(self.receive()["seconds"])

    def stop(self) -> None:
        """End the process and remove its cache."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()  # the worker ends when its input does
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._folder.cleanup()


def run_bench(arguments: argparse.Namespace) -> int:
    """Measure, print, judge; returns the exit status."""
    strategies = strategies_of(arguments.task)
    say(
        f"{arguments.model} {arguments.task}, {arguments.repeats} cold start(s) each way, "
        f"{arguments.rounds} interleaved rounds"
    )
    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"caution: the load average is {load:.1f}; something else is running, and the figures will suffer")
    figures: dict[str, Figures] = {name: Figures() for name in (REFERENCE, *strategies)}
    alive: dict[str, Worker] = {}
    with contextlib.ExitStack() as stack:
        try:
            measure_cold_starts(arguments, figures, alive, stack)
            measure_steady_state(arguments, figures, alive)
        except KeyboardInterrupt:
            say("\ninterrupted; nothing is judged")
            return 130
    checks = judge(figures) if arguments.task == "forward" else judge_generate(figures)
    print("\n" + table(figures))
    print("\n" + verdicts(checks))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({name: vars(f) for name, f in figures.items()}, indent=1) + "\n")
        say(f"\nwritten: {arguments.out}")
    if arguments.model != MODELS[0]:
        say(f"\nThe limits are meant for {MODELS[0]}; for {arguments.model} they only inform.")
        return 0 if all(check.value is not None for check in checks) else 1
    return 0 if all(check.met for check in checks) else 1


def measure_cold_starts(
    arguments: argparse.Namespace, figures: dict[str, Figures], alive: dict[str, Worker], stack: contextlib.ExitStack
) -> None:
    """Fill in everything but the steady times, and leave one worker of each strategy alive."""
    read_from_disk(arguments)
    order = strategies_of(arguments.task)
    turns = [order[i % len(order) :] + order[: i % len(order)] for i in range(arguments.repeats)]  # each is first
    plan = [(name, warm) for names in turns for name in names for warm in (False, True)]
    plan.append((REFERENCE, False))
    for number, (name, warm) in enumerate(plan, 1):
        told = f"{'after' if warm else 'with'} start-up" if name != REFERENCE else "loading only"
        say(f"[{number:2}/{len(plan)}] {name}, {told} ... ", end="")
        worker = Worker(name, arguments, warm=warm)
        stack.callback(worker.stop)  # stopping twice does no harm
        try:
            answer = worker.receive()
        except WorkerError as error:
            say(f"FAILED: {error}")
            worker.stop()
            continue
        if name == REFERENCE:
            say("done")
        else:
            say(f"{answer['cold_seconds']:.2f} s")
            record(figures[name], answer, warm=warm)
        if name in alive:
            alive[name].stop()
        alive[name] = worker


def read_from_disk(arguments: argparse.Namespace) -> None:
    """Let one start go unmeasured: the first one reads the libraries from the disk, the later ones from memory."""
    say("[start] one start that does not count ... ", end="")
    small = argparse.Namespace(**{**vars(arguments), "model": "tiny-llama", "layers": 1, "task": "forward"})
    worker = Worker("accelerate", small, warm=False)
    try:
        worker.receive()
        say("done")
    except WorkerError as error:
        say(f"FAILED: {error}")
    finally:
        worker.stop()


def record(figures: Figures, answer: dict[str, Any], *, warm: bool) -> None:
    (figures.cold_after if warm else figures.cold).append(answer["cold_seconds"])
    figures.diffs.append(answer["max_abs_diff"])
    figures.graphs.append(answer["graphs"])
    figures.blocks += answer["blocks"]
    if not warm:
        figures.cpu.append(answer["cpu_seconds"])


def measure_steady_state(arguments: argparse.Namespace, figures: dict[str, Figures], alive: dict[str, Worker]) -> None:
    for index in range(arguments.rounds):
        say(f"[steady {index + 1}/{arguments.rounds}]", end="")
        names = [name for name in figures if name in alive]
        for name in names[index % len(names) :] + names[: index % len(names)] if names else []:
            try:
                seconds = alive[name].time_round(arguments.round_seconds)
            except WorkerError as error:
                say(f" {name} FAILED: {error}")
                alive.pop(name).stop()
                continue
            figures[name].steady.append(seconds)
            say(f" {name} {seconds * 1e3:.1f} ms", end="")
        say("")


def judge(figures: dict[str, Figures]) -> list[Check]:
    """The judged ratios. A ratio of which a part was not measured has no value, and so is not met."""
    regional, full, accelerate = figures["regional"], figures["full"], figures["accelerate"]
    best = min((f.steady for f in (full, accelerate) if f.steady), key=statistics.median, default=[])
    return [
        Check("cold start after start-up, regional / full", ratio(regional.cold_after, full.cold_after), 0.20),
        Check(
            "cold start after start-up, regional / accelerate", ratio(regional.cold_after, accelerate.cold_after), 0.85
        ),
        Check("cold start with start-up, regional / accelerate", ratio(regional.cold, accelerate.cold), 1.0),
        Check("steady state, regional / the better of full and accelerate", ratio(regional.steady, best), 1.03),
        Check("largest difference between regional and eager", max(regional.diffs, default=None), 1e-3, below=True),
    ]


def judge_generate(figures: dict[str, Figures]) -> list[Check]:
    """The judged figures of ``generate``; a difference between tokens is one between their numbers."""
    regional, accelerate = figures["regional"], figures["accelerate"]
    eager = [block["instances"] - block["compiled"] for block in regional.blocks]
    return [
        Check("first call with start-up, regional / accelerate", ratio(regional.cold, accelerate.cold), 0.85),
        Check(
            "first call after start-up, regional / accelerate", ratio(regional.cold_after, accelerate.cold_after), 0.85
        ),
        Check("later call, regional / accelerate", ratio(regional.steady, accelerate.steady), 1.0),
        Check("blocks that ran eager", max(eager, default=None), 0),
        Check("graphs of the blocks", max((block["graphs"] for block in regional.blocks), default=None), 3),
        Check("largest difference between regional's tokens and eager's", max(regional.diffs, default=None), 0),
    ]


def strategies_of(task: str) -> tuple[str, ...]:
    return STRATEGIES if task == "forward" else tuple(name for name in STRATEGIES if name != "full")


def ratio(ours: list[float], theirs: list[float]) -> float | None:
    return statistics.median(ours) / statistics.median(theirs) if ours and theirs else None


def spread(values: list[float]) -> float | None:
    """The interquartile range; ``None`` for fewer than two values."""
    if len(values) < 2:
        return None
    quarters = statistics.quantiles(values, n=4, method="inclusive")
    return quarters[2] - quarters[0]


def table(figures: dict[str, Figures]) -> str:
    """The figures as text, ``-`` where nothing was measured."""
    head = ("strategy", "cold with start-up", "cold after start-up", "steady", "spread", "diff", "graphs", "CPU s")
    rows = [head]
    for name, f in figures.items():
        rows.append(
            (
                name,
                shown(f.cold, "{:.2f} s"),
                shown(f.cold_after, "{:.2f} s"),
                shown(f.steady, "{:.2f} ms", 1e3),
                shown([s for s in [spread(f.steady)] if s is not None], "{:.2f} ms", 1e3),
                f"{max(f.diffs):.1e}" if f.diffs else "-",
                "/".join(str(count) for count in sorted(set(f.graphs))) or "-",
                shown(f.cpu, "{:.1f}"),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def shown(values: list[float], form: str, scale: float = 1.0) -> str:
    return form.format(statistics.median(values) * scale) if values else "-"


def verdicts(checks: list[Check]) -> str:
    lines = []
    for check in checks:
        value = "not measured" if check.value is None else f"{check.value:.3g}"
        sign = "<" if check.below else "<="
        lines.append(f"{'met    ' if check.met else 'NOT met'}  {check.text}: {value} ({sign} {check.limit:g})")
    return "\n".join(lines)


def say(text: str, *, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


# -- the worker: compiles once, then times rounds ----------------------------------------------------------------------


def run_worker(arguments: argparse.Namespace) -> int:
    """Compile by one strategy, tell what it took, then time a round for each line of input."""
    answers = private_stdout()
    import torch

    torch.manual_seed(0)
    model, call = load_model(arguments.model, arguments.layers, arguments.task)
    with torch.no_grad():
        expected = call(model)
        step, answer = cold_start(arguments.worker, model, call, warm=arguments.warm)
        if arguments.worker != REFERENCE:
            answer["max_abs_diff"] = (step() - expected).abs().max().item()
            answer["blocks"] = blocks_of(model) if arguments.worker == "regional" else []
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(answer) + "\n")
        tell(answers, answer)
        for seconds in timed_rounds(step):
            tell(answers, {"seconds": seconds})
    return 0


def load_model(name: str, layers: int | None, task: str) -> tuple[Any, Callable[[Any], Any]]:
    """The model, and what to do with it or with what compiling makes of it; that gives a tensor."""
    import torch

    sys.path.insert(0, str(ROOT))  # this file is run as a program; the models are those of the tests
    from tests import models

    if name == "smollm2":
        model, _ = models.smollm2()
        ids = torch.randint(0, model.config.vocab_size, (1, 128), generator=torch.Generator().manual_seed(0))
    else:
        model, inputs = models.llama(layers or 4)
        ids = inputs["input_ids"]
    if task == "forward":
        return model, lambda compiled: compiled(input_ids=ids, use_cache=False).logits
    settings = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
    return model, lambda compiled: compiled.generate(ids[:1, :TOKENS], **settings)


def blocks_of(model: Any) -> list[dict[str, int]]:
    """What nbcompile's report says of the blocks."""
    import nbcompile

    groups = nbcompile.report(model).groups
    return [{"instances": g.instances, "compiled": g.compiled, "graphs": g.graphs} for g in groups]


def cold_start(
    strategy: str, model: Any, call: Callable[[Any], Any], *, warm: bool
) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Compile and call once; returns the step to time later, and what compiling took."""
    import torch

    if strategy == REFERENCE:
        return (lambda: call(model)), {"strategy": strategy}
    if warm:
        torch.compile(lambda x: torch.sin(x) + 1)(torch.ones(64))
    graphs, processor, start = graph_count(), cpu_seconds(), time.perf_counter()
    compiled = apply(strategy, model)
    call(compiled)
    seconds = time.perf_counter() - start
    answer = {
        "strategy": strategy,
        "warm": warm,
        "cold_seconds": seconds,
        "cpu_seconds": cpu_seconds() - processor,
        "graphs": graph_count() - graphs,
    }
    return (lambda: call(compiled)), answer


def apply(strategy: str, model: Any) -> Any:
    """The model, compiled by a strategy: what to call instead of it."""
    import torch

    if strategy == "regional":
        import nbcompile

        return nbcompile.compile_regions(model)
    if strategy == "full":
        return torch.compile(model)
    if strategy == "accelerate":
        from accelerate.utils import compile_regions

        return compile_regions(model)  # a new object; the model itself stays as it is
    for block in model.model.layers:
        block.compile()
    return model


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


def timed_rounds(step: Callable[[], Any]) -> Iterator[float]:
    """For each line on standard input, the mean time of a call over a round of about as many seconds as it asks for."""
    import torch
    from torch.utils.benchmark import Timer

    # Timer's default is one thread; another number than the one compiled for would force a recompile.
    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    calls: int | None = None
    for line in sys.stdin:
        if calls is None:
            timer.timeit(3)  # warm-up
            calls = max(1, round(json.loads(line)["round"] / timer.timeit(3).mean))
        yield timer.timeit(calls).mean


def private_stdout() -> IO[str]:
    """A stream to the parent that no library can print into; what they print goes to standard error."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream


def tell(stream: IO[str], answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


# -- the command line --------------------------------------------------------------------------------------------------


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default=MODELS[0])
    parser.add_argument("--task", choices=TASKS, default=TASKS[0])
    parser.add_argument("--layers", type=positive, help="number of blocks, tiny-llama only (default 4)")
    parser.add_argument("--repeats", type=positive, default=1, help="cold starts of each kind (default 1)")
    parser.add_argument("--rounds", type=positive, default=5, help="interleaved steady rounds (default 5)")
    parser.add_argument("--round-seconds", type=float, default=1.0, help="length of a round (default 1)")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds until a worker is given up (default 900)")
    parser.add_argument("--out", type=Path, help="write the figures to this file as JSON, too")
    parser.add_argument("--worker", choices=(REFERENCE, *STRATEGIES), help="measure one strategy in this process")
    parser.add_argument("--warm", action=argparse.BooleanOptionalAction, default=False, help="worker: after start-up")
    arguments = parser.parse_args()
    if arguments.layers is not None and arguments.model != "tiny-llama":
        parser.error("--layers is for --model tiny-llama; SmolLM2 has the layers it was trained with")
    return run_worker(arguments) if arguments.worker else run_bench(arguments)


if __name__ == "__main__":
    sys.exit(main())
