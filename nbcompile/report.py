"""The report: what was planned, compiled and measured, as plain data.

Everything that is drawn or printed is made from a :class:`Report` and from nothing else, so a live chart, a saved
notebook, an HTML file and a terminal cannot disagree. A report is JSON (``schema: 1``, MIME type
``application/vnd.nbcompile.v1+json``, file ending ``.nbcompile.json``). Times are in seconds, sizes in bytes. A
figure that was not measured is ``None``, never zero.

Files are untrusted: reading one runs nothing, checks every type, ignores fields that this version does not know, and
refuses a schema it cannot read.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import statistics
import tempfile
import types
import typing
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from . import ranking
from .errors import ReportError, UsageError

SCHEMA = 1
MIME_TYPE = "application/vnd.nbcompile.v1+json"
FILE_ENDING = ".nbcompile.json"

#: How deep free-form data (environment, model, settings) may be nested in a file.
_DEEPEST = 100

#: The phases of a compile in the order in which they happen. ``other`` is what the compiler's records do not name.
PHASES = ("dynamo", "aot_autograd", "inductor", "codegen", "kernels", "backward", "other")

PHASE_TITLES = {
    "dynamo": "Dynamo (tracing, guards)",
    "aot_autograd": "AOT autograd",
    "inductor": "Inductor (lowering)",
    "codegen": "Code generation",
    "kernels": "Kernel compile (C++/Triton)",
    "backward": "Backward",
    "other": "Other",
}


@dataclass
class Variant:
    """One compiled version within a group.

    Attributes:
        name: what sets it apart from the group's other variants, ``"all blocks"`` when it is the only one.
        instances: number of blocks that use it.
        graphs: number of graphs the compiler made for it, forward only.
        compile_seconds: wall time spent compiling it, backward included; ``None`` where it was not measured apart.
        dynamic: sizes and numbers that its newest version takes as they come, such as ``dimension 1 of x``.
    """

    name: str
    instances: int
    graphs: int = 0
    compile_seconds: float | None = 0.0
    dynamic: list[str] = field(default_factory=list)


@dataclass
class Recompile:
    """A compile that a guard of an earlier version forced.

    Attributes:
        block: path of the block whose call caused it.
        reason: what changed, in the user's terms.
        guard: the guard as the compiler wrote it.
        seconds: wall time of the compile; ``None`` where the recompile limit forbade it.
        old: the value that the block was compiled for, ``""`` if the guard does not tell.
        new: the value that it met.
        remedy: what to do if it should not happen again.
        caller: the user's line whose call it was: a notebook's cell and line, or a file and line.
    """

    block: str
    reason: str
    guard: str
    seconds: float | None = None
    old: str = ""
    new: str = ""
    remedy: str = ""
    caller: str = ""


@dataclass
class GraphBreak:
    """A place where the compiler had to return to Python.

    Attributes:
        block: path of the block whose call met it.
        reason: the compiler's explanation.
        location: cell or file and line in the user's or a library's code, ``""`` if the compiler did not say.
        remedy: the compiler's hint.
    """

    block: str
    reason: str
    location: str = ""
    remedy: str = ""


@dataclass
class RegionTime:
    """What compiling one region took: wall time in seconds, and its split over :data:`PHASES`."""

    path: str
    class_name: str
    seconds: float
    phases: dict[str, float] = field(default_factory=dict)
    graphs: int = 0


@dataclass
class Group:
    """The repeated blocks of one container, and how they ran.

    ``compiled + eager == instances``; both count what really ran at each block's latest call, not what was asked for.

    Attributes:
        path: the container's path in the model; ``""`` if the blocks are attributes of the model itself.
        class_name: the blocks' class, wrappers taken off.
        blocks: the path of every block.
        reason: why these blocks are regions.
        compile_seconds: wall time of all compiles of this group, recompiles and backward included; ``None`` where it is
            part of the whole model's and was not measured apart.
        phases: that time split over :data:`PHASES`.
        graphs: number of forward graphs.
        eager_reason: why ``eager`` is not zero.
        failure: the compiler's own message if compiling failed.
    """

    path: str
    class_name: str
    instances: int
    compiled: int = 0
    eager: int = 0
    variants: list[Variant] = field(default_factory=list)
    compile_seconds: float | None = 0.0
    recompiles: list[Recompile] = field(default_factory=list)
    graph_breaks: list[GraphBreak] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    blocks: list[str] = field(default_factory=list)
    reason: str = ""
    graphs: int = 0
    eager_reason: str = ""
    failure: str = ""


@dataclass
class Rest:
    """A part of the model that is in no group. ``decision`` is ``"compile"`` or ``"eager"``, ``reason`` says why."""

    path: str
    class_name: str
    decision: str
    reason: str
    compiled: bool = False
    compile_seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    graphs: int = 0


@dataclass
class RegionCheck:
    """One region's compiled calls held against eager ones, on the inputs that it received; absent figures are ``None``.

    Attributes:
        block: path of the region, ``"(whole model)"`` for the model itself.
        max_abs_diff: largest absolute difference of what it returned and of what it wrote into its arguments.
        max_abs_grad_diff: the same of the gradients of its inputs and parameters; ``None`` without gradients.
        largest: largest absolute value that it returned eager, to judge the differences by.
        drifts: whether a difference is larger than ``torch.testing.assert_close`` allows for the dtype.
        note: why there are no figures, or what a reader must know about them.
    """

    block: str
    class_name: str
    max_abs_diff: float | None = None
    max_abs_grad_diff: float | None = None
    largest: float | None = None
    drifts: bool = False
    note: str = ""


@dataclass
class Strategy:
    """One strategy's measured figures; what was not measured is ``None``.

    Attributes:
        cold_seconds: wall time of the first call, compiler cache empty (``eager``: of the first call).
        cold_repeats: how many cold starts the figure is the median of.
        steady_seconds: time of a later call: eager's median, and of what was timed beside eager that median times
            ``steady_ratio``, so that a drift of the machine is no part of it; else its own median.
        steady_spread: interquartile range of that time, in seconds.
        steady_repeats: number of timed rounds behind the median; the rounds of all strategies are interleaved.
        peak_bytes: largest memory in use during a steady call (device memory on an accelerator, else the process's).
        max_abs_diff: largest absolute difference between this strategy's output and eager's.
        break_even_calls: number of calls after which compiling has paid for itself; ``None`` if it never does or if
            the gain is within the spread.
        regions: what was compiled, with its time by phase.
        checks: each region held against eager, in the order of their calls, if that was asked for.
        first_drift: the first region among them that drifts, ``""`` if none does.
        failure: why there are no figures.
        notes: what a reader must know about the figures.
        cold_cpu_seconds: CPU time of the first call, all threads, and the compilers that it started included.
        steady_cpu_seconds: CPU time of a later call, all threads: the median over the rounds.
        steady_ratio: time of a later call as part of eager's: the median over pairs of rounds taken side by side.
        steady_ratio_low: the low end of the interval that holds the true ratio in nine of ten cases or more.
        steady_ratio_high: its high end.
        disturbed_rounds: how many of the rounds lacked the cores although they were repeated.
        dispatch_seconds: what a call of a compiled block costs beside its kernels, on the mean of a step's calls:
            lookup, guards and wrappers. Full compilation pays it once a step.
        dispatch_spread: interquartile range of that, in seconds.
        dispatch_repeats: number of timed rounds behind it.
        dispatch_calls: how many such calls a step makes.
    """

    cold_seconds: float | None = None
    cold_repeats: int = 0
    steady_seconds: float | None = None
    steady_spread: float | None = None
    steady_repeats: int = 0
    peak_bytes: int | None = None
    max_abs_diff: float | None = None
    break_even_calls: int | None = None
    graphs: int | None = None
    regions: list[RegionTime] = field(default_factory=list)
    checks: list[RegionCheck] = field(default_factory=list)
    first_drift: str = ""
    failure: str = ""
    notes: list[str] = field(default_factory=list)
    cold_cpu_seconds: float | None = None
    steady_cpu_seconds: float | None = None
    steady_ratio: float | None = None
    steady_ratio_low: float | None = None
    steady_ratio_high: float | None = None
    disturbed_rounds: int = 0
    dispatch_seconds: float | None = None
    dispatch_spread: float | None = None
    dispatch_repeats: int = 0
    dispatch_calls: int | None = None

    @property
    def band(self) -> ranking.Band | None:
        """The steady time as part of eager's, as it is ranked."""
        return ranking.band(self.steady_ratio, self.steady_ratio_low, self.steady_ratio_high)

    @property
    def verdict(self) -> str:
        """A later call against eager's, ``"faster"``, ``"level"`` or ``"slower"``; ``""`` without paired rounds."""
        return "" if self.band is None else ranking.verdict(self.band)


#: What became of a setting in a tuning.
OUTCOMES = ("measured", "failed", "wrong", "skipped", "stopped")

#: The settings that a tuning tries values of, each with the value that is not worth a word in a setting's name.
AXES: dict[str, Any] = {"strategy": None, "backend": "inductor", "mode": "default", "dynamic": None, "rest": "auto"}

_AXIS_TYPES: dict[str, tuple[type, ...]] = {"dynamic": (bool, types.NoneType)}
_DEFAULT_CALLS = 1000
_LONGEST_NAME = 300

#: How many settings a tuning may have.
MOST_TRIALS = 256


@dataclass
class Trial:
    """One setting of a tuning, and what became of it.

    Attributes:
        settings: ``strategy``, ``backend``, ``mode``, ``dynamic`` and ``rest``, those that matter to the strategy.
        figures: what was measured of it, as much as there was time for.
        outcome: ``"measured"``; ``"failed"``; ``"wrong"``: its result is not eager's, so it is never recommended;
            ``"skipped"``: not tried; ``"stopped"``: given up, as it could not win any more or the tuning was stopped.
        reason: why it is not ``"measured"``, in words.
    """

    settings: dict[str, Any]
    figures: Strategy = field(default_factory=Strategy)
    outcome: str = "measured"
    reason: str = ""

    @property
    def name(self) -> str:
        """The setting in short: its strategy, and what differs from the defaults."""
        strategy = str(self.settings.get("strategy"))
        others = [
            f"{axis}={self.settings[axis]}"
            for axis, usual in AXES.items()
            if axis != "strategy" and axis in self.settings and self.settings[axis] != usual
        ]
        return ", ".join([strategy, *others])

    def total_seconds(self, calls: int) -> float | None:
        """Wall time of so many calls, the first one cold; ``None`` if a figure for it is missing.

        Eager has no cold start: what its first call takes longer, the process pays once, whoever calls first.
        """
        total = ranking.total(_Ranked(self), calls)
        return None if total is None else _float(total)


#: A rank that compiled longer than the median of the others by this factor, and by so many seconds, is a straggler.
_STRAGGLES_FROM, _STRAGGLES_SECONDS = 1.25, 1.0


@dataclass
class Rank:
    """One of several processes that train a model together, by its own report.

    Attributes:
        rank: its number in the process group.
        host: name of the machine that it runs on.
        instances: repeated blocks; at each one's latest call ``compiled`` of them ran compiled and ``eager`` did not.
        graphs: number of forward graphs.
        compile_seconds: wall time of all its compiles.
        backward_seconds: what part of that was for the backward pass.
        recompiles: every compile that a guard forced.
    """

    rank: int
    host: str = ""
    instances: int = 0
    compiled: int = 0
    eager: int = 0
    graphs: int = 0
    compile_seconds: float | None = None
    backward_seconds: float | None = None
    recompiles: list[Recompile] = field(default_factory=list)


@dataclass
class Event:
    """A stretch of compiling: region path, phase (see :data:`PHASES`), start and length in seconds.

    ``start`` counts from the moment the model was prepared for compiling.
    """

    region: str
    phase: str
    start: float
    seconds: float


@dataclass
class Snapshot:
    """Where the work on a report stands that is not finished; what is not known is absent. Times in seconds.

    Attributes:
        stage: what is being done.
        region: path of the block that is being compiled, ``""`` if none is.
        phase: one of :data:`PHASES`, or ``"backend"`` for a compiler that is not told apart any further.
        elapsed_seconds: since the stage began.
        last_seconds: what the same stage took the last time.
        remaining_seconds: an estimate of what is left of the stage.
        done: how many graphs are compiled, or rounds timed.
        expected: how many there will be.
        at_least: whether there may be more than ``expected``.
        unit: what ``done`` and ``expected`` count: ``"graphs"`` or ``"rounds"``.
    """

    stage: str
    region: str = ""
    class_name: str = ""
    phase: str = ""
    elapsed_seconds: float | None = None
    last_seconds: float | None = None
    remaining_seconds: float | None = None
    done: int | None = None
    expected: int | None = None
    at_least: bool = False
    unit: str = ""


@dataclass
class Report:
    """Everything known about one model's compilation. See the module's text for the file format."""

    schema: int = SCHEMA
    created: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    rest: list[Rest] = field(default_factory=list)
    strategies: dict[str, Strategy] = field(default_factory=dict)
    tuning: list[Trial] = field(default_factory=list)
    timeline: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)  # of several processes; the rest is the first one's own
    progress: Snapshot | None = None  # of a finished report there is none

    # -- data ---------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-ready data."""
        return typing.cast("dict[str, Any]", _plain(dataclasses.asdict(self)))

    def to_json(self, *, indent: int | None = None) -> str:
        """The report as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: object) -> Report:
        """Build a report from untrusted data.

        Raises:
            ReportError: the data is no report, has a schema other than 1, or a field of the wrong type.
        """
        if not isinstance(data, dict):
            raise ReportError(f"this is no report: expected a JSON object, found {type(data).__name__}")
        schema = data.get("schema")
        if schema != SCHEMA or isinstance(schema, bool):
            raise ReportError(
                f"this report has schema {str(schema)[:40]!r}; this version of nbcompile reads schema {SCHEMA}. "
                "A newer nbcompile may be able to read it."
            )
        report = typing.cast("Report", _build(cls, data, "report"))
        if len(report.tuning) > MOST_TRIALS:  # each is ranked against each
            raise ReportError(
                f"report.tuning: {len(report.tuning)} settings, more than the {MOST_TRIALS} of any tuning"
            )
        return report

    @classmethod
    def from_json(cls, text: str | bytes) -> Report:
        """Build a report from untrusted JSON text. Raises :class:`ReportError` if it cannot be read."""
        try:
            data = json.loads(text, parse_constant=_refuse_constant)
        except RecursionError:
            raise ReportError("this report cannot be read: its JSON is nested too deeply") from None
        except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
            raise ReportError(f"this report cannot be read: it is not valid JSON ({error})") from None
        return cls.from_dict(data)

    def save(self, file: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the report to ``file`` and return its path; ``.nbcompile.json`` is added if no ``.json`` is there.

        The file appears whole or not at all.

        Raises:
            UsageError: the file exists and ``overwrite`` is false.
            OSError: the folder cannot be written.
        """
        path = Path(file)
        if path.suffix != ".json":
            path = path.with_name(path.name + FILE_ENDING)
        return write_file(path, self.to_json(indent=1) + "\n", overwrite=overwrite)

    # -- several processes: arithmetic on what each of them told ---------------------------------------------------

    def stragglers(self) -> list[Rank]:
        """The ranks that compiled clearly longer than the others did, for which all others waited."""
        times = {rank.rank: rank.compile_seconds for rank in self.ranks if rank.compile_seconds is not None}
        found = []
        for rank in self.ranks:
            others = [seconds for number, seconds in times.items() if number != rank.rank]
            if rank.rank in times and others:
                usual = statistics.median(others)
                longer = times[rank.rank] - usual
                if times[rank.rank] > _STRAGGLES_FROM * usual and longer > _STRAGGLES_SECONDS:
                    found.append(rank)
        return found

    def recompiled_alone(self) -> list[tuple[Rank, Recompile]]:
        """What a rank compiled again while another did not: that one waited, in the next exchange between them.

        Two ranks did the same if their recompiles concern one container of blocks and one reason, numbers in it left
        aside: batches of other sizes make both of them compile.
        """
        done = [(rank, Counter(map(_recompile_key, rank.recompiles))) for rank in self.ranks]
        found = []
        for rank, counts in done:
            left = {key: min(others[key] for _, others in done) for key in counts}
            for again in rank.recompiles:
                key = _recompile_key(again)
                left[key] -= 1
                if left[key] < 0:
                    found.append((rank, again))
        return found

    # -- what to choose: arithmetic on the figures, measures nothing ----------------------------------------------

    @property
    def tuned_calls(self) -> int:
        """The number of calls that the tuning was for; 1000 if the report does not say."""
        calls = self.settings.get("calls")
        return calls if type(calls) is int and 1 <= calls <= ranking.MOST_CALLS else _DEFAULT_CALLS

    def trials(self) -> list[Trial]:
        """What was measured, as trials: those of a tuning, else a comparison's strategies."""
        if self.tuning:
            return self.tuning
        return [
            Trial(
                that_matter({**self.settings, "strategy": name}), figures, "failed" if figures.failure else "measured"
            )
            for name, figures in self.strategies.items()
        ]

    def candidates(self) -> list[Trial]:
        """The trials that can be recommended, eager first.

        Those are measured, right, and clearly faster than eager, if eager was measured; of those that are level with
        one another, the one that compiles the quickest.
        """
        right = [trial for trial in self.trials() if trial.outcome in ("measured", "stopped")]
        eager = next((trial for trial in right if trial.settings.get("strategy") == "eager"), None)
        chosen = ranking.candidates([_Ranked(trial) for trial in right], None if eager is None else _Ranked(eager))
        return [found.trial for found in chosen]

    def best(self, calls: int | None = None) -> Trial:
        """The setting with the least total time for so many calls; "do not compile" (eager) may be the answer.

        Ranks the figures that the report holds, of a tuning or a comparison. A setting whose gain over eager is within
        the spread is never the best.

        Args:
            calls: how often the step will run; by default what the tuning was for.

        Raises:
            UsageError: nothing was measured, or a number of calls that is none.
        """
        calls = self.tuned_calls if calls is None else calls
        if type(calls) is not int or not 1 <= calls <= ranking.MOST_CALLS:
            raise UsageError(f"calls takes a whole number from 1 to {ranking.MOST_CALLS:.0e}, not {calls!r}")
        found = ranking.best([_Ranked(trial) for trial in self.candidates()], calls)
        if found is None:
            raise UsageError(
                "this report holds no setting with both a cold start and a steady time, so none can be recommended; "
                "nbcompile.tune(model, step) and nbcompile.compare(model, step) measure them"
            )
        return found.trial

    def crossings(self) -> list[tuple[int, Trial]]:
        """From how many calls on each setting is the best, beginning with one call; empty if none was measured."""
        return [(calls, found.trial) for calls, found in ranking.envelope([_Ranked(t) for t in self.candidates()])]

    def apply(self, model: Any, calls: int | None = None) -> Any:
        """Compile a model with the best setting for so many calls, or leave it eager if that is the best.

        What was compiled for the model before is replaced. The setting is checked like one that a user gives: a report
        from a file chooses among what exists here, and nothing else.

        Args:
            calls: as in :meth:`best`.

        Returns:
            The same model.

        Raises:
            UsageError: nothing was measured, or the setting does not exist here.
        """
        from .tune import apply_setting

        return apply_setting(model, self.best(calls).settings)

    # -- pictures: each of these only asks the render storey -----------------------------------------------------

    def to_text(self) -> str:
        """The report as plain text: tables for a terminal."""
        from .render.text import render_text

        return render_text(self)

    def to_html(self, file: str | os.PathLike[str] | None = None, *, overwrite: bool = False) -> str | Path:
        """The report as HTML without any script, or, given a file, its path once a whole page is written to it.

        Raises:
            UsageError: the file exists and ``overwrite`` is false.
        """
        from .render.html import render_html, render_page

        if file is None:
            return render_html(self)
        return write_file(Path(file), render_page(self), overwrite=overwrite)

    def figure(self) -> Any:
        """The report as a ``plotly.graph_objects.Figure``. Raises :class:`UsageError` if plotly is missing."""
        from .render.charts import figure

        return figure(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from .render.mime import mime_bundle

        return mime_bundle(self)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        compiled = sum(group.compiled for group in self.groups)
        instances = sum(group.instances for group in self.groups)
        strategies = f", strategies: {', '.join(self.strategies)}" if self.strategies else ""
        if self.tuning:
            return f"<Report of {self.model.get('class_name', '?')}: {len(self.tuning)} settings tried>"
        return f"<Report of {self.model.get('class_name', '?')}: {compiled} of {instances} blocks compiled{strategies}>"


@dataclass(frozen=True)
class _Ranked:
    """A trial as :mod:`nbcompile.ranking` sees it."""

    trial: Trial

    @property
    def cold_seconds(self) -> float | None:
        figures = self.trial.figures
        eager = self.trial.settings.get("strategy") == "eager"
        return figures.steady_seconds if eager and figures.cold_seconds is not None else figures.cold_seconds

    @property
    def steady_seconds(self) -> float | None:
        return self.trial.figures.steady_seconds

    @property
    def steady_spread(self) -> float | None:
        return self.trial.figures.steady_spread

    @property
    def band(self) -> ranking.Band | None:
        return self.trial.figures.band


def _recompile_key(again: Recompile) -> tuple[str, str]:
    return again.block.rpartition(".")[0], re.sub(r"\d+", "#", again.reason)


def that_matter(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in the order of :data:`AXES`, without those that change nothing for their strategy."""
    strategy = str(settings.get("strategy"))
    idle = {"eager": ("backend", "mode", "dynamic", "rest"), "full": ("rest",), "hierarchical": ("rest",)}
    return {axis: settings[axis] for axis in AXES if axis in settings and axis not in idle.get(strategy, ())}


def _check_trial(trial: Trial, where: str) -> None:
    """Refuse a trial that no tuning could have written."""
    if trial.outcome not in OUTCOMES:
        raise ReportError(f"{where}.outcome: there is no outcome {trial.outcome[:40]!r}")
    if not isinstance(trial.settings.get("strategy"), str):
        raise ReportError(f"{where}.settings: the strategy is missing")
    for axis, value in trial.settings.items():
        if axis in AXES and not isinstance(value, _AXIS_TYPES.get(axis, (str,))):
            raise ReportError(f"{where}.settings.{axis}: found {type(value).__name__}, which it cannot be")
        if isinstance(value, str) and len(value) > _LONGEST_NAME:
            raise ReportError(f"{where}.settings.{axis[:40]}: a name of {len(value)} characters")
    trial.settings = {axis: value for axis, value in trial.settings.items() if axis in AXES}  # others are unknown here


def load_report(file: str | os.PathLike[str]) -> Report:
    """Read a report that :meth:`Report.save` wrote, here or elsewhere. Nothing in the file is run.

    Raises:
        ReportError: the file is no report, is damaged, or has a schema this version cannot read.
        OSError: the file cannot be opened.
    """
    try:
        return Report.from_json(Path(file).read_bytes())
    except ReportError as error:
        raise ReportError(f"{os.fspath(file)}: {error}") from None


def write_file(path: Path, text: str, *, overwrite: bool) -> Path:
    """Write ``text`` to ``path`` so that it is there whole or not at all, and never replaces a file unasked."""
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists already; pass overwrite=True to replace it, or choose another name")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        # half a surrogate pair (a file name that is no text, say) is written as JSON's own escape for it
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)  # mkstemp makes files private; a report is as readable as any other file
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _refuse_constant(name: str) -> typing.NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _plain(value: Any) -> Any:
    """JSON-ready data: tuples become lists, a number that JSON cannot hold becomes None, other objects their text."""
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)


def _check_plain(value: Any, where: str, depth: int) -> None:
    """Refuse free-form data that could not be written or drawn again: numbers without end, nesting without end."""
    if depth > _DEEPEST:
        raise ReportError(f"{where}: nested more than {_DEEPEST} levels deep")
    if isinstance(value, float) and not math.isfinite(value):
        raise ReportError(f"{where}: the number is not finite")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_plain(item, where, depth + 1)


def _build(kind: Any, value: Any, where: str) -> Any:
    """``value`` as the type that an annotation names, or a :class:`ReportError` that says where it does not fit."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ReportError(f"{where}: expected an object, found {type(value).__name__}")
        hints = typing.get_type_hints(kind)
        known = {f.name: f for f in dataclasses.fields(kind)}
        missing = [
            name
            for name, f in known.items()
            if name not in value and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
        if missing:
            raise ReportError(f"{where}: the field {missing[0]!r} is missing")
        built = typing.cast("Any", kind)(
            **{name: _build(hints[name], value[name], f"{where}.{name}") for name in known if name in value}
        )
        if isinstance(built, Trial):
            _check_trial(built, where)
        return built
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        if not isinstance(value, list):
            raise ReportError(f"{where}: expected a list, found {type(value).__name__}")
        return [_build(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            raise ReportError(f"{where}: expected an object, found {type(value).__name__}")
        return {key: _build(arguments[1], item, f"{where}.{key[:40]}") for key, item in value.items()}
    if origin is types.UnionType:
        if value is None:
            return None
        return _build(next(a for a in arguments if a is not type(None)), value, where)
    if kind is Any:
        _check_plain(value, where, 0)
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            raise ReportError(f"{where}: the number is too large") from None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ReportError(f"{where}: expected {kind.__name__}, found {type(value).__name__}")
    if kind is float and not math.isfinite(value):
        raise ReportError(f"{where}: the number is not finite")
    return value
