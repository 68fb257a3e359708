"""The compiler's start-up ahead of time, in a process of its own, while the user still builds the model.

Two thirds of a first compile are not the model's: importing the compiler's parts from the disk, finding out which
vector instructions work, compiling the precompiled header, and on a GPU Triton's launcher. All of that leaves files in
the compiler's folders or in the system's memory, so another process can do it before.

That process must not be felt. It is nice, computes with one thread, and stays in the kernel's session: Linux shares the
cores among sessions first, and a nice process in another session takes half of a core all the same. It has a process
group of its own, so that a notebook's interrupt does not reach it. It opens nothing, and ends by itself: two minutes
after it is done, after five in all, or when its parent is gone.

For these two minutes it stands by: whoever compiles in the background meanwhile is spared starting a process that does
the same again, see :meth:`WarmUp.take_over`. Until then it is told nothing of the user's.

What it compiles is in :mod:`nbcompile.primer`.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from . import primer

#: Set to ``0``, it keeps ``%load_ext nbcompile`` from starting anything.
SWITCH = "NBCOMPILE_WARM_UP"
#: So many seconds it stands by when it is done.
STAND_BY = 120.0
#: How the names of environment variables begin that are read when torch and its compiler are imported.
_READ_AT_IMPORT = ("TORCH", "PYTORCH", "TRITON", "CUDA", "OMP_", "MKL_", "KMP_", "GOMP_", "LD_", "PYTHON", "ATEN_")
_READ_AT_FIRST_USE = ("CXX", "CC", "CPATH", "PATH", "TMPDIR", "HOME")

_latest: WarmUp | None = None


class WarmUp:
    """A start-up ahead of time. :func:`warm_up` begins one.

    Attributes:
        folder: the compiler's cache folder that it fills.
    """

    def __init__(self, folder: Path, process: subprocess.Popen[bytes] | None, log: IO[bytes] | None) -> None:
        self.folder = folder
        self._process, self._log = process, log
        self._began = time.monotonic()
        self._took: float | None = None
        self._environment = _read_by_torch()
        self._lock = threading.Lock()

    @property
    def state(self) -> str:
        """``"running"``, ``"done"``, ``"failed"``, or ``"not needed"``: this folder has had it since the last boot."""
        with self._lock:
            if self._took is not None:
                return "done"
            if self._process is None:
                return "not needed"
            code = self._process.poll()
            if self._says_done():
                self._took = time.monotonic() - self._began
                return "done"
            return "running" if code is None else "failed"

    @property
    def reason(self) -> str:
        """The last line of what a start-up that failed has said, ``""`` for any other."""
        if self.state != "failed" or self._log is None:
            return ""
        with contextlib.suppress(OSError, ValueError):
            self._log.seek(0)
            lines = self._log.read()[-4000:].decode(errors="replace").strip().splitlines()
            return lines[-1][:300] if lines else "it ended without a word"
        return "what it said cannot be read"

    def wait(self, timeout: float | None = None) -> str:
        """Wait until it is done, for so many seconds at most; the state then."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.state == "running" and (end is None or time.monotonic() < end):
            time.sleep(0.02)
        return self.state

    def take_over(self) -> tuple[subprocess.Popen[bytes], IO[bytes]] | None:
        """Its process, and what its standard error goes to, which are the caller's from then on.

        Returns:
            ``None`` unless it stands by, and was started with the settings that this process has in its environment.
        """
        if self.state != "done" or self._environment != _read_by_torch():
            return None
        with self._lock:
            process, log = self._process, self._log
            if process is None or log is None or process.poll() is not None:
                return None
            self._process = self._log = None
        return process, log

    def _says_done(self) -> bool:
        assert self._process is not None
        if os.name != "posix":  # where there is no other way to ask than to wait for its end
            return self._process.poll() == 0
        pipe = self._process.stdout
        if pipe is None or pipe.closed or not select.select([pipe], [], [], 0)[0]:
            return False
        return os.read(pipe.fileno(), len(primer.DONE)) == primer.DONE

    def stop(self) -> None:
        """End it, and the compilers that it has started."""
        if self._process is None or self._process.poll() is not None:
            return
        primer.signal_group(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
            return
        self._process.kill()
        self._process.wait()

    def __str__(self) -> str:
        match self.state:
            case "running":
                return f"running for {time.monotonic() - self._began:.0f} s"
            case "done":
                standing_by = self._process is not None and self._process.poll() is None
                more = ", which stands by for work in the background" if standing_by else ""
                return f"done, by a process of its own, in at most {self._took:.0f} s{more}"
            case "failed":
                return f"failed: {self.reason}; the first compile does it itself, and tells more"
            case _:
                return "done before, for this cache folder"

    def __repr__(self) -> str:
        return f"<WarmUp: {self}>"


def warm_up(*, wait: bool = False) -> WarmUp:
    """Do ahead of time what every first compile otherwise waits for, in a nice process of its own.

    ``%load_ext nbcompile`` does it in a kernel, unless the environment variable ``NBCOMPILE_WARM_UP`` is ``0``. What it
    leaves is in the compiler's cache folder; where that has had it since the machine started, nothing is done.

    In a notebook, what the kernel's own process has to do besides is done between cells, once torch is imported.

    Args:
        wait: return only when it is done. If torch is imported, the part of the calling process is then done, too.

    Returns:
        What can be asked how it goes. A failure is told there, and is no error.

    Raises:
        UsageError: the compiler's cache folder cannot be used.
    """
    global _latest
    from .cache import cache_folder, require_folder

    require_folder()
    folder = cache_folder()
    if _latest is None or _latest.folder != folder or _latest.state == "failed":
        _latest = _begin(folder)
    if wait and _latest.wait() != "failed" and "torch" in sys.modules:
        from . import startup

        startup.ahead().finish()
    return _latest


def _read_by_torch() -> dict[str, str]:
    """What of the environment torch and its compiler have read for good once they have compiled something.

    The cache folder is left out: torch itself writes it there.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if (name.startswith(_READ_AT_IMPORT) or name in _READ_AT_FIRST_USE) and name != "TORCHINDUCTOR_CACHE_DIR"
    }


def latest() -> WarmUp | None:
    """The start-up that this process has begun, ``None`` if it has begun none."""
    return _latest


def switched_off() -> bool:
    """Whether the user wants none to be begun unasked."""
    return os.environ.get(SWITCH, "").strip().lower() in ("0", "off", "false", "no")


def _begin(folder: Path) -> WarmUp:
    key = _key()
    if _done_before(folder, key):
        return WarmUp(folder, None, None)
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    log = tempfile.TemporaryFile()  # noqa: SIM115  (read when it has ended)
    command = [sys.executable, "-P", primer.__file__, key, str(os.getpid()), str(STAND_BY if os.name == "posix" else 0)]
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        process_group=0 if os.name == "posix" else None,
    )
    begun = WarmUp(folder, process, log)
    atexit.register(begun.stop)
    return begun


def _key() -> str:
    """What a start-up holds for: this torch, Python and C++ compiler, on this machine since it was started."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        torch, compiler = importlib.metadata.version("torch"), os.environ.get("CXX") or shutil.which("g++") or ""
        facts = [primer.COMPILED, torch, sys.version, compiler, platform.machine(), platform.node(), _boot()]
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    return "no torch"


def _boot() -> str:
    """When the machine was started: what was read from the disk before is no longer in its memory."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    return ""


def _done_before(folder: Path, key: str) -> bool:
    try:
        found = json.loads((folder / primer.FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("key") == key
