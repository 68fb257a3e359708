"""The benchmark's hold on the processes that measure: starts them, asks them, ends them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class WorkerError(Exception):
    """A worker died, took too long or answered nonsense; the message holds the end of what it wrote."""


class CacheFolder:
    """A folder for the compiler's cache, empty at first, removed at the end."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="nbcompile-bench-", ignore_cleanup_errors=True)
        self.path = Path(self._folder.name)

    def __enter__(self) -> CacheFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


#: Has glibc keep what is freed. By default it hands large pieces back, how many is a matter of chance, and getting them
#: again cost the processes of one training between 41,000 and 152,000 page faults a step, 0.1 to 0.4 s of 1.2.
KEEPS_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 33),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
}


class Worker:
    """A process that does one job of :mod:`tests.benchmarks.worker`.

    Args:
        job: what it is to do.
        cache: where its compiler keeps what it makes.
        timeout: seconds that it may take for an answer.
        environment: variables that it has besides this process's.
    """

    def __init__(
        self, job: dict[str, Any], cache: CacheFolder, timeout: float, environment: Mapping[str, str] | None = None
    ) -> None:
        self._timeout = timeout
        environment = {
            **os.environ,
            **(environment or {}),
            "TORCHINDUCTOR_CACHE_DIR": str(cache.path / "cache"),
            "TRITON_CACHE_DIR": str(cache.path / "cache" / "triton"),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if job.get("threads"):
            environment["OMP_NUM_THREADS"] = str(job["threads"])
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  (closed in stop)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.worker", json.dumps(job)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

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

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to a line of input."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has died: receive() says how
        return self.receive()

    def stop(self) -> None:
        """End the process; twice does no harm."""
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


def knows_hierarchical() -> bool:
    """Whether this nbcompile has that strategy. Asked in another process: this one is to stay small and idle."""
    question = "import sys; from nbcompile.space import STRATEGIES; sys.exit('hierarchical' not in STRATEGIES)"
    return subprocess.run([sys.executable, "-c", question], cwd=ROOT, stderr=subprocess.DEVNULL).returncode == 0
