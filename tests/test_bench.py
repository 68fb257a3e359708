"""The benchmark: what it judges by, that every way computes what eager does, and that it runs and tells what failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from nbcompile import compiler
from nbcompile.report import Strategy
from tests.benchmarks import measuring, parts, repeats, subjects
from tests.benchmarks.verdicts import Check, paired_ratio, ratio, shown, verdicts

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.benchmarks.bench", "--quick", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


def test_a_ratio_within_rounds_bears_a_machine_that_slows_down() -> None:
    # GIVEN a way that takes half of another's time in each round, while the machine gets ten times slower, unevenly
    theirs = [1.0, 1.0, 10.0, 10.0, 10.0]
    ours = [seconds / 2 for seconds in theirs]
    # THEN the paired ratio says one half, also where another process lost its rounds
    assert paired_ratio([ours, []], [theirs, []]) == 0.5
    # and of figures from processes one after another the medians are compared
    assert ratio([1.0, 2.0, 9.0], [4.0]) == 0.5
    assert paired_ratio([[]], [[]]) is None
    assert ratio([], [1.0]) is None


def test_what_was_not_measured_is_not_met() -> None:
    checks = [
        Check("none", None, 1.0),
        Check("at", 1.0, 1.0),
        Check("not below", 1.0, 1.0, below=True),
        Check("above", 1.1, 1.0),
    ]
    assert [check.met for check in checks] == [False, True, False, False]
    assert verdicts(checks).splitlines() == [
        "NOT met  none: not measured (<= 1)",
        "met      at: 1 (<= 1)",
        "NOT met  not below: 1 (< 1)",
        "NOT met  above: 1.1 (<= 1)",
    ]
    assert shown([], "{:.1f}") == "-"
    assert shown([2.0, 1.0, 4.0], "{:.0f} ms", 1e3) == "2000 ms (1000 ms–4000 ms)"


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("small-llama", "forward"),
        ("small-llama", "train"),
        ("tiny-bert", "forward"),
        ("tiny-bert", "train"),
        ("flux", "forward"),
    ],
)
def test_every_way_computes_what_eager_does(name: str, task: str) -> None:
    # GIVEN a subject without dropout, which draws other numbers at each call
    subject = subjects.load(name, task, layers=2)
    for module in subject.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ways = [way for way in subjects.WAYS if way != "hierarchical" and (way != "diffusers" or name == "flux")]
    with torch.set_grad_enabled(subject.training):
        expected = subject.call(subject.model)
        for way in ways:
            # WHEN a twin of it is compiled in each way
            model = subject.twin()
            blocks = subject.block_modules(model)
            assert blocks
            result = subject.call(subjects.compiled(way, model, blocks, "eager"))
            # THEN it computes the same, on the same weights but with modules of its own
            torch.testing.assert_close(result, expected)
            assert next(model.parameters()) is next(subject.model.parameters())
            assert model is not subject.model
            assert not subject.training or all(p.grad is not None for p in subject.block_modules(model)[0].parameters())


def test_watching_can_be_told_from_calling_directly() -> None:
    # GIVEN two twins, regionally compiled
    subject = subjects.load("small-llama", "forward", layers=2)
    direct = {}
    for way in ("regional", "regional-entry"):
        model = subject.twin()
        call = subjects.compiled(way, model, subject.block_modules(model), "eager")
        with torch.no_grad():
            for _ in range(3):
                subject.call(call)
        (group,) = (group for group in compiler.current(model).groups if group.path)
        direct[way] = [bool(region.fast) for region in group.regions]
    # THEN the blocks of one call compiled code directly and those of the other go by the compiler's entry
    assert direct == {"regional": [True, True], "regional-entry": [False, False]}


def test_sets_of_processes_fit_together_where_one_died(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN three sets of processes for two ways, of which one dies before it answers, and one in its second round
    class Process:
        made: ClassVar[list[str]] = []

        def __init__(self, job: dict[str, Any], *_: object) -> None:
            self.way, self.rounds = job["way"], 0
            self.made.append(self.way)
            self.number = self.made.count(self.way)

        def __enter__(self) -> Process:
            return self

        def __exit__(self, *_: object) -> None: ...

        def receive(self) -> dict[str, Any]:
            if (self.way, self.number) == ("full", 1):
                raise measuring.WorkerError("it was killed")
            return {"graphs": 1, "difference": 0.0, "blocks": 2, "seconds": 0.1}

        def ask(self, question: dict[str, Any]) -> dict[str, Any]:
            assert question["calls"] == 10  # in a second
            self.rounds += 1
            if (self.way, self.number, self.rounds) == ("regional", 2, 2):
                raise measuring.WorkerError("it was killed")
            seconds = self.number * (1.0 if self.way == "regional" else 2.0)
            return {"seconds": seconds, "cpu_seconds": seconds}

    monkeypatch.setattr(measuring, "Worker", Process)
    # WHEN they are measured
    sides = measuring.side_by_side(measuring.Bench(), "small-llama", ["regional", "full"], rounds=3)
    # THEN ratios are those of the set in which both lived, and the loss is told
    assert sides.seconds == {"regional": [[1.0] * 3, [], [3.0] * 3], "full": [[], [4.0] * 3, [6.0] * 3]}
    assert sides.ratio("regional", "full") == 0.5
    assert sides.lost == 2
    assert "2 process(es) failed" in "\n".join(measuring.sides_table(sides))


def test_a_way_that_does_not_exist_is_refused() -> None:
    subject = subjects.load("small-llama", "forward", layers=2)
    with pytest.raises(ValueError, match=r"'quickly'.*regional"):
        subjects.compiled("quickly", subject.model, [])


@pytest.mark.slow
def test_it_runs_and_judges() -> None:
    # WHEN two parts, one of each kind of measuring, run on small models without a real compiler
    done = run("--part", "depth,dispatch", "--backend", "eager")
    # THEN each judged figure has a value, its limit and a verdict, and the exit status says that all were measured
    assert done.returncode == 0, done.stderr
    judged = [line for line in done.stdout.splitlines() if line.startswith(("met ", "NOT met"))]
    texts = [line.split(":")[0].removeprefix("NOT met").removeprefix("met").strip() for line in judged]
    assert texts == 2 * [
        "regional, cold, 12",
        *2 * ["4 small Llama blocks, step, regional"],
    ]  # at their parts, and together
    assert not [line for line in judged if "not measured" in line]
    assert all(line.endswith(")") and "(<= " in line for line in judged)


@pytest.mark.slow
def test_repeats_are_judged() -> None:
    # WHEN two repeats of a small model's comparison are made by the benchmark
    done = run("--part", "repeats", "--backend", "eager")
    # THEN verdicts and medians are judged, and each strategy's repeats told
    assert done.returncode == 0, done.stderr
    assert "not measured" not in done.stdout
    assert "strategies of which repeated comparisons give different verdicts: " in done.stdout
    assert "the farthest off: " in done.stdout
    assert all(f"\n{name}: " in done.stdout for name in ("eager", "eager again", "regional", "full"))


@pytest.mark.parametrize(
    ("name", "verdicts", "same"),
    [
        ("full", ["faster"] * 3, True),
        ("full", ["faster", "level", "faster"], False),
        ("full", [""] * 3, False),
        ("eager again", ["level"] * 3, True),
        ("eager again", ["faster"] * 3, False),
    ],
)
def test_agreement_of_verdicts(name: str, verdicts: list[str], same: bool) -> None:
    assert repeats.Agreement(name, 0.1, 0.1, verdicts).same_verdict is same


def test_how_far_repeats_lie_apart() -> None:
    # GIVEN three repeats on a machine that was twice as slow in the second
    every = [Strategy(steady_seconds=s, steady_ratio=r) for s, r in ((1.0, 0.5), (2.2, 0.55), (1.0, 0.5))]
    # THEN the seconds lie far apart, parts of eager's do not; what was not measured each time is absent
    found = repeats.Agreement.of("full", every)
    assert found.seconds_off == pytest.approx(1.2)
    assert found.ratio_off == pytest.approx(0.1)
    lacking = repeats.Agreement.of("full", [*every, Strategy(failure="it failed")])
    assert (lacking.seconds_off, lacking.ratio_off, lacking.same_verdict) == (None, None, False)
    assert repeats.told("full", [Strategy(failure="it failed")], repeats.Agreement.of("full", [Strategy()])) == [
        "full: not measured; it failed"
    ]


@pytest.mark.slow
def test_what_fails_is_told() -> None:
    # WHEN nothing can be compiled, because there is no such backend
    done = run("--part", "dispatch", "--backend", "no_such_backend")
    # THEN it is told for each way and the figures are not met; eager is there all the same
    assert done.returncode == 1
    assert done.stdout.count("not measured") == 2
    assert all(f"{way} failed: " in done.stdout for way in ("regional", "full", "blocks"))
    assert "eager failed" not in done.stdout
    assert "no_such_backend" in done.stdout


@pytest.mark.parametrize("name", ["bench", "repeats", "tuning", "zoo", "cancel"])
def test_each_program_of_the_benchmark_tells_how_it_is_used(name: str) -> None:
    # WHEN it is run as `make` runs it
    if name == "cancel":
        pytest.importorskip("playwright")
    how = ["-m", f"tests.benchmarks.{name}"] if name == "bench" else [f"tests/benchmarks/{name}.py"]
    done = subprocess.run([sys.executable, *how, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    # THEN all that it imports exists
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


def test_every_part_is_told_and_a_wrong_one_refused() -> None:
    told = run("--help")
    assert all(f"  {name} " in told.stdout for name in parts.PARTS)
    wrong = run("--part", "speed")
    assert wrong.returncode == 2
    assert "no part 'speed'" in wrong.stderr
    assert "dispatch" in wrong.stderr
