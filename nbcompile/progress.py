"""Where a long piece of work stands, told to its user while it goes on.

The work fills a :class:`Progress`; whoever looks on, from another thread, gets a report of what is known so far with a
:class:`~nbcompile.report.Snapshot` in it. Looking on reads plain data of Python and nothing else: the compiler is not
thread safe, so a second thread must not call anything of torch while the first one compiles. For the same reason the
phase of a compile is read from the stack of the thread that compiles, which costs the compile nothing.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
import hashlib
import itertools
import json
import operator
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import median
from types import CodeType
from typing import Any, NamedTuple

from . import ongoing
from .cache import cache_folder
from .report import RegionTime, Report, Snapshot, Strategy, write_file

#: How many cold starts are remembered in the file, and its name in the compiler's cache folder.
_MOST_REMEMBERED = 200
_FILE = "nbcompile-cold-starts.json"

#: Makes an onlooker for work that was given none: what a notebook installs, so that the core need not know of it.
Onlooker = Callable[[], AbstractContextManager["Progress"]]
_onlooker: Onlooker | None = None


class Tally(NamedTuple):
    """How the regions of a compilation have run so far.

    Attributes:
        compiled: how many ran compiled when they were called last.
        eager: how many did not.
        pending: how many were never called.
        seconds: what the compiler took for them.
        recompiles: how often it had to compile once more what it had compiled.
    """

    compiled: int
    eager: int
    pending: int
    seconds: float
    recompiles: int


@dataclass
class Compiling:
    """What there is to see of a compile while it goes on.

    Attributes:
        strategy: the strategy whose cold start it is.
        settings: backend, mode and whatever else was chosen.
        signature: what its duration depends on: model, settings, versions.
        regions: by path of a block the region that it counts to, and its class.
        graphs: number of forward graphs that will be made at the least.
        times: what the compiler has recorded so far, region by region. Must not call torch.
        tally: how its regions have run so far. Must not call torch.
        call: the block that the compiling thread is in: a mapping that holds its path as ``"block"``.
        thread: the compiling thread.
    """

    strategy: str
    settings: Mapping[str, Any]
    signature: str
    regions: Mapping[str, tuple[str, str]]
    graphs: int
    times: Callable[[], list[RegionTime]]
    tally: Callable[[], Tally]
    call: Mapping[str, Any]
    thread: int = field(default_factory=threading.get_ident)


class Progress:
    """What a long piece of work tells about itself. Calling it with a line of text begins a new stage.

    The methods above ``glance`` are for the work, in its own thread. ``glance`` is for anyone in any thread, ``look``
    for one onlooker that holds ``lock``.

    Attributes:
        lock: held by the onlooker while it looks and draws, and by the work while it must not be disturbed.
        watched: whether an onlooker of its own looks on.
        result: what came of the work, once it is done.
    """

    def __init__(self, tell: Callable[[str], None] | None = None, *, watched: bool = False) -> None:
        self.lock = threading.RLock()
        self.watched = watched
        self.result: Report | None = None
        self._tell = tell
        self._report = Report()
        self._figures: Mapping[str, Strategy] = {}
        self._stage = ""
        self._began = time.perf_counter()
        self._rounds: _Rounds | None = None
        self._compiling: Compiling | None = None
        self._last: _Duration | None = None
        self._samples = _Samples()

    @classmethod
    def of(cls, progress: Callable[[str], None] | None) -> Progress:
        """The progress that a user's ``progress`` argument stands for: itself, a function that takes lines, or none."""
        return progress if isinstance(progress, Progress) else cls(progress)

    def __call__(self, line: str) -> None:
        """Begin a stage."""
        self._compiling = self._last = self._rounds = None
        self._began = time.perf_counter()
        self._say(line)

    def round_begins(self, line: str, *, done: int, of: int, timed: Mapping[str, Sequence[float]]) -> None:
        """Begin a timed round; all rounds are one stage.

        Args:
            done: how many rounds are over.
            of: how many there will be.
            timed: by strategy the seconds of a call in each round so far.
        """
        if self._rounds is None:
            self._compiling, self._began = None, time.perf_counter()
        self._rounds = _Rounds(done, of, timed)
        self._say(line)

    def _say(self, line: str) -> None:
        self._stage = line
        if self._tell is not None:
            self._tell(line)

    def known(self, report: Report, figures: Mapping[str, Strategy]) -> None:
        """Say what the report is to start from, and where the figures of the strategies appear as they are measured."""
        self._report, self._figures = report, figures

    def compiling(self, about: Compiling) -> None:
        """Say that the present stage is a cold start."""
        self._last = _remembered(_key(about)) if self.watched else None
        self._samples = _Samples()
        self._compiling = about

    def compiled(self) -> None:
        """Say that the cold start has ended well; how long it took is what the next one like it is held against."""
        about, self._compiling = self._compiling, None
        if about is not None and self.watched:
            graphs = sum(region.graphs for region in about.times())
            _remember(_key(about), _Duration(time.perf_counter() - self._began, graphs))

    def quiet(self) -> AbstractContextManager[Any]:
        """A context in which no onlooker runs: it waits, without waking up, until the context is left.

        Meant for timed rounds. An onlooker that draws ten times a second takes the interpreter from the step and the
        cache lines from its kernels, by more than the differences between strategies that are to be measured.
        """
        return self.lock

    @property
    def timing(self) -> bool:
        """Whether rounds are being timed."""
        return self._rounds is not None

    @property
    def seen(self) -> bool:
        """Whether anyone may look: its own onlooker, or whoever looks at all the work of this process."""
        return self.watched or ongoing.listened()

    @property
    def compile_underway(self) -> Compiling | None:
        """The cold start that the present stage is, if it is one."""
        return self._compiling

    def glance(self) -> Snapshot:
        """Where the work stands. It takes no lock and leaves no trace: for anyone, also while rounds are timed."""
        return self._glance(self._compiling, time.perf_counter())

    def look(self) -> Report:
        """The report so far, with a snapshot of where the work stands in it."""
        now = time.perf_counter()
        about, samples = self._compiling, self._samples  # the work may go on to another stage meanwhile
        strategies = {name: copy.copy(figures) for name, figures in dict(self._figures).items()}
        snapshot = self._glance(about, now)
        if about is not None:
            times = about.times()
            path, class_name = about.regions.get(about.call.get("block", ""), ("", ""))
            samples.add(path, snapshot.phase, now, times)
            figures = strategies.get(about.strategy)
            if figures is not None and not figures.regions:
                figures.regions = samples.added_to(times, class_name)
        elif (rounds := self._rounds) is not None:
            for name, seconds in rounds.timed.items():
                if seconds and name in strategies and strategies[name].steady_seconds is None:
                    strategies[name].steady_seconds, strategies[name].steady_repeats = median(seconds), len(seconds)
        return dataclasses.replace(self._report, strategies=strategies, progress=snapshot)

    def _glance(self, about: Compiling | None, now: float) -> Snapshot:
        elapsed = now - self._began
        snapshot = Snapshot(stage=self._stage, elapsed_seconds=elapsed)
        if about is not None:
            self._glance_at_compile(about, snapshot, elapsed)
        elif (rounds := self._rounds) is not None:
            snapshot.done, snapshot.expected, snapshot.unit = rounds.done, rounds.of, "rounds"
            if rounds.done:
                snapshot.remaining_seconds = elapsed / rounds.done * (rounds.of - rounds.done)
        return snapshot

    def _glance_at_compile(self, about: Compiling, snapshot: Snapshot, elapsed: float) -> None:
        last, phase = self._last, phase_of(about.thread)
        if phase:
            block = about.call.get("block", "")
            path, snapshot.class_name = about.regions.get(block, ("", ""))
            snapshot.phase, snapshot.region = phase, block or path
        made = sum(region.graphs for region in about.times())
        graphs = about.graphs if last is None else last.graphs
        snapshot.done, snapshot.unit = made, "graphs"
        if not (phase and made >= graphs):  # what was counted beforehand is the least that there can be
            snapshot.expected, snapshot.at_least = max(graphs, made), last is None
        if last is not None:
            snapshot.last_seconds = last.seconds
            snapshot.remaining_seconds = last.seconds - elapsed if elapsed < last.seconds else None
        elif 0 < made < graphs:
            snapshot.remaining_seconds = elapsed / made * (graphs - made)


@dataclass(frozen=True)
class _Rounds:
    done: int
    of: int
    timed: Mapping[str, Sequence[float]]


class _Samples:
    """How long the compile of one region has been in each phase, before the compiler's own record of it exists."""

    def __init__(self) -> None:
        self._region = ""
        self._recorded = 0.0
        self._phases: dict[str, float] = {}
        self._at: float | None = None

    def add(self, region: str, phase: str, now: float, times: Sequence[RegionTime]) -> None:
        """Count the time since the last look to the phase that the region is in now."""
        recorded = sum(known.seconds for known in times if known.path == region)
        if region != self._region or recorded != self._recorded:
            self._region, self._recorded, self._phases = region, recorded, {}
        if phase and region and self._at is not None:
            name = "aot_autograd" if phase == "backend" else phase  # to which the compiler's own record counts it
            self._phases[name] = self._phases.get(name, 0.0) + now - self._at
        self._at = now

    def added_to(self, times: Sequence[RegionTime], class_name: str) -> list[RegionTime]:
        """The recorded times with that of the compile that goes on."""
        found = {known.path: known for known in times}
        if self._phases:
            known = found.get(self._region) or RegionTime(self._region, class_name, 0.0)
            phases = dict(known.phases)
            for phase, seconds in self._phases.items():
                phases[phase] = phases.get(phase, 0.0) + seconds
            seconds = known.seconds + sum(self._phases.values())
            found[self._region] = dataclasses.replace(known, seconds=seconds, phases=phases)
        return list(found.values())


# -- onlookers that nobody asked for ----------------------------------------------------------------------------------


def install(onlooker: Onlooker | None) -> None:
    """Have every piece of work that is given no ``progress`` watched by an onlooker; ``None`` takes it away again."""
    global _onlooker
    _onlooker = onlooker


@contextlib.contextmanager
def watched(progress: Callable[[str], None] | None, kind: str) -> Iterator[Progress]:
    """The progress for a piece of work: the user's own, or that of the onlooker that is installed."""
    if progress is None and _onlooker is not None:
        with _onlooker() as own, ongoing.working(kind, own):
            yield own
    else:
        own = Progress.of(progress)
        with ongoing.working(kind, own):
            yield own


# -- the phase of a compile, from the outside -------------------------------------------------------------------------

_OWN_BACKEND = "/nbcompile/variants.py", "__call__"

#: By the place of its code in torch, a file or a folder and a function (any if ``""``), the phase that a function
#: belongs to; the first that fits. Checked on torch 2.11 and 2.13.
_PLACES = (
    ("_inductor/decomposition.py", "", ""),  # used while AOT autograd traces
    ("_inductor/runtime/", "", ""),
    ("_inductor/async_compile.py", "", "kernels"),
    ("_inductor/cpp_builder.py", "", "kernels"),
    ("_inductor/graph.py", "compile_to_module", "codegen"),
    ("_inductor/", "", "inductor"),
    ("_functorch/", "", "aot_autograd"),
    ("_dynamo/convert_frame.py", "", "dynamo"),
)


def phase_of(thread: int) -> str:
    """The phase of the compile that a thread is in: one of ``report.PHASES`` or ``"backend"``; ``""`` if it is in none.

    The innermost function that belongs to a phase tells which, but that all inside of the wait for kernels, or of code
    generation, counts to that, as in the compiler's own records. That it is a compile, and no compiled code running, is
    told by an entry of Dynamo further out, or, for a backward graph that is compiled at run time, by one of Inductor.
    """
    found: dict[str, None] = {}
    backward = False
    for code in _codes_of(thread):
        phase, entry = _place(code)
        found[phase] = None
        if entry == "dynamo":
            return next((phase for phase in ("kernels", "codegen", *found) if phase in found and phase), "")
        backward = backward or entry == "inductor"
    if not backward:
        return ""
    return "kernels" if "kernels" in found else "backward"


def _codes_of(thread: int) -> list[CodeType]:
    """The code of each frame of another thread, innermost first.

    The frames are walked by one call of C functions, in which no other thread gets its turn: Dynamo runs code in frames
    of its own making, and one that has ended meanwhile led to an object that was no frame (Python 3.11, torch 2.13).
    """
    frame = sys._current_frames().get(thread)
    codes: collections.deque[Any] = collections.deque()
    with contextlib.suppress(AttributeError):  # the outermost frame has none behind it
        codes.extend(map(_code, itertools.accumulate(itertools.repeat("f_back"), getattr, initial=frame)))
    return [code for code in codes if isinstance(code, CodeType)]


_code = operator.attrgetter("f_code")


@functools.lru_cache(maxsize=4096)
def _place(code: CodeType) -> tuple[str, str]:
    """The phase that a function belongs to, and which compiler it is an entry of; each ``""`` if none."""
    file, function = code.co_filename.replace("\\", "/"), code.co_name
    if file.endswith(_OWN_BACKEND[0]):
        return "backend" if function == _OWN_BACKEND[1] else "", ""
    _, inside_torch, inside = file.rpartition("/torch/")
    if not inside_torch:
        return "", ""
    phases = (phase for place, name, phase in _PLACES if inside.startswith(place) and name in ("", function))
    phase = next(phases, "")
    if phase == "dynamo":
        return phase, "dynamo"
    return phase, "inductor" if inside == "_inductor/compile_fx.py" and "compile_fx_inner" in function else ""


# -- cold starts of earlier times -------------------------------------------------------------------------------------


class _Duration(NamedTuple):
    """How long a cold start took, and the graphs that it made."""

    seconds: float
    graphs: int


_durations: dict[str, _Duration] = {}


def _key(about: Compiling) -> str:
    return hashlib.sha256(f"{about.strategy}\n{about.signature}".encode()).hexdigest()[:16]


def _remembered(key: str) -> _Duration | None:
    """What a cold start took the last time, in this process or in an earlier one."""
    return _durations.get(key) or _read().get(key)


def _remember(key: str, duration: _Duration) -> None:
    _durations[key] = duration
    folder = cache_folder()
    if folder.is_dir():  # never created for this
        kept = {**_read(), **_durations}
        lines = {name: [round(kept[name].seconds, 3), kept[name].graphs] for name in list(kept)[-_MOST_REMEMBERED:]}
        with contextlib.suppress(OSError):  # a folder that cannot be written to costs an estimate, no more
            write_file(folder / _FILE, json.dumps(lines), overwrite=True)


def _read() -> dict[str, _Duration]:
    """What the file holds; whatever is wrong with it, it is as if that were not there."""
    try:
        found = json.loads((cache_folder() / _FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    read = {}
    for key, value in found.items():
        match value:
            case [int() | float() as seconds, int() as graphs] if 0 < seconds < 1e6 and 0 < graphs < 1e6:
                read[key] = _Duration(float(seconds), graphs)
    return read
