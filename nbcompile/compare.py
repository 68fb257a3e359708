"""Strategies side by side, on the user's own model and step.

Each compiled strategy starts with an empty compiler cache; what the compiler does once a process is done before, and
told apart. Steady rounds of all strategies are interleaved. Whatever the user had compiled is put back.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from . import check as region_check
from . import compiler, cores, describe, dispatch, events, measure, ranking
from .compiler import Compilation
from .errors import NbcompileError, UsageError
from .graphs import check_setting
from .plugin import Backend, TorchDynamoPlugin
from .progress import Progress, watched
from .regions import check_model, class_name, plan_regions
from .report import Report, Strategy
from .space import STRATEGIES, USUAL

CHECKS = ("regions",)

_COMPETES = "other processes, or more threads than there are cores; nbcompile doctor names what competes"


def compare(
    model: nn.Module,
    step: Callable[[], Any],
    strategies: Sequence[str] = USUAL,
    *,
    fullgraph: bool | None = None,
    dynamic: bool | None = None,
    backend: Backend | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    plugin: TorchDynamoPlugin | None = None,
    rest: str = "auto",
    regions: Sequence[str | type[nn.Module]] | None = None,
    cuda_graph: bool = False,
    rounds: int | None = None,
    calls: int | None = None,
    keep: str | None = None,
    check: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Measure cold start, steady state, memory and difference from eager of several strategies.

    Args:
        model: the model; what was compiled for it before is there again afterwards.
        step: runs the model once, as in ``lambda: model(**batch)``; what it returns is compared with eager's.
        strategies: any of ``"eager"``, ``"regional"``, ``"full"``, ``"hierarchical"``, in the order in which they are
            measured.
        rounds: timed rounds for the steady state, interleaved over the strategies; by default 24, and up to 48 while
            they do not decide whether a strategy is faster than eager, level with it or slower; fewer of calls that
            take long, but eight at least.
        calls: calls per round; by default as many as take half a second, or 0.1 s where ``rounds`` is not given.
        keep: a strategy that stays on the model afterwards, in place of what was there.
        check: ``"regions"`` holds each region of every compiled strategy against eager, forward and gradients, on the
            inputs that it received in one more run of the step, and names the first that drifts.
        progress: called with a line of text as the work goes on. By default, in a notebook with ``%load_ext
            nbcompile``, a chart that moves shows it in the cell's output; elsewhere nothing does.

    The other keywords are those of :func:`nbcompile.compile_regions`.

    Raises:
        UsageError: a wrong argument, or a step that never calls the model.
        Exception: whatever the step raises when it runs eager. A strategy that fails is a line in the report.
    """
    check_model(model)
    check_step(step)
    _check_arguments(strategies, keep, check, rounds, calls)
    if plugin is None:
        plugin = TorchDynamoPlugin(backend=backend, mode=mode, fullgraph=fullgraph, dynamic=dynamic, options=options)
    check_setting(cuda_graph, plugin)
    if cuda_graph and "regional" not in strategies:
        raise UsageError("cuda_graph=True is for the regionally compiled model: add 'regional' to strategies")
    plans = {"regional": plan_regions(model, rest=rest, regions=regions)} if "regional" in strategies else {}
    if "hierarchical" in strategies:
        plans["hierarchical"] = compiler.plan_nested(model, regions=regions)
    with watched(progress, "compare") as tell, put_back(model) as outcome:
        comparison = Measurement(model, step, tell)
        comparison.reference()
        if any(name != "eager" for name in strategies):
            comparison.start_up(plugin)
        for name in strategies:
            if name != "eager":
                graphs = cuda_graph and name == "regional"
                compilation = Compilation(
                    model, plugin, strategy=name, plan=plans.get(name), rest=rest, cuda_graph=graphs
                )
                comparison.cold(name, compilation)
                if check is not None:
                    comparison.check(name)
        outcome.take_off = keep == "eager"
        if keep is not None:  # known before the timing, so that a step that fails later does not lose it
            outcome.kept = comparison.compilations.get(keep)
        comparison.steady(strategies, rounds, calls)
        comparison.dispatch("regional")
        comparison.memory()
        result = _report(comparison, strategies, plugin)
        if outcome.kept is not None:
            outcome.kept.strategies = result.strategies
        tell.result = result
        return result


def check_step(step: object) -> None:
    """Refuse a step that cannot be called."""
    if not callable(step):
        raise UsageError(
            "step is to be a function that runs the model once, such as lambda: model(**batch), "
            f"not {type(step).__name__}"
        )


def _check_arguments(
    strategies: Sequence[str], keep: str | None, check: object, rounds: int | None, calls: int | None
) -> None:
    if not strategies or not isinstance(strategies, (list, tuple)):
        raise UsageError(f"strategies takes a list of names out of {', '.join(STRATEGIES)}, not {strategies!r}")
    for name in strategies:
        if name not in STRATEGIES:
            raise UsageError(f"there is no strategy {name!r}; those that exist: {', '.join(STRATEGIES)}")
    if keep is not None and keep not in strategies:
        raise UsageError(f"keep={keep!r} is not among the strategies that are measured: {', '.join(strategies)}")
    if check is not None and check not in CHECKS:
        raise UsageError(f"there is no check {check!r}; those that exist: {', '.join(CHECKS)}")
    if check is not None and all(name == "eager" for name in strategies):
        raise UsageError(f"check={check!r} needs a compiled strategy to check: add 'regional' or 'full' to strategies")
    for what, number in (("rounds", rounds), ("calls", calls)):
        if number is not None and (type(number) is not int or number < 1):
            raise UsageError(f"{what} takes a whole number from 1 on, not {number!r}")


class Outcome:
    """What is to be on the model once the measurement is over."""

    kept: Compilation | None = None
    take_off: bool = False


@contextlib.contextmanager
def put_back(model: nn.Module) -> Iterator[Outcome]:
    """Take whatever is compiled off the model and put it back at the end, however that comes."""
    outcome = Outcome()
    try:
        with compiler.taken_off(model):
            yield outcome
    finally:
        if outcome.kept is not None:
            compiler.adopt(model, outcome.kept)
        elif outcome.take_off:
            compiler.restore(model)


class Measurement:
    """One model and step, measured eager and under as many compilations as are named to it.

    Attributes:
        compilations: by name those that can be run.
        figures: by name what was measured; ``"eager"`` is always among them once :meth:`reference` has run.
        notes: what a reader must know about all figures.
        comparable: whether two eager runs of the step gave the same, within the tolerance for its dtype, and it drew
            no random numbers, of which compiled code may have others.
    """

    def __init__(self, model: nn.Module, step: Callable[[], Any], tell: Progress) -> None:
        self.model, self.tell = model, tell
        self.calls, self.changed_weights = 0, False

        def counted() -> Any:
            self.calls += 1
            return step()

        self.step = counted
        self.device = describe.device_of(model)
        self.compilations: dict[str, Compilation] = {}
        self.figures: dict[str, Strategy] = {}
        self.notes: list[str] = []
        self.comparable = False
        self._expected: Any = None
        self._drifting: set[str] = set()
        self._disturbed: dict[str, str] = {}
        self._rounding: float | None = None
        if self.tell.seen:
            self.tell.known(describe.new_report(model), self.figures)

    def reference(self) -> None:
        """Run the step eager: what every strategy's result is held against."""
        self.tell("eager: first call")
        before = _versions(self.model)
        with _calls_of(self.model) as called, measure.same_randomness():
            result, use = measure.first_call(self.step, self.device)
        self.changed_weights = _versions(self.model) != before
        if not called:
            raise UsageError(
                f"the step never called the model (a {class_name(self.model)}) nor a part of it; it has to run the "
                "model once, as in lambda: model(**batch)"
            )
        self._expected = measure.snapshot(result)
        with measure.same_randomness():
            state = measure.random_state(self.device)
            again = measure.snapshot(self.step())
            drew = not all(map(torch.equal, state, measure.random_state(self.device)))
        difference = measure.max_abs_diff(self._expected, again)
        self.comparable = not drew and difference is not None and not measure.drifts(self._expected, again)
        self.figures["eager"] = Strategy(cold_seconds=use.wall, cold_repeats=1, graphs=0, cold_cpu_seconds=use.cpu)
        if difference is None:
            self.notes.append("the step returns nothing that could be compared; let it return the model's output")
        elif difference > 0:
            self.notes.append(
                f"two eager runs of the step differ by {difference:.2g} (it changes the model, or draws random numbers "
                "of its own); a difference of that size between strategies means nothing"
            )

    def start_up(self, plugin: TorchDynamoPlugin) -> None:
        """Have a compiler do what it does once a process, so that no strategy bears it alone."""
        self.tell(f"start-up of the {describe.backend_of(plugin)} compiler")
        try:
            with measure.empty_compiler_cache():
                seconds = measure.start_up(plugin.backend)
        except Exception as error:  # the strategies will say what is wrong, each for itself
            self.notes.append(f"the compiler's start-up failed: {type(error).__name__}")
        else:
            self.notes.append(
                f"before the first cold start the compiler was started with a trivial function ({seconds:.2g} s); cold "
                "starts do not contain that"
            )

    def cold(self, name: str, compilation: Compilation) -> None:
        """Compile with an empty cache, and hold the result against eager's."""
        self.tell(f"{name}: cold start (compiling)")
        figures = self.figures[name] = Strategy()
        if self.tell.seen:
            self.tell.compiling(describe.compiling(compilation))
        compilation.install()
        try:
            with measure.empty_compiler_cache():
                with measure.same_randomness():
                    result, use = measure.first_call(self.step, self.device)
                figures.cold_seconds, figures.cold_repeats, figures.cold_cpu_seconds = use.wall, 1, use.cpu
                figures.notes += _cold_note(use)
                figures.max_abs_diff = measure.max_abs_diff(self._expected, measure.snapshot(result))
                if measure.drifts(self._expected, result):
                    self._drifting.add(name)
                self.step()  # a second call may compile once more, as gradients or sizes turn out otherwise
                if compilation.replays is not None:  # the third call with the same shapes records
                    self.step()
        except NbcompileError as error:
            figures.failure = str(error)
        except Exception as error:
            figures.failure = f"{type(error).__name__}: {error}"
        finally:
            compilation.uninstall()
        events.collect()  # backward graphs compile after the call of the block that they belong to
        figures.regions = [
            describe.region_time(group) for group in (*compilation.groups, *compilation.rest_groups) if group.variants
        ]
        figures.graphs = compilation.graphs()
        failures = [variant.failure for group in compilation.groups for variant in group.variants if variant.failure]
        if failures and not figures.failure:
            figures.failure = failures[0]
        if figures.failure:
            self.tell(f"{name}: failed")
        else:
            self.tell.compiled()
            self.compilations[name] = compilation
            compiled_blocks = sum(1 for group in compilation.groups for region in group.regions if region.compiled)
            if compiled_blocks == 0:
                figures.notes.append("nothing of it ran compiled; the figures are eager's")

    def check(self, name: str) -> None:
        """Hold each region of a strategy against eager."""
        compilation = self.compilations.get(name)
        if compilation is None:  # it has failed, which is told
            return
        self.tell(f"{name}: checking each region against eager")
        with measure.empty_compiler_cache():  # gradients may need a graph that the step did not
            figures = self.figures[name]
            figures.checks, figures.first_drift = region_check.check_regions(compilation, self.step)
        if figures.first_drift:
            self.tell(f"{name}: {figures.first_drift} is the first region that drifts from eager")

    def wrong(self, name: str) -> str:
        """Why a strategy's result is not eager's, ``""`` if it is.

        It is where ``torch.testing.assert_close`` says so. Where the step itself does not give the same twice, each
        region is held against eager on the inputs that it received instead. And a difference in a deep model's result
        that eager shows too once the last bit of each layer's output is moved is rounding, and noted as that.
        """
        figures, drifting = self.figures[name], name in self._drifting
        if not drifting and figures.max_abs_diff is not None:
            return ""
        if not self.comparable:
            self.check(name)
            if figures.first_drift:
                return f"{figures.first_drift} does not compute what it computes eager on the same inputs"
            figures.notes.append("its result as a whole cannot be judged; each region was held against eager instead")
            return ""
        difference = measure.max_abs_diff(0.0, figures.max_abs_diff)
        assert difference is not None  # it drifts, so there was something to compare
        if self._rounding is None:
            self._rounding = self._moved_by_rounding()
        if difference <= self._rounding:
            figures.notes.append(
                f"its result differs from eager's by {difference:.2g}, more than torch.testing.assert_close allows; "
                f"moving the last bit of each layer's output moves eager's by {self._rounding:.2g}, so it is rounding"
            )
            return ""
        return f"its result differs from eager's by {difference:.2g}, more than torch.testing.assert_close allows"

    def _moved_by_rounding(self) -> float:
        """How far the eager result moves if each layer's output is moved by the last bit: what rounding may do."""
        self.tell("eager: how far rounding moves the result")
        moved = [0.0]
        for seed in range(3):
            with _last_bits_moved(self.model, seed), measure.same_randomness():
                try:
                    moved.append(measure.max_abs_diff(self._expected, self.step()) or 0.0)
                except Exception:  # a model that bears no hooks: then assert_close alone decides
                    return 0.0
        largest = max(moved)
        return largest if math.isfinite(largest) else 0.0

    def steady(self, strategies: Sequence[str], rounds: int | None, calls: int | None) -> None:
        """Time later calls, the rounds of all strategies interleaved; by default as many as it takes to decide."""
        conditions = {name: self.under(name) for name in strategies if name == "eager" or name in self.compilations}
        timings = measure.interleaved(conditions, self.step, rounds=rounds, calls=calls, progress=self.tell)
        self.note(timings)

    def note(self, timings: Mapping[str, measure.Timing]) -> None:
        """Take steady times into the figures, and see when each pays back."""
        eager = self.figures["eager"]
        if "eager" in timings:
            eager.steady_seconds = timings["eager"].median
        for name, timing in timings.items():
            figures = self.figures[name]
            _take(figures, timing, eager)
            if timing.disturbed:
                self._disturbed[name] = _steady_note(timing)
        for name in self.compilations:
            figures = self.figures[name]
            cold, steady, theirs = figures.cold_seconds, figures.steady_seconds, eager.steady_seconds
            figures.break_even_calls = None
            if cold is not None and steady is not None and theirs is not None and ranking.gains(figures, eager):
                figures.break_even_calls = measure.break_even(cold, steady, theirs, 0.0)

    def dispatch(self, name: str) -> None:
        """What calling a strategy's compiled blocks costs beside their kernels, in one more run of the step."""
        compilation = self.compilations.get(name)
        if compilation is None or compilation.plugin.disable:
            return
        self.tell(f"{name}: what a block's call costs beside its kernels")
        figures = self.figures[name]
        try:
            with self.under(name)():
                found, left_out = dispatch.measure_dispatch(compilation, self.step)
        except Exception as error:  # what was measured before is not lost for this figure
            figures.notes.append(
                f"what a block's call costs beside its kernels is not measured: {type(error).__name__}: {error}"[:300]
            )
            return
        if found is not None:
            figures.dispatch_seconds, figures.dispatch_spread = found.seconds, found.spread
            figures.dispatch_repeats, figures.dispatch_calls = found.repeats, found.calls
        figures.notes += [f"what a block's call costs beside its kernels is not measured of {why}" for why in left_out]

    def memory(self) -> None:
        """The largest memory in use during one later call."""
        for name in ("eager", *self.compilations):
            self.tell(f"{name}: memory")
            with self.under(name)():
                self.figures[name].peak_bytes = measure.peak_bytes(self.step, self.device)

    def told(self) -> list[str]:
        """The notes for a report; those on rounds that stayed disturbed are taken into the strategies' figures."""
        for name, note in self._disturbed.items():
            self.figures[name].notes.append(note)
        self._disturbed.clear()
        if not self.changed_weights:
            return self.notes
        often = f"it ran {self.calls} times, and each time took effect"
        return [*self.notes, f"the step changes the model's weights or buffers; {often}"]

    def under(self, name: str) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """A function that makes a context in which the model runs under a strategy."""
        compilation = self.compilations.get(name)

        @contextlib.contextmanager
        def condition() -> Iterator[None]:
            if compilation is not None:
                compilation.install()
            try:
                yield
            finally:
                if compilation is not None:
                    compilation.uninstall()

        return condition


def _take(figures: Strategy, timing: measure.Timing, eager: Strategy) -> None:
    """Take steady times into a strategy's figures."""
    figures.steady_seconds, figures.steady_spread, figures.steady_repeats = timing.median, timing.spread, timing.rounds
    figures.steady_cpu_seconds, figures.disturbed_rounds = timing.cpu, timing.disturbed
    if timing.ratio is not None and eager.steady_seconds is not None:
        found = timing.ratio
        figures.steady_ratio, figures.steady_ratio_low, figures.steady_ratio_high = found.median, found.low, found.high
        figures.steady_seconds = eager.steady_seconds * found.median


def _steady_note(timing: measure.Timing) -> str:
    often = f"{timing.disturbed} of its {timing.rounds} steady rounds lacked the cores, though they were repeated"
    if timing.lost is not None:
        often += f" (threads waited for {100 * timing.lost:.0f} % of a round)"
    return f"{often}: {_COMPETES}"


def _cold_note(use: cores.Use) -> list[str]:
    if not use.disturbed_cold:
        return []
    found = [f"its threads waited for a core for {100 * use.lost:.0f} % of it" if use.lost else ""]
    found.append(f"other processes used {100 * use.others:.0f} % of all cores" if use.others else "")
    return [f"its cold start lacked the cores ({', '.join(filter(None, found))}): {_COMPETES}"]


def _report(comparison: Measurement, strategies: Sequence[str], plugin: TorchDynamoPlugin) -> Report:
    """Everything measured, with the regional compilation's groups if there is one."""
    compilations = comparison.compilations
    shown = next((name for name in ("regional", "full", "hierarchical") if name in compilations), None)
    if shown is not None:
        with comparison.under(shown)():
            result = compilations[shown].report()
    else:
        result = describe.new_report(comparison.model)
        result.settings = {"strategy": "eager", **plugin.to_dict()}
    result.strategies = {name: comparison.figures[name] for name in strategies}
    result.notes += comparison.told()
    return result


def _versions(model: nn.Module) -> list[int]:
    """How often each parameter and buffer has been written to, by torch's own count."""
    return [tensor._version for tensor in (*model.parameters(), *model.buffers()) if not tensor.is_inference()]


@contextlib.contextmanager
def _last_bits_moved(model: nn.Module, seed: int) -> Iterator[None]:
    """Every innermost module's output off by the last bit, up or down at random: twice what rounding may do there."""
    generator = torch.Generator().manual_seed(seed)

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            signs = torch.randint(0, 2, value.shape, generator=generator).to(value.device, value.dtype) * 2 - 1
            return value * (1 + signs * torch.finfo(value.dtype).eps)
        return type(value)(map(moved, value)) if type(value) in (list, tuple) else value

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        return moved(output)

    handles = [m.register_forward_hook(hook) for m in model.modules() if next(m.children(), None) is None]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _calls_of(model: nn.Module) -> Iterator[list[bool]]:
    """Notes whether the model or a part of it is called; the list stays empty if not."""
    modules = {id(module) for module in model.modules()}
    called: list[bool] = []

    def note(module: nn.Module, _: Any) -> None:
        if not called and id(module) in modules:
            called.append(True)

    handle = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield called
    finally:
        handle.remove()
