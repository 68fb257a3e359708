"""nbcompile.notebook_launcher in a real kernel: when a rank fails or the cell is interrupted, one error, and soon.

After each failure no process is left, the kernel answers, its signals are its own, and the same training can be
launched again; all failures happen in one kernel, one after the other.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from .front import FrontEnd

pytestmark = pytest.mark.slow

SETUP = """\
%load_ext nbcompile
import gc, os, signal, time
from pathlib import Path
import torch
import nbcompile
from tests.models import llama
torch.set_num_threads(2)
(torch.randn(1000, 1000) + 1).exp().sum()  # the kernel has computed, with threads that a fork does not take along

def train(how, steps=None):
    plugin = nbcompile.TorchDynamoPlugin(backend="aot_eager")
    accelerator = nbcompile.Accelerator(cpu=True, dynamo_plugin=plugin)
    model = llama(2)[0].train()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    ids = torch.ones(2, 16, dtype=torch.long)
    if how == "compiles" and accelerator.process_index == 1:
        Path("failed at").write_text(str(time.time()))
    step = 0
    while steps is None or step < steps:
        step += 1
        accelerator.backward(model(input_ids=ids, labels=ids, use_cache=False).loss)
        optimizer.step()
        optimizer.zero_grad()
        if step == 4 and accelerator.process_index == 1:
            time.sleep(0.5)
            Path("failed at").write_text(str(time.time()))
            fail(how)
        if step == 4 and "stuck" in how:  # in a library, which hears of no signal, and of no peer that has gone
            torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).get("never")
    report = nbcompile.gather_report(model)
    if report is not None:
        print([(rank.rank, rank.compiled, rank.eager) for rank in report.ranks])

def fail(how):
    if "raises" in how:
        raise ValueError("rank 1 has had enough")
    if how == "interrupts itself":
        raise KeyboardInterrupt
    if how == "exits":
        os._exit(3)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)

def several_threads():
    torch.set_num_threads(2)
    print(float((torch.zeros(1000, 1000) + 1).sum()))
"""


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontEnd]:
    os.environ |= {"ACCELERATE_USE_CPU": "yes", "OMP_NUM_THREADS": "1"}
    try:
        front = FrontEnd(tmp_path_factory.mktemp("launcher"))
    finally:
        del os.environ["ACCELERATE_USE_CPU"], os.environ["OMP_NUM_THREADS"]
    front.run(SETUP)
    yield front
    front.stop()


def launch(front: FrontEnd, how: str, more: str = "") -> str:
    """Begin a cell that launches two ranks; its id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return front.start(f"nbcompile.notebook_launcher(train, ({how!r},{more}), num_processes=2, use_port='{port}')")


def failed_at(front: FrontEnd) -> Path:
    return Path(front.run("print(Path('failed at').absolute())").strip())


def wait_for(file: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < end, "the training did not get there"
        time.sleep(0.05)


def left_by(front: FrontEnd) -> list[str]:
    """The processes under the kernel, but for the one in which multiprocessing keeps track of its semaphores."""
    kernel = psutil.Process(front.manager.provisioner.pid)  # type: ignore[attr-defined]
    found = [" ".join(child.cmdline()) for child in kernel.children(recursive=True)]
    return [command for command in found if "resource_tracker" not in command]


def trains_again(front: FrontEnd) -> None:
    """The kernel answers, nothing is left of a launch, and the same training succeeds."""
    assert front.run("print(int(signal.getsignal(signal.SIGTERM)), 1 + 1)") == "0 2\n"
    assert left_by(front) == []
    cell = launch(front, "fine", "3")
    assert front.ended(cell, 60) == "ok", front.printed(cell)
    assert "[(0, 2, 0), (1, 2, 0)]" in front.printed(cell)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", r"rank 1 of 2 failed first, .* after the launch:\n.*\n.*raise ValueError.*\nValueError: rank 1 has"),
        # the other one is in a library and would be waited for
        ("raises, the other is stuck", r"rank 1 of 2 failed first.*\nValueError: rank 1 has had enough\nAll ranks"),
        ("interrupts itself", r"rank 1 of 2 failed first.*\nKeyboardInterrupt\n"),
        ("exits", r"rank 1 of 2 ended with exit code 3"),
        ("killed", r"rank 1 of 2 was ended by SIGKILL, without an error of its own: .*memory runs out"),
    ],
)
def test_a_rank_that_fails_is_named_within_30_seconds(front: FrontEnd, how: str, said: str) -> None:
    # GIVEN a compiled training on two ranks WHEN the second one fails in its fourth step
    file = failed_at(front)
    file.unlink(missing_ok=True)
    cell = launch(front, how)
    # THEN the cell ends soon, with one error, which names that rank and not the one that lost its peer
    assert front.ended(cell, 90) == "RankError"
    assert time.time() - float(file.read_text()) < 30
    printed = re.sub(r"\x1b\[[0-9;]*m", "", front.printed(cell))
    assert re.search(said, printed, re.DOTALL), printed
    assert "ChildFailedError" not in printed
    assert "Terminating process" not in printed
    trains_again(front)


@pytest.mark.parametrize("how", ["trains", "compiles", "stuck"])
def test_an_interrupt_ends_all_ranks_within_30_seconds(front: FrontEnd, how: str) -> None:
    # GIVEN a training that trains, compiles, or has a rank inside of a library that hears of nothing
    file = failed_at(front)
    file.unlink(missing_ok=True)
    cell = launch(front, how)
    wait_for(file)
    time.sleep(1)
    # WHEN the kernel is interrupted
    begin = time.monotonic()
    front.manager.interrupt_kernel()
    # THEN the cell ends soon, as an interrupted one
    assert front.ended(cell, 90) == "KeyboardInterrupt"
    assert time.monotonic() - begin < 30
    assert "all ranks have ended" in front.printed(cell)
    trains_again(front)


def test_a_second_interrupt_leaves_no_rank_behind(front: FrontEnd) -> None:
    # GIVEN an interrupted launch that waits for a rank that does not hear WHEN it is interrupted again
    file = failed_at(front)
    file.unlink(missing_ok=True)
    cell = launch(front, "stuck")
    wait_for(file)
    time.sleep(1)
    for _ in range(2):
        front.manager.interrupt_kernel()
        time.sleep(1)
    # THEN it ends all the same
    assert front.ended(cell, 30) == "KeyboardInterrupt"
    trains_again(front)


def test_a_rank_computes_with_threads_though_the_kernel_has(front: FrontEnd) -> None:
    # GIVEN a kernel that has computed with two threads WHEN a rank does so too THEN it does not wait for the kernel's
    front.run("(torch.zeros(1000, 1000) + 1).sum()")
    cell = front.start("nbcompile.notebook_launcher(several_threads, num_processes=2, use_port='29533')")
    assert front.ended(cell, 60) == "ok", front.printed(cell)
    assert front.printed(cell).count("1000000.0") == 2
    # AND the kernel still can
    assert front.run("print(float((torch.zeros(1000, 1000) + 1).sum()))") == "1000000.0\n"


def test_one_process_is_the_kernel_itself(front: FrontEnd) -> None:
    # GIVEN one process WHEN its function fails THEN it did so in the kernel, with its own error
    cell = front.start("nbcompile.notebook_launcher(fail, ('raises',), num_processes=1)")
    assert front.ended(cell, 60) == "ValueError"


def test_no_rank_outlives_a_kernel_that_is_killed(front: FrontEnd) -> None:
    # GIVEN a training WHEN its kernel is killed THEN the ranks end by themselves
    file = failed_at(front)
    file.unlink(missing_ok=True)
    launch(front, "trains")
    wait_for(file)
    kernel = psutil.Process(front.manager.provisioner.pid)  # type: ignore[attr-defined]
    ranks = kernel.children(recursive=True)
    assert len(ranks) >= 2
    kernel.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(ranks, timeout=30)
    for process in alive:
        process.kill()
    assert alive == []
