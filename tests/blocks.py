"""Small models for the tests of the compiler: residual blocks that tell when they run uncompiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

WIDTH = 16


class Block(nn.Module):
    """A residual block. ``ran_eager`` collects the blocks of all models that ran outside the compiler."""

    ran_eager: set[int] = set()

    def __init__(self, number: float = 0) -> None:
        super().__init__()
        self.number = number
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            Block.ran_eager.add(id(self))
        return x + self.work(x)

    def work(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.relu(self.fc(x))
        return result


class NumberedBlock(Block):
    """A block whose number is in its arithmetic, so that each number needs a graph of its own."""

    def work(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc(x) / (self.number + 2)
        return result


class BreakingBlock(Block):
    """A block with a graph break in the middle."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.work(x)
        torch._dynamo.graph_break()
        return x * 2


class Net(nn.Module):
    """Blocks in a ModuleList, called one after another."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class DirectNet(Net):
    """The same, but its blocks' ``forward`` is called, which bypasses hooks and compiled calls alike."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer.forward(x)
        return x


def net(count: int = 4, block: Callable[[float], nn.Module] = Block, kind: type[Net] = Net) -> Net:
    """A model of blocks numbered from 0, in eval mode, with the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind([block(number) for number in range(count)]).eval()


def rows(count: int = 2) -> torch.Tensor:
    """An input of so many rows, the same each time."""
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(count))


def ran_eager(model: nn.Module, *inputs: Any) -> int:
    """Call the model; how many of its blocks ran outside the compiler."""
    Block.ran_eager.clear()
    model(*inputs)
    return len(Block.ran_eager)
