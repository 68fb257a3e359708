"""Cells in which a model was compiled again say so, in a real kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from jupyter_client.manager import start_new_kernel

from nbcompile.notebook.again import told
from nbcompile.report import MIME_TYPE, Group, Recompile, Report
from tests.test_live import SETUP, Kernel, Message

MAGIC = "%%compile_regional model --backend eager --dynamic false -n 1 -r 1"


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


@pytest.fixture(autouse=True)
def compiled_model(kernel: Kernel) -> None:
    """A model that was compiled for inputs of two rows and has run."""
    assert kernel.run("%nbcompile marks off") == []
    assert kernel.run('nbcompile.compile_regions(model, backend="eager", dynamic=False)\ny = model(x)') == []


def again(messages: list[Message]) -> Report:
    """The report in the metadata of a cell's one output, which shows nothing but text."""
    (message,) = messages
    assert set(message.data) == {"text/plain"}
    return Report.from_dict(message.content["metadata"][MIME_TYPE])


def test_only_who_asks_is_told(kernel: Kernel) -> None:
    # GIVEN a compiled model WHEN a cell has it compiled again THEN nothing is shown
    assert kernel.run("y = model(torch.ones(3, 8))") == []
    # AND WHEN the marks are on THEN only what the cell itself caused is told
    assert kernel.run("%nbcompile marks on") == []
    messages = kernel.run("y = model(torch.ones(4, 8))")
    report = again(messages)
    (group,) = report.groups
    assert (group.path, [found.new for found in group.recompiles]) == ("layers", ["4"])
    assert messages[0].data["text/plain"] == (
        "Net was compiled again once:\n  layers.0: x changed its size in dimension 0 from 3 to 4"
    )
    # AND a cell that runs what is compiled says nothing
    assert kernel.run("y = model(torch.ones(4, 8))") == []
    # AND WHEN they are off THEN nothing is shown
    kernel.run("%nbcompile marks off")
    assert kernel.run("y = model(torch.ones(5, 8))") == []


def test_cell_that_fails_is_told_too(kernel: Kernel) -> None:
    # GIVEN the marks WHEN a cell fails after it has compiled again THEN what it compiled is told beside the error
    kernel.run("%nbcompile marks on")
    messages = kernel.run("y = model(torch.ones(3, 8))\n1 / 0")
    assert [message.kind for message in messages] == ["error", "display_data"]
    assert again(messages[1:]).groups[0].recompiles[0].new == "3"


@pytest.mark.parametrize(
    "cell",
    [
        f"{MAGIC} --compare none\nmodel(x)\nmodel(torch.ones(3, 8))",
        "y = model(torch.ones(3, 8))\n%nbcompile report model",
        "y = model(torch.ones(3, 8))\nnbcompile.report(model)",
    ],
    ids=["magic", "report", "result"],
)
def test_report_is_not_told_twice(kernel: Kernel, cell: str) -> None:
    # GIVEN the marks WHEN a cell shows a report THEN the recompiles are in it, and nothing is added
    kernel.run("%nbcompile marks on")
    messages = kernel.run(cell)
    last = messages[-1].data
    assert Report.from_dict(last[MIME_TYPE]).groups[0].recompiles
    assert not any(MIME_TYPE in message.content.get("metadata", {}) for message in messages)
    # AND the next cell is told of what it compiles itself, and of that alone
    report = again(kernel.run("y = model(torch.ones(6, 8))"))
    assert [found.new for found in report.groups[0].recompiles] == ["6"]


def test_unload_switches_off(kernel: Kernel) -> None:
    # GIVEN the marks WHEN the extension is unloaded THEN no cell is looked at any more
    kernel.run("%nbcompile marks on")
    kernel.run("%unload_ext nbcompile")
    assert kernel.run("y = model(torch.ones(3, 8))") == []
    assert kernel.value("get_ipython().events.callbacks['post_run_cell'] == []") == "True"
    kernel.run("%load_ext nbcompile")


@pytest.mark.parametrize("word", ["", "maybe"])
def test_wrong_word_is_refused(kernel: Kernel, word: str) -> None:
    # GIVEN the command WHEN it is given no word that it knows THEN it says which it takes
    messages = kernel.run(f"%nbcompile marks {word}")
    assert "marks takes on or off" in "".join(str(message.content) for message in messages)


def test_lines_are_few_and_printable() -> None:
    # GIVEN recompiles of many reasons, some hostile WHEN they are told
    found = [Recompile(f"layers.{index % 2}", f"reason {index // 2}\x1b[31m\n", "guard") for index in range(20)]
    text = told(Report(model={"class_name": "N\net"}, groups=[Group("layers", "Block", 2, recompiles=found)]))
    # THEN those with one reason are one line, and there are no more than a reader wants
    assert text.splitlines() == [
        "N et was compiled again 20 times:",
        *(f"  layers.0 and 1 more: reason {index} [31m" for index in range(5)),
        "  and 5 more: %nbcompile report shows them all",
    ]
