"""The device, as far as recording CUDA graphs and timing need it: one small class, and the place to put another.

Everything that :mod:`nbcompile.graphs` asks of a device goes through a *layer*. The one for CUDA is here. Tests put a
layer of their own into :data:`LAYERS`, which records on the CPU what is called and calls it again.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

Call = Callable[[], Any]


class Graph(Protocol):
    """A recorded graph."""

    def replay(self) -> None:
        """Have the device do again what was recorded, on the current stream."""

    def reset(self) -> None:
        """Give the graph and its hold on the memory pool back."""


class Layer(Protocol):
    """What is asked of a device.

    Attributes:
        device: the device that the layer stands for.
    """

    device: torch.device

    def synchronize(self) -> None:
        """Wait until the device has done all that was asked of it."""

    def random_state(self) -> torch.Tensor:
        """The state of the device's random number generator: equal if nothing was drawn between."""

    def new_pool(self) -> Any:
        """A memory pool that graphs can share, so long as they do not run at the same time."""

    def stream(self) -> Any:
        """The current stream."""

    def follow(self, stream: Any) -> None:
        """Let what is asked of the current stream from now on wait for what was asked of another one."""

    def rehearse(self, call: Call) -> list[str]:
        """Call twice on the stream that is recorded on, as if it were recorded.

        The first call may compile, and sets up what libraries need on that stream. Of the second it is known that what
        it does is what a recording would do.

        Returns:
            Places of the second call, as ``file:line``, that wait for the device, which cannot be recorded.
        """

    def record(self, call: Call, pool: Any) -> tuple[Graph, Any]:
        """Record a call. Nothing of it has run on the device when this returns.

        Returns:
            The graph, and the call's result, whose tensors get their values when the graph is replayed.

        Raises:
            Exception: what the call raised, or the device. The device can be used as before.
        """

    def seconds(self, step: Call, calls: int) -> float:
        """Seconds of one call, the mean over some, from events on the device."""


class Cuda:
    """A CUDA device; see :class:`Layer`. Follows torch's notes on CUDA graphs (``docs/stable/notes/cuda.html``)."""

    def __init__(self, device: torch.device) -> None:
        number: int | None = device.index
        self.device = torch.device(device.type, torch.cuda.current_device() if number is None else number)
        self._side: torch.cuda.Stream | None = None

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def random_state(self) -> torch.Tensor:
        return torch.cuda.get_rng_state(self.device)

    def new_pool(self) -> Any:
        with torch.cuda.device(self.device):
            return torch.cuda.graph_pool_handle()

    def stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.device)

    def follow(self, stream: torch.cuda.Stream) -> None:
        current = self.stream()
        if stream != current:
            current.wait_stream(stream)

    def rehearse(self, call: Call) -> list[str]:
        with self._on_side(), _seemingly_capturing():
            call()
            self.synchronize()
            with _waits() as places:
                call()
        self.synchronize()
        return places

    def record(self, call: Call, pool: Any) -> tuple[Graph, Any]:
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # what is freed while recording may call CUDA, which would spoil the recording
        try:
            # Where recording fails, torch.cuda.graph leaves its stream the current one; the outer context does not.
            # "thread_local": what other threads do, such as one that pins memory for a loader, is no error.
            with (
                self._on_side() as side,
                torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"),
            ):
                result = call()
        except BaseException:
            self._mend(graph, pool)
            raise
        finally:
            if collecting:
                gc.enable()
        return graph, result

    def seconds(self, step: Call, calls: int) -> float:
        with torch.cuda.device(self.device):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.synchronize()
            begin.record()
            for _ in range(calls):
                step()
            end.record()
            end.synchronize()
            milliseconds: float = begin.elapsed_time(end)
            return milliseconds / 1000 / calls

    @contextlib.contextmanager
    def _on_side(self) -> Iterator[torch.cuda.Stream]:
        """Work on the stream of its own that is recorded on: libraries keep workspaces by stream."""
        with torch.cuda.device(self.device):
            if self._side is None:
                self._side = torch.cuda.Stream(self.device)
            before = self.stream()
            self._side.wait_stream(before)
            with torch.cuda.stream(self._side):
                yield self._side
            with contextlib.suppress(RuntimeError):  # a recording that failed: _mend waits for the device
                before.wait_stream(self._side)

    def _mend(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """Make the device usable after a recording that failed.

        torch leaves behind what its ``capture_end`` does after the call that fails there, in some versions: the
        allocator goes on taking the pool for one that is recorded into (pytorch#180395), and the generator of random
        numbers refuses to draw ("Offset increment outside graph capture encountered unexpectedly"). The first is ended
        by hand; a recording that succeeds ends the second.
        """
        with contextlib.suppress(Exception):
            graph.reset()
        # private, named alike in torch 2.11 and 2.13; it raises where there is nothing left to end
        end = getattr(torch._C, "_cuda_endAllocateToPool", None)
        if end is not None:
            with contextlib.suppress(Exception):
                end(self.device.index, pool)
        with contextlib.suppress(Exception):
            self.synchronize()
            with self._on_side() as side, torch.cuda.graph(torch.cuda.CUDAGraph(), stream=side):
                torch.zeros(1, device=self.device)
            self.synchronize()


#: The layer for each type of device that has one.
LAYERS: dict[str, Callable[[torch.device], Layer]] = {"cuda": Cuda}
_made: dict[tuple[torch.device, Any], Layer] = {}


def layer_for(device: torch.device | None) -> Layer | None:
    """The layer of a device; ``None`` where graphs cannot be recorded."""
    make = None if device is None else LAYERS.get(device.type)
    if make is None:
        return None
    assert device is not None
    known = _made.get((device, make))
    if known is None:
        known = _made[device, make] = make(device)
    return known


def event_seconds(step: Call, calls: int, device: torch.device | None) -> float | None:
    """Seconds of one call of a step, the mean over some, told by the device's own events.

    ``torch.utils.benchmark`` reads the process's clock, and waits for the device before it does. Events leave out what
    that waiting costs, which is a part of a call that takes less than a millisecond.

    Args:
        calls: how often to call.

    Returns:
        ``None`` for a device that has no events, such as a CPU.
    """
    layer = layer_for(device)
    return None if layer is None else layer.seconds(step, calls)


@contextlib.contextmanager
def _seemingly_capturing() -> Iterator[None]:
    """Let ``torch.cuda.is_current_stream_capturing`` say yes in this thread.

    Libraries ask it, and do otherwise while a graph is recorded: transformers then makes the attention mask that it
    leaves out where every entry is set, which it can only know by waiting for the device. To a compiled block that is
    another call, and nothing can be compiled while recording; so it is compiled here.
    """
    real, thread = torch.cuda.is_current_stream_capturing, threading.get_ident()

    def seemingly() -> bool:
        return threading.get_ident() == thread or real()

    torch.cuda.is_current_stream_capturing = seemingly
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = real


@contextlib.contextmanager
def _waits() -> Iterator[list[str]]:
    """Collects the places that wait for the device. torch knows many of them, not all."""
    places: list[str] = []
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")  # "error" would raise in other threads too
        try:
            yield places
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for warning in caught:
        text = str(warning.message)
        if "called a synchronizing" in text:
            places.append(f"{warning.filename}:{warning.lineno}")
        elif "Synchronization debug mode" not in text:  # torch's word on the mode itself, which nobody here asked for
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
