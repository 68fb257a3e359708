"""The part of the compiler's start-up that each process has to do itself: beside the first trace, or before it.

Before its first kernel for a CPU, inductor finds out which vector instructions work and prepares the header that all
kernels include. That takes seconds, nearly all of them in processes that it waits for, and it begins only once the
first graph has been traced and lowered. What it finds is remembered in the process, so it may as well be found
meanwhile, in a thread: :func:`begin`.

The modules that a first compile imports, and what it sets up at the first use, cannot be had beside it, since the
compiler is not thread safe. A kernel that waits for its user's next cell can do that: :class:`Ahead`.
:mod:`nbcompile.warmup` does what can be left in files, from another process.
"""

from __future__ import annotations

import contextlib
import contextvars
import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from . import primer

#: Source that asks for what vectorized kernels ask for. It is never compiled.
_KERNEL = 'extern "C" void kernel() {} // at::vec::'

_lock = threading.Lock()
_thread: threading.Thread | None = None
_ahead: Ahead | None = None


def begin(backend: Any, device: torch.device | None) -> None:
    """Start, once in a process, if inductor is to compile for a CPU.

    The modules are imported here, in the caller's thread: two threads that import the compiler's modules, which import
    each other in circles, could find them half made.
    """
    global _thread
    if backend != "inductor" or device is None or device.type != "cpu" or sys.platform != "linux":
        return
    with _lock:
        if _thread is not None:
            return
        import torch._inductor.codecache
        import torch._inductor.compile_fx  # noqa: F401  (the first compile needs it)

        # a copy of the context, for torch keeps its compiler's settings there
        context = contextvars.copy_context()
        _thread = threading.Thread(target=context.run, args=(_prepare,), name="nbcompile-start-up", daemon=True)
        _thread.start()


def wait() -> float:
    """Wait until what was begun has ended, for whoever compiles would do the same a second time; seconds it took."""
    if _thread is None or not _thread.is_alive():
        return 0.0
    begin = time.perf_counter()
    _thread.join()
    return time.perf_counter() - begin


def _prepare() -> None:
    """What a first kernel waits for. If it fails, the first compile meets the same and tells it.

    There is no public way to this; checked on torch 2.11 and 2.13. The first is the part of every key in the compiler's
    cache that stands for torch itself. The last would compile the source by what ``submit_fn`` does with it, which is
    nothing.

    An interrupt from a notebook goes to the kernel's whole process group. It is for the main thread; here it would end
    the processes that try vector instructions, and those would be taken as missing until the kernel is restarted. So
    it is blocked in this thread, and what it starts inherits that.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with contextlib.suppress(Exception):
        torch._inductor.codecache.torch_key()
    with contextlib.suppress(Exception):
        _probe()
    with contextlib.suppress(Exception):
        kernels: Any = torch._inductor.codecache.CppPythonBindingsCodeCache
        kernels.load_pybinding_async([], _KERNEL, submit_fn=lambda job: None)


def _probe() -> None:
    """Try the kinds of vector instructions that this processor names, several at a time.

    Inductor tries one after the other: each compiles a little program, and loads it in a process of its own. It
    remembers each answer. Checked on torch 2.11 and 2.13, for processors of the x86 family.
    """
    from torch._inductor import cpu_vec_isa

    named = cpu_vec_isa.x86_isa_checker()
    kinds = [kind for kind in cpu_vec_isa.supported_vec_isa_list if all(flag in named for flag in str(kind).split())]
    with ThreadPoolExecutor(max_workers=2) as pool:
        for kind in kinds:
            pool.submit(contextvars.copy_context().run, bool, kind)


def ahead() -> Ahead:
    """The start-up of this process, of which there is one."""
    global _ahead
    if _ahead is None:
        _ahead = Ahead()
    return _ahead


class Ahead:
    """This process's own start-up, in steps for the main thread, none longer than about a second.

    It leaves nothing behind that a user would see but the compiler's count of what it has compiled in this process.

    Attributes:
        state: how it goes, in words.
    """

    def __init__(self) -> None:
        self.state = "not begun"
        self._steps = self._all()

    def step(self) -> bool:
        """Do the next step, if it can be done now; whether there may be more to do. Never raises an error."""
        try:
            # A context of its own: torch keeps its compiler's settings there, and these are to be the defaults.
            contextvars.Context().run(next, self._steps)
        except StopIteration:
            return False
        except Exception as error:  # the first compile meets the same, and tells it in full
            self.state = f"failed: {type(error).__name__}: {str(error)[:200]}"
            return False
        return True

    def finish(self) -> None:
        """Do all of it now."""
        while self.step():
            wait()

    def _all(self) -> Iterator[None]:
        self.state = "under way"
        begin("inductor", torch.device("cpu"))
        yield
        import nbcompile

        nbcompile.compile_regions  # noqa: B018  (its module, with what that needs, is imported when it is asked for)
        yield
        while _thread is not None and _thread.is_alive():
            yield
        if _thread is None:
            self.state = "nothing that can be done ahead on this system"
            return
        if torch.cuda.is_available() or _logged():
            self.state = "done: modules imported"
            return
        _compile_small_block()
        self.state = "done"


def _compile_small_block() -> None:
    import torch._dynamo.utils

    counters = torch._dynamo.utils.counters
    before = {name: dict(counts) for name, counts in counters.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            primer.compile_small_block()
    finally:
        counters.clear()
        for name, counts in before.items():
            counters[name].update(counts)


def _logged() -> bool:
    """Whether someone looks at all that the compiler does, and would take what is compiled ahead for their own."""
    return any(os.environ.get(name) for name in ("TORCH_LOGS", "TORCH_TRACE", "TORCH_COMPILE_DEBUG"))


class _FewerCollections:
    """Let Python look for unreachable cycles less often, for the time of a compile.

    A compile makes millions of objects and keeps most of them until it ends. By default each 700 start a collection,
    and the largest of these go through all objects of the process, of which torch alone has a million.

    The threshold is the process's: compiles in several threads, or within each other, share it, and the last one to
    end puts it back.
    """

    _LEAST = 100_000

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: tuple[int, int, int] | None = None

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            before = gc.get_threshold()
            if self._inside == 1 and 0 < before[0] < self._LEAST:  # 0: the user has switched it off
                self._before = before
                gc.set_threshold(self._LEAST, *before[1:])

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._before is not None:
                if gc.get_threshold()[0] == self._LEAST:  # or someone has set another one since
                    gc.set_threshold(*self._before)
                self._before = None


fewer_collections = _FewerCollections()
