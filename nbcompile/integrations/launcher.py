"""``nbcompile.notebook_launcher``: accelerate's own, which tells the rank that failed first, and can be called again.

What accelerate's launcher leaves to chance in a notebook's kernel, and what is done about it here:

- The error is that of whichever rank has ended when torch looks: often the one that lost its peer by the failure of
  another. Here each rank writes down what happened to it, and when.
- A rank is forked from the kernel. What an earlier launch left in the kernel as garbage is collected in the rank, where
  closing torch's store waits for a thread that was not forked: the launch after a failed one hangs. Here that is
  collected before the fork, and what is left is kept from the rank's collector.
- A rank that computes with several threads waits for those of the kernel, if that has computed before. Here the kernel
  lets go of its threads; new ones are started when they are needed.
- A rank inside of a library does not hear that it should end, as the answer is to be given in Python: 30 seconds are
  waited for it. Here it ends at once, and :data:`_PATIENCE` seconds after an interrupt.
- After the launch the kernel's signals are torch's. Here they are put back.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import logging
import multiprocessing
import os
import re
import shutil
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import RankError

try:
    import accelerate
except ImportError as _error:
    raise ImportError(
        f"nbcompile.notebook_launcher needs accelerate: run `pip install accelerate` ({_error})"
    ) from _error

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

#: Seconds that a rank which was interrupted is given to end: less than the 30 after which torch kills it.
_PATIENCE = 10.0

#: Seconds in which a rank that raises looks whether another one had gone before.
_LOOKS = 0.5

#: The signals that torch's launcher takes over.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

#: So many lines of the traceback of a rank are in the error's message; all of them are in its ``traceback``.
_MOST_FRAMES = 6


def notebook_launcher(function: Callable[..., Any], args: tuple[Any, ...] = (), *rest: Any, **options: Any) -> None:
    """``accelerate.notebook_launcher``, with every argument of it.

    Raises:
        RankError: a rank failed. It names the one that failed first, with its own error, and says what to do.
        KeyboardInterrupt: the cell was interrupted. In both cases no rank is left, and the kernel is as it was.
        Exception: what accelerate raises before it launches anything.
    """
    folder = Path(tempfile.mkdtemp(prefix="nbcompile-ranks-"))
    began = time.time()
    failed: ChildFailedError | None = None
    problem: BaseException | None = None
    try:
        with _fit_to_fork(), _signals_kept(), _quiet_launcher():
            try:
                accelerate.notebook_launcher(_Rank(function, folder), args, *rest, **options)
            except ChildFailedError as error:
                failed = error.with_traceback(None)  # whose frames hold torch's store
            except SignalException as error:
                told = f"the launch was stopped by {error.sigval.name}: all ranks have ended"
                problem = KeyboardInterrupt(told)
            finally:
                _end_ranks(folder)
        if failed is not None:
            problem = _told(failed, folder, began)
    finally:
        failed = None
        shutil.rmtree(folder, ignore_errors=True)
        gc.collect()  # the store of this launch, too, before anything else is forked
    # outside of the `except`: the cell shows one error, and nothing holds the launcher's
    if problem is not None:
        raise problem


class _Rank:
    """What each rank runs: the user's function, and notes of what becomes of it in a folder that all ranks share."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        functools.update_wrapper(self, function)
        self.__name__ = getattr(function, "__name__", type(function).__name__)  # torch asks for both
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self._function, self._folder, self._home = function, folder, os.getpid()

    def __call__(self, *args: Any) -> Any:
        if os.getpid() == self._home:  # one process: accelerate calls the function where it is
            return self._function(*args)
        rank, attempt = int(os.environ["RANK"]), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        notes = _Notes(self._folder, attempt)
        notes.begun(rank)
        _answer_signals()
        try:
            return self._function(*args)
        except BaseException as error:
            if isinstance(error, SystemExit) and error.code in (None, 0):
                raise
            notes.failed(rank, error)
            if isinstance(error, Exception | SystemExit):
                raise
            # torch takes a rank that was interrupted for one that goes on, and waits for its result for ever
            raise RuntimeError(f"{type(error).__name__} in rank {rank}") from error


class _Notes:
    """What the ranks of one machine write down, in files named by rank; of several attempts the last one counts."""

    def __init__(self, folder: Path, attempt: str) -> None:
        self._folder, self._attempt = folder, attempt

    @classmethod
    def last(cls, folder: Path) -> _Notes:
        attempts = [int(file.name.split("-")[0]) for file in folder.glob("*-*.pid")]
        return cls(folder, str(max(attempts, default=0)))

    def begun(self, rank: int) -> None:
        self._write(rank, "pid", os.getpid())

    def failed(self, rank: int, error: BaseException) -> None:
        """Write down an error at once, and then whether another rank had ended before it without saying why."""
        note: dict[str, Any] = {
            "rank": rank,
            "at": time.time(),
            "error": f"{type(error).__name__}: {error}".rstrip(": "),
            "frames": _frames(error.__traceback__),
            "traceback": "".join(traceback.format_exception(error)),
            "gone": None,
        }
        self._write(rank, "error", note)
        end = time.monotonic() + _LOOKS
        while not note["gone"] and time.monotonic() < end:
            time.sleep(0.02)
            silent = {other: pid for other, pid in self.pids().items() if not self._file(other, "error").exists()}
            note["gone"] = {other: _end_of(pid) for other, pid in silent.items() if not _runs(pid)}
        self._write(rank, "error", note)

    def pids(self) -> dict[int, int]:
        """The processes of the ranks that have begun."""
        return self._read("pid")

    def errors(self) -> list[dict[str, Any]]:
        """What the ranks have told, the earliest first."""
        return sorted(self._read("error").values(), key=lambda note: note["at"])

    def _file(self, rank: int, kind: str) -> Path:
        return self._folder / f"{self._attempt}-{rank}.{kind}"

    def _write(self, rank: int, kind: str, value: Any) -> None:
        new = self._file(rank, f"{kind}-new")
        new.write_text(json.dumps(value), encoding="utf-8")
        new.replace(self._file(rank, kind))

    def _read(self, kind: str) -> dict[int, Any]:
        files = self._folder.glob(f"{self._attempt}-*.{kind}")
        return {int(file.stem.split("-")[1]): json.loads(file.read_text(encoding="utf-8")) for file in files}


# -- telling -----------------------------------------------------------------------------------------------------------


def _told(failed: ChildFailedError, folder: Path, began: float) -> RankError:
    """The error that names the rank that failed first.

    A rank's own error counts, the earliest of them, unless another rank had gone by then without one: then that one was
    killed or has crashed, and the errors of the others are what came of it.
    """
    notes = _Notes.last(folder)
    errors, pids = notes.errors(), notes.pids()
    gone: dict[int, int | None] = {}
    for note in errors:
        gone |= {int(rank): how for rank, how in (note["gone"] or {}).items()}
    told = {note["rank"] for note in errors}
    gone |= {rank: failure.exitcode for rank, failure in failed.failures.items() if rank not in told}
    size = len(pids) or len(failed.failures)
    lost = [note["rank"] for note in errors]
    if gone and not (errors and errors[0]["gone"] == {}):
        first = min(gone)
        lines = [f"rank {first} of {size} {_how_it_ended(gone[first])}"]
        found = RankError("", rank=first, traceback="")
    else:
        note, lost = errors[0], lost[1:]
        after = f"{note['at'] - began:.1f} s after the launch"
        lines = [f"rank {note['rank']} of {size} failed first, {after}:", *note["frames"], note["error"]]
        found = RankError("", rank=note["rank"], traceback=note["traceback"])
        if "re-initialize CUDA" in note["error"]:
            lines.append("The notebook has used the GPU before the launch: restart the kernel, and launch first.")
    if lost:
        names = ", ".join(f"rank {rank}" for rank in sorted(lost))
        lines.append(f"By that {names} failed too ({errors[-1]['error'].splitlines()[0][:120]}).")
    lines.append("All ranks have ended. Mend the cause and run the cell again: nothing has changed in the kernel.")
    found.args = ("\n".join(lines),)
    return found


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "was killed or has crashed, without an error of its own"
    if code >= 0:
        return f"ended with exit code {code}, without an error of its own (os._exit, or a library that gave up)"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if -code == signal.SIGKILL:
        advice = "the system does so when memory runs out: `dmesg` tells, and a smaller batch or fewer ranks help"
    elif -code in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT, signal.SIGFPE):
        advice = "a library crashed; its last words are above"
    else:
        advice = "somebody has ended it"
    return f"was ended by {name}, without an error of its own: {advice}"


def _frames(part: TracebackType | None) -> list[str]:
    """The lines of a traceback: those of the user's code, and the place where it was raised."""
    frames = traceback.extract_tb(part)[1:]  # the first one is this module's
    library = re.compile(r"[/\\](site-packages|dist-packages)[/\\]")
    shown = [frame for frame in frames[:-1] if not library.search(frame.filename)]
    chosen = [*shown[-_MOST_FRAMES:], *frames[-1:]]
    return "".join(traceback.format_list(chosen)).splitlines()


# -- processes ---------------------------------------------------------------------------------------------------------


def _state(pid: int) -> list[str]:
    """What Linux tells of a process, from its state on; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _runs(pid: int) -> bool:
    if not Path("/proc/self/stat").exists():  # not on Linux, where one that has ended and was not asked for counts, too
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    state = _state(pid)
    return bool(state) and state[0] not in "ZX"


def _end_of(pid: int) -> int | None:
    """The exit code of a process that has ended and that its parent has not asked for yet: minus the signal, if one."""
    state = _state(pid)
    if not state or state[0] != "Z":
        return None
    status = int(state[-1])
    return -(status & 0x7F) if status & 0x7F else status >> 8


def _answer_signals() -> None:
    """In a rank: end as any process does when it is told to, and a while after an interrupt at the latest.

    The parent's answers, which are inherited, raise an error: they wait for a library's call that has not returned, and
    code that goes on after errors goes on. After an interrupt there is time to save what is wanted.
    """
    for number in _SIGNALS[1:]:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    heard, tells = os.pipe()
    os.set_blocking(tells, False)
    signal.set_wakeup_fd(tells, warn_on_full_buffer=False)

    def watch() -> None:
        while signal.SIGINT not in os.read(heard, 1):
            pass
        time.sleep(_PATIENCE)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="nbcompile-interrupts", daemon=True).start()


def _end_ranks(folder: Path) -> None:
    """End what torch has not: it does not get to it if a second interrupt comes while it waits."""
    pids = set(_Notes.last(folder).pids().values())
    for child in multiprocessing.active_children():
        if child.pid in pids:
            child.kill()
            child.join(5)


@contextlib.contextmanager
def _fit_to_fork() -> Iterator[None]:
    """Inside, processes that are forked from this one hold neither its garbage nor its computing threads."""
    _release_threads()
    gc.collect()
    frozen = gc.get_freeze_count() > 0  # by the user, and stays so
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()


def _release_threads() -> None:
    """Have GNU's OpenMP end the threads that it keeps for this one; they are started anew when they are needed."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not on Linux
        return
    for library in {line.split(maxsplit=5)[5] for line in maps.splitlines() if "/libgomp" in line}:
        with contextlib.suppress(OSError, AttributeError):  # older ones do not have it
            ctypes.CDLL(library).omp_pause_resource_all(2)  # 2: omp_pause_hard


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Put back the answers to signals that torch's launcher replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, answer in before.items():
            if answer is not None:  # one that was not set from Python cannot be
                signal.signal(number, answer)


@contextlib.contextmanager
def _quiet_launcher() -> Iterator[None]:
    """Leave out what torch's launcher logs of a failure: the error tells it."""
    loggers = [logging.getLogger(name) for name in ("torch.multiprocessing.spawn", "torch.distributed.elastic")]
    loggers += [
        logger
        for name, logger in list(logging.root.manager.loggerDict.items())
        if name.startswith("torch.distributed.elastic.") and isinstance(logger, logging.Logger)
    ]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
