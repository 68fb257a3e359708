"""The C++ kernels of one graph, compiled a few at a time.

On a CPU the compiler's backend gives every kernel a C++ compiler of its own. Most of what each of these does is the
same: it reads the precompiled header and instantiates the templates that are pending in it, which takes longer than the
kernel itself. With more kernels than cores that is the larger part of a cold start. So the kernels of a graph are put
together into as many files as the backend compiles at once, each kernel in a namespace of its own, and every library
that the backend is to find is linked from these.

What is compiled, by which command, and under which names the results are kept is the backend's: a library that was
made here is found by the next process as any other. What cannot be put together, or fails to compile so, is compiled
by the backend as ever.

A backward graph is compiled at the first backward pass, not by the call that compiles the forward one: the compiler
says when it begins and ends, see :func:`also_backward`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

#: What the backend calls a kernel's function, and the function by which Python imports its library.
_FUNCTION, _ENTRY = "kernel", "PyInit_kernel"
#: The lines for the preprocessor that mean the same inside of a namespace and beside other kernels.
_HARMLESS = re.compile(
    r"#\s*(pragma\b|ifn?def (Py_GIL_DISABLED|_MSC_VER)$|if __cplusplus\b|else$|endif$|define PY_SSIZE_T_CLEAN$"
    r"|define (un)?likely\(x\))"
)
_INCLUDE = re.compile(r"#\s*include\s*<[^>]+>\s*$")
_LOCK_SECONDS = 600.0

_log = logging.getLogger("nbcompile")


class Kernel(NamedTuple):
    """One kernel that the backend wants compiled.

    Attributes:
        source: the file that the backend has written.
        library: the file that it is to become.
        lock: the lock file that guards it, for several processes with one cache folder.
        command: the backend's command, in parts, which compiles and links it.
    """

    source: Path
    library: Path
    lock: str
    command: tuple[str, ...]


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Compile the C++ kernels that this thread asks the backend for meanwhile together where that saves time."""
    place = _place()
    if place is None:
        yield
        return
    thread, plain = threading.get_ident(), place.__dict__["submit"]
    batch = _Batch(place.submit)

    def submit(cls: type, task: Callable[..., Any]) -> Any:
        if threading.get_ident() != thread:
            return plain.__get__(None, cls)(task)
        return batch.add(task)

    place.submit = classmethod(submit)
    try:
        yield
    finally:
        place.submit = plain


def also_backward(wanted: Callable[[str], bool]) -> None:
    """Have the kernels of backward graphs compiled together, too, from now on.

    Args:
        wanted: whether it is to be so for the graph with this compile id.
    """
    handler = _announcements()
    _backward.wanted = wanted
    if handler is not None and _backward.begins not in handler.start_callbacks:  # torch._dynamo.reset() forgets it
        handler.register_start_callback(_backward.begins)
        handler.register_end_callback(_backward.ends)


class _Backward:
    """What is done when the compiler says that a backward graph is compiled now, and that it has ended.

    It says so of the outermost compile alone, whichever thread that is in.
    """

    def __init__(self) -> None:
        self.wanted: Callable[[str], bool] = lambda compile_id: False
        self._around = contextlib.ExitStack()

    def begins(self, what: Any) -> None:
        if what.callback_trigger.name == "LAZY_BACKWARD" and self.wanted(what.compile_id):
            self._around.enter_context(together())

    def ends(self, what: Any) -> None:
        self._around.close()


_backward = _Backward()


class _Batch:
    """Tasks that have been asked for and not begun: they begin when the first result is waited for."""

    def __init__(self, submit: Callable[[Callable[..., Any]], Any]) -> None:
        self._submit = submit
        self._waiting: list[tuple[Kernel, Callable[..., Any], _Result]] = []

    def add(self, task: Callable[..., Any]) -> Any:
        kernel = _kernel_of(task)
        if kernel is None:
            return self._submit(task)
        result = _Result(self.start)
        self._waiting.append((kernel, task, result))
        return result

    def start(self) -> None:
        waiting, self._waiting = self._waiting, []
        jobs: dict[Kernel, Any] = {}
        if len(waiting) > _at_once():
            tasks = {kernel: task for kernel, task, _ in waiting}
            for group in split([kernel for kernel in tasks if fits(kernel)], _at_once()):
                if len(group) > 1:
                    jobs.update(dict.fromkeys(group, self._submit(_job({kernel: tasks[kernel] for kernel in group}))))
        for kernel, task, result in waiting:
            result.begun = jobs[kernel] if kernel in jobs else self._submit(task)


class _Result:
    """What the backend waits on. It then runs the task itself, which has nothing to do where the library is there."""

    def __init__(self, start: Callable[[], None]) -> None:
        self._start = start
        self.begun: Future[Any] | None = None

    def result(self, timeout: float | None = None) -> Any:
        if self.begun is None:
            self._start()
        return self.begun.result(timeout) if isinstance(self.begun, Future) else self.begun


def _job(tasks: dict[Kernel, Callable[..., Any]]) -> Callable[[], None]:
    def job() -> None:
        try:
            compile_together(list(tasks))
        except (ValueError, OSError, subprocess.SubprocessError, TimeoutError) as error:
            _log.debug("%d kernels are compiled one by one: %s", len(tasks), error)
            for task in tasks.values():
                task()

    return job


def fits(kernel: Kernel) -> bool:
    """Whether a kernel's source can stand beside others, and its compiler is one that this was written for."""
    from torch._inductor.cpp_builder import is_gcc

    if not is_gcc():
        return False
    try:
        combined([kernel.source.read_text(encoding="utf-8")])
    except ValueError:
        return False
    return True


def split(kernels: Sequence[Kernel], number: int) -> list[list[Kernel]]:
    """So many groups of about equal length of source; kernels of different commands are never in one."""
    groups: list[list[Kernel]] = []
    for command in dict.fromkeys(common(kernel) for kernel in kernels):
        alike = [kernel for kernel in kernels if common(kernel) == command]
        alike.sort(key=lambda kernel: kernel.source.stat().st_size, reverse=True)
        some: list[list[Kernel]] = [[] for _ in range(min(number, len(alike)))]
        for kernel in alike:
            min(some, key=lambda group: sum(one.source.stat().st_size for one in group)).append(kernel)
        groups += some
    return groups


def common(kernel: Kernel) -> tuple[str, ...]:
    """A kernel's command less the files that are its own."""
    own = (str(kernel.source), str(kernel.library))
    return tuple(part for part in kernel.command if part not in own)


def combined(sources: Sequence[str]) -> str:
    """One source of several, in which the kernel's function and its entry have a number behind their names.

    Raises:
        ValueError: a source has lines for the preprocessor that could change the meaning of others, or no entry.
    """
    included: dict[str, None] = {}
    parts = []
    for number, source in enumerate(sources):
        lines = []
        for line in source.splitlines():
            bare = line.strip()
            if _INCLUDE.match(bare):
                included[bare] = None  # outside of the namespaces, and once
                continue
            if bare.startswith("#") and not _HARMLESS.match(bare):
                raise ValueError(f"it has the line {bare!r}")
            lines.append(line)
        if f"{_ENTRY}(" not in source:
            raise ValueError(f"it has no {_ENTRY}")
        names = [f"#define {name} {name}_{number}" for name in (_FUNCTION, _ENTRY)]
        ends = [f"#undef {name}" for name in (_FUNCTION, _ENTRY)]
        parts += [*names, f"namespace kernel_{number}_of_several {{", *lines, "}", *ends]
    return "\n".join(["#define PY_SSIZE_T_CLEAN", *included, *parts, ""])


def compile_together(kernels: Sequence[Kernel]) -> None:
    """Make the libraries of kernels that have one command, those that are not there yet.

    Each is moved to its place when it is whole.

    Raises:
        ValueError: they cannot be put into one source.
        subprocess.CalledProcessError: the C++ compiler refused it.
        OSError: a file could not be written, or there is no compiler.
        TimeoutError: another process held one of the kernels for ten minutes.
    """
    from torch.utils._filelock import FileLock

    with contextlib.ExitStack() as held:
        for lock in sorted(kernel.lock for kernel in kernels):  # in one order everywhere, so that no two wait crosswise
            held.enter_context(FileLock(lock, timeout=_LOCK_SECONDS))
        missing = [kernel for kernel in kernels if not kernel.library.exists()]
        if len(missing) < 2:
            return
        source = combined([kernel.source.read_text(encoding="utf-8") for kernel in missing])
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(dir=missing[0].library.parent)))
        (folder / "several.cpp").write_text(source, encoding="utf-8")
        command = list(missing[0].command)
        command[command.index(str(missing[0].source))] = str(folder / "several.cpp")
        command[command.index(str(missing[0].library))] = str(folder / "several.o")
        command[command.index("-shared")] = "-c"
        _run([*command, "-ffunction-sections", "-fdata-sections"], folder)
        (folder / "exported").write_text(f"{{ global: {_ENTRY}; local: *; }};\n")
        for number, kernel in enumerate(missing):
            link = list(kernel.command)
            link[link.index(str(kernel.source))] = str(folder / "several.o")
            link[link.index(str(kernel.library))] = str(folder / "library.so")
            if "-include" in link:  # the precompiled header
                at = link.index("-include")
                del link[at : at + 2]
            more = [f"--defsym={_ENTRY}={_ENTRY}_{number}", f"--version-script={folder / 'exported'}", "--gc-sections"]
            _run([*link, *(f"-Wl,{option}" for option in more)], folder)
            os.replace(folder / "library.so", kernel.library)


def _run(command: Sequence[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, stdin=subprocess.DEVNULL, capture_output=True)


# -- what is torch's ---------------------------------------------------------------------------------------------------


def _place() -> Any:
    """The class through which kernels are handed to the backend's threads; ``None`` where it is not as expected.

    There is no public way to it. Checked on torch 2.11 and 2.13; where it is otherwise, each is compiled on its own.
    """
    from torch._inductor import async_compile, codecache, cpp_builder

    needed = (async_compile, "get_compile_threads"), (codecache, "_worker_compile_cpp"), (cpp_builder, "is_gcc")
    place = getattr(async_compile, "AsyncCompile", None)
    if os.name != "posix" or not all(hasattr(module, name) for module, name in needed):
        return None
    return place if isinstance(vars(place).get("submit"), classmethod) else None


def _announcements() -> Any:
    """The compiler's own list of whom to tell that a compile begins and ends; ``None`` where it is not as expected.

    It is documented in its module, which has no public name. Checked on torch 2.13.
    """
    try:
        from torch._dynamo.callback import CallbackTrigger, callback_handler
    except ImportError:
        return None
    known = hasattr(CallbackTrigger, "LAZY_BACKWARD") and hasattr(callback_handler, "start_callbacks")
    return callback_handler if known else None


def _at_once() -> int:
    """How many kernels the backend compiles at once."""
    from torch._inductor.async_compile import get_compile_threads

    return int(get_compile_threads())


def _kernel_of(task: Any) -> Kernel | None:
    """The kernel that a task of the backend compiles; ``None`` if the task is another. Checked as :func:`_place`."""
    from torch._inductor.codecache import _worker_compile_cpp

    if not isinstance(task, functools.partial) or task.func is not _worker_compile_cpp or len(task.args) != 2:
        return None
    lock, builders = task.args
    if len(builders) != 1:
        return None
    command = tuple(shlex.split(builders[0].get_command_line()))
    library = builders[0].get_target_file_path()
    sources = [part for part in command if part.endswith(".cpp")]
    if len(sources) != 1 or library not in command or "-shared" not in command or "-c" in command:
        return None
    return Kernel(Path(sources[0]), Path(library), str(lock), command)
