"""What a stretch of time cost on the cores, and that lacking them is noticed: on made counts, and beside real loops."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import nbcompile
from nbcompile import cores, doctor, measure
from nbcompile.cores import Reading, Throttling, Use

needs_counts = pytest.mark.skipif(cores.read().waiting is None, reason="this system does not tell how threads wait")


@contextlib.contextmanager
def busy_cores() -> Iterator[list[int]]:
    """As many loops as there are cores, in sessions of their own, as another busy kernel is; their numbers."""
    loop = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    started = [
        subprocess.Popen(loop, start_new_session=True, stdout=subprocess.PIPE) for _ in range(os.cpu_count() or 1)
    ]
    try:
        for one in started:
            assert one.stdout is not None
            one.stdout.readline()
        yield [one.pid for one in started]
    finally:
        for one in started:
            one.kill()
            one.communicate()


def between(wall: float, **passed: float) -> Use:
    """What went on in ``wall`` seconds in which the counts went forward by so much."""
    waited = passed.pop("waited", 0.0)
    before = Reading(100.0, 10.0, 5.0, {"1": 1.0, "2": 2.0, "9": 7.0}, 3.0, 50.0, 60.0, 4.0)
    counts = {name: getattr(before, name) + seconds for name, seconds in passed.items()}
    waiting = {"1": 1.0 + waited / 2, "2": 2.0, "3": waited / 2}  # one thread has ended, one is new
    after = Reading(**{**vars(before), "wall": 100.0 + wall, "waiting": waiting, **counts})
    return Use.between(before, after)


def test_what_was_lost_is_part_of_the_wall_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN four cores WHEN counts have gone forward THEN waiting, quota and stolen cores add up
    monkeypatch.setattr(cores, "cores", lambda: 4)
    monkeypatch.setattr(cores, "_ticks", lambda: 100)
    assert between(2.0).lost == 0.0
    assert between(2.0, waited=0.5).lost == pytest.approx(0.25)
    assert between(2.0, throttled=0.5).lost == pytest.approx(0.25)
    assert between(2.0, stolen=0.82).lost == pytest.approx(0.1)  # two ticks may be what was counted before
    assert between(2.0, stolen=0.02).lost == 0.0
    # AND what others used is what the machine was busy beyond this process and those under it
    use = between(2.0, cpu=1.0, children=2.0, busy=7.0, idle=1.0)
    assert (use.wall, use.cpu) == (2.0, 3.0)
    assert (use.others, use.idle) == (pytest.approx(0.5), pytest.approx(0.125))


def test_what_is_disturbed() -> None:
    assert not Use(0.5, 1.0, lost=0.03).disturbed()
    assert Use(0.5, 1.0, lost=0.06).disturbed()
    assert not Use(0.001, 0.002, lost=0.9).disturbed()  # too short to tell
    # a cold start that others took all cores from, or that waited for long
    assert Use(20.0, 9.0, lost=0.01, others=0.5, idle=0.0).disturbed_cold
    assert not Use(20.0, 9.0, lost=0.01, others=0.5, idle=0.3).disturbed_cold
    assert Use(20.0, 9.0, lost=0.2).disturbed_cold
    assert not Use(20.0, 9.0).disturbed_cold


def test_where_waiting_is_not_told_the_quickest_round_is_what_counts() -> None:
    # GIVEN a system without counts, and a best round of 0.1 s a call on two cores
    best = Use(0.1, 0.2)
    # THEN a round is disturbed that took longer with fewer cores, and not one that had more to do
    assert Use(0.4, 0.4).disturbed(calls=2, best=best)
    assert not Use(0.4, 0.8).disturbed(calls=2, best=best)
    assert not Use(0.2, 0.2).disturbed(calls=2, best=best)
    assert not Use(0.4, 0.4).disturbed(calls=2)


def test_counts_that_a_system_lacks_are_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a system without /proc WHEN the counts are read THEN what it does not tell is absent, and the rest is there
    monkeypatch.setattr(cores, "_PROC", tmp_path)
    before = cores.read()
    found = Use.between(before, cores.read())
    assert (before.waiting, before.busy, found.lost, found.others, found.idle) == (None, None, None, None, None)
    assert found.wall > 0
    assert found.cpu >= 0
    assert not found.disturbed()
    assert cores.processes() == {}
    # AND the doctor says so
    assert doctor.check_competition(0.01).found == "this system does not tell what other processes do"


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("usage_usec 5\nnr_periods 1000\nnr_throttled 120\nthrottled_usec 2500000\n", Throttling(1000, 120, 2.5)),
        ("nr_periods 1000\nnr_throttled 120\nthrottled_time 2500000000\n", Throttling(1000, 120, 2.5)),
        ("usage_usec 5\nuser_usec 3\n", None),
        ("nr_periods many\nnr_throttled 1\nthrottled_usec 1\n", None),
        ("", None),
    ],
)
def test_quota_of_a_cgroup(text: str, held: Throttling | None, tmp_path: Path) -> None:
    file = tmp_path / "cpu.stat"
    file.write_text(text)
    assert Throttling.of(file) == held
    assert Throttling.of(tmp_path / "none") is None


def test_quotas_around_the_own_group_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a group inside of another that has a quota, in the second version of cgroups
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/outer/inner\n")
    (groups / "outer" / "inner").mkdir(parents=True)
    (groups / "outer" / "cpu.stat").write_text("nr_periods 10\nnr_throttled 3\nthrottled_usec 1500000\n")
    (groups / "outer" / "inner" / "cpu.stat").write_text("usage_usec 7\n")
    monkeypatch.setattr(cores, "_PROC", proc)
    monkeypatch.setattr(cores, "_CGROUPS", groups)
    cores._quota_files.cache_clear()
    try:
        assert cores.throttling() == Throttling(10, 3, 1.5)
        assert cores.read().throttled == 1.5
        # AND the doctor tells of it
        (check,) = doctor.check_quota()
        assert (check.ok, check.found) == (None, "held back in 3 of 10 periods, 1.5 s in all")
        assert "set_num_threads" in check.remedy
    finally:
        cores._quota_files.cache_clear()


@needs_counts
@pytest.mark.alone
def test_a_busy_machine_is_noticed() -> None:
    # GIVEN a step of torch's, and another kernel's work on every core
    step = _step(0.02)
    with busy_cores() as others:
        # WHEN rounds are timed
        rounds = measure.Rounds(step, seconds=0.2)
        begin = time.perf_counter()
        for _ in range(6):
            rounds.take("eager")
        seconds = time.perf_counter() - begin
        timing = rounds.timing("eager")
        found = doctor.check_competition(0.3).found
        cold = measure.first_call(_step(0.5), None)[1]
    # THEN they are known to be disturbed, by how much, and they were repeated, but not for ever
    assert timing is not None
    assert timing.disturbed >= 3
    assert timing.lost is not None
    assert timing.lost > cores.MOST_LOST
    assert seconds < 60
    # AND so is a first call
    assert cold.disturbed_cold
    # AND the doctor names who it is, by name and number alone. Processes that the test started are its own work
    assert "no other process" in found or all(f"pid {pid}" not in found for pid in others)


@pytest.mark.alone
def test_the_doctor_names_what_competes() -> None:
    # GIVEN loops that are seen as another's: from a process that did not start them
    code = "from nbcompile.doctor import check_competition as see; print((c := see(0.5)).ok, c.found, c.remedy)"
    with busy_cores() as others:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    # THEN they are named, with the share of a core, and without their command line
    assert any(f"(pid {pid})" in done.stdout for pid in others)
    assert done.stdout.startswith("None ")
    assert "% of a core" in done.stdout
    assert "while True" not in done.stdout
    assert "before you measure" in done.stdout


@needs_counts
@pytest.mark.alone
def test_a_disturbed_comparison_says_so() -> None:
    # GIVEN a model whose step takes a while, and another kernel's work on every core
    model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512)) for _ in range(4)])
    rows = torch.randn(256, 512)
    with torch.no_grad(), busy_cores():
        report = nbcompile.compare(model, lambda: model(rows), ["eager", "regional"], backend="eager", rounds=2)
    # THEN the figures say it, in every view, as notes are, and hold the CPU time beside the wall time
    disturbed = [figures for figures in report.strategies.values() if figures.disturbed_rounds]
    assert disturbed
    for figures in disturbed:
        assert any("lacked the cores, though they were repeated" in note for note in figures.notes)
        assert any("nbcompile doctor names what competes" in note for note in figures.notes)
    assert "lacked the cores" in report.to_text()
    assert "lacked the cores" in report.to_html()
    for figures in report.strategies.values():
        assert figures.steady_cpu_seconds > 0
        assert figures.cold_cpu_seconds > 0


def test_compilers_that_were_started_count_as_cpu_time() -> None:
    # GIVEN a first call that lets another process work for a while, as a C++ compiler does
    work = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"

    def step() -> None:
        subprocess.run([sys.executable, "-c", work], check=True)

    # WHEN it is timed THEN the CPU time holds the other process's
    use = measure.first_call(step, None)[1]
    assert use.cpu >= 0.25
    assert use.wall >= 0.3


def test_a_round_that_fails_does_not_spoil_the_next() -> None:
    # GIVEN a step that fails while it is timed WHEN the next round is taken THEN its time is its own
    fails = [False, False, False, True]

    def step() -> None:
        if fails and fails.pop(0):
            raise ZeroDivisionError
        time.sleep(0.01)

    rounds = measure.Rounds(step, calls=3)
    with pytest.raises(ZeroDivisionError):
        rounds.take("a")
    rounds.take("a")
    timing = rounds.timing("a")
    assert timing is not None
    assert timing.rounds == 1
    assert 0.01 <= timing.median < 0.2
    assert timing.cpu is not None
    assert timing.cpu < 0.01


def _step(seconds: float) -> measure.Callable[[], object]:
    """A step of torch's on all threads that takes about so long."""
    left = torch.randn(256, 512)
    weight = torch.randn(512, 512)

    def once() -> None:
        for _ in range(10):
            left @ weight

    once()
    begin = time.perf_counter()
    once()
    times = max(1, round(seconds / (time.perf_counter() - begin)))

    def step() -> None:
        for _ in range(times):
            once()

    return step
