"""Progress: what an onlooker sees of work that goes on, and what is remembered of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nbcompile import progress
from nbcompile.compare import compare
from nbcompile.progress import Progress
from nbcompile.report import Report, Snapshot
from tests.blocks import Net, NumberedBlock, net, rows


class Onlooker:
    """A progress that is looked at whenever a graph is compiled, from a thread of its own."""

    def __init__(self) -> None:
        self.progress = Progress(watched=True)
        self.seen: list[Report] = []

    def backend(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        """A compiler that takes a tenth of a second."""
        time.sleep(0.1)
        looking = threading.Thread(target=lambda: self.seen.append(self.progress.look()))
        looking.start()
        looking.join()
        return graph.forward

    @property
    def snapshots(self) -> list[Snapshot]:
        """What was seen of the cold start, the compiler's start-up left out."""
        return [r.progress for r in self.seen if r.progress and r.progress.stage.startswith("regional: cold")]

    def compare(self, model: Net, **keywords: Any) -> Report:
        return compare(
            model,
            lambda: model(rows()),
            ["regional"],
            backend=self.backend,
            rounds=1,
            calls=1,
            progress=self.progress,
            **keywords,
        )


@pytest.fixture(autouse=True)
def remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing is remembered from elsewhere; the file that will be."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(progress, "_durations", {})
    return tmp_path / "nbcompile-cold-starts.json"  # type: ignore[return-value]


@torch.no_grad()
def test_graphs_to_come_are_counted_beforehand() -> None:
    # GIVEN three blocks that need a graph each, which their structure does not show
    onlooker = Onlooker()
    # WHEN they are compiled
    onlooker.compare(net(3, NumberedBlock))
    # THEN it is told which is compiled, by what, and how many are done, of at least one; and nothing that is not known
    assert [(s.region, s.class_name, s.phase) for s in onlooker.snapshots] == [
        (f"layers.{number}", "NumberedBlock", "backend") for number in range(3)
    ]
    assert [(s.done, s.expected, s.at_least) for s in onlooker.snapshots] == [
        (0, 1, True),
        (1, None, False),
        (2, None, False),
    ]
    assert {(s.last_seconds, s.remaining_seconds) for s in onlooker.snapshots} == {(None, None)}
    # AND the figures so far grow graph by graph
    graphs = [sum(r.graphs for r in report.strategies["regional"].regions) for report in onlooker.seen[-3:]]
    assert graphs == [0, 1, 2]


@torch.no_grad()
def test_cold_start_is_remembered_also_by_the_next_process(remembered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a cold start that was watched
    Onlooker().compare(net(3, NumberedBlock))
    assert remembered.is_file()
    # WHEN the same is compiled by a process that knows only the file
    monkeypatch.setattr(progress, "_durations", {})
    onlooker = Onlooker()
    onlooker.compare(net(3, NumberedBlock))
    # THEN it knows how long it took, how many graphs it made, and estimates what is left
    assert {(s.expected, s.at_least) for s in onlooker.snapshots[:2]} == {(3, False)}
    last = onlooker.snapshots[0].last_seconds
    assert last is not None
    assert 0.3 < last < 5
    for snapshot in onlooker.snapshots:
        if snapshot.remaining_seconds is not None:
            assert snapshot.remaining_seconds == pytest.approx(last - (snapshot.elapsed_seconds or 0))
    # AND nothing is known under other settings
    other = Onlooker()
    other.compare(net(3, NumberedBlock), dynamic=False)
    assert {s.last_seconds for s in other.snapshots} == {None}


@torch.no_grad()
@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"\xff", b'{"a": 1, "b": ["x", 1], "c": [1e9, 1], "d": [1, -1]}']
)
def test_damaged_file_is_no_file(content: bytes, remembered: Path) -> None:
    # GIVEN a file that holds something else WHEN work is watched THEN nothing is known, and it is as good as new
    remembered.write_bytes(content)
    onlooker = Onlooker()
    onlooker.compare(net(2))
    assert {s.last_seconds for s in onlooker.snapshots} == {None}
    assert len(progress._read()) == 1


@torch.no_grad()
def test_nothing_is_written_where_nobody_looks(remembered: Path) -> None:
    # GIVEN a function that takes lines WHEN it is told of the work THEN no file appears
    lines: list[str] = []
    model = net(2)
    compare(model, lambda: model(rows()), ["regional"], backend="eager", rounds=1, calls=1, progress=lines.append)
    assert lines
    assert not remembered.exists()


@torch.no_grad()
def test_failing_cold_start_is_not_remembered(remembered: Path) -> None:
    # GIVEN a compiler that fails WHEN work is watched THEN its time says nothing of the next
    def fails(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no")

    model = net(2)
    with pytest.warns(UserWarning, match="could not be compiled"):
        compare(
            model,
            lambda: model(rows()),
            ["regional"],
            backend=fails,
            rounds=1,
            calls=1,
            progress=Progress(watched=True),
        )
    assert not remembered.exists()


def test_running_compiled_code_is_no_phase() -> None:
    # GIVEN a thread that runs a compiled model, forward and backward, again and again
    model = net(2)
    compiled = torch.compile(model, backend="aot_eager")
    compiled(rows()).sum().backward()
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            compiled(rows()).sum().backward()

    thread = threading.Thread(target=run)
    thread.start()
    # WHEN it is looked at THEN it is never seen compiling
    try:
        assert thread.ident is not None
        seen = {progress.phase_of(thread.ident) for _ in range(300) if not time.sleep(0.001)}
    finally:
        stop.set()
        thread.join()
    assert seen == {""}
    # AND a thread that does not exist is in no phase
    assert progress.phase_of(thread.ident) == ""


def test_onlooker_waits_while_rounds_are_timed() -> None:
    # GIVEN work that times rounds WHEN someone wants to look meanwhile THEN he waits until they are over
    work = Progress(watched=True)
    with work.quiet():
        looking = threading.Thread(target=lambda: work.lock.acquire() and work.lock.release())
        looking.start()
        looking.join(0.2)
        assert looking.is_alive()
        with work.quiet():  # measurements within measurements
            pass
    looking.join(5)
    assert not looking.is_alive()
