"""What a stretch of time cost on the cores, and whether this process had them: CPU time, and waiting for a core.

A model's threads wait for one another, so another process on one of their cores can make a step many times slower.
Wall time alone does not show why. The system's own counts do: how long each thread was ready and had no core
(``schedstat`` of Linux), how long a container's quota held it back (``cpu.stat`` of its cgroup), how long a virtual
machine's cores were given to others (``steal`` in ``/proc/stat``). What a system does not tell is ``None``.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: A stretch in which more than this part of the time was lost is disturbed. On a quiet machine it is 1 to 3 %.
MOST_LOST = 0.05
#: Of a cold start, which lasts longer and whose own threads and compilers take turns on the cores, it is this.
MOST_LOST_COLD = 0.1
#: Where a system does not tell how long threads waited: a round is disturbed that took so many times the best one's
#: time while it kept no more than this part of the best one's cores busy.
_SLOWER, _FEWER_CORES = 1.25, 0.8

#: In fewer seconds than this one interruption, or one tick of the system's clock, is a large part.
_TOO_SHORT = 0.05

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Reading:
    """Counts of the system at one moment, in seconds since some time of its own.

    Attributes:
        wall: the clock.
        cpu: CPU time of this process, all threads.
        children: CPU time of the processes under this one, finished or not; ``None`` if it was not asked for.
        waiting: by thread how long it has waited for a core.
        throttled: how long the cgroup's quota has held it back.
        busy, idle, stolen: of all cores together, with everything that runs on the machine.
    """

    wall: float
    cpu: float
    children: float | None = None
    waiting: Mapping[str, float] | None = None
    throttled: float | None = None
    busy: float | None = None
    idle: float | None = None
    stolen: float | None = None


@dataclass(frozen=True)
class Use:
    """What went on between two readings.

    Attributes:
        wall: seconds by the clock.
        cpu: CPU seconds of this process, and of those under it if the readings hold them.
        lost: part of the wall time in which its threads waited for a core, were held back by a quota, or the machine's
            cores were given to another; above 1 where several threads waited. ``None`` if the system does not tell.
        others: part of all cores that other processes kept busy; ``None`` unless the readings hold the children.
        idle: part of all cores that nobody used.
    """

    wall: float
    cpu: float
    lost: float | None = None
    others: float | None = None
    idle: float | None = None

    @classmethod
    def between(cls, before: Reading, after: Reading) -> Use:
        """What went on between two readings; counts that do not go forward, as after a change of cgroup, are left."""
        wall = max(after.wall - before.wall, 1e-9)
        own = max(0.0, after.cpu - before.cpu)
        children = _passed(before.children, after.children)
        busy, idle = _passed(before.busy, after.busy), _passed(before.idle, after.idle)
        others = None
        all_cores = wall * cores()
        if busy is not None and children is not None:
            others = max(0.0, busy - own - children) / all_cores
        return cls(
            wall,
            own + (children or 0.0),
            _lost(before, after, wall),
            others,
            None if idle is None else min(1.0, idle / all_cores),
        )

    def disturbed(self, calls: int = 1, best: Use | None = None) -> bool:
        """Whether this process lacked the cores. Of a stretch that is too short for the counts it is not told.

        Args:
            calls: how many calls were made meanwhile.
            best: what one call took in the quickest round, to be held against where waiting is not told.
        """
        if self.lost is not None:
            return self.wall > _TOO_SHORT and self.lost > MOST_LOST
        if best is None or self.wall / calls <= _SLOWER * best.wall:
            return False
        return self.cpu / self.wall < _FEWER_CORES * best.cpu / best.wall

    @property
    def disturbed_cold(self) -> bool:
        """The same of a compile. How long its compilers waited is not told, so others that left no core idle count."""
        if self.lost is not None and self.lost > MOST_LOST_COLD:
            return True
        return self.others is not None and self.idle is not None and self.others > 0.1 and self.idle < 0.1


def read(*, children: bool = False) -> Reading:
    """Read the counts now. Takes a tenth of a millisecond.

    Args:
        children: with the CPU time of the processes under this one, for which all processes are looked at.
    """
    waiting, throttled, whole = _waiting(), _throttled(), _whole_machine()
    under = _children_seconds() if children else None
    return Reading(time.perf_counter(), time.process_time(), under, waiting, throttled, *whole)


def cores() -> int:
    """How many cores the machine has, whoever may use them."""
    return os.cpu_count() or 1


def usable() -> int:
    """How many cores this process may run on, which in a container are fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores()


def _passed(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)


def _lost(before: Reading, after: Reading, wall: float) -> float | None:
    """The part of the time without a core. Only where threads' waiting is told: the rest alone says too little."""
    if before.waiting is None or after.waiting is None:
        return None
    waited = sum(max(0.0, seconds - before.waiting.get(thread, 0.0)) for thread, seconds in after.waiting.items())
    throttled = _passed(before.throttled, after.throttled) or 0.0
    stolen = max(0.0, (_passed(before.stolen, after.stolen) or 0.0) - 2 / _ticks()) / cores()  # whole ticks are told
    return (waited + throttled + stolen) / wall


def _waiting() -> dict[str, float] | None:
    """By thread of this process the seconds that it has been ready without a core."""
    found = {}
    try:
        with os.scandir(_PROC / "self" / "task") as threads:
            for thread in threads:
                counts = _text(f"{thread.path}/schedstat").split()
                if len(counts) >= 2:  # else the thread has ended meanwhile, or the system does not count this
                    found[thread.name] = int(counts[1]) / 1e9
    except OSError:
        return None
    return found or None


def _whole_machine() -> tuple[float | None, float | None, float | None]:
    """Seconds that all cores together were busy, idle and stolen."""
    words = _text(_PROC / "stat").partition("\n")[0].split()
    if len(words) < 9 or words[0] != "cpu":
        return None, None, None
    user, nice, system, idle, disk, hard, soft, stolen = (int(word) / _ticks() for word in words[1:9])
    return user + nice + system + hard + soft, idle + disk, stolen


@functools.cache
def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")


def _throttled() -> float | None:
    """Seconds for which the quota of this process's cgroup, or of one around it, has held it back."""
    found = [held.seconds for file in _quota_files() if (held := Throttling.of(file)) is not None]
    return max(found, default=None)


@dataclass(frozen=True)
class Throttling:
    """How often and for how many seconds a cgroup's quota has held it back since it began."""

    periods: int
    held_back: int
    seconds: float

    @classmethod
    def of(cls, file: Path) -> Throttling | None:
        """What a ``cpu.stat`` says, of either version of cgroups; ``None`` if it says nothing of a quota."""
        counts = dict(line.split(maxsplit=1) for line in _text(file).splitlines() if " " in line)
        try:
            name, unit = ("throttled_usec", 1e6) if "throttled_usec" in counts else ("throttled_time", 1e9)
            return cls(int(counts["nr_periods"]), int(counts["nr_throttled"]), int(counts[name]) / unit)
        except (KeyError, ValueError):
            return None


def throttling() -> Throttling | None:
    """The quota that has held this process back the longest; ``None`` if there is none."""
    found = [held for file in _quota_files() if (held := Throttling.of(file)) is not None]
    return max(found, key=lambda held: held.seconds, default=None)


@functools.cache
def _quota_files() -> tuple[Path, ...]:
    """Where the quotas over this process are told: its own cgroup's, and those around it."""
    found: dict[Path, None] = {}
    for line in _text(_PROC / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        mounts = (controllers, "cpu,cpuacct", "cpu") if controllers else (".",)
        for root in (_CGROUPS / mount for mount in mounts):
            inside = root / path.lstrip("/")
            for folder in (inside, *inside.parents):
                if folder == _CGROUPS.parent or not folder.is_relative_to(root):
                    break
                if (folder / "cpu.stat").is_file():
                    found[folder / "cpu.stat"] = None
    return tuple(found)


# -- other processes ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """A process as the system tells of it: no more than its name, so that nothing private of another is shown.

    Attributes:
        cpu: CPU seconds so far.
        children: those of its children that have ended and were waited for.
    """

    pid: int
    parent: int
    name: str = field(compare=False)
    cpu: float
    children: float


def processes() -> dict[int, Process]:
    """Every process that can be seen, by its number; empty where the system has no ``/proc``."""
    return {process.pid: process for process in _every_process()}


def _every_process() -> Iterator[Process]:
    try:
        names = [name for name in os.listdir(_PROC) if name.isdigit()]
    except OSError:
        return
    for name in names:
        head, closed, tail = _text(_PROC / name / "stat").rpartition(")")  # a process's name may hold anything
        words = tail.split()
        if closed and len(words) > 14:
            times = [int(word) / _ticks() for word in words[11:15]]
            yield Process(int(name), int(words[1]), head.partition("(")[2], times[0] + times[1], times[2] + times[3])


def below(found: Mapping[int, Process], pid: int) -> set[int]:
    """The processes that a process has started, and those that they have, as far as they still run."""
    under: dict[int, list[int]] = {}
    for process in found.values():
        under.setdefault(process.parent, []).append(process.pid)
    reached, ahead = set(), list(under.get(pid, ()))
    while ahead:
        one = ahead.pop()
        if one not in reached:
            reached.add(one)
            ahead += under.get(one, ())
    return reached


def competing(seconds: float = 0.5) -> list[tuple[Process, float]]:
    """Processes that are neither this one nor under it, with the cores that each used over so many seconds.

    The busiest comes first. Processes that this container or user cannot see are not among them.
    """
    before, begin = processes(), time.perf_counter()
    time.sleep(seconds)
    after, passed = processes(), time.perf_counter() - begin
    own = {os.getpid(), *below(after, os.getpid())}
    used = [
        (process, max(0.0, process.cpu - before[pid].cpu) / passed)
        for pid, process in after.items()
        if pid not in own and pid in before and before[pid].name == process.name
    ]
    return sorted(((process, share) for process, share in used if share > 0), key=lambda found: -found[1])


def _children_seconds() -> float | None:
    """CPU seconds of all processes under this one: those that have ended and were waited for, and those that run."""
    try:
        import resource
    except ImportError:  # Windows has no such count
        return None
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = processes()
    running = (found[pid] for pid in below(found, os.getpid()))
    return ended.ru_utime + ended.ru_stime + sum(process.cpu + process.children for process in running)


def _text(file: Path | str) -> str:
    """A file of the system's; ``""`` if there is none or it may not be read."""
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""
