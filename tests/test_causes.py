"""Every cause of a recompile, provoked, and told: the value before, the value now, the user's line, a remedy."""

# ruff: noqa: E501  (the table of causes reads better in long lines)

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nbcompile
from nbcompile.report import Recompile
from tests.blocks import WIDTH, Net

FACTOR = 1.0


class Block(nn.Module):
    """A block that relies on as many kinds of thing as a compiler can guard on."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.flag, self.names, self.activation = 1, ["a"], torch.relu
        self.register_buffer("offset", torch.ones(WIDTH))

    def forward(
        self, x: torch.Tensor, scale: Any = 1, mode: str = "a", table: Any = (), parts: Any = ()
    ) -> torch.Tensor:
        y = self.fc(x) * scale
        if mode == "a":
            y = y + 1
        if isinstance(table, dict):
            y = y + sum(table.values())
        for part in parts:
            y = y + part
        y = self.activation(y * self.flag + len(self.names)) + FACTOR * self.offset
        if x.shape[0] > 100:
            y = y * 2
        return x + y


class Stack(Net):
    """Passes on what it is given."""

    def forward(self, x: torch.Tensor, **more: Any) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, **more)
        return x


def x(*shape: int) -> torch.Tensor:
    return torch.ones(*(shape or (4, WIDTH)), dtype=torch.float32)


def set_factor(value: float) -> None:
    global FACTOR
    FACTOR = value


@contextlib.contextmanager
def deterministic() -> Any:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def threads() -> Any:
    number = torch.get_num_threads()
    torch.set_num_threads(number + 1)
    yield
    torch.set_num_threads(number)


@contextlib.contextmanager
def default_dtype() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def under(context: Callable[[], Any]) -> Callable[[nn.Module], Any]:
    def call(model: nn.Module) -> None:
        with context():
            model(x())

    return call


def plain(model: nn.Module) -> None:
    model(x())


def recompile(first: Callable[[Any], Any], second: Callable[[Any], Any], **settings: Any) -> Recompile:
    """The recompile that the second call causes in a model that the first call has compiled."""
    set_factor(1.0)
    model = Stack([Block(), Block()]).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nbcompile.compile_regions(model, backend="eager", **settings)
        with torch.no_grad():
            first(model)
            before = len(nbcompile.report(model).groups[0].recompiles)
            second(model)
    return nbcompile.report(model).groups[0].recompiles[before]


@pytest.mark.parametrize(
    ("first", "second", "reason", "old", "new", "remedy"),
    [
        (plain, lambda m: m(x(5, WIDTH)), "x changed its size in dimension 0 from 4 to 5", "4", "5", "mark_dynamic"),
        (plain, lambda m: m(x(1, WIDTH)), "x changed its size in dimension 0 from 4 to 1", "4", "1", "sizes 0 and 1"),
        (plain, lambda m: m(x(2, 4, WIDTH)), "x had 2 dimensions when it was compiled and has 3", "2", "3", "reshape"),
        (plain, lambda m: m.double()(x().double()), "x changed its dtype from float32 to float64", "float32", "float64", "dtype"),
        (plain, lambda m: m(x(WIDTH, 4).t()), "x changed its layout in memory", "16", "1", "contiguous"),
        (lambda m: m(x(), scale=2), lambda m: m(x(), scale=3), "scale was 2 when it was compiled and is 3 now", "2", "3", "tensor"),
        (lambda m: m(x(), scale=2.0), lambda m: m(x(), scale=3.0), "scale was 2.0", "2.0", "3.0", "tensor"),
        (lambda m: m(x(), mode="a"), lambda m: m(x(), mode="b"), "mode was 'a'", "'a'", "'b'", "a few of them"),
        (lambda m: m(x(), scale=2), lambda m: m(x(), scale=torch.tensor(2.0)), "is a tensor of shape []", "2", "a tensor of shape []", ""),
        (lambda m: m(x(), parts=[x(), x()]), lambda m: m(x(), parts=[x()]), "parts had 2 entries when it was compiled and has 1", "2", "1", "stack"),
        (lambda m: m(x(), parts=[x()]), lambda m: m(x(), parts=(x(),)), "parts was a list when it was compiled and is a tuple", "list", "tuple", "same kind"),
        (lambda m: m(x(), table={"a": 1}), lambda m: m(x(), table={"a": 2}), "table['a'] was 1", "1", "2", "tensor"),
        (lambda m: m(x(), table={"a": 1}), lambda m: m(x(), table={"a": 1, "b": 2}), "table has another length", "", "2", "length"),
        (plain, lambda m: (setattr(m.layers[0], "flag", 3), m(x())), "flag was 1 when it was compiled and is 3 now", "1", "3", "buffer"),
        (plain, lambda m: (m.layers[0].names.append("b"), m(x())), "names had 1 entries", "1", "2", ""),
        (plain, lambda m: (setattr(m.layers[0], "activation", torch.sigmoid), m(x())), "activation is another object", "", "sigmoid", "attributes"),
        (plain, lambda m: (set_factor(2.0), m(x())), "the global FACTOR was 1.0 when it was compiled and is 2.0 now", "1.0", "2.0", "argument"),
        (plain, lambda m: (setattr(m.layers[0], "fc", nn.Sequential(nn.Linear(WIDTH, WIDTH))), m(x())), "fc was a Linear when it was compiled and is a Sequential", "Linear", "Sequential", ""),
        (plain, lambda m: (setattr(m.layers[0], "fc", nn.Linear(WIDTH, WIDTH, bias=False)), m(x())), "fc.bias was a tensor and is a NoneType", "Tensor", "NoneType", ""),
        (plain, lambda m: m(nn.Parameter(x(), requires_grad=False)), "x was a tensor and is a Parameter", "Tensor", "Parameter", ""),
        (plain, lambda m: m(x(), scale=2), "other arguments were passed by name", "", "scale", "same arguments"),
        (plain, under(lambda: torch.autocast("cpu", torch.bfloat16)), "autocast was switched on or off", "", "", "autocast"),
        (plain, under(torch.inference_mode), "inference_mode", "", "", "one mode"),
        (plain, under(deterministic), "use_deterministic_algorithms", "", "", "once"),
        (plain, under(threads), "set_num_threads", "", "", "once"),
        (plain, under(default_dtype), "set_default_dtype", "", "", "once"),
        (plain, under(lambda: torch.device("cpu")), "a mode around the call came or went", "", "", "inside the mode"),
    ],
)  # fmt: skip
def test_each_cause_is_told(first: Any, second: Any, reason: str, old: str, new: str, remedy: str) -> None:
    # GIVEN a compiled model WHEN something changes that it relied on THEN the report tells what, from what, to what
    found = recompile(first, second)
    assert found.block == "layers.0"
    assert reason in found.reason
    assert (found.old, found.new) == (old, new)
    assert remedy in found.remedy


def test_sizes_that_became_dynamic_have_bounds() -> None:
    def grow(model: nn.Module) -> None:
        model(x())
        model(x(5, WIDTH))

    found = recompile(grow, lambda m: m(x(120, WIDTH)))
    assert found.reason == "x was compiled for sizes 2 to 100 in dimension 0, and has 120 now"
    assert (found.old, found.new) == ("2 to 100", "120")
    assert recompile(grow, lambda m: m(x(1, WIDTH))).new == "1"


def test_the_users_line_is_told_not_the_models() -> None:
    # GIVEN a model that calls its blocks in a loop of its own WHEN a call of the user's makes it compile again
    found = recompile(plain, lambda m: m(x(5, WIDTH)))
    # THEN the line is that of the call above, not that of the loop
    line = test_the_users_line_is_told_not_the_models.__code__.co_firstlineno + 2
    assert found.caller == f"{Path(__file__).parent.name}/{Path(__file__).name}:{line}"


def test_a_guard_of_an_unknown_kind_is_told_as_it_is() -> None:
    from nbcompile.causes import cause_of

    assert cause_of("0/0: something nobody has seen(args[0])", {"args": (1,)}, None).reason == (
        "something nobody has seen(argument 0)"
    )
    assert cause_of("", {}, None).reason == "no reason given"


@pytest.mark.parametrize(
    ("guard", "reason"),
    [
        ("0/0: ___stack0 > 0.0", "a value computed just before a graph break was > 0.0 when it was compiled"),
        ("0/0: L['args'][0] > 2", "argument 0 was > 2 when it was compiled and is 1 now"),
        ("0/0: L['args'][0].size()[0] == L['args'][1].size()[1]", "sizes are not as they were when it was compiled"),
        ("0/0: Cache line invalidated because L['x'] got deallocated", "an object that it was compiled for is gone: x"),
    ],
)
def test_guards_that_are_seldom_met(guard: str, reason: str) -> None:
    from nbcompile.causes import cause_of

    cause = cause_of(guard, {"args": (1,)}, None)
    assert cause.reason.startswith(reason)
    assert cause.remedy


def test_a_guards_text_is_never_run() -> None:
    from nbcompile.causes import cause_of

    ran: list[int] = []
    cause = cause_of("0/0: args[ran.append(1)] == 2", {"args": (1,), "ran": ran}, None)
    assert ran == []
    assert cause.new == ""
