"""The process that compiles for a kernel, from its own side; :mod:`nbcompile.background` starts it and talks to it.

It reads jobs from standard input and answers each on standard output, both pickled, with their length in front. It is
nice, opens nothing, and ends when its input does or its parent is gone, with every compiler that it has started.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
from typing import IO, Any

_LENGTH = struct.Struct("!Q")


def main(parent: int, folder: str) -> None:
    """Do jobs until there are no more.

    Args:
        parent: the number of the process that started this one, and that it is not to outlive.
        folder: for temporary files; removed here if the parent is gone, else by the parent.
    """
    if hasattr(os, "nice"):
        os.nice(19)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out, the model lives on and this process does not
    threading.Thread(target=_end_with, args=(parent, folder), daemon=True).start()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print goes to standard error
    _prepare(folder)
    write(answers, {"ready": True})
    compiled = _Compiled()
    while (job := read(sys.stdin.buffer)) is not None:
        write(answers, compiled.answer(job))


def write(stream: IO[bytes], message: Any) -> None:
    """Send a message."""
    data = pickle.dumps(message)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def read(stream: IO[bytes] | io.BufferedReader) -> Any:
    """Receive a message; ``None`` at the end, also if a message is cut off."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    return pickle.loads(data) if len(data) == length else None


def _prepare(folder: str) -> None:
    import torch
    import torch._inductor.codecache  # which looks where the system's temporary files are: all processes share a header

    from . import replay, startup  # noqa: F401

    # from here on temporary files are in the folder, where those of a compiler that is killed are removed
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    startup.begin("inductor", torch.device("cpu"))


class _Compiled:
    """The groups that this process compiles for, as they are in the kernel."""

    def __init__(self) -> None:
        self._groups: dict[object, Any] = {}
        self._blocks: dict[tuple[object, bytes], tuple[Any, Any]] = {}

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._do(job)
        except MemoryError:
            return {"error": "MemoryError: the helper process ran out of memory"}
        except Exception as error:
            from . import explain

            return {"error": explain.failure_line(error), "whole": explain.failure(error)}

    def _do(self, job: dict[str, Any]) -> dict[str, Any]:
        import torch

        from . import events, explain, standins
        from .border import Region
        from .replay import replay
        from .variants import Group

        begin = time.perf_counter()
        for line in job["settings"]:
            exec(line, {"torch": torch})  # made by torch itself, from the settings of the kernel
        job["ambient"].settle()
        group = self._groups.get(job["group"])
        if group is None:
            plugin = standins.loads(job["plugin"])
            group = self._groups[job["group"]] = Group(job["path"], job["class_name"], plugin, object())
        key = job["group"], job["block"]
        if key not in self._blocks:
            self._blocks.clear()  # one block's weights at a time
            block = standins.loads(job["block"])
            self._blocks[key] = block, Region(job["block_path"], block, group)
        block, region = self._blocks[key]
        args, kwargs = standins.loads(job["call"])
        outcome = replay(
            region, block, job["circumstances"], job["ambient"], args, kwargs, index_hidden=job["index_hidden"]
        )
        variant = outcome.variant
        if variant.failure:
            return {"error": explain.failure(RuntimeError(variant.failure)).partition(": ")[2].partition("\n")[0]}
        wrong = _not_kept()
        if wrong:
            return {"error": wrong}
        events.collect()
        return {
            "guarded": variant.guarded,
            "compiles": outcome.compiles,
            "misses": outcome.misses,
            "seconds": time.perf_counter() - begin,
            "direct": variant.direct,
        }


def _not_kept() -> str:
    """Why what was compiled will not be found by the kernel; ``""`` if it will.

    The compiler goes on where its cache cannot be written to, and says so in its log alone.
    """
    import torch

    from .cache import cache_folder

    failed = torch._dynamo.utils.counters["inductor"]["fxgraph_cache_write_error"]
    folder = cache_folder()
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"the compiler's cache folder cannot be used: {error}"
    if failed or free < _LEAST_FREE:
        return (
            f"the compiler's cache folder {folder} could not be written to ({free / 1e6:.1f} MB free). Free some space "
            "or move TORCHINDUCTOR_CACHE_DIR"
        )
    return ""


_LEAST_FREE = 100_000  # bytes


def _end_with(parent: int, folder: str) -> None:
    """End this process, and the compilers that it has started, once its parent is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
