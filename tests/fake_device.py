"""A device for the tests of CUDA graphs where there is none: it records what is called on the CPU, and calls it again.

While it records, each operation of torch is noted with the memory that it reads and writes, and what it computes is
then destroyed: results hold nothing until the first replay, as on a real device. A replay does the noted operations
again, on the same memory, whatever the model has become since. So a result that is stale shows.

It sees what goes through torch's dispatcher. Code that inductor made for the CPU does not, so the tests compile with a
backend that keeps torch's operations.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from nbcompile import device

_WAITS = ("aten._local_scalar_dense", "aten.nonzero", "aten.equal")
_GARBAGE = 77


class FakeGraph:
    """What was recorded, and how often it was replayed."""

    def __init__(self) -> None:
        self.launches: list[Callable[[], None]] = []
        self.replays = 0
        self.alive = True

    def replay(self) -> None:
        assert self.alive, "a graph that was given back is replayed"
        self.replays += 1
        for launch in self.launches:
            launch()

    def reset(self) -> None:
        self.alive = False
        self.launches.clear()


class _Mode(TorchDispatchMode):
    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # else blocks would run uncompiled under it


class _Recording(_Mode):
    def __init__(self, graph: FakeGraph) -> None:
        super().__init__()
        self.graph = graph
        self.results: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(func).startswith(_WAITS):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nSee the documentation")
        result = func(*args, **kwargs)
        # by the memory, not by the object: `weight.data = other` leaves what was recorded at the old place
        old_args, old_kwargs = _same_memory(args), _same_memory(kwargs)
        given = _memory((args, kwargs))
        outputs = [t.detach() for t in _tensors(result) if t.untyped_storage().data_ptr() not in given]
        self.results += outputs
        if not outputs and not func._schema.is_mutable:
            return result  # a view

        def launch() -> None:
            again = func(*old_args, **old_kwargs)
            fresh = [t for t in _tensors(again) if t.untyped_storage().data_ptr() not in given]
            for place, value in zip(outputs, fresh, strict=True):
                place.copy_(value)

        self.graph.launches.append(launch)
        return result


class _Waiting(_Mode):
    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func).startswith(_WAITS):
            frame = next(
                f for f in reversed(traceback.extract_stack()) if "/torch/" not in f.filename and f.name == "forward"
            )
            self.places.append(f"{frame.filename}:{frame.lineno}")
        return func(*args, **(kwargs or {}))


class FakeDevice:
    """See :class:`nbcompile.device.Layer`.

    Attributes:
        graphs: all that were recorded.
        pools: the pool of each recording, failed ones too.
        rehearsals: number of recordings that were prepared.
        capturing: whether a recording is under way.
        unseen_waits: whether places that wait for the device are found only while recording.
        error: fails the next recording.
    """

    def __init__(self, of: torch.device | None = None) -> None:
        self.device = torch.device("cpu") if of is None else of
        self.graphs: list[FakeGraph] = []
        self.pools: list[object] = []
        self.rehearsals = 0
        self.capturing = False
        self.unseen_waits = False
        self.error: Exception | None = None

    def synchronize(self) -> None:
        pass

    def random_state(self) -> torch.Tensor:
        return torch.get_rng_state()

    def new_pool(self) -> object:
        return object()

    def stream(self) -> str:
        return "the only stream"

    def follow(self, stream: str) -> None:
        assert stream == "the only stream"

    def rehearse(self, call: Callable[[], Any]) -> list[str]:
        self.rehearsals += 1
        with self._seemingly_capturing():
            call()
            with _Waiting() as waiting:
                call()
        return [] if self.unseen_waits else waiting.places

    def record(self, call: Callable[[], Any], pool: object) -> tuple[FakeGraph, Any]:
        graph = FakeGraph()
        self.pools.append(pool)
        self.capturing = True
        try:
            with self._seemingly_capturing(), _Recording(graph) as recording:
                result = call()
                if self.error is not None:
                    error, self.error = self.error, None
                    raise error
        finally:
            self.capturing = False
        for tensor in recording.results:
            tensor.fill_(_GARBAGE)
        self.graphs.append(graph)
        return graph, result

    def seconds(self, step: Callable[[], Any], calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            step()
        return (time.perf_counter() - begin) / calls

    @contextlib.contextmanager
    def _seemingly_capturing(self) -> Iterator[None]:
        with device._seemingly_capturing():
            yield


@contextlib.contextmanager
def fake_device() -> Iterator[FakeDevice]:
    """The CPU as a device that records graphs, inside a ``with`` block."""
    fake = FakeDevice()
    device.LAYERS["cpu"] = lambda of: fake
    try:
        yield fake
    finally:
        del device.LAYERS["cpu"]


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for part in value for t in _tensors(part)] if isinstance(value, (list, tuple)) else []


def _memory(value: Any) -> set[int]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return {place for part in value for place in _memory(part)}
    return {t.untyped_storage().data_ptr() for t in _tensors(value)}


def _same_memory(value: Any) -> Any:
    return tree_map_only(torch.Tensor, torch.Tensor.detach, value)
