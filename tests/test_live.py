"""Live charts: what a front end receives from a real kernel while a cell works, and what is left afterwards."""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

from nbcompile.render.mime import PLOTLY_MIME_TYPE
from nbcompile.report import MIME_TYPE, Report

SETUP = """\
import contextvars, itertools, threading, time
import torch
from torch import nn
import nbcompile
%load_ext nbcompile

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
    def forward(self, x):
        return x + self.down(self.up(x).relu())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

eager, inductor = "eager", "inductor"
model, x = Net().requires_grad_(False), torch.ones(2, 8)

def sleeping(graph, inputs):  # leaves the interpreter to other threads, as a C++ compiler does
    if len(inputs) > 1:  # not the trivial function of the start-up
        time.sleep(1.5)
    return graph

def busy(graph, inputs):  # keeps it, as tracing does
    end = time.perf_counter() + 1.5 * (len(inputs) > 1)
    while time.perf_counter() < end:
        sum(range(100))
    return graph

def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("nbcompile")]
"""


@dataclass
class Message:
    """A message that a front end received."""

    kind: str
    seconds: float
    parent: str
    content: dict[str, Any]

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = self.content["data"]
        return data

    @property
    def stage(self) -> str:
        """What the progress line says is being done, ``""`` for a finished report or plain text."""
        progress = self.data.get(MIME_TYPE, {}).get("progress") or {}
        return str(progress.get("stage", ""))


class Kernel:
    """A kernel with the extension loaded."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager, self.client = manager, client

    def run(self, source: str, *, interrupt_at: str = "") -> list[Message]:
        """Run a cell; what was shown. The kernel is interrupted once a stage begins with ``interrupt_at``."""
        cell = self.client.execute(source)
        messages: list[Message] = []
        while True:
            raw = self.client.get_iopub_msg(timeout=120)
            message = Message(
                raw["msg_type"], _seconds(raw["header"]["date"]), raw["parent_header"]["msg_id"], raw["content"]
            )
            if message.parent == cell and message.content.get("execution_state") == "idle":
                return messages
            if message.kind in ("display_data", "update_display_data", "execute_result", "stream", "error"):
                messages.append(message)
            if interrupt_at and message.kind == "update_display_data" and message.stage.startswith(interrupt_at):
                interrupt_at = ""
                self.manager.interrupt_kernel()

    def value(self, expression: str) -> str:
        """What an expression prints."""
        return "".join(message.content["text"] for message in self.run(f"print({expression})")).strip()


def _seconds(date: datetime.datetime) -> float:
    return date.timestamp()


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        kernel = Kernel(manager, client)
        assert kernel.run(SETUP) == []
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def displayed(messages: list[Message]) -> list[Message]:
    """The states of the one output, after checking that it is one: shown once and replaced after that."""
    shown = [message for message in messages if message.kind in ("display_data", "update_display_data")]
    assert [message.kind for message in shown] == ["display_data"] + ["update_display_data"] * (len(shown) - 1)
    assert len({message.content["transient"]["display_id"] for message in shown}) == 1
    assert len({message.parent for message in shown}) == 1
    return shown


MAGIC = "%%compile_regional model --backend {backend} -n 1 -r 1\ny = model(x)"
PLAIN = 'r = nbcompile.compare(model, lambda: model(x), ["eager", "regional"], backend={backend}, rounds=1, calls=1)'


@pytest.mark.slow
@pytest.mark.parametrize("cell", [MAGIC, PLAIN], ids=["magic", "plain"])
@pytest.mark.parametrize("backend", ["sleeping", "busy"])
def test_output_moves_while_a_block_compiles_and_ends_as_the_report(kernel: Kernel, cell: str, backend: str) -> None:
    # GIVEN a compiler that takes a second and a half for a block WHEN a cell compiles a model
    shown = displayed(kernel.run(cell.format(backend=backend)))
    # THEN the output is replaced at least twice and at most about ten times a second meanwhile
    compiling = [message for message in shown if message.stage == "regional: cold start (compiling)"]
    steps = [after.seconds - before.seconds for before, after in itertools.pairwise(compiling)]
    assert compiling[-1].seconds - compiling[0].seconds > 1.2
    assert max(steps) < 0.6
    assert len(steps) <= 11 * (compiling[-1].seconds - compiling[0].seconds) + 1
    # AND says what is compiled, in which phase, and how many graphs there are to come
    progress = compiling[len(compiling) // 2].data[MIME_TYPE]["progress"]
    assert (progress["region"], progress["class_name"], progress["phase"]) == ("layers.0", "Block", "backend")
    assert (progress["done"], progress["expected"], progress["unit"]) == (0, 1, "graphs")
    assert 0.3 < progress["elapsed_seconds"] < 1.5
    # AND a bar grows for the block
    (bar,) = Report.from_dict(compiling[-1].data[MIME_TYPE]).strategies["regional"].regions
    assert (bar.path, bar.class_name) == ("layers", "Block")
    assert 0.9 < bar.seconds < 3
    assert "<svg" in compiling[-1].data["text/html"]
    # AND each state is small
    assert max(len(json.dumps(message.data)) for message in shown[:-1]) < 50_000
    # AND the last one is the report in every form, without a line of progress
    last = shown[-1].data
    assert {MIME_TYPE, PLOTLY_MIME_TYPE, "text/html", "text/plain"} <= set(last)
    report = Report.from_dict(last[MIME_TYPE])
    assert report.progress is None
    assert report.groups[0].compiled == 3
    assert "nbc-progress" not in last["text/html"].partition("</style>")[2]
    # AND no thread is left
    assert kernel.value("threads()") == "[]"


def test_last_duration_is_told_and_what_is_left_estimated(kernel: Kernel) -> None:
    # GIVEN a cold start that this process has seen before, under settings that no other test has
    cell = (
        'nbcompile.compare(model, lambda: model(x), ["regional"], backend=sleeping, dynamic=False, rounds=1, calls=1);'
    )
    first = [message.data[MIME_TYPE]["progress"] for message in displayed(kernel.run(cell))[:-1]]
    # WHEN it is made again
    again = [message.data[MIME_TYPE]["progress"] for message in displayed(kernel.run(cell))[:-1]]
    # THEN the first time nothing was known of its length, and the second time that of the first
    assert {progress["last_seconds"] for progress in first} == {None}
    cold = [progress for progress in again if progress["stage"].startswith("regional: cold")]
    assert 1.5 < cold[0]["last_seconds"] < 4
    left = [progress["remaining_seconds"] for progress in cold if progress["remaining_seconds"] is not None]
    assert left == sorted(left, reverse=True)
    assert left[0] == pytest.approx(cold[0]["last_seconds"], abs=0.3)
    assert left[-1] < 0.7 * left[0]
    # AND the number of graphs is that of the first time, no least one
    assert (cold[0]["expected"], cold[0]["at_least"]) == (1, False)


def test_nothing_moves_while_rounds_are_timed(kernel: Kernel) -> None:
    # GIVEN a step that takes a third of a second WHEN two rounds of three calls are timed for two strategies
    cell = "%%compile_regional model --backend eager -n 3 -r 2\ntime.sleep(0.3)\ny = model(x)"
    shown = displayed(kernel.run(cell))
    # THEN there is one state for each round, shown before it begins
    rounds = [message for message in shown if message.stage.startswith("steady state")]
    assert [message.stage.rpartition(": ")[2] for message in rounds] == [
        "round 1 of 2, eager",
        "round 1 of 2, regional",
        "round 2 of 2, regional",  # every second turn goes the other way round
        "round 2 of 2, eager",
    ]
    assert all(after.seconds - before.seconds > 0.8 for before, after in itertools.pairwise(rounds))
    # AND what was timed so far is in the chart
    strategies = rounds[2].data[MIME_TYPE]["strategies"]
    assert strategies["eager"]["steady_seconds"] == pytest.approx(0.3, abs=0.1)
    # AND afterwards it moves again, for the memory takes a step each
    assert [message for message in shown if message.stage == "regional: memory"]


@pytest.mark.parametrize("cell", [MAGIC, PLAIN], ids=["magic", "plain"])
def test_interrupt_leaves_nothing(kernel: Kernel, cell: str) -> None:
    for at in ("regional: cold start", "regional: cold start", "start-up"):
        # GIVEN a cell that compiles WHEN the kernel is interrupted
        source = cell.replace("{backend}", "sleeping" if at != "start-up" else "slow_to_start")
        kernel.run("def slow_to_start(graph, inputs):\n    time.sleep(1)\n    return graph")
        messages = kernel.run(source, interrupt_at=at)
        # THEN it stops, by that
        assert messages[-1].content["ename"] == "KeyboardInterrupt"
        # AND its output says nothing that is no longer true
        assert displayed(messages)[-1].stage == ""
        assert "cold start (compiling)" not in displayed(messages)[-1].data["text/plain"]
        # AND the next cell works, with the model, and no thread goes on
        assert kernel.value("threads(), model(x).shape") == "[] torch.Size([2, 8])"


@pytest.mark.parametrize("cell", [MAGIC, PLAIN], ids=["magic", "plain"])
def test_error_leaves_nothing(kernel: Kernel, cell: str) -> None:
    # GIVEN a step that fails once it is being timed WHEN it is measured
    kernel.run("turns = itertools.count()\ndef fails():\n    if next(turns) == 5: raise KeyError('batch')")
    source = cell.replace("y = model(x)", "fails(); y = model(x)").replace(
        "lambda: model(x)", "lambda: fails() or model(x)"
    )
    messages = kernel.run(source.format(backend="eager"))
    # THEN the error is the user's, and the output has no line of progress
    assert messages[-1].content["ename"] == "KeyError"
    last = displayed(messages)[-1]
    assert last.stage == ""
    # AND keeps what was found so far
    assert Report.from_dict(last.data[MIME_TYPE]).progress is None
    # AND no thread goes on
    assert kernel.value("threads()") == "[]"


def test_mistake_shows_no_output(kernel: Kernel) -> None:
    # GIVEN a wrong argument WHEN compare is called THEN there is the error and nothing else
    assert [message.kind for message in kernel.run('nbcompile.compare(model, lambda: model(x), ["regionl"])')] == [
        "error"
    ]
    assert [message.kind for message in kernel.run("nbcompile.compare(model, lambda: 3)")][-1] == "error"
    assert kernel.value("threads()") == "[]"


def test_output_stays_in_its_cell_while_another_one_runs(kernel: Kernel) -> None:
    # GIVEN work that a cell has begun in a thread, in its own context
    call = PLAIN.format(backend="sleeping").removeprefix("r = ")
    begin = (
        f"work = threading.Thread(target=contextvars.copy_context().run, args=(lambda: {call},))\n"
        "work.start(); time.sleep(0.5)"
    )
    first = kernel.run(begin)
    # WHEN another cell waits for it
    second = kernel.run("work.join()")
    # THEN all that is shown belongs to the first cell, where it began
    shown = displayed([*first, *second])
    assert shown[0] is first[0]
    assert len([message for message in second if message in shown]) > 5
    assert shown[-1].stage == ""


def test_result_of_the_cell_is_not_shown_twice(kernel: Kernel) -> None:
    # GIVEN a cell that ends with compare WHEN it runs
    messages = kernel.run(PLAIN.format(backend="eager") + "\nr")
    # THEN the output is the report, and the result is one line
    assert PLOTLY_MIME_TYPE in displayed(messages)[-1].data
    (result,) = [message for message in messages if message.kind == "execute_result"]
    assert set(result.data) == {"text/plain"}
    assert result.data["text/plain"].startswith("<Report of Net: 3 of 3 blocks compiled")
    # AND in a later cell it is shown whole
    (later,) = kernel.run("r")
    assert {MIME_TYPE, PLOTLY_MIME_TYPE, "text/html"} <= set(later.data)


def test_captured_cell_shows_nothing(kernel: Kernel) -> None:
    # GIVEN a cell whose output is captured WHEN it calls compare THEN nothing is shown, and no thread was begun
    source = f"%%capture kept\n{PLAIN.format(backend='sleeping')}\nleft = threads()"
    assert kernel.run(source) == []
    assert kernel.value("len(kept.outputs), left, r.strategies['regional'].graphs") == "0 [] 1"


def test_own_progress_and_unloading_turn_it_off(kernel: Kernel) -> None:
    # GIVEN a function of the user's for the progress WHEN compare is called THEN it is told, and nothing is shown
    quiet = PLAIN.format(backend="eager").removesuffix(")") + ", progress=lines.append)"
    assert kernel.run(f"lines = []\n{quiet}") == []
    assert "regional: cold start (compiling)" in kernel.value("lines")
    # AND likewise once the extension is unloaded
    kernel.run("%unload_ext nbcompile")
    try:
        assert kernel.run(PLAIN.format(backend="eager")) == []
    finally:
        kernel.run("%load_ext nbcompile")


@pytest.mark.inductor
@pytest.mark.slow
def test_output_moves_while_a_cpp_compiler_works(kernel: Kernel) -> None:
    # GIVEN the real compiler WHEN a cell compiles a model
    shown = displayed(kernel.run(MAGIC.format(backend="inductor")))
    # THEN the output moves at least twice a second, and knows the phases
    compiling = [message for message in shown if message.stage == "regional: cold start (compiling)"]
    assert max(b.seconds - a.seconds for a, b in itertools.pairwise(compiling)) < 1.0
    phases = {message.data[MIME_TYPE]["progress"]["phase"] for message in compiling}
    assert "kernels" in phases
    # AND what it counted for each agrees with the compiler's own record, of which it sees a tenth of a second at a time
    live = [Report.from_dict(message.data[MIME_TYPE]).strategies["regional"].regions for message in compiling]
    before = [regions[0] for regions in live if regions and regions[0].graphs == 0][-1]
    (after,) = Report.from_dict(shown[-1].data[MIME_TYPE]).strategies["regional"].regions
    assert before.phases["kernels"] == pytest.approx(after.phases["kernels"], rel=0.3, abs=0.8)
