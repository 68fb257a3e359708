"""The process that compiles for a kernel, from its own side; :mod:`nbcompile.background` starts it and talks to it.

It reads jobs from standard input and answers each on standard output, both pickled, with their length in front. It is
nice, opens nothing, and ends when its input does or its parent is gone, with every compiler that it has started. It is
a process of its own from the start, or what the one of :mod:`nbcompile.primer` goes on as.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
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
import types
from pathlib import Path
from typing import IO, Any

#: How a helper's folder of temporary files is called; the number of the process that it works for comes next.
FOLDER = "nbcompile-helper-"
_LEFT_BEHIND_SECONDS = 3600.0

_LENGTH = struct.Struct("!Q")


def main(parent: int, folder: str, holder: str) -> None:
    """Do jobs until there are no more.

    Args:
        parent: the number of the process that started this one, and that it is not to outlive.
        folder: for temporary files; removed here if the parent is gone, else by the parent.
        holder: the first module of the parent that has imported torch, see :class:`_Later`.
    """
    if hasattr(os, "nice"):
        os.nice(19)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out, the model lives on and this process does not
    threading.Thread(target=end_with_parent, args=(parent, folder), daemon=True).start()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print goes to standard error
    _put_first(holder)
    _prepare(folder)
    write(answers, {"ready": True})
    compiled = _Compiled()
    while (job := read(sys.stdin.buffer)) is not None:
        write(answers, compiled.answer(job))


class _Later(types.ModuleType):
    """Holds a module's place in ``sys.modules``, and is that module once something of it is asked for.

    Pickle writes the name of the first module in ``sys.modules`` that has torch where a constant of torch does not name
    its own, and the compiler's keys are made of what pickle writes. So here that module has to come first, too. It may
    be the user's, and is not run unless a block needs it.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in (
            "__path__",
            "__all__",
        ):  # what looks through all modules asks for these
            raise AttributeError(name)
        return getattr(self._load(), name)

    def _load(self) -> types.ModuleType:
        parent, _, own = self.__name__.rpartition(".")
        path = importlib.import_module(parent).__path__ if parent else None
        loaded = sys.modules[self.__name__]
        if loaded is not self:
            return loaded
        spec = importlib.machinery.PathFinder.find_spec(self.__name__, path)
        if spec is None or spec.loader is None:
            raise AttributeError(f"there is no module {self.__name__} in this process")
        module = sys.modules[self.__name__] = importlib.util.module_from_spec(spec)  # keeps the place
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            sys.modules[self.__name__] = self
            raise AttributeError(f"{self.__name__} cannot be imported: {error}") from error
        if parent:
            setattr(sys.modules[parent], own, module)
        return module


def _put_first(holder: str) -> None:
    """Make a module the first one of this process that has torch, whether torch has been imported before or not."""
    if holder.partition(".")[0] == "torch":
        return
    later = None
    if holder not in sys.modules:
        later = sys.modules[holder] = _Later(holder)
    for name in [name for name in sys.modules if name != holder]:
        sys.modules[name] = sys.modules.pop(name)  # to the end of the dictionary, which keeps its order
    import torch

    if later is not None:
        later.__dict__["torch"] = torch


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
            _define_in_main(block)
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


def _define_in_main(block: Any) -> None:
    """Put the global names that a block's own classes use into this process's main module, if they come from a cell.

    Sent along, they are in a dictionary that belongs to no module, and the compiler looks them up by a module's name.
    """
    main = sys.modules["__main__"]
    own = {base for module in block.modules() for base in type(module).__mro__ if base.__module__ == "__main__"}
    for function in [value for base in own for value in vars(base).values()]:
        for name, value in getattr(function, "__globals__", {}).items():
            if not name.startswith("__"):
                setattr(main, name, value)


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


def end_with_parent(parent: int, folder: str) -> None:
    """End this process, and the compilers that it has started, once its parent is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def remove_left_behind() -> int:
    """Remove the folders of helpers that were killed together with the process they worked for; how many there were.

    Only folders of this user that have not been touched for an hour count: a process with a number that is not known
    here may run in another container.
    """
    removed = 0
    if not Path("/proc/self").exists():
        return 0  # a system that does not tell which processes there are
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*-*"):
        with contextlib.suppress(OSError, ValueError):
            kernel, about = int(folder.name.removeprefix(FOLDER).partition("-")[0]), folder.lstat()
            own = not hasattr(os, "getuid") or about.st_uid == os.getuid()
            if own and time.time() - about.st_mtime > _LEFT_BEHIND_SECONDS and not Path(f"/proc/{kernel}").exists():
                shutil.rmtree(folder)
                removed += 1
    return removed
