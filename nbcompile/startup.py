"""The compiler's start-up beside its first trace, in a thread of this process.

Before its first kernel for a CPU, inductor finds out which vector instructions work and prepares the header that all
kernels include. That takes seconds, nearly all of them in processes that it waits for, and it begins only once the
first graph has been traced and lowered. What it finds is remembered in the process, so it may as well be found
meanwhile. :mod:`nbcompile.warmup` does more, and earlier, from another process; what is remembered per process is left.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import time
from typing import Any

import torch

#: Source that asks for what vectorized kernels ask for. It is never compiled.
_KERNEL = 'extern "C" void kernel() {} // at::vec::'

_lock = threading.Lock()
_thread: threading.Thread | None = None


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

    There is no public way to this; checked on torch 2.11 and 2.13. The function would compile the source by what
    ``submit_fn`` does with it, which is nothing.
    """
    with contextlib.suppress(Exception):
        kernels: Any = torch._inductor.codecache.CppPythonBindingsCodeCache
        kernels.load_pybinding_async([], _KERNEL, submit_fn=lambda job: None)
