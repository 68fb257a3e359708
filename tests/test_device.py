"""The CUDA layer, on stand-ins for torch's CUDA calls: the order in which it calls them, above all when one fails."""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from nbcompile.device import Cuda


class Stream:
    """A stream that knows for whom it waited."""

    def __init__(self, name: str = "side") -> None:
        self.name, self.waited = name, []  # type: ignore[var-annotated]

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other.name)


class Driver:
    """What torch.cuda would do, noted. Like torch's own, ``graph`` leaves its stream current where recording fails."""

    def __init__(self) -> None:
        self.current = self.default = Stream("default")
        self.log: list[str] = []
        self.sync_mode = 0

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def graph(self, graph: Any, pool: Any = None, stream: Any = None, **options: Any) -> Iterator[None]:
        assert stream is self.current, "recorded on another stream than the one that was rehearsed on"
        self.log.append(f"begin {pool} {options.get('capture_error_mode', '')}".strip())
        try:
            yield
        except Exception:
            self.current = Stream("left behind")
            self.log.append("end failed")
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")  # noqa: B904
        self.log.append("end")

    def set_sync_debug_mode(self, mode: Any) -> None:
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)
        self.sync_mode = mode


class Graph:
    def reset(self) -> None:
        pass


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    stand_ins = {
        "current_device": lambda: 0,
        "device": lambda device: contextlib.nullcontext(),
        "current_stream": lambda device=None: driver.current,
        "Stream": lambda device: Stream(),
        "stream": driver.stream,
        "graph": driver.graph,
        "CUDAGraph": Graph,
        "graph_pool_handle": lambda: "pool",
        "synchronize": lambda device=None: driver.log.append("synchronize"),
        "get_sync_debug_mode": lambda: driver.sync_mode,
        "set_sync_debug_mode": driver.set_sync_debug_mode,
        "is_current_stream_capturing": lambda: False,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(
        torch._C, "_cuda_endAllocateToPool", lambda device, pool: driver.log.append(f"end pool {device} {pool}")
    )
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, device: zeros(*size))
    return driver


def test_recording(driver: Driver) -> None:
    # GIVEN the layer WHEN a call is recorded THEN it ran on the side stream, for which the user's stream waits
    layer = Cuda(torch.device("cuda"))
    assert layer.device == torch.device("cuda", 0)
    ran: list[Any] = []
    _, result = layer.record(lambda: ran.append((driver.current.name, gc.isenabled())) or "result", layer.new_pool())
    assert result == "result"
    assert ran == [("side", False)]  # what the collector frees could spoil the recording
    assert gc.isenabled()
    assert driver.log == ["begin pool thread_local", "end"]
    assert driver.current is driver.default
    assert driver.default.waited == ["side"]


def test_a_recording_that_fails_leaves_the_device_usable(driver: Driver) -> None:
    # GIVEN a call that the device refuses
    layer = Cuda(torch.device("cuda", 0))

    def call() -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    # WHEN it is recorded THEN the error comes out, with the first one behind it
    with pytest.raises(RuntimeError, match="previous error") as caught:
        layer.record(call, "pool")
    assert "not permitted" in str(caught.value.__context__)
    # AND the user's stream is the current one, the allocator is told, and a recording that succeeds frees the generator
    assert driver.current is driver.default
    assert gc.isenabled()
    assert driver.log[:3] == ["begin pool thread_local", "end failed", "end pool 0 pool"]
    assert driver.log[3:] == ["synchronize", "begin None", "end", "synchronize"]


def test_a_rehearsal(driver: Driver) -> None:
    # GIVEN a call that compiles the first time, warns of something, and waits for the device at one place
    layer, calls = Cuda(torch.device("cuda", 0)), []

    def call() -> None:
        calls.append((driver.current.name, torch.cuda.is_current_stream_capturing(), driver.sync_mode))
        others: list[bool] = []
        thread = threading.Thread(target=lambda: others.append(torch.cuda.is_current_stream_capturing()))
        thread.start()
        thread.join()
        assert others == [False]  # another thread is not told that it records
        if driver.sync_mode == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            warnings.warn("something else", stacklevel=1)

    # WHEN it is rehearsed THEN it is called twice as if it were recorded, of which only the second is watched
    with pytest.warns(UserWarning, match="something else") as warned:
        places = layer.rehearse(call)
    assert [str(warning.message) for warning in warned] == ["something else"]
    assert calls == [("side", True, 0), ("side", True, "warn")]
    assert len(places) == 1
    assert places[0].rpartition(":")[0] == __file__
    # AND all is as before
    assert torch.cuda.is_current_stream_capturing() is False
    assert driver.sync_mode == 0
    assert driver.current is driver.default


def test_graphs_follow_one_another_across_streams(driver: Driver) -> None:
    layer, other = Cuda(torch.device("cuda", 0)), Stream("other")
    layer.follow(driver.current)
    assert driver.current.waited == []
    layer.follow(other)
    assert driver.current.waited == ["other"]
