"""What is compiled ahead of the first compile, and the program that does it in a process of its own.

This file is run as a program by :mod:`nbcompile.warmup`, where this package need not be found: so it imports nothing of
it. When it is done it may be handed another program, and goes on as that.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
import types
from pathlib import Path

#: What the program leaves in the compiler's cache folder when it is done.
FILE = "nbcompile-start-up.json"
#: What :func:`main` compiles, in a word that changes when it does.
COMPILED = "small block"

#: What it writes to standard output when it is done.
DONE = b"done\n"

_MOST_SECONDS = 300.0
_handed_over = threading.Event()


def compile_small_block() -> None:
    """Compile, for the CPU, a little of what blocks of transformers are made of.

    What the compiler loads and sets up at its first norm, matrix product or attention is ready then. The graph is kept
    in no cache: a later process that found it there would skip the very parts that it is to set up. Its kernels are
    kept, so in another process this takes no C++ compiler.
    """
    import torch
    import torch._functorch.config
    import torch._inductor.config
    from torch.nn import functional

    def block(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale
        q = functional.linear(h, weight).view(1, 4, 2, 8).transpose(1, 2)
        a = functional.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).reshape(1, 4, 16)
        x = x + functional.linear(functional.silu(a) * a, weight)
        return functional.layer_norm(x, (16,))

    with (
        torch.no_grad(),
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        ones = [torch.ones(size, device="cpu", dtype=torch.float32) for size in ((1, 4, 16), (16, 16), (16,))]
        torch.compile(block)(*ones)


def main(key: str, parent: int, stand_by: float) -> None:
    """Compile something small for each kind of device there is, note that it was done, and stand by.

    Args:
        key: what the note says.
        parent: the number of the process that this one is not to outlive.
        stand_by: for so many seconds; not with a GPU, whose memory this process would hold.
    """
    if hasattr(os, "nice"):
        os.nice(19)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    begin = time.monotonic()
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print goes to standard error
    import torch

    torch.set_num_threads(1)
    devices = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    try:
        compile_small_block()
        if "cuda" in devices:
            with torch.no_grad():
                torch.compile(lambda x: torch.sin(x) + 1)(torch.ones(64, device="cuda"))
    except Exception as error:
        message = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        sys.exit(f"{type(error).__name__}: {message}")
    file = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / FILE
    temporary = file.with_name(f"{FILE}.{os.getpid()}")
    temporary.write_text(json.dumps({"key": key, "devices": devices, "seconds": round(time.monotonic() - begin, 1)}))
    temporary.replace(file)
    os.write(answers, DONE)
    if "cuda" not in devices:
        _stand_by(stand_by, answers)


def _stand_by(seconds: float, answers: int) -> None:
    """Wait for word to go on as another program, which needs a compiler that is ready to compile."""
    if not seconds or not select.select([sys.stdin], [], [], seconds)[0]:
        return
    line = sys.stdin.buffer.readline()
    if not line:
        return
    _handed_over.set()
    told = json.loads(line)
    os.environ.clear()
    os.environ.update(told["environment"])
    os.chdir(told["directory"])
    os.dup2(answers, 1)
    sys.argv[1:] = told["arguments"]
    import torch

    torch._inductor.config.compile_threads = torch._inductor.config.decide_compile_threads()
    main_module = sys.modules["__main__"] = types.ModuleType("__main__")  # the names in this file are not that one's
    exec(told["program"], vars(main_module))


def signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):  # it is gone already
        if os.name == "posix":
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def _end_with(parent: int) -> None:
    """End this process, and the compilers that it has started, once its parent is gone or it takes too long."""
    end = time.monotonic() + _MOST_SECONDS
    while os.getppid() == parent and time.monotonic() < end:
        if _handed_over.wait(0.5):
            return  # what is run now sees to that itself
    signal_group(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
