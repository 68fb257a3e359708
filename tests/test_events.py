"""A compile's time split over its phases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch._dynamo.utils

from nbcompile.events import split
from nbcompile.report import PHASES

NAMES = {
    "dynamo": "dynamo_cumulative_compile_time_us",
    "aot": "aot_autograd_cumulative_compile_time_us",
    "inductor": "inductor_cumulative_compile_time_us",
    "codegen": "inductor_code_gen_cumulative_compile_time_us",
    "kernels": "triton_compile_time_us",
    "backward": "backward_cumulative_compile_time_us",
}


def record(**totals: float) -> Callable[[str], float]:
    """A record of the compiler: whole times in seconds, each containing those inside it."""
    named = {NAMES[name]: seconds for name, seconds in totals.items()}
    return lambda name: named.get(name, 0.0)


def test_forward_compile_is_split_into_exclusive_times() -> None:
    # GIVEN nested totals: Dynamo contains AOT autograd, which contains Inductor and a backward compile, and so on
    totals = record(dynamo=8.0, aot=6.0, inductor=4.0, codegen=3.0, kernels=1.0, backward=1.0)
    # WHEN they are split
    phases = split(totals, wall=10.0, forward=True)
    # THEN each phase is its own time alone, and what nobody named is "other"
    assert phases == {
        "dynamo": 2.0,
        "aot_autograd": 1.0,
        "inductor": 1.0,
        "codegen": 2.0,
        "kernels": 1.0,
        "backward": 1.0,
        "other": 2.0,
    }


def test_backward_compile_is_backward_whole() -> None:
    # GIVEN the record of a backward graph WHEN it is split THEN its kernels are backward's, too, and so is the rest
    totals = record(inductor=4.0, codegen=3.0, kernels=2.0, backward=5.0)
    assert split(totals, wall=6.0, forward=False) == {"backward": 6.0}


@pytest.mark.parametrize(("forward", "phase"), [(True, "other"), (False, "backward")])
def test_nothing_recorded(forward: bool, phase: str) -> None:
    # GIVEN a record that names no part WHEN it is split THEN all of it is "other", or backward's
    assert split(record(), wall=2.0, forward=forward) == {phase: 2.0}


def test_no_time_at_all() -> None:
    # GIVEN a compile that took no time WHEN it is split THEN there is no phase
    assert split(record(), wall=0.0, forward=True) == {}


def test_more_named_than_spent_is_scaled_down() -> None:
    # GIVEN parts whose clocks overlap WHEN they are split THEN they are scaled to the time that was spent
    assert split(record(dynamo=8.0, aot=6.0), wall=4.0, forward=True) == {"dynamo": 1.0, "aot_autograd": 3.0}


def test_part_larger_than_what_contains_it_is_no_negative_time() -> None:
    # GIVEN an Inductor total above that of AOT autograd around it WHEN it is split THEN no phase is negative
    assert split(record(dynamo=3.0, aot=1.0, inductor=2.0), wall=3.0, forward=True) == {"dynamo": 1.5, "inductor": 1.5}


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("wall", [0.5, 3.0, 7.25, 100.0])
@pytest.mark.parametrize("first", [0.0, 1.0, 9.0])
def test_phases_add_up_to_the_wall_time(first: float, wall: float, forward: bool) -> None:
    # GIVEN totals in and out of order WHEN they are split
    values = [first, 5.0, 2.0, 3.0, 0.25, 1.0]
    phases = split(record(**dict(zip(NAMES, values, strict=True))), wall=wall, forward=forward)
    # THEN the phases are those that a report knows, none is negative, and they add up
    assert set(phases) <= set(PHASES)
    assert min(phases.values()) > 0
    assert sum(phases.values()) == pytest.approx(wall, abs=1e-12)


def test_every_total_exists_in_this_version_of_torch() -> None:
    # GIVEN the names that are asked for WHEN they are held against the compiler's record THEN it has each
    asked: set[str] = set()
    for forward in (True, False):
        split(lambda name: float(asked.add(name) or 0), wall=1.0, forward=forward)
    fields = {field.name for field in dataclasses.fields(torch._dynamo.utils.CompilationMetrics)}
    assert asked == set(NAMES.values())
    assert asked <= fields
