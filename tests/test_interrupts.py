"""Interrupts where torch's compiler would not bear them; and a kernel's, at any moment of each kind of work.

Of the latter: some moments for each kind, spread over the time that the work takes. After each the kernel must be as if
the work had never been begun. ``NBCOMPILE_INTERRUPTS=10`` tries more of them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from torch.utils._python_dispatch import TorchDispatchMode

from nbcompile import interrupts
from nbcompile.interrupts import delivered_safely

pytestmark = [pytest.mark.slow, pytest.mark.inductor]

TIMES = int(os.environ.get("NBCOMPILE_INTERRUPTS", "3"))

#: Interrupts come within so many seconds, also of work that takes longer.
LATEST = 3.0

SETUP = """\
import os, signal, sys, tempfile, threading, time
import torch
from torch import nn
import nbcompile
from nbcompile import compiler
from tests.blocks import net, rows
%load_ext nbcompile
model, x = net(), rows()
with torch.no_grad():
    expected = model(x)
def step():
    with torch.no_grad():
        return model(x)
panel = nbcompile.panel(model, step)
def click(name):
    # by another thread, as a front end's message on a subshell does
    if name == "compile":  # with nothing in the caches; what compares and tunes sees to that itself
        torch.compiler.reset()
        torch._inductor.utils.clear_caches()
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(dir=".")
    thread = threading.Thread(target=panel.buttons[name].click)
    thread.start()
    thread.join()
space = {"strategy": ["regional", "full"], "rest": ["auto", "compile"]}
nbcompile.compare(model, step, ["regional"], rounds=1, calls=1, progress=print)  # the compiler's own threads begin
before = set(threading.enumerate()), signal.getsignal(signal.SIGINT), sys.unraisablehook
def state():
    threads, handler, hook = before
    new = set(threading.enumerate()) - threads
    # but for those that torch's compiler and ZeroMQ keep for later use
    left = [t.name for t in new if "ThreadPoolExecutor" not in t.name and not type(t).__module__.startswith("zmq")]
    print(
        torch.equal(step(), expected),
        compiler.current(model) is None,
        [b for b in model.modules() if b._compiled_call_impl is not None],
        left,
        signal.getsignal(signal.SIGINT) is handler,
        sys.unraisablehook is hook,
    )"""

#: What ``state`` prints if nothing is left of the work.
AS_BEFORE = "True True [] [] True True"

WORK = {
    "magic": "%%compile_regional model --compare eager,full -n 1 -r 2\nwith torch.no_grad():\n    y = model(x)",
    "compare": "report = nbcompile.compare(model, step, rounds=2, calls=1)",
    "check": "report = nbcompile.compare(model, step, ['regional'], rounds=1, calls=1, check='regions')",
    "tune": "report = nbcompile.tune(model, step, budget=5, space=space)",
    "tune-magic": "%%tune model --budget 5\nwith torch.no_grad():\n    y = model(x)",
    "panel-compile": "click('compile')",
    "panel-compare": "click('compare')",
    "panel-tune": "click('tune')",
}


class Interrupting(TorchDispatchMode):
    """A mode that is interrupted inside of an operator, and once more while it is left."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.ended = where, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.where == "operator":
            signal.raise_signal(signal.SIGINT)
            sum(range(1000))
            self.ended = True
        return func(*args, **(kwargs or {}))

    def __exit__(self, *error: Any) -> None:
        if self.where == "exit":
            signal.raise_signal(signal.SIGINT)
        super().__exit__(*error)
        self.ended = True


@pytest.mark.parametrize("where", ["operator", "exit"])
def test_an_interrupt_waits_while_modes_are_taken_and_put_back(where: str) -> None:
    # GIVEN a dispatch mode that is interrupted WHEN that comes inside
    mode, after = Interrupting(where), False
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), delivered_safely():
        with mode:
            torch.ones(2) + 1
        end = time.monotonic() + 5
        while time.monotonic() < end:
            sum(range(100))
        after = True
    # THEN it is raised once the mode is done, and no earlier
    assert mode.ended
    assert not after
    # AND nothing is left of it
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_that_waits_at_the_end_is_not_lost() -> None:
    # GIVEN work that ends while an interrupt waits THEN it comes right after it, also to work around it
    inside = outside = False
    with pytest.raises(KeyboardInterrupt), delivered_safely():
        with delivered_safely(), Interrupting("exit"):
            inside = True
        time.sleep(5)
        outside = True
    assert inside
    assert not outside


def test_an_interrupt_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN an operator that never ends WHEN it is interrupted THEN it ends after a while
    monkeypatch.setattr(interrupts, "_LONGEST", 0.2)

    class Endless(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            signal.raise_signal(signal.SIGINT)
            time.sleep(20)

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), delivered_safely(), Endless():
        torch.ones(2) + 1
    assert time.monotonic() - begin < 10


def test_the_compilers_own_lines_are_left_out_of_the_traceback() -> None:
    # GIVEN a compile that is interrupted WHEN it was to be delivered safely
    def interrupted(graph: Any, inputs: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught, delivered_safely():
        torch.compile(lambda x: x + 1, backend=interrupted)(torch.ones(2))
    # THEN its traceback ends where the compiler begins, and says so
    assert not any("convert_frame" in str(entry.path) for entry in caught.traceback)
    assert any("compiler's own lines are left out" in note for note in caught.value.__notes__)


def test_another_thread_changes_nothing() -> None:
    # GIVEN a thread that is not the main one WHEN it works so THEN the handlers are as before
    before, seen = (signal.getsignal(signal.SIGINT), sys.unraisablehook), []

    def work() -> None:
        with delivered_safely():
            seen.append((signal.getsignal(signal.SIGINT), sys.unraisablehook))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


class Kernel:
    """A kernel, seen by a front end."""

    def __init__(self, folder: Path) -> None:
        self.manager = KernelManager(kernel_name="python3")
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), "TORCHINDUCTOR_CACHE_DIR": str(folder)}
        self.manager.start_kernel(cwd=str(folder), env=environment)
        self.client: BlockingKernelClient = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str, timeout: float = 180) -> str:
        """Run a cell to its end; what it prints."""
        printed: list[str] = []

        def keep(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                printed.append(message["content"]["text"])

        reply = self.client.execute_interactive(code, timeout=timeout, output_hook=keep)
        assert reply["content"]["status"] == "ok", "".join(reply["content"].get("traceback", printed))
        return "".join(printed)

    def interrupted(self, code: str, after: float) -> bool:
        """Run a cell and interrupt the kernel after so many seconds; whether the work had not ended by then."""
        cell = self.client.execute(code, stop_on_error=False)  # or cells that are sent at once after it do not run
        time.sleep(after)
        self.manager.interrupt_kernel()
        while (reply := self.client.get_shell_msg(timeout=180))["parent_header"]["msg_id"] != cell:
            pass
        if code.startswith("click"):  # the work begins once the cell has ended
            return "was interrupted. The model is as it was before." in self.run("print(panel.message.value)")
        if reply["content"]["status"] == "ok":
            return False
        assert reply["content"]["ename"] == "KeyboardInterrupt", reply["content"]["traceback"]
        return True


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    kernel = Kernel(tmp_path_factory.mktemp("interrupts"))
    kernel.run(SETUP)
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("kind", list(WORK))
def test_interrupt_at_any_moment_leaves_everything_as_it_was(kernel: Kernel, kind: str) -> None:
    # GIVEN how long this kind of work takes
    begin = time.monotonic()
    kernel.run(WORK[kind])
    kernel.run("nbcompile.restore(model)")  # what a button began comes before this
    lasts = min(LATEST, time.monotonic() - begin)
    hits = 0
    for turn in range(TIMES):
        # WHEN it is interrupted at some moment
        if kernel.interrupted(WORK[kind], after=lasts * (turn + 0.2) / TIMES):
            hits += 1
        else:  # it was over sooner this time
            kernel.run("nbcompile.restore(model)")
        # THEN the next cell works, the model runs as ever, and no thread, handler or hook is left
        assert kernel.run("state()").strip() == AS_BEFORE, f"turn {turn}"
    assert hits > TIMES / 2
