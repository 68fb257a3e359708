"""Processes of a sweep, from the side of the one that starts them.

Each strategy has a process of its own, with an empty folder for the compiler's cache. It is in the session of this one,
as Linux shares the cores among sessions first, and in a process group of its own, so that a notebook's interrupt does
not reach it; it ends with this one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .errors import NbcompileError
from .report import Report

#: The program of the process: what can be imported here can be imported there.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from nbcompile.worker import main; "
    "main(int(sys.argv[2]), sys.argv[3])"
)


class WorkerError(NbcompileError):
    """A process failed, died or took too long; the message is the reason."""


class Worker:
    """A process that compiles one model by one strategy and then times it when told to.

    Args:
        job: what it is to do, as JSON: ``strategy``, ``task``, ``source``, ``settings``, ``threads``,
            ``round_seconds``, see :mod:`nbcompile.worker`.
        timeout: seconds until it is given up while an answer is awaited.
    """

    def __init__(self, job: Mapping[str, Any], timeout: float) -> None:
        self._timeout, self._late, self._stopped = timeout, False, False
        self._folder = tempfile.TemporaryDirectory(prefix="nbcompile-sweep-", ignore_cleanup_errors=True)
        cache = Path(self._folder.name, "cache")
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")}
        self._log = open(Path(self._folder.name, "stderr"), "w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), str(os.getpid()), self._folder.name],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            process_group=0 if os.name == "posix" else None,
        )
        self._send(job)

    @property
    def pid(self) -> int:
        return self._process.pid

    def report(self, stage: Callable[[str], None]) -> Report:
        """The report of the strategy beside eager, once it is there. ``stage`` is called with each stage before it.

        Raises:
            WorkerError: there will be none.
        """
        while "stage" in (answer := self._receive()):
            stage(answer["stage"])
        return Report.from_dict(answer["report"])

    def time_round(self, name: str) -> dict[str, Any]:
        """One round under the strategy or, if that is the name, eager, as :mod:`nbcompile.rounds` tells it.

        Raises:
            WorkerError: the process failed, died or took too long.
        """
        self._send({"round": name})
        return self._receive()

    def stop(self) -> None:
        """End the process, and the compilers that it has started, and remove its cache. Twice does no harm."""
        if self._stopped:
            return
        self._stopped = True
        self._kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._folder.cleanup()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has died: _receive says how
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        watchdog = threading.Timer(self._timeout, self._give_up)
        watchdog.daemon = True
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise WorkerError(self._death())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def _give_up(self) -> None:
        self._late = True
        self._kill()

    def _death(self) -> str:
        code = self._process.wait()
        if self._late:
            return f"its process was given up after {self._timeout:g} s without an answer"
        self._log.seek(0)
        lines = self._log.read()[-4000:].strip().splitlines()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return f"its process ended with {how}: {lines[-1][:300] if lines else 'it ended without a word'}"

    def _kill(self) -> None:
        with contextlib.suppress(OSError):  # it is gone already
            if os.name == "posix":
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
