"""What needs a GPU: are CUDA graphs over a regionally compiled step right, and what are they worth.

    make gpu-check                                # about 10 minutes
    python tests/gpu/check.py --quick             # the 1B shape at batch 1 alone, meant for four minutes
    python tests/gpu/check.py --document          # and then the document's own benchmark, which takes far longer
    python tests/gpu/check.py --fake              # no GPU: all code paths on the CPU, on a device that records there

It needs torch (2.11 or later), transformers and accelerate, and nothing of this package's environment: it puts the
checkout that it lies in on the path. Without a CUDA device it says so, and its exit status is 2. The status is 1 if a
check fails or a judged ratio is above its limit, else 0.

**Checks** come first, in this process: results against eager while inputs and weights change, and every way back to
running without a graph, after which the device has to be usable.

**Timing** is of a Llama shape with random weights in fp16, one forward without gradients and without a cache, 128
tokens. Each strategy has a process of its own with an empty compiler cache, one after another; before the clock starts
the weights are on the device, eager has run, and a trivial function has been compiled. *Compile* is the time of the
first call, *ready* that of the first four, with which a CUDA graph is recorded and in use. All processes then stay and
are told in turn to time a round of steps, in another order each round: by the device's events, and by the clock.
*Peak* is the most that torch's allocator handed out in the process after the model was loaded, compiling and recording
included, *reserved* what it took from the device: a replay itself allocates little, because its memory is set aside.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

STRATEGIES = ("eager", "full", "regional", "regional+graph", "full reduce-overhead", "accelerate")
#: Layers, width, heads, key-value heads, inner width, vocabulary.
SHAPES = {
    "tiny": (3, 32, 4, 2, 64, 128),
    "1B": (16, 2048, 32, 8, 8192, 128_256),
    "3B": (28, 3072, 24, 8, 8192, 128_256),
    "8B": (32, 4096, 32, 8, 14_336, 128_256),
}
TOKENS = 128
ROUNDS = 7
ROUND_SECONDS = 0.4


def main() -> int:
    arguments = _parser().parse_args()
    if arguments.worker is not None:
        return work(arguments)
    missing = [name for name in ("torch", "transformers", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{sys.executable} has no {' and no '.join(missing)}; install what is missing there.", file=sys.stderr)
        return 2
    import torch

    if not arguments.fake and not torch.cuda.is_available():
        print(
            f"There is no CUDA device here that torch {torch.__version__} can use, so nothing was checked; --fake runs "
            "the code paths on the CPU.",
            file=sys.stderr,
        )
        return 2
    begin = time.monotonic()
    device = "cpu" if arguments.fake else torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, {device}", flush=True)
    with _device(arguments.fake):
        good = run_checks(arguments.fake)
    cases = _cases(arguments)
    results = []
    for shape, batch in cases:
        case = measure_case(shape, batch, arguments)
        results.append(case)
        good &= case.show(judged=not arguments.fake)
    if arguments.json is not None:
        Path(arguments.json).write_text(json.dumps([vars(case) for case in results], indent=1), encoding="utf-8")
    if arguments.document:
        good &= document()
    print(f"{'all good' if good else 'NOT all good'}, in {time.monotonic() - begin:.0f} s", flush=True)
    return 0 if good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What needs a GPU: CUDA graphs, right and worth it?")
    parser.add_argument("--quick", action="store_true", help="the 1B shape at batch 1 alone")
    parser.add_argument("--shape", choices=tuple(SHAPES), action="append", help="shapes to time. Default: 1B and 3B")
    parser.add_argument("--batch", type=int, action="append", help="batch sizes. Default: 1 and 4")
    parser.add_argument("--strategy", choices=STRATEGIES, action="append", help="strategies to time. Default: all")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--document", action="store_true", help="then run nbcompile's sweep with the document's preset")
    parser.add_argument("--fake", action="store_true", help="run the code paths on the CPU")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds a process may take for an answer")
    parser.add_argument("--worker", choices=STRATEGIES, help=argparse.SUPPRESS)
    return parser


def _cases(arguments: argparse.Namespace) -> list[tuple[str, int]]:
    if arguments.fake:
        return [("tiny", 1)]
    shapes = arguments.shape or (["1B"] if arguments.quick else ["1B", "3B"])
    batches = arguments.batch or ([1] if arguments.quick else [1, 4])
    return [(shape, batch) for shape in shapes for batch in batches]


def _device(fake: bool) -> contextlib.AbstractContextManager[Any]:
    if not fake:
        return contextlib.nullcontext()
    from tests.fake_device import fake_device

    return fake_device()


def document() -> bool:
    """The document's own benchmark, where this checkout has it."""
    if importlib.util.find_spec("nbcompile.sweep") is None:
        print("This checkout has no nbcompile.sweep, so the document's benchmark was not run.")
        return True
    print("== python -m nbcompile sweep --preset document", flush=True)
    command = [sys.executable, "-m", "nbcompile", "sweep", "--preset", "document"]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT).returncode == 0


# -- models ------------------------------------------------------------------------------------------------------------


def llama(shape: str, device: str, dtype: Any) -> Any:
    """A Llama of one of the shapes, with random weights made on the device."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    layers, width, heads, kv_heads, inner, vocabulary = SHAPES[shape]
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=inner,
        vocab_size=vocabulary,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def tokens(batch: int, device: str, seed: int, vocabulary: int) -> Any:
    import torch

    return torch.randint(vocabulary, (batch, TOKENS), generator=torch.Generator().manual_seed(seed)).to(device)


def encoder(device: str, kind: str = "plain") -> Any:
    """A plain transformer encoder in torch alone; some kinds do what no graph can hold."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(64), nn.LayerNorm(64)
            self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
            self.inner = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
            attended = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = x + self.out(attended)
            return x + self.inner(self.second(x))

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if kind == "waiting" and x.sum().item() > 1e9:
                return x
            for block in self.blocks:
                x = block(x)
            return nn.functional.dropout(x, 0.5, training=True) if kind == "random" else x

    torch.manual_seed(0)
    return Encoder().to(device).eval()


# -- checks ------------------------------------------------------------------------------------------------------------


class NotHere(Exception):
    """A check that only a real device can answer."""


class Checks:
    """Named checks, each with a fresh model; one that fails does not end the others."""

    def __init__(self, fake: bool) -> None:
        self.fake = fake
        self.device = "cpu" if fake else "cuda"
        self.backend = "aot_eager" if fake else "inductor"

    def compiled(self, model: Any) -> Any:
        import nbcompile

        return nbcompile.compile_regions(model, backend=self.backend, cuda_graph=True)

    def same(self, model: Any, *args: Any, calls: int = 1, **kwargs: Any) -> None:
        """Call a model some times, each result held against eager's."""
        import torch

        import nbcompile

        for _ in range(calls):
            result = model(*args, **kwargs)
            with nbcompile.eager(model):
                want = model(*args, **kwargs)
            result, want = getattr(result, "logits", result), getattr(want, "logits", want)
            torch.testing.assert_close(result, want, rtol=2e-2, atol=2e-2)

    def replayed(self, model: Any) -> int:
        from nbcompile.compiler import current

        compilation = current(model)
        assert compilation is not None
        assert compilation.replays is not None
        return compilation.replays.replayed

    def told(self, model: Any, reason: str) -> None:
        import nbcompile

        notes = "\n".join(nbcompile.report(model).notes)
        assert reason in notes, f"{reason!r} is not in the notes:\n{notes}"

    def rows(self, count: int = 2, seed: int = 0) -> Any:
        import torch

        return torch.randn(count, 16, 64, generator=torch.Generator().manual_seed(seed)).to(self.device)

    def usable(self) -> None:
        """The device does all it did before: draw, wait, give memory back, record."""
        import torch

        torch.rand(4, device=self.device).sum().item()
        torch.nn.functional.dropout(torch.ones(64, device=self.device), 0.5)
        if not self.fake:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            assert torch.cuda.current_stream() == torch.cuda.default_stream()
        model = self.compiled(encoder(self.device))
        self.same(model, self.rows(), calls=4)
        assert self.replayed(model) == 2

    # each of these is a check

    def a_llama_shape(self) -> None:
        model = self.compiled(llama("tiny", self.device, _half(self.fake)))
        for seed in range(6):
            self.same(model, tokens(2, self.device, seed, 128), use_cache=False)
        assert self.replayed(model) == 4

    def a_llama_with_a_mask_and_a_cache_in_its_output(self) -> None:
        import torch

        model = self.compiled(llama("tiny", self.device, _half(self.fake)))
        for seed in range(6):
            ids = tokens(2, self.device, seed, 128)
            mask = torch.ones_like(ids)
            self.same(model, ids, attention_mask=mask)
        assert self.replayed(model) == 4

    def a_plain_encoder(self) -> None:
        model = self.compiled(encoder(self.device))
        for seed in range(6):
            self.same(model, self.rows(seed=seed))
            self.same(model, self.rows(3, seed=seed))
        assert self.replayed(model) == 8

    def autocast(self) -> None:
        import torch

        model = self.compiled(encoder(self.device))
        for seed in range(5):
            with torch.autocast(self.device, dtype=torch.bfloat16):
                self.same(model, self.rows(seed=seed))
            self.same(model, self.rows(seed=seed))
        assert self.replayed(model) == 6

    def weights_changed_in_place_and_exchanged(self) -> None:
        import torch

        model = self.compiled(encoder(self.device))
        x = self.rows()
        self.same(model, x, calls=4)
        model.blocks[1].out.weight.mul_(3)
        self.same(model, x)
        assert self.replayed(model) == 3
        model.blocks[1].out.weight.data = torch.zeros_like(model.blocks[1].out.weight)
        self.same(model, x)
        self.told(model, "moved to other memory")
        self.same(model, x, calls=3)
        assert self.replayed(model) == 5

    def gradients(self) -> None:
        import torch

        model = self.compiled(encoder(self.device))
        with torch.enable_grad():
            for _ in range(4):
                model(self.rows()).sum().backward()
        assert model.blocks[0].out.weight.grad is not None
        assert self.replayed(model) == 0
        self.told(model, "torch.no_grad()")

    def a_growing_cache(self) -> None:
        import torch

        model = llama("tiny", self.device, torch.float32)
        ids = tokens(1, self.device, 0, 128)[:, :8]
        want = model.generate(ids, max_new_tokens=6, do_sample=False)
        assert torch.equal(self.compiled(model).generate(ids, max_new_tokens=6, do_sample=False), want)
        self.told(model, "KV cache")

    def random_numbers(self) -> None:
        import torch

        model = self.compiled(encoder(self.device, "random"))
        results = [model(self.rows()) for _ in range(5)]
        assert not torch.equal(results[3], results[4])
        assert self.replayed(model) == 0
        self.told(model, "random numbers")

    def a_wait_for_the_device(self) -> None:
        model = self.compiled(encoder(self.device, "waiting"))
        self.same(model, self.rows(), calls=4)
        assert self.replayed(model) == 0
        self.told(model, "check.py:")
        self.usable()

    def a_recording_that_fails(self) -> None:
        """The wait is not found beforehand, so that the device refuses while it records."""
        from nbcompile import device

        model = self.compiled(encoder(self.device, "waiting"))
        layer = device.layer_for(self.rows().device)
        real = type(layer).rehearse
        type(layer).rehearse = lambda own, call: real(own, call) and []  # type: ignore[method-assign, union-attr]
        try:
            self.same(model, self.rows(), calls=4)
        finally:
            type(layer).rehearse = real  # type: ignore[method-assign, union-attr]
        assert self.replayed(model) == 0
        self.told(model, "recording failed")
        self.usable()

    def a_stream_of_the_users(self) -> None:
        import torch

        model = self.compiled(encoder(self.device))
        self.same(model, self.rows(), calls=3)
        if not self.fake:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.same(model, self.rows(seed=1), calls=2)
            torch.cuda.current_stream().wait_stream(stream)
        self.same(model, self.rows(seed=2))

    def memory_is_given_back(self) -> None:
        import torch

        import nbcompile

        if self.fake:
            raise NotHere
        gc.collect()
        torch.cuda.empty_cache()
        model, x = encoder(self.device), self.rows(512)
        before = torch.cuda.memory_reserved()
        self.same(self.compiled(model), x, calls=4)
        nbcompile.restore(model)
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        kept = torch.cuda.memory_reserved() - before
        assert kept <= 64 << 20, f"{kept >> 20} MiB are kept after restore"  # workspaces of cuBLAS stay

    def time_by_events(self) -> None:
        import torch

        from nbcompile import device

        x = torch.ones(64, 64, device=self.device)
        told = device.event_seconds(lambda: x @ x, 50, x.device)
        assert told is not None
        assert 0 < told < 0.1


def run_checks(fake: bool) -> bool:
    """Run all checks and tell of each. Whether all held."""
    import torch

    checks = Checks(fake)
    names = [name for name, value in vars(Checks).items() if callable(value) and not name.startswith("_")]
    helpers = {"compiled", "same", "replayed", "told", "rows", "usable"}
    good = True
    print("== checks", flush=True)
    for name in names:
        if name in helpers:
            continue
        begin = time.monotonic()
        try:
            with torch.no_grad():
                getattr(checks, name)()
            outcome = "ok"
        except NotHere:
            outcome = "not checked: it needs a real device"
        except Exception as error:  # the others are of use all the same
            good = False
            outcome = f"FAILED: {type(error).__name__}: {error}"
        torch.compiler.reset()
        print(f"  {name.replace('_', ' '):<50} {time.monotonic() - begin:5.1f} s  {outcome}", flush=True)
    return good


def _half(fake: bool) -> Any:
    import torch

    return torch.float32 if fake else torch.float16


# -- timing: the process of one strategy -------------------------------------------------------------------------------


def work(arguments: argparse.Namespace) -> int:
    """Compile one model by one strategy, then time rounds of it when told to; answers are lines of JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is not to be taken for an answer

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    import torch

    torch.set_grad_enabled(False)
    with _device(arguments.fake):
        device = "cpu" if arguments.fake else "cuda"
        (shape,), (batch,) = arguments.shape, arguments.batch
        model = llama(shape, device, _half(arguments.fake))
        ids = tokens(batch, device, 0, SHAPES[shape][-1])
        call: list[Callable[..., Any]] = [model]

        def step() -> Any:
            return call[0](ids, use_cache=False)

        from nbcompile import device as layers
        from nbcompile import measure

        want = measure.snapshot(step().logits)
        backend = "aot_eager" if arguments.fake else "inductor"
        start_up = 0.0 if arguments.worker == "eager" else measure.start_up(backend)
        if not arguments.fake:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        call[0] = apply(arguments.worker, model, backend)
        result = step()
        measure.synchronize(ids.device)
        first = time.perf_counter() - begin
        difference = measure.max_abs_diff(want, result.logits)
        del result
        for _ in range(3):
            step()
        measure.synchronize(ids.device)
        ready = time.perf_counter() - begin
        again = measure.max_abs_diff(want, step().logits)
        del want
        peak = None if arguments.fake else torch.cuda.max_memory_allocated()
        reserved = None if arguments.fake else torch.cuda.max_memory_reserved()
        answer(
            first=first,
            ready=ready,
            start_up=start_up,
            difference=max(difference or 0.0, again or 0.0),
            peak=peak,
            reserved=reserved,
            notes=notes_of(model),
        )
        calls = 0
        for _ in sys.stdin:
            if not calls:
                measure.synchronize(ids.device)
                begin = time.perf_counter()
                step()
                measure.synchronize(ids.device)
                calls = max(3, min(1000, int(ROUND_SECONDS / (time.perf_counter() - begin))))
                calls = 1 if arguments.fake else calls
            by_events = layers.event_seconds(step, calls, ids.device)
            measure.synchronize(ids.device)
            begin = time.perf_counter()
            for _ in range(calls):
                step()
            measure.synchronize(ids.device)
            answer(events=by_events, clock=(time.perf_counter() - begin) / calls)
    return 0


def apply(strategy: str, model: Any, backend: str) -> Callable[..., Any]:
    """Compile a model by a strategy; what to call."""
    import torch

    import nbcompile

    if strategy == "full":
        model.compile(backend=backend)
    elif strategy == "full reduce-overhead":
        if backend == "inductor":
            model.compile(mode="reduce-overhead")
        else:  # the mode is inductor's alone
            model.compile(backend=backend)
    elif strategy == "accelerate":
        from accelerate.utils import compile_regions

        compiled: Callable[..., Any] = compile_regions(model, backend=backend)
        return compiled
    elif strategy.startswith("regional"):
        nbcompile.compile_regions(model, backend=backend, cuda_graph=strategy.endswith("graph"))
    torch.compiler.cudagraph_mark_step_begin()
    return model  # type: ignore[no-any-return]


def notes_of(model: Any) -> list[str]:
    """What the report says about graphs, and about blocks that did not run compiled."""
    from nbcompile.compiler import current

    compilation = current(model)
    if compilation is None:
        return []
    report = compilation.report()
    notes = [note for note in report.notes if note.startswith("CUDA graph")]
    return notes + [
        f"{group.path}: {group.eager} eager: {group.eager_reason}" for group in report.groups if group.eager
    ]


# -- timing: the process that starts the others ------------------------------------------------------------------------


@dataclass
class Figures:
    """Of one strategy: seconds and bytes; lists hold one value a round."""

    first: float | None = None
    ready: float | None = None
    start_up: float | None = None
    difference: float | None = None
    peak: int | None = None
    reserved: int | None = None
    notes: list[str] = field(default_factory=list)
    events: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def step(self) -> float | None:
        return statistics.median(self.events) if self.events else None


@dataclass
class Case:
    """One shape and batch size, with the figures of all strategies."""

    shape: str
    batch: int
    strategies: dict[str, dict[str, Any]]

    def show(self, *, judged: bool) -> bool:
        """Print the table and the ratios; whether all that is judged holds."""
        dtype = "fp16" if judged else "fp32"
        print(f"\n== Llama {self.shape}, batch {self.batch} x {TOKENS} tokens, forward, {dtype}, no gradients")
        if not judged:
            print("Without a device. What follows shows that all runs; as figures it means nothing.")
        heads = ("step ms", "by clock", "spread", "compile s", "ready s", "start s", "peak GiB", "reserved", "max diff")
        print(f"{'':<22}" + "".join(f"{head:>11}" for head in heads))
        figures = {name: Figures(**values) for name, values in self.strategies.items()}
        for name, own in figures.items():
            if own.failure:
                print(f"{name:<22} failed: {own.failure}")
                continue
            clock = statistics.median(own.clock) if own.clock else None
            spread = max(own.events) - min(own.events) if own.events else None
            cells = [
                _cell(own.step, 1e3, 3),
                _cell(clock, 1e3, 3),
                _cell(spread, 1e3, 3),
                _cell(own.first, 1, 2),
                _cell(own.ready, 1, 2),
                _cell(own.start_up, 1, 1),
                _cell(own.peak, 1 / 2**30, 2),
                _cell(own.reserved, 1 / 2**30, 2),
                _cell(own.difference, 1, 4),
            ]
            print(f"{name:<22}" + "".join(f"{cell:>11}" for cell in cells))
        for name, own in figures.items():
            for note in own.notes:
                print(f"  {name}: {note}")
        good = not any(own.failure for own in figures.values())
        for text, limit, ours, theirs in self.ratios(figures):
            value = None if ours is None or not theirs else ours / theirs
            met = value is not None and value <= limit
            verdict = "" if not judged else ("met" if met else "NOT MET")
            print(f"  {text:<58} {'-' if value is None else f'{value:.3f}':>7}  at most {limit:.2f}  {verdict}")
            good &= met or not judged
        return good

    @staticmethod
    def ratios(figures: dict[str, Figures]) -> list[tuple[str, float, float | None, float | None]]:
        """What is judged: text, limit, and the two figures; the limits are those of the project's aims."""
        none = Figures()
        regional, full = figures.get("regional", none), figures.get("full", none)
        graph, accelerate = figures.get("regional+graph", none), figures.get("accelerate", none)
        return [
            ("step, regional+graph : full", 1.0, graph.step, full.step),
            ("compile, regional : full (the document: 5 to 9 times)", 0.2, regional.first, full.first),
            ("until it replays, regional+graph : full's compile", 0.2, graph.ready, full.first),
            ("step, regional : accelerate", 1.02, regional.step, accelerate.step),
            ("memory at peak, regional : full", 1.0, regional.peak, full.peak),
        ]


def _cell(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{value * factor:.{digits}f}"


def measure_case(shape: str, batch: int, arguments: argparse.Namespace) -> Case:
    """All strategies, each in a process of its own; the rounds interleaved."""
    figures = {name: Figures() for name in arguments.strategy or STRATEGIES}
    with contextlib.ExitStack() as stack:
        workers = {}
        for name, own in figures.items():
            print(f"  {shape} batch {batch}: {name}", flush=True)
            worker = stack.enter_context(_worker(name, shape, batch, arguments))
            try:
                for key, value in worker.receive().items():
                    setattr(own, key, value)
                workers[name] = worker
            except WorkerError as error:
                own.failure = str(error)
        for turn in range(2 if arguments.fake else ROUNDS - 2 * arguments.quick):
            order = list(workers)
            random.Random(turn).shuffle(order)
            for name in order:
                try:
                    workers[name].send()
                    answer = workers[name].receive()
                except WorkerError as error:
                    figures[name].failure = str(error)
                    del workers[name]
                    continue
                figures[name].events.append(answer["events"])
                figures[name].clock.append(answer["clock"])
    return Case(shape, batch, {name: vars(own) for name, own in figures.items()})


class WorkerError(Exception):
    """A process died or took too long; the message holds the end of what it wrote."""


class Worker:
    """A process of one strategy."""

    def __init__(self, process: subprocess.Popen[str], log: Path, timeout: float) -> None:
        self._process, self._log, self._timeout = process, log, timeout

    def send(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has died: receive() says how
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        import threading

        assert self._process.stdout is not None
        watchdog = threading.Timer(self._timeout, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            code = self._process.wait()
            tail = " / ".join(self._log.read_text(errors="replace").strip().splitlines()[-4:])
            raise WorkerError(f"exit status {code}: {tail}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def _worker(strategy: str, shape: str, batch: int, arguments: argparse.Namespace) -> Iterator[Worker]:
    with tempfile.TemporaryDirectory(prefix="nbcompile-gpu-", ignore_cleanup_errors=True) as folder:
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "inductor")),
            "TRITON_CACHE_DIR": str(Path(folder, "triton")),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "NBCOMPILE_WARM_UP": "0",
            **({"OMP_NUM_THREADS": "1"} if arguments.fake else {}),
        }
        command = [sys.executable, __file__, "--worker", strategy, "--shape", shape, "--batch", str(batch)]
        command += ["--fake"] if arguments.fake else []
        log = Path(folder, "stderr")
        with log.open("w") as errors:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            try:
                yield Worker(process, log, arguments.timeout)
            finally:
                for stream in (process.stdin, process.stdout):
                    with contextlib.suppress(OSError):
                        stream.close()  # type: ignore[union-attr]
                try:
                    process.wait(timeout=15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


if __name__ == "__main__":
    sys.exit(main())
