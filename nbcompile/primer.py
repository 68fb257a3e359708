"""What is compiled ahead of the first compile, and the program that does it in a process of its own.

This file is run as a program by :mod:`nbcompile.warmup`, where this package need not be found: so it imports nothing of
it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

#: What the program leaves in the compiler's cache folder when it is done.
FILE = "nbcompile-start-up.json"
#: What :func:`main` compiles, in a word that changes when it does.
COMPILED = "small block"

_MOST_SECONDS = 300.0


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


def main(key: str, parent: int) -> None:
    """Compile something small for each kind of device there is, and note that it was done."""
    if hasattr(os, "nice"):
        os.nice(19)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    begin = time.monotonic()
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
        time.sleep(0.5)
    signal_group(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
