"""What a front end is told before it writes a cell, in a real shell and in a real kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

from nbcompile.notebook.names import Names, names

SETUP = """\
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
model, x = Net(), torch.ones(2, 4)
"""

STEPS = """\
def needs(y): return model(y)
def other(): return 1
def step(): return model(x)
def inner(): return [model(x) for _ in range(2)]
def default(y=None): return model(x)
def keyword(*, y): return model(x)
def generates(): yield model(x)
async def waits(): return model(x)
@torch.no_grad()
def decorated(): return model(x)
@torch.no_grad()
def decorated_needs(y): return model(y)
def of_an_attribute(): return x.model
def _private(): return model(x)
shorter = lambda: model(x)
from os import getcwd
from shutil import disk_usage
"""


@pytest.fixture
def shell(bare_shell: InteractiveShell) -> InteractiveShell:
    """A shell with a model."""
    bare_shell.run_cell(SETUP)
    return bare_shell


def test_models_are_told(shell: InteractiveShell) -> None:
    # GIVEN a model under two names, a part of it, and a loss function
    shell.run_cell("again, part, loss = model, model.layers[1], nn.MSELoss()")
    # WHEN the names are asked for THEN each object is told once, and what has no parameters is not
    assert [(each["name"], each["class_name"]) for each in names().models] == [("model", "Net"), ("part", "Sequential")]
    assert not any(each["compiled"] or each["used"] for each in names().models)
    # AND WHEN it is compiled THEN that is told
    shell.run_cell("import nbcompile\nnbcompile.compile_regions(model, backend='eager')")
    assert [each["compiled"] for each in names().models] == [True, False]


def test_steps_are_functions_that_need_no_argument(shell: InteractiveShell) -> None:
    # GIVEN functions of many kinds WHEN the names are asked for
    shell.run_cell(STEPS)
    told = [(step["name"], step["models"]) for step in names().steps]
    # THEN those that can be called as they are, are told, the ones that use the model first
    assert told == [
        ("step", ["model"]),
        ("inner", ["model"]),
        ("default", ["model"]),
        ("decorated", ["model"]),
        ("shorter", ["model"]),
        ("other", []),
        ("of_an_attribute", []),
    ]


@pytest.mark.parametrize(
    "cell",
    ["y = model(x)", "with torch.no_grad():\n    y = step()", "for _ in range(2): %time model(x)", "again(x)"],
    ids=["itself", "by a function", "in a magic", "by another name"],
)
def test_model_that_a_cell_uses_is_told(shell: InteractiveShell, cell: str) -> None:
    # GIVEN two models WHEN a cell uses one of them
    shell.run_cell("unused, again = Net(), model\ndef step(): return model(x)")
    # THEN that one is told, by the name that the cell has for it
    used = [each["name"] for each in names(cell).models if each["used"]]
    assert used == (["again"] if cell.startswith("again") else [] if "%time" in cell else ["model"])


@pytest.mark.parametrize("cell", ["", "not python (", "(" * 5000, "\x00", "%%bash\nls"])
def test_cell_that_cannot_be_read_uses_nothing(shell: InteractiveShell, cell: str) -> None:
    # GIVEN a cell that is no Python WHEN it is asked about THEN nothing fails and it uses no model
    assert [each["used"] for each in names(cell).models] == [False]


def test_nothing_is_imported_to_find_nothing(bare_shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a shell without torch WHEN the names are asked for THEN there are none, and torch is not loaded for it
    import sys

    monkeypatch.delitem(sys.modules, "torch")
    assert names() == Names(loaded=False)
    assert "torch" not in sys.modules


# -- in a kernel -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kernel() -> Iterator[BlockingKernelClient]:
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def asked(kernel: BlockingKernelClient, cell: str = "") -> Any:
    """The answer to the request that the lab extension sends."""
    expression = f"__import__('nbcompile.notebook.names', fromlist=['names']).names({json.dumps(cell)})"
    kernel.execute("", silent=True, store_history=False, user_expressions={"names": expression})
    reply = kernel.get_shell_msg(timeout=60)["content"]
    return reply["user_expressions"]["names"]["data"]["application/json"]


def test_question_leaves_nothing_behind(kernel: BlockingKernelClient) -> None:
    # GIVEN a kernel in which a cell has run
    kernel.execute_interactive(SETUP + "1 + 1", timeout=60)
    ask = {"state": "sorted(globals()), In, sorted(Out.items()), get_ipython().execution_count"}
    kernel.execute("", silent=True, store_history=False, user_expressions=ask)
    before = kernel.get_shell_msg(timeout=60)["content"]["user_expressions"]
    # WHEN it is asked, with text that must be quoted
    answer = asked(kernel, 'y = "a\\"b\'c"\nmodel(x)  # \u2028 é')
    # THEN it answers
    assert answer["loaded"] is False
    assert [(each["name"], each["used"]) for each in answer["models"]] == [("model", True)]
    # AND the user's names, the history and the count are as they were
    kernel.execute("", silent=True, store_history=False, user_expressions=ask)
    assert kernel.get_shell_msg(timeout=60)["content"]["user_expressions"] == before
    # AND once the magics are there, that is told
    kernel.execute_interactive("%load_ext nbcompile", timeout=60)
    assert asked(kernel)["loaded"] is True
