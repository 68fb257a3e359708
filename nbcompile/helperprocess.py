"""The helper of :mod:`nbcompile.background`, from the side of the process that starts it: jobs in, answers out.

What it does is in :mod:`nbcompile.helper`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

import torch

from . import cache, helper
from .errors import NbcompileError

#: The helper's program: what can be imported here can be imported there.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from nbcompile.helper import main; main(int(sys.argv[2]), *sys.argv[3:5])"
)
#: A helper that has used no processor time for so long, or has taken so long for one job, is given up; seconds.
PATIENCE, LONGEST = 120.0, 3600.0


#: A process that :mod:`nbcompile.warmup` has handed over, and what its standard error goes to.
StandingBy = tuple["subprocess.Popen[bytes]", IO[bytes]]


class HelperError(NbcompileError):
    """The helper died, hung or could not be started; the message goes on after "the helper process"."""


class HelperProcess:
    """A helper, from this side.

    Args:
        standing_by: a process that is told to go on as one; else one is started.

    Raises:
        HelperError: none can be started.
    """

    def __init__(self, standing_by: StandingBy | None = None) -> None:
        helper.remove_left_behind()
        self._folder = tempfile.mkdtemp(prefix=f"{helper.FOLDER}{os.getpid()}-")
        self._why, self._ended, self._busy, self._lock = "", False, False, threading.Lock()
        self._began = time.time()
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache.cache_folder())}
        arguments = [json.dumps(sys.path), str(os.getpid()), self._folder, _holder()]
        if standing_by is not None:
            self._process, self._log = standing_by
            self._hand_over({"program": _PROGRAM, "arguments": arguments, "environment": environment})
            return
        self._log = open(Path(self._folder, "stderr"), "w+b")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, *arguments],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                process_group=0 if os.name == "posix" else None,
            )
        except OSError as error:
            self._log.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise HelperError(f"cannot be started: {error}") from error

    def _hand_over(self, told: dict[str, Any]) -> None:
        """Have a process that stands by go on as the helper."""
        try:
            directory = os.getcwd()
        except OSError:  # it has been removed
            directory = os.sep
        stream = self._stream(self._process.stdin)
        with contextlib.suppress(OSError, ValueError):  # it has ended just now: receive says so
            stream.write(json.dumps({**told, "directory": directory}).encode() + b"\n")
            stream.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """The answer to a job.

        Raises:
            HelperError: there will be none.
        """
        self._busy = True
        with contextlib.suppress(OSError, ValueError):  # it has died: receive says how
            helper.write(self._stream(self._process.stdin), job)
        answer = self.receive()
        self._busy = False
        return answer

    def receive(self) -> dict[str, Any]:
        """Its next message.

        Raises:
            HelperError: there will be none.
        """
        done = threading.Event()
        threading.Thread(target=self._watch, args=(done,), daemon=True).start()
        try:
            answer = helper.read(self._stream(self._process.stdout))
        except (OSError, ValueError):  # closed by stop
            answer = None
        finally:
            done.set()
        if answer is None:
            raise HelperError(self._death())
        return answer  # type: ignore[no-any-return]

    def stop(self) -> None:
        """End it, with the compilers that it has started, and remove what they left half done."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            _kill_group(self._process.pid)
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout, self._log):
                with contextlib.suppress(OSError):
                    self._stream(stream).close()
            shutil.rmtree(self._folder, ignore_errors=True)  # before another thread's stop returns
            if self._busy:  # it was ended in the middle
                cache.mend(self.pid, since=self._began)

    def _stream(self, stream: Any) -> IO[bytes]:
        assert stream is not None
        return stream  # type: ignore[no-any-return]

    def _watch(self, done: threading.Event) -> None:
        """Give it up where it hangs: a process that waits for the cores still gets a little of them."""
        began, latest, used = time.monotonic(), time.monotonic(), -1.0
        while not done.wait(min(1.0, PATIENCE / 4)):
            now, spent = time.monotonic(), group_seconds(self._process.pid)
            if spent != used:
                latest, used = now, spent
            if now - latest > PATIENCE or now - began > LONGEST:
                self._why = f"was given up: it hung for {min(now - latest, now - began):.0f} s"
                _kill_group(self._process.pid)
                return

    def _death(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        code = self._process.poll()
        if self._why:
            return self._why
        lines: list[str] = []
        with contextlib.suppress(OSError, ValueError):
            self._log.seek(0)
            lines = self._log.read()[-4000:].decode(errors="replace").strip().splitlines()
        how = "ended" if code is None else f"ended with exit status {code}"
        if code is not None and code < 0:
            how = f"was ended by the signal {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += " (as the system does where memory runs out)"
        return f"{how}: {lines[-1][:300]}" if lines else how


def group_seconds(group: int) -> float:
    """Processor time of a group's processes, in ticks, and of their children that have ended; 0 where none is told."""
    total = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            values = entry.read_text().rpartition(")")[2].split()
            if int(values[2]) == group:
                total += sum(map(int, values[11:15]))
    return float(total)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(OSError):  # it is gone already
        if os.name == "posix":
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGTERM)


def _holder() -> str:
    """The module in which pickle finds torch, and which it names in what it writes: the first that has imported it.

    The compiler's keys are made of pickles, and a memory format is one of torch's constants that do not name a module.
    """
    return str(pickle.whichmodule(torch.contiguous_format, repr(torch.contiguous_format)))  # type: ignore[attr-defined]
