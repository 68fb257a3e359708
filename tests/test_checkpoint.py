"""Checkpointed blocks are computed again in the backward pass: compiled if they were in the forward pass, else not."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import nbcompile

BACKEND = "aot_eager"
Around = Callable[[nn.Module], contextlib.AbstractContextManager[Any]]


def compiled(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


@torch.library.custom_op("nbcompile_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return 2 * x


@twice.register_fake
def _(x: Tensor) -> Tensor:
    if isinstance(x.shape[1], torch.SymInt):
        raise RuntimeError("only sizes that are known")
    return torch.empty_like(x)


twice.register_autograd(lambda context, gradient: 2 * gradient)


class Block(nn.Module):
    """A block that is compiled for a fixed size, and fails to compile for any size."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + twice(self.inner(x).relu()).sin()


class Checkpointed(nn.Module):
    """Four blocks, each checkpointed; the last two may be handed a part of the rows alone."""

    def __init__(self, *, shrinks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.shrinks = shrinks

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            if number == 2 and self.shrinks:
                x = x[:, :5]
            x = checkpoint(block, x, use_reentrant=False)
        return x


def gradients(model: nn.Module) -> list[Any]:
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("forward", "backward"),
    [(nbcompile.eager, compiled), (compiled, nbcompile.eager), (compiled, compiled)],
    ids=["forward eager", "backward eager", "both compiled"],
)
def test_a_checkpointed_block_runs_again_as_it_ran_before(forward: Around, backward: Around) -> None:
    # GIVEN the gradients of a checkpointed model that is not compiled
    model, x = Checkpointed(), torch.randn(2, 9, 8, requires_grad=True)
    model(x).sum().backward()
    expected = gradients(model)
    model.zero_grad(set_to_none=True)
    # WHEN it is compiled, and runs its forward pass or its backward pass eager
    nbcompile.compile_regions(model, backend=BACKEND)
    model(x).sum().backward()
    model.zero_grad(set_to_none=True)
    with forward(model):
        loss = model(x).sum()
    with backward(model):
        loss.backward()  # torch's checkpoint compares what both kept, and raises an error if they differ
    # THEN its gradients are the same, and the report tells how the forward pass ran
    torch.testing.assert_close(gradients(model), expected)
    (group,) = nbcompile.report(model).groups
    assert (group.compiled, group.eager) == ((4, 0) if forward is compiled else (0, 4))


def test_a_compile_that_fails_midway_changes_nothing_of_the_step_that_it_happened_in() -> None:
    # GIVEN checkpointed blocks of which the third is handed another size, for which compiling fails
    model, x = Checkpointed(shrinks=True), torch.randn(2, 9, 8, requires_grad=True)
    model(x).sum().backward()
    expected = gradients(model)
    model.zero_grad(set_to_none=True)
    nbcompile.compile_regions(model, backend=BACKEND)
    # WHEN they are trained THEN the first two, which ran compiled, are so again when they are computed anew; and what
    # runs compiled in later steps does so in both passes
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", nbcompile.CompilationWarning)
            model(x).sum().backward()
        torch.testing.assert_close(gradients(model), expected)
        model.zero_grad(set_to_none=True)
    (group,) = nbcompile.report(model).groups
    assert "only sizes that are known" in group.failure
    assert group.eager >= 2
