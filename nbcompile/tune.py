"""Search over settings: which one takes the least time in all for so many calls, found within a budget of time.

Every setting is a straight line over the number of calls: its cold start, then steady calls (see ``ranking``). The
search measures these lines. The plain setting of each strategy comes before its variations and the cheap before the
dear; a setting that would not fit into what is left of the budget is not begun; and the steady times of those that may
still be the best for some number of calls are measured again and again, interleaved, while the budget lasts. So one
tuning answers for every number of calls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from torch import nn

from . import cache, compiler, describe, estimate, pairs, ranking
from .compare import Measurement, check_step, put_back
from .compiler import Compilation
from .errors import UsageError
from .measure import Rounds
from .progress import Progress, watched
from .regions import RegionPlan, check_model, plan_regions
from .report import AXES, Report, Strategy, Trial
from .space import Setting, default_space, key_of, setting_of, settings_of

EAGER = "eager"

#: Rounds of a setting right after its cold start, and the most that one gets.
_QUICK_ROUNDS, _MOST_ROUNDS = 2, 12
#: A round lasts half a second, or less where the budget is small.
_ROUND_SECONDS, _ROUND_SHARE = 0.5, 1 / 200
#: The part of the budget that is kept for steady rounds at most, and the turns of rounds that it is kept for.
_KEPT_SHARE, _KEPT_TURNS = 0.25, 4
#: Settings are told apart for numbers of calls up to this, unless more are asked for.
_FARTHEST = 10**6
#: Two steady times are never told apart by less than this part of them: few rounds show too little spread.
_LEAST_SPREAD = 0.02
#: Figures of an earlier run hold as long as eager runs as fast as it did, to within this part.
_SAME_SPEED = 0.1


def tune(
    model: nn.Module,
    step: Callable[[], Any],
    calls: int = 1000,
    budget: float = 180.0,
    space: Mapping[str, Sequence[Any]] | None = None,
    *,
    resume: Report | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Find the setting with the least total time for so many calls; compiling nothing may be the answer.

    The report holds every setting tried in ``report.tuning``; ``report.best(calls=N)`` ranks them anew for another
    number of calls without measuring, ``report.crossings()`` tells where the best changes and ``report.apply(model)``
    compiles with it. The model is left as it was.

    A compile that has begun cannot be cut short, so the budget can be overrun by one compile whose duration was
    estimated too low or, the first time, not at all; settings are therefore tried from the cheap to the dear, those
    that can still win for ``calls`` before all others. A result outside of the tolerance of
    ``torch.testing.assert_close`` is never recommended, see :meth:`~nbcompile.compare.Measurement.wrong`.

    An interrupt ends the tuning with ``KeyboardInterrupt`` and the model as it was. What was measured until then is
    ``nbcompile.report(model)``, and ``tune(..., resume=nbcompile.report(model))`` goes on.

    Args:
        model: the model; what was compiled for it before is there again afterwards.
        step: runs the model once, as in ``lambda: model(**batch)``; what it returns is compared with eager's.
        calls: how often the step will run in all.
        budget: seconds that the tuning may take.
        space: what to try: for any of ``"strategy"``, ``"backend"``, ``"mode"``, ``"dynamic"`` and ``"rest"`` a list of
            values. An axis that is not named keeps its usual value; the strategy ``"hierarchical"`` is tried only
            where it is named. By default what can gain something on this machine; when a tuning is resumed, the
            settings that it was about.
        resume: an earlier tuning's report, also one loaded from a file. Its failures and complete figures are kept, as
            long as eager is as fast as it was then; what is missing is measured, compiling again what had too few
            rounds, as compiled code does not outlive its tuning. The step has to be the same; that cannot be checked.
        progress: called with a line of text as the work goes on.

    Raises:
        UsageError: a wrong argument, a step that never calls the model, or a report to resume of another model or
            machine.
        Exception: whatever the step raises when it runs eager. A setting that fails is a line in the report.
    """
    check_model(model)
    check_step(step)
    _check_numbers(calls, budget)
    _check_resume(model, resume)
    settings, notes = _settings(model, space, resume)
    with watched(progress, "tune") as tell, put_back(model):
        tuning = _Tuning(model, step, settings, calls, float(budget), tell)
        tuning.measurement.notes += notes
        try:
            tuning.run(_earlier(resume, settings))
        except BaseException as error:
            if tuning.measured_anything:  # nothing to keep of a step that never ran
                tuning.settle(f"the tuning was stopped by {type(error).__name__}")
                compiler.remember_tuning(model, tuning.report())
                error.add_note(
                    "nbcompile.report(model) is what was measured so far; tune(..., resume=it) goes on from there"
                )
            raise
        tell.result = result = tuning.report()
    compiler.remember_tuning(model, result)
    return result


def apply_setting(model: nn.Module, values: Mapping[str, Any]) -> nn.Module:
    """Compile a model with one setting of a report, which may come from a file; eager takes off what was compiled.

    Raises:
        UsageError: the setting does not exist here.
    """
    check_model(model)
    try:
        setting = setting_of(values)
    except UsageError as error:
        raise UsageError(f"the report's setting cannot be applied here: {error}") from None
    if setting.plugin is None:
        compiler.take_off(model)
        return model
    cache.require_folder()
    if (strategy := setting.values["strategy"]) in compiler.WHOLE_MODEL_STRATEGIES:
        return compiler.compile_model(model, plugin=setting.plugin, strategy=strategy)
    return compiler.compile_regions(model, plugin=setting.plugin, rest=setting.rest)


def misfit(model: nn.Module, report: Report) -> str:
    """What in a report is not as it is here, so that its figures say nothing of the model; ``""`` if all is."""
    here = describe.new_report(model)
    differing = [
        f"{key} is {now.get(key)!r} here and {str(then.get(key))[:80]!r} there"
        for keys, then, now in (
            (("class_name", "parameters", "dtype"), report.model, here.model),
            (("torch", "device", "device_name", "cpu", "threads"), report.environment, here.environment),
        )
        for key in keys
        if then.get(key) != now.get(key)
    ]
    return "; ".join(differing)


class _Tuning:
    """The work of one call of :func:`tune`. Each trial is there from the start, so that a stop loses none."""

    def __init__(
        self,
        model: nn.Module,
        step: Callable[[], Any],
        settings: Sequence[Setting],
        calls: int,
        budget: float,
        tell: Progress,
    ) -> None:
        self.model, self.calls, self.budget, self.tell = model, calls, budget, tell
        self.began = time.perf_counter()
        self.measurement = Measurement(model, step, tell)
        self.round_seconds = min(_ROUND_SECONDS, budget * _ROUND_SHARE)
        self.rounds = Rounds(self.measurement.step, seconds=self.round_seconds)
        self.settings = {Trial(setting.values).name: setting for setting in settings}
        self.trials = {name: Trial(setting.values, outcome="") for name, setting in self.settings.items()}
        self.kept: dict[str, Trial] = {}  # of an earlier tuning, as they were
        self.plans: dict[str, RegionPlan | UsageError] = {}
        self.started: list[Any] = []  # backends whose start-up is done

    # -- the order of things -------------------------------------------------------------------------------------

    def run(self, earlier: Sequence[Trial]) -> None:
        """Measure all there is time for."""
        self.measurement.reference()
        for _ in range(_QUICK_ROUNDS):
            self.round(EAGER)
        self.trials[EAGER].figures = self.measurement.figures[EAGER]
        self.keep(earlier)
        while (name := self.next()) is not None:
            self.attempt(name)
            self.drop_beaten()
        self.refine()
        self.measurement.memory()
        self.settle("")

    def next(self) -> str | None:
        """The most promising setting that fits into what is left: those that may win first, plain ones, cheap ones."""
        found = []
        for place, name in enumerate(self.waiting):
            seconds = self.estimate(name)
            if self.left(seconds) > 0:
                unusual = sum(value != AXES[axis] for axis, value in self.settings[name].values.items()) - 1
                found.append((not self.may_win(seconds), unusual, seconds or 0.0, place, name))
        return min(found)[-1] if found else None

    def attempt(self, name: str) -> None:
        """Compile one setting, hold its result against eager's, and time a few rounds."""
        setting, trial = self.settings[name], self.trials[name]
        assert setting.plugin is not None  # eager never waits
        plan = self.plan(setting)
        if isinstance(plan, UsageError):
            trial.outcome, trial.reason = "skipped", str(plan)
            return
        if setting.plugin.backend not in self.started:
            self.started.append(setting.plugin.backend)
            self.measurement.start_up(setting.plugin)
        strategy = setting.values["strategy"]
        try:
            compilation = Compilation(self.model, setting.plugin, strategy=strategy, plan=plan, rest=setting.rest)
        except UsageError as error:  # no block can be marked
            trial.outcome, trial.reason = "skipped", str(error)
            return
        self.measurement.cold(name, compilation)
        trial.figures = self.measurement.figures[name]
        if trial.figures.failure:
            self.give_up(name, "failed", trial.figures.failure)
        elif wrong := self.measurement.wrong(name):
            self.give_up(name, "wrong", wrong)
        else:
            for _ in range(_QUICK_ROUNDS):
                self.round(EAGER)
                self.round(name)

    def refine(self) -> None:
        """More rounds for those that may be the best for some number of calls, in turn, while the budget lasts."""
        for turn in range(_MOST_ROUNDS - _QUICK_ROUNDS):
            live = [name for name in self.measurement.compilations if not self.trials[name].outcome]
            if not live or self.left(None) < sum(self.round_cost(name) for name in (EAGER, *live)):
                return
            for name in next(islice(pairs.turns((EAGER, *live)), turn, None)):
                self.round(name)
            self.drop_beaten()

    def round(self, name: str) -> None:
        """One more timed round of a setting. One that works no more is given up; eager's error is the user's."""
        if self.trials[name].outcome:
            return
        self.tell(f"steady state: {name}")
        try:
            with self.measurement.under(name)(), self.tell.quiet():
                self.rounds.take(name)
        except Exception as error:
            if name == EAGER:
                raise
            self.give_up(name, "failed", f"{type(error).__name__}: {error}")
            return
        timed = {timed: self.rounds.timing(timed) for timed in self.rounds.times}  # a round of eager's moves all
        self.measurement.note({timed: timing for timed, timing in timed.items() if timing is not None})

    def drop_beaten(self) -> None:
        """Give up those that cannot be the best for any number of calls, however their steady times vary."""
        live = {name: trial.figures for name, trial in self.trials.items() if not trial.outcome}
        known = {**live, **{name: trial.figures for name, trial in self.kept.items() if trial.outcome == "measured"}}
        for name in beaten(known, max(self.calls, _FARTHEST)):
            if name != EAGER and name in live:
                figures = live[name]
                self.give_up(
                    name,
                    "stopped",
                    f"after {figures.steady_repeats} rounds it could not be the best for any number of calls any more",
                )

    def give_up(self, name: str, outcome: str, reason: str) -> None:
        """No more rounds for this one, and its compiled code is freed."""
        trial = self.trials[name]
        trial.outcome, trial.reason = outcome, reason
        if outcome != "stopped":
            trial.figures.break_even_calls = None
        compilation = self.measurement.compilations.pop(name, None)
        if compilation is not None:
            compilation.retire()

    def keep(self, earlier: Sequence[Trial]) -> None:
        """Take over what an earlier tuning knows, if eager runs as fast as it did then."""
        before = next((trial.figures for trial in earlier if trial.name == EAGER), None)
        now = self.trials[EAGER].figures
        if before is None or not _same_speed(before, now):
            if earlier:
                self.measurement.notes.append(
                    "eager does not run as fast as in the tuning that was to be resumed, so all was measured anew"
                )
            return
        for trial in earlier:
            if trial.name != EAGER:
                self.kept[trial.name] = trial
                self.trials.pop(trial.name, None)
        if self.kept:
            self.measurement.notes.append(f"the figures of {len(self.kept)} settings are those of an earlier tuning")

    def settle(self, stopped: str) -> None:
        """Give every trial its outcome. ``stopped`` is why the tuning ended before its time, ``""`` if it did not."""
        if stopped:
            self.measurement.notes.append(stopped)
        for name, trial in self.trials.items():
            if trial.outcome:
                continue
            trial.figures = self.measurement.figures.get(name, trial.figures)
            if trial.figures.steady_repeats >= _QUICK_ROUNDS and trial.figures.cold_seconds is not None:
                trial.outcome = "measured"
            elif stopped:
                begun = trial.figures.cold_seconds is not None
                trial.outcome, trial.reason = ("stopped" if begun else "skipped"), stopped
            else:
                trial.outcome, trial.reason = "skipped", self.why_skipped(name)

    # -- what is decided, from what is known ---------------------------------------------------------------------

    @property
    def waiting(self) -> list[str]:
        """The settings that were not begun."""
        begun = self.measurement.figures
        return [name for name, trial in self.trials.items() if not trial.outcome and name not in begun]

    @property
    def measured_anything(self) -> bool:
        """Whether there is anything worth being kept."""
        return EAGER in self.measurement.figures

    def left(self, seconds: float | None) -> float:
        """Seconds of the budget that are left once a setting was tried that takes so long to compile."""
        left = self.budget - (time.perf_counter() - self.began)
        if seconds is None:  # the first of its kind, or none at all
            return left
        live = [EAGER, *(name for name in self.measurement.compilations if not self.trials[name].outcome)]
        kept = _KEPT_TURNS * (sum(map(self.round_cost, live)) + self.round_cost(EAGER))
        return left - seconds - min(kept, _KEPT_SHARE * self.budget)

    def round_cost(self, name: str) -> float:
        """Seconds that a round takes."""
        return max(self.round_seconds, self.rounds.cost(name) or 0.0)

    def estimate(self, name: str) -> float | None:
        """Seconds that compiling a setting would take, ``None`` if nothing like it was measured."""
        known = [*self.trials.values(), *self.kept.values()]
        blocks = {
            group.path: len(group.blocks)
            for plan in self.plans.values()
            if isinstance(plan, RegionPlan)
            for group in plan.groups
        }
        return estimate.cold_seconds(self.settings[name].values, known, blocks)

    def may_win(self, seconds: float | None) -> bool:
        """Whether a setting that takes so long to compile may be the best for the number of calls asked for."""
        totals = [
            total
            for trial in (*self.trials.values(), *self.kept.values())
            if trial.outcome in ("", "measured") and (total := trial.total_seconds(self.calls)) is not None
        ]
        return seconds is None or not totals or seconds < min(totals)

    def plan(self, setting: Setting) -> RegionPlan | UsageError | None:
        """The blocks that are compiled or marked, or why there are none; ``None`` for the whole model as it is."""
        strategy = setting.values["strategy"]
        if strategy == "full":
            return None
        kind = setting.rest if strategy == "regional" else strategy
        if kind not in self.plans:
            try:
                if strategy == "regional":
                    self.plans[kind] = plan_regions(self.model, rest=setting.rest)
                else:
                    self.plans[kind] = compiler.plan_nested(self.model)
            except UsageError as error:
                self.plans[kind] = error
        return self.plans[kind]

    def why_skipped(self, name: str) -> str:
        left = self.budget - (time.perf_counter() - self.began)
        seconds = self.estimate(name)
        if seconds is None or left <= 0:
            return f"the budget of {self.budget:g} s was used up"
        return f"it would take about {seconds:.2g} s to compile, too long for what was left of {self.budget:g} s"

    # -- the result ----------------------------------------------------------------------------------------------

    def report(self) -> Report:
        """Everything known, in the order of the settings."""
        result = describe.new_report(self.model)
        result.settings = {"calls": self.calls, "budget": self.budget}
        result.tuning = [self.kept.get(name) or self.trials[name] for name in self.settings]
        result.tuning += [trial for name, trial in self.kept.items() if name not in self.settings]
        for trial in result.tuning:
            if trial.outcome in ("stopped", "skipped"):
                trial.figures.regions = []  # how a compile's time was spent that nobody will choose
        result.notes += [*describe.notes_on(self.model), *self.measurement.told()]
        return result


def beaten(figures: Mapping[str, Strategy], farthest: int) -> list[str]:
    """Those that are not the best for any number of calls up to ``farthest``, wherever each steady time may lie.

    That is in the interval of rounds paired with eager's, which hold a drift of the machine out of it, or else in the
    spread. A few numbers of calls in each decade stand for all.
    """
    decades = math.ceil(math.log10(farthest))
    numbers = sorted({round(10 ** (step / 8)) for step in range(8 * decades + 1)})
    found = []
    for name, ours in figures.items():
        mine = _at_end(ours, -1)
        if mine is None:
            continue
        others = [
            # how eager's own rounds vary is in the interval of those that were paired with them
            _at_end(theirs, 0 if other == EAGER and ours.band is not None else +1)
            for other, theirs in figures.items()
            if other != name
        ]
        bounds = [other for other in others if other is not None]
        if all(any(_line(other, n) <= _line(mine, n) for other in bounds) for n in numbers):
            found.append(name)
    return found


def _at_end(figures: Strategy, sign: int) -> tuple[float, float] | None:
    """Cold start, and the least (-1), the median (0) or the most (+1) that the steady time may be.

    ``None`` if a figure is missing.
    """
    if ranking.total(figures, 1) is None or figures.cold_seconds is None or figures.steady_seconds is None:
        return None
    middle = figures.steady_seconds
    if figures.band is not None:
        low, ratio, high = figures.band
        off = middle * (high / ratio - 1 if sign > 0 else 1 - low / ratio)
    else:
        off = figures.steady_spread or 0.0
    return figures.cold_seconds, max(0.0, middle + sign * max(off, _LEAST_SPREAD * middle))


def _line(figures: tuple[float, float], calls: int) -> float:
    cold, steady = figures
    return cold + (calls - 1) * steady


def _same_speed(before: Strategy, now: Strategy) -> bool:
    if before.steady_seconds is None or now.steady_seconds is None:
        return False
    allowed = max(_SAME_SPEED * before.steady_seconds, (before.steady_spread or 0.0) + (now.steady_spread or 0.0))
    return abs(before.steady_seconds - now.steady_seconds) <= allowed


# -- what was asked for, and what is to be resumed ---------------------------------------------------------------------


def _check_numbers(calls: object, budget: object) -> None:
    if type(calls) is not int or not 1 <= calls <= ranking.MOST_CALLS:
        raise UsageError(f"calls takes a whole number from 1 to {ranking.MOST_CALLS:.0e}, not {calls!r}")
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0 < budget < math.inf:
        raise UsageError(f"budget takes seconds, more than none, not {budget!r}")


def _check_resume(model: nn.Module, resume: object) -> None:
    """Refuse a report whose figures say nothing about this model on this machine."""
    if resume is None:
        return
    if not isinstance(resume, Report):
        raise UsageError(f"resume takes a report, such as load_report(file) gives, not {type(resume).__name__}")
    if not resume.tuning:
        raise UsageError("the report to resume holds no tuning; leave resume out to begin one")
    if differing := misfit(model, resume):
        raise UsageError(f"the report to resume does not fit: {differing}. Leave resume out to begin a tuning anew")


def _settings(
    model: nn.Module, space: Mapping[str, Sequence[Any]] | None, resume: Report | None
) -> tuple[list[Setting], list[str]]:
    """What is to be tried, eager first, and notes on what an earlier tuning names that does not exist here."""
    if space is not None:
        return settings_of(space), []
    if resume is None:
        device = describe.device_of(model)
        return settings_of(default_space("cpu" if device is None else device.type)), []
    found, notes = settings_of({"strategy": [EAGER]}), []
    for trial in resume.tuning:
        try:
            setting = setting_of(trial.settings)
        except UsageError as error:
            notes.append(f"a setting of the earlier tuning was left out: {error}")
        else:
            if all(setting.key != other.key for other in found):
                found.append(setting)
    return found, notes


def _earlier(resume: Report | None, settings: Sequence[Setting]) -> list[Trial]:
    """The trials of an earlier tuning that need not be measured again; those that make no sense are left out."""
    known: dict[Any, Trial] = {}
    asked = {setting.key for setting in settings}  # a callable backend is known by the space alone
    for trial in () if resume is None else resume.tuning:
        key = key_of(trial.settings)
        if _complete(trial) and (key in asked or _exists(trial)):
            known.setdefault(key, trial)
    return list(known.values())


def _exists(trial: Trial) -> bool:
    try:
        return setting_of(trial.settings).key == key_of(trial.settings)
    except UsageError:
        return False


def _complete(trial: Trial) -> bool:
    figures = trial.figures
    if trial.outcome in ("failed", "wrong"):
        return True
    numbers = (figures.cold_seconds, figures.steady_seconds, figures.steady_spread)
    return (
        trial.outcome in ("measured", "stopped")
        and all(number is not None and 0 <= number < 1e9 for number in numbers)
        and bool(figures.steady_seconds)
        and _QUICK_ROUNDS <= figures.steady_repeats < 10**6
    )
