"""Every kind of graph break that PyTorch's documentation lists, provoked, and told: the line, the reason, a remedy."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nbcompile
from nbcompile.breaks import explain_break
from tests.blocks import WIDTH, Net, rows


@torch.compiler.disable
def left_out(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@contextlib.contextmanager
def breaking() -> Iterator[None]:
    torch._dynamo.graph_break()
    yield


def value(x: torch.Tensor) -> Any:
    return x + x.sum().item()


def branch(x: torch.Tensor) -> Any:
    return x + 1 if x.sum() > 0 else x - 1


def loop(x: torch.Tensor) -> Any:
    while x.abs().max() > 1:
        x = x / 2
    return x


def values(x: torch.Tensor) -> Any:
    return x + x[0].tolist()[0]


def printed(x: torch.Tensor) -> Any:
    print(end="")
    return x


def logged(x: torch.Tensor) -> Any:
    logging.getLogger("nbcompile.test").debug("seen")
    return x


def warned(x: torch.Tensor) -> Any:
    warnings.warn("seen", stacklevel=1)
    return x


def disabled(x: torch.Tensor) -> Any:
    return left_out(x)


def asked_for(x: torch.Tensor) -> Any:
    torch._dynamo.graph_break()
    return x


def chosen(x: torch.Tensor) -> Any:
    return x + x[x > 0].sum()


def clock(x: torch.Tensor) -> Any:
    return x + 0 * int(time.time() > 0)


def file(x: torch.Tensor) -> Any:
    with open(__file__) as source:
        return x + len(source.read()) * 0


def in_with(x: torch.Tensor) -> Any:
    with breaking():
        return x + 1


def gradient(x: torch.Tensor) -> Any:
    return x + torch.autograd.grad((x * x).sum(), x, retain_graph=True)[0]


def sparse(x: torch.Tensor) -> Any:
    return x.to_sparse().to_dense()


class Block(nn.Module):
    def __init__(self, act: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) + self.act(self.fc(x))


@pytest.mark.parametrize(
    ("act", "reason", "remedy"),
    [
        (value, "a tensor's value is read into Python", "capture_scalar_outputs"),
        (branch, "an if or a loop depends on a tensor's value", "torch.where"),
        (loop, "an if or a loop depends on a tensor's value", "torch.where"),
        (values, "a tensor's values are read into a list", "in a tensor"),
        (printed, "the built-in function print is called", "reorderable_logging_functions.add(print)"),
        (logged, "a method of a logger is called", "ignore_logging_functions"),
        (warned, "a warning is raised by warnings.warn", "reorderable_logging_functions.add(warnings.warn)"),
        (disabled, "left_out is marked with torch.compiler.disable", "take the mark off"),
        (asked_for, "torch._dynamo.graph_break() is called", "take the call out"),
        (chosen, "the size of the result of aten.nonzero depends", "torch.where"),
        (clock, "time.time is called, which the compiler cannot look into", "outside of the block"),
        (file, "the built-in function open is called", "outside of the block"),
        (in_with, "torch._dynamo.graph_break() is called", "take the call out"),
        (gradient, "torch.autograd.grad is called inside of the block", "trace_autograd_ops"),
        (sparse, "a sparse tensor is used", "dense"),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_each_kind_is_told_with_its_line(act: Any, reason: str, remedy: str) -> None:
    # GIVEN blocks with a graph break WHEN the compiled model is called
    model = nbcompile.compile_regions(Net([Block(act), Block(act)]), backend="eager")
    model(rows())
    # THEN the report has each block's break, at a line of the function that causes it
    (group,) = nbcompile.report(model).groups
    mine = [found for found in group.graph_breaks if found.reason.startswith(reason)]
    assert {found.block for found in mine} <= {"layers.0", "layers.1"}
    assert mine, group.graph_breaks
    assert remedy in mine[0].remedy
    place, _, line = mine[0].location.rpartition(":")
    assert place.endswith(f"{Path(__file__).parent.name}/{Path(__file__).name}")
    code = (breaking.__wrapped__ if act is in_with else act).__code__  # type: ignore[attr-defined]
    lines = {number for _, _, number in code.co_lines()} | {act.__code__.co_firstlineno + 1}
    assert int(line) in lines
    assert "/" not in mine[0].reason  # no folder of the machine


def test_a_break_inside_a_library_names_the_users_line_too() -> None:
    import inspect

    def act(x: torch.Tensor) -> Any:
        inspect.currentframe()
        return x

    model = nbcompile.compile_regions(Net([Block(act), Block(act)]), backend="eager")
    model(rows())
    location = nbcompile.report(model).groups[0].graph_breaks[0].location
    assert "inspect.py:" in location
    assert location.endswith(
        f"called from {Path(__file__).parent.name}/{Path(__file__).name}:{act.__code__.co_firstlineno + 1}"
    )


def test_a_value_computed_before_a_break_is_told_when_it_varies() -> None:
    # GIVEN a number that is read into Python and then used WHEN it is another one in the next call
    model = nbcompile.compile_regions(Net([Block(value), Block(value)]), backend="eager")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for count in range(1, 4):
            model(rows(count + 1)[:2] * count)
    found = [again for again in nbcompile.report(model).groups[0].recompiles if "graph break" in again.reason]
    assert found
    assert found[0].reason.startswith("a value computed just before a graph break was")
    assert "tensor" in found[0].remedy


def test_of_a_kind_that_is_not_known_the_compilers_words_are_kept() -> None:
    told = explain_break(
        "Something new\n  Explanation: in file `/home/someone/site-packages/lib/part.py` it does that.\n"
        "  Hint: It may be a bug. Please report an issue to PyTorch.\n  Hint: Do this instead.\n"
        "  Developer debug context: x"
    )
    assert told.reason == "Something new: in file `lib/part.py` it does that."
    assert told.remedy == "Do this instead."
    assert "torch.compiler.disable" in explain_break("Something new").remedy
    assert explain_break("").reason == ""


def test_a_very_long_text_is_cut() -> None:
    assert len(explain_break("x" * 10_000).reason) <= 300
