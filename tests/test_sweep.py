"""The benchmark over model sizes and batch sizes: what is run, kept, concluded and drawn."""

from __future__ import annotations

import copy
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

import nbcompile
from nbcompile import Sweep, UsageError, cells, pairs, sweep
from nbcompile.__main__ import main
from nbcompile.cells import PRESETS, LlamaShape, Preset, preset_cells, step_of
from nbcompile.conclusions import NO, UNTOLD, YES, conclusions
from nbcompile.cores import Use
from nbcompile.integrations import llama
from nbcompile.measure import Round
from nbcompile.processes import Worker, WorkerError
from nbcompile.render.sweep import mime_bundle, render_html
from nbcompile.render.sweep_charts import figure_dict
from nbcompile.report import Report, Strategy
from nbcompile.rounds import HeardRounds, TellingRounds
from nbcompile.space import STRATEGIES
from tests.blocks import Net, net, rows

#: The module, which the function of the same name hides.
MODULE = sys.modules["nbcompile.sweep"]

TINY = {name: LlamaShape(layers, 16, 32, 2, 2, 8, 64, True) for name, layers in (("one", 1), ("three", 3))}


def factory(batch: int) -> tuple[nn.Module, dict[str, Any]]:
    return net(), {"x": rows(batch)}


def small(**more: Any) -> Sweep:
    """A sweep that takes little time: one model, one batch, one task."""
    settings = {"models": {"net": factory}, "batches": [2], "tasks": ["inference"], "backend": "aot_eager", "rounds": 2}
    return sweep(**{**settings, **more})


class DyingNet(Net):
    """Ends its process when it is called."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        os._exit(7)


class SleepingNet(Net):
    """Takes a minute to be called."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(60)
        return x


class FullFails(Net):
    """Cannot run where all of it is compiled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._compiled_call_impl is not None:
            raise RuntimeError("out of memory, as it were")
        return super().forward(x)


# -- real processes ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_cell_has_a_report_as_a_comparison_makes_it(tmp_path: Path) -> None:
    # GIVEN a model WHEN it is swept over both tasks
    lines: list[str] = []
    result = small(tasks=["inference", "training"], folder=tmp_path, progress=lines.append)
    # THEN each cell has a report with every strategy's figures; test_save_and_load has more batches and their order
    about = [report.settings["sweep"] for report in result.reports]
    assert [(cell["task"], cell["batch"]) for cell in about] == [("inference", 2), ("training", 2)]
    for report in result.reports:
        assert list(report.strategies) == list(dict.fromkeys(["eager", *STRATEGIES]))
        for name, figures in report.strategies.items():
            assert figures.failure == ""
            assert (figures.cold_seconds or 0) > 0, name
            assert (figures.steady_seconds or 0) > 0, name
            assert figures.steady_repeats == 2
            assert (figures.steady_cpu_seconds or 0) > 0, name
            assert (figures.steady_ratio is not None) == (name != "eager"), name
        assert report.strategies["regional"].max_abs_diff == 0.0
        assert [(group.path, group.compiled) for group in report.groups] == [("layers", 4)]
        assert report.model["training"] == (report.settings["sweep"]["task"] == "training")
    # AND training compiled a backward, inference did not
    phases = [{p for r in report.strategies["full"].regions for p in r.phases} for report in result.reports]
    assert ["backward" in found for found in phases] == [False, True]
    # AND the progress names each step
    assert "[1/2] net, batch 2, inference: regional: cold start (compiling)" in lines
    assert lines[-1] == "2 of 2 cells measured"
    # AND each finished cell is a file; the same call takes them as they are
    assert len(list(tmp_path.glob("*.nbcompile.json"))) == 2
    lines.clear()
    again = small(tasks=["inference", "training"], folder=tmp_path, progress=lines.append)
    assert [r.to_dict() for r in again.reports] == [r.to_dict() for r in result.reports]
    assert [line.endswith("measured before") for line in lines] == [True] * 2 + [False]
    # AND the folder is read again as a sweep
    assert [r.to_dict() for r in Sweep.load(tmp_path).reports] == [r.to_dict() for r in result.reports]


@pytest.mark.slow
def test_a_preset_runs_in_processes_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # GIVEN a preset of tiny Llamas WHEN the command sweeps it
    preset = Preset({"one": TINY["one"]}, (1,), ("inference", "training"), 8, "float32", "cpu")
    monkeypatch.setitem(cells.PRESETS, "tiny", preset)
    options = ["--rounds", "1", "--strategies", "eager,regional", "--no-training", "--out", str(tmp_path)]
    code = main(["sweep", "--preset", "tiny", *options])
    # THEN it has done so, without the task that was left out, and has written page and report
    assert code == 0
    (report,) = Sweep.load(tmp_path).reports
    assert report.model["class_name"] == "LlamaForCausalLM"
    assert report.model["parameters"] == TINY["one"].parameters
    assert report.settings["sweep"]["task"] == "inference"
    assert "<svg" in (tmp_path / "sweep.html").read_text()


@pytest.mark.slow
def test_a_strategy_that_fails_is_a_line() -> None:
    # GIVEN a model that full compilation cannot compile and run WHEN it is swept
    models = {"net": lambda batch: (net(kind=FullFails), {"x": rows(batch)})}
    result = small(models=models, strategies=["regional", "full"])
    (report,) = result.reports
    # THEN the others have their figures, and the failure is told
    assert "out of memory" in report.strategies["full"].failure
    assert report.strategies["full"].steady_seconds is None
    assert report.strategies["regional"].steady_seconds is not None
    assert "out of memory" in result.table()
    # AND what the figures cannot tell is not told
    assert result.conclusions[0].verdict == UNTOLD


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "timeout", "says"),
    [(DyingNet, 60.0, "exit status 7"), (SleepingNet, 12.0, "given up after 12 s")],
)
def test_a_process_that_dies_or_hangs_is_a_line(kind: type[Net], timeout: float, says: str) -> None:
    # GIVEN a model whose call ends the process, or takes too long WHEN it is swept
    result = small(models={"net": lambda batch: (net(kind=kind), {"x": rows(batch)})}, timeout=timeout)
    # THEN the sweep has come to its end, and says what happened
    figures = result.reports[0].strategies
    assert says in figures["eager"].failure
    assert figures["regional"].failure == "not measured, as eager failed"


@pytest.mark.slow
def test_no_room_for_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN memory for one process, not for three WHEN a model is swept
    monkeypatch.setattr(MODULE, "free_bytes", lambda device: 3 << 29)
    living: list[int] = []
    begin = Worker.__init__

    def count(self: Worker, *args: Any) -> None:
        living.append(sum("nbcompile.worker" in " ".join(child.cmdline()) for child in psutil.Process().children()))
        begin(self, *args)

    monkeypatch.setattr(Worker, "__init__", count)
    (report,) = small(strategies=["regional", "full"]).reports
    # THEN one lives at a time, each strategy is timed beside eager, and the report says so
    assert living == [0] * len(report.strategies)
    assert report.strategies["eager"].steady_repeats == 2 * len(report.strategies)
    assert report.strategies["full"].steady_repeats == 2
    assert any("no room for all at once" in note for note in report.notes)


@pytest.mark.slow
def test_interrupt_ends_the_processes_and_keeps_what_is_finished(tmp_path: Path) -> None:
    # GIVEN a sweep whose second cell hangs
    code = """
import time
from nbcompile import sweep
from tests.test_sweep import SleepingNet, factory
from tests.blocks import net, rows
def slow(batch):
    return (net(kind=SleepingNet), {"x": rows(batch)})
sweep(models={"a": factory, "b": slow}, batches=[2], tasks=["inference"], backend="aot_eager", rounds=1,
      folder=FOLDER, progress=lambda line: print(line, flush=True))
""".replace("FOLDER", repr(str(tmp_path)))
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if "[2/2]" in line and "first call" in line:
                break
        workers = psutil.Process(process.pid).children()
        assert len(workers) == 1
        assert os.getpgid(workers[0].pid) == workers[0].pid  # a notebook's interrupt does not reach it
        assert os.getsid(workers[0].pid) == os.getsid(process.pid)
        # WHEN it is interrupted
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    # THEN it ends with an interrupt that tells how far it is, no process is left, and the first cell is kept
    assert "KeyboardInterrupt" in said
    assert "1 of 2 cells are finished and kept" in said
    assert soon(lambda: not psutil.pid_exists(workers[0].pid))
    assert len(list(tmp_path.glob("a-*.nbcompile.json"))) == 1


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    # GIVEN a sweep that waits for a process WHEN it is killed
    code = """
from nbcompile import sweep
from tests.test_sweep import SleepingNet
from tests.blocks import net, rows
sweep(models={"b": lambda batch: (net(kind=SleepingNet), {"x": rows(batch)})}, batches=[2],
      progress=lambda line: print(line, flush=True))
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "first call" in line:
                break
        assert len(list(tmp_path.glob("*/stderr"))) == 1
        (worker,) = psutil.Process(process.pid).children()
        process.kill()
    # THEN its process ends, too, and nothing of it is left
    assert soon(lambda: not psutil.pid_exists(worker.pid) or worker.status() == psutil.STATUS_ZOMBIE)
    assert not list(tmp_path.glob("*/stderr"))


def soon(condition: Callable[[], object], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


# -- what is measured --------------------------------------------------------------------------------------------------


def test_the_document_preset_has_the_published_sizes() -> None:
    # GIVEN the preset WHEN its shapes are counted THEN they are the published models', and its cells the table's
    sizes = {name: round(shape.parameters / 1e9, 2) for name, shape in PRESETS["document"].models.items()}
    assert sizes == {"Llama 1B": 1.24, "Llama 3B": 3.21, "Llama 8B": 8.03, "Llama 13B": 13.02}
    found = [(cell.model, cell.task, cell.batch, cell.facts["sequence"]) for cell in preset_cells(PRESETS["document"])]
    assert found[:3] == [
        ("Llama 1B", "forward", 1, 128), ("Llama 1B", "forward", 4, 128), ("Llama 3B", "forward", 1, 128)
    ]  # fmt: skip
    assert len(found) == 8


@pytest.mark.parametrize("name", [*PRESETS["document"].models, *PRESETS["cpu"].models])
def test_parameters_are_counted_as_the_model_has_them(name: str) -> None:
    # GIVEN a shape of a preset WHEN the model is built without memory
    shape = {**PRESETS["document"].models, **PRESETS["cpu"].models}[name]
    model, inputs = llama.build(shape, 4, 8, "float16", "meta", labels=False)
    # THEN it has the parameters that were counted without it, in the dtype that was asked for
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.parameters
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}
    assert inputs["input_ids"].shape == (4, 8)
    assert torch.get_default_dtype() == torch.float32


def test_without_transformers_a_preset_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a machine without transformers WHEN a preset's model is built THEN the error names the remedy
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match="pip install transformers"):
        llama.build(TINY["one"], 1, 8, "float32", "cpu", labels=False)


def test_training_step_runs_a_backward_and_gives_gradients() -> None:
    # GIVEN a model that returns no loss WHEN its training step runs twice
    model = net()
    step = step_of(model, {"x": rows(2)}, "training")
    step()
    loss, gradients = step()
    # THEN the gradients are those of one step, and belong to the vectors among its parameters
    expected = net()
    expected(rows(2)).square().mean().backward()
    assert [tuple(g.shape) for g in gradients] == [(16,)] * 4
    torch.testing.assert_close(gradients, [layer.fc.bias.grad for layer in expected.layers])
    assert not loss.requires_grad
    # AND in inference there are none
    assert step_of(model, {"x": rows(2)}, "inference")().shape == (2, 16)


def test_training_uses_the_loss_of_the_model() -> None:
    # GIVEN a Llama with labels WHEN its training step runs THEN the loss is the model's own
    model, inputs = llama.build(TINY["one"], 2, 8, "float32", "cpu", labels=True)
    loss, _ = step_of(model, inputs, "training")()
    torch.testing.assert_close(loss, model(**inputs).loss.detach())


def test_a_model_without_room_is_told_and_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # GIVEN less memory than a process takes WHEN a model is swept
    monkeypatch.setattr(MODULE, "free_bytes", lambda device: 10**8)
    result = small(folder=tmp_path)
    # THEN nothing is measured, and the sweep says why
    assert result.reports == []
    assert result.notes == [
        "net, batch 2, inference: left out, as it takes about 1.1 GB of memory and 0.1 GB are free on cpu"
    ]
    assert result.notes[0] in str(result)
    assert list(tmp_path.iterdir()) == []


def test_strategies_are_those_of_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a strategy that compare has in addition WHEN none are named THEN it is among those that are measured
    monkeypatch.setattr(MODULE, "STRATEGIES", (*STRATEGIES, "hierarchical2"))
    assert MODULE._strategies(None) == [*dict.fromkeys(["eager", *STRATEGIES]), "hierarchical2"]
    # AND eager is always measured, first
    assert MODULE._strategies(["hierarchical2", "full"]) == ["eager", "hierarchical2", "full"]


@pytest.mark.skipif("hierarchical" not in STRATEGIES, reason="compare has no hierarchical strategy yet")
@pytest.mark.slow
def test_hierarchical_is_measured() -> None:
    # GIVEN a model WHEN it is swept THEN hierarchical has its figures
    (report,) = small(strategies=["hierarchical"]).reports
    assert report.strategies["hierarchical"].failure == ""
    assert report.strategies["hierarchical"].steady_seconds is not None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"models": None}, "either a preset, one of 'cpu', 'document'"),
        ({"preset": "cpu"}, "either a preset"),
        ({"models": None, "preset": "gpu"}, "no preset 'gpu'; those that exist: 'cpu', 'document'"),
        ({"models": {}}, "models takes a dictionary"),
        ({"models": {"a": 3}}, "models takes a dictionary"),
        ({"batches": [0]}, "batches takes a list of whole numbers"),
        ({"batches": []}, "batches takes a list of whole numbers"),
        ({"tasks": ["generate"]}, "tasks takes a list of names out of inference, forward, training"),
        ({"strategies": ["regionall"]}, "no strategy 'regionall'; those that exist: eager, regional"),
        ({"strategies": "full"}, "strategies takes a list"),
        ({"rounds": 0}, "rounds takes a whole number"),
        ({"timeout": 0}, "timeout takes a number of seconds"),
        ({"backend": print}, "name of a backend"),
        ({"mode": "fastest"}, "fastest"),
        ({"models": {"a": lambda batch: net()}}, "it gave Net"),
        ({"models": {"a": lambda batch: (net(), {"x": threading.Lock()})}}, "cannot be handed to a process of its own"),
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], says: str) -> None:
    # GIVEN a wrong argument WHEN a sweep is asked for THEN the error says what exists
    with pytest.raises(UsageError, match=says):
        small(**wrong)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_document_preset_without_a_device_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # GIVEN a machine without CUDA WHEN its preset is asked for THEN the command fails with the remedy
    assert main(["sweep", "--preset", "document", "--out", str(tmp_path)]) == 2
    assert "preset='cpu' is for a machine without one" in capsys.readouterr().err


def test_a_class_of_the_notebook_is_refused() -> None:
    # GIVEN a model of a class that only the notebook has WHEN it is swept THEN the error says where to put it
    kind = type("Mine", (Net,), {"__module__": "__main__"})
    with pytest.raises(UsageError, match=r"class Mine.*put the class into a module"):
        small(models={"a": lambda batch: (kind([nn.Linear(2, 2)]), {})})


# -- what is kept ------------------------------------------------------------------------------------------------------


class _Measured:
    """Stands in for the measuring of a cell, of which only what is kept matters here."""

    calls: list[str] = []

    def __init__(self, cell: Any, strategies: list[str], *args: Any, together: bool) -> None:
        self.cell, self.strategies = cell, strategies

    def measure(self) -> Report:
        _Measured.calls.append(self.cell.title)
        return Report(strategies={name: Strategy(cold_seconds=1.0) for name in self.strategies})


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Titles of the cells that are measured, which costs no time."""
    _Measured.calls = []
    monkeypatch.setattr(MODULE, "Run", _Measured)
    monkeypatch.setattr(MODULE, "_finished", {})
    return _Measured.calls


def test_a_rerun_measures_what_is_missing(measured: list[str], tmp_path: Path) -> None:
    # GIVEN a folder with one cell WHEN more are asked for THEN only the others are measured
    small(folder=tmp_path, batches=[1])
    small(folder=tmp_path, batches=[1, 2])
    assert measured == ["net, batch 1, inference", "net, batch 2, inference"]
    # AND nothing is taken when that is not wanted
    small(folder=tmp_path, batches=[1], resume=False)
    assert len(measured) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 3},
        {"strategies": ["regional"]},
        {"backend": "inductor", "mode": "max-autotune-no-cudagraphs"},
        {"dynamic": True},
        {"models": {"net": lambda batch: (net(5), {"x": rows(batch)})}},
        {"models": {"net": lambda batch: (net().double(), {"x": rows(batch).double()})}},
    ],
)
def test_figures_of_another_setting_are_not_taken(measured: list[str], tmp_path: Path, change: Any) -> None:
    # GIVEN a finished cell WHEN it is asked for with another setting or model THEN it is measured, and both are kept
    small(folder=tmp_path)
    small(folder=tmp_path, **change)
    assert len(measured) == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_figures_of_another_machine_are_not_taken(
    measured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a finished cell WHEN another machine, or torch, goes on in the same folder THEN it measures its own
    small(folder=tmp_path)
    other = cells.machine("cpu") | {"torch": "2.99"}
    monkeypatch.setattr(MODULE, "machine", lambda device: other)
    result = small(folder=tmp_path)
    assert len(measured) == 2
    assert [report.settings["sweep"]["machine"]["torch"] for report in result.reports] == ["2.99"]
    # AND a folder of both cannot be loaded as one
    with pytest.raises(UsageError, match="2 machines or settings"):
        Sweep.load(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"{", b'{"schema": 1}', b'{"schema": 99}'])
def test_a_damaged_file_is_measured_anew(measured: list[str], tmp_path: Path, damage: bytes) -> None:
    # GIVEN a file that was cut short, or holds another report, WHEN the sweep goes on THEN the cell is measured anew
    small(folder=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage)
    small(folder=tmp_path)
    assert len(measured) == 2
    assert len(Sweep.load(tmp_path).reports) == 1


def test_without_a_folder_finished_cells_are_kept_in_the_process(measured: list[str]) -> None:
    # GIVEN a sweep without a folder WHEN it is made again THEN its cells are those of before
    first, second = small(), small()
    assert measured == ["net, batch 2, inference"]
    assert first.reports == second.reports


def test_save_and_load(measured: list[str], tmp_path: Path) -> None:
    # GIVEN a sweep WHEN it is saved THEN it is read again, files are not replaced unasked, and an empty folder is told
    result = small(batches=[2, 1], tasks=["inference", "training"])
    result.save(tmp_path / "new")
    about = [report.settings["sweep"] for report in Sweep.load(tmp_path / "new").reports]
    assert [(cell["task"], cell["batch"]) for cell in about] == [
        ("inference", 1), ("inference", 2), ("training", 1), ("training", 2)
    ]  # fmt: skip
    with pytest.raises(UsageError, match="exists already"):
        result.save(tmp_path / "new")
    with pytest.raises(UsageError, match="no cell of a sweep"):
        Sweep.load(tmp_path)


def test_command_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # GIVEN a sweep that is interrupted WHEN it was the command's THEN it says how to go on, without a traceback
    def interrupted(self: Any) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr(MODULE.Run, "measure", interrupted)
    assert main(["sweep", "--preset", "cpu", "--out", str(tmp_path)]) == 130
    assert "0 of 8 cells are finished and kept; the same call goes on" in capsys.readouterr().err


# -- the five conclusions ----------------------------------------------------------------------------------------------


def cell(
    size: int = 1,
    batch: int = 1,
    task: str = "training",
    *,
    cold: tuple[float, float] = (2.0, 10.0),
    steady: tuple[float, float, float] = (1.0, 0.5, 0.5),
    spread: float = 0.0,
) -> Report:
    """A cell. ``cold`` is of regional and full, ``steady`` of eager, regional and full; ``spread`` a part of that."""
    names = ("eager", "regional", "full")
    colds = (steady[0], *cold)
    strategies = {
        name: Strategy(cold_seconds=c, steady_seconds=s, steady_spread=spread * s, steady_repeats=5)
        for name, c, s in zip(names, colds, steady, strict=True)
    }
    about = {"model": f"size {size}", "batch": batch, "task": task}
    return Report(model={"parameters": size * 1000}, settings={"sweep": about}, strategies=strategies)


def verdict(number: int, *reports: Report) -> str:
    return conclusions(reports)[number - 1].verdict


def test_conclusions_of_the_published_table() -> None:
    # GIVEN the figures that accelerate has published, batch 1 and 4, a forward with gradients
    # (batch 4: "all equal to within 1-3 %", so one and the same number here)
    published = [
        cell(1, 1, "forward", cold=(1.95, 10.7), steady=(18.3, 9.7, 6.3)),
        cell(3, 1, "forward", cold=(3.0, 17.9), steady=(33.4, 17.3, 11.2)),
        cell(8, 1, "forward", cold=(2.9, 20.4), steady=(40.3, 19.7, 18.9)),
        cell(13, 1, "forward", cold=(2.95, 23.1), steady=(45.5, 29.4, 29.4)),
        *[cell(size, 4, "forward", steady=(2.0, 1.0, 1.0)) for size in (1, 3, 8, 13)],
    ]
    # WHEN its own conclusions are held against them THEN all are borne out,
    # but for training, which it has not measured
    assert [found.verdict for found in conclusions(published)] == [YES, YES, YES, YES, UNTOLD]


def test_nothing_is_concluded_from_nothing() -> None:
    # GIVEN no figures, or only strategies that it is not about WHEN conclusions are drawn THEN none can be
    lacking = cell()
    del lacking.strategies["full"]
    absent = cell()
    absent.strategies["regional"] = Strategy(failure="out of memory")
    for reports in ([], [lacking], [absent], [Report()]):
        assert [found.verdict for found in conclusions(reports)] == [UNTOLD] * 5
        assert all("not measured" in found.sentence for found in conclusions(reports))


def test_first_conclusion() -> None:
    # GIVEN steps of regional and full WHEN they are compared
    # THEN within a tenth is similar
    assert verdict(1, cell(steady=(1.0, 0.54, 0.5))) == YES
    assert verdict(1, cell(steady=(1.0, 0.56, 0.5))) == NO
    # and what the rounds vary by decides nothing
    assert verdict(1, cell(steady=(1.0, 0.56, 0.5), spread=0.1)) == UNTOLD
    # and the largest model counts, which must not be further behind than the smallest
    near, far = (1.0, 0.51, 0.5), (1.0, 0.65, 0.5)
    assert verdict(1, cell(1, steady=far), cell(2, steady=near)) == YES
    assert verdict(1, cell(1, steady=near), cell(2, steady=far)) == NO
    assert verdict(1, cell(1, steady=(1.0, 0.5, 0.5)), cell(2, steady=(1.0, 0.54, 0.5))) == NO
    # and regional that is faster than full is no further behind
    assert verdict(1, cell(1, steady=(1.0, 0.4, 0.5)), cell(2, steady=(1.0, 0.45, 0.5))) == YES


def test_second_conclusion() -> None:
    # GIVEN cold starts WHEN they are compared THEN twice as long is much, and the sentence has the figures
    assert verdict(2, cell(cold=(2.0, 4.1))) == YES
    assert verdict(2, cell(cold=(2.0, 3.9))) == NO
    assert "at most 10.0 s against 2.0 s (size 1, batch 1, training)" in conclusions([cell()])[1].sentence
    assert "takes 5.0 times a regional one" in conclusions([cell()])[1].sentence


def test_third_conclusion() -> None:
    # GIVEN one model at two batches WHEN regional and full come closer THEN yes, whichever is in front
    apart, level, ahead = (1.0, 0.6, 0.5), (1.0, 0.5, 0.5), (1.0, 0.4, 0.5)
    assert verdict(3, cell(batch=1, steady=apart), cell(batch=4, steady=level)) == YES
    assert verdict(3, cell(batch=4, steady=level), cell(batch=1, steady=ahead)) == YES
    assert verdict(3, cell(batch=1, steady=level), cell(batch=4, steady=apart)) == NO
    # and not beyond what the rounds vary by
    assert verdict(3, cell(batch=1, steady=apart, spread=0.2), cell(batch=4, steady=level, spread=0.2)) == UNTOLD
    # and nothing from one batch, or from two models
    assert verdict(3, cell(1, 1, steady=apart), cell(2, 4, steady=level)) == UNTOLD


def test_fourth_conclusion() -> None:
    # GIVEN one step in two sizes WHEN the seconds that are saved grow with the model THEN yes
    assert verdict(4, cell(1, cold=(2.0, 6.0)), cell(2, cold=(2.0, 12.0))) == YES
    assert verdict(4, cell(1, cold=(2.0, 12.0)), cell(2, cold=(2.0, 6.0))) == NO
    assert verdict(4, cell(1, cold=(2.0, 1.0)), cell(2, cold=(2.0, 1.5))) == NO
    # and a little is not told by cold starts that were measured once
    assert verdict(4, cell(1, cold=(2.0, 6.0)), cell(2, cold=(2.0, 6.1))) == UNTOLD
    assert verdict(4, cell(1), cell(1, 4)) == UNTOLD


def test_fifth_conclusion() -> None:
    # GIVEN training steps WHEN regional starts sooner, and steps as fast as full and faster than eager THEN yes
    assert verdict(5, cell()) == YES
    assert verdict(5, cell(task="inference")) == UNTOLD
    assert verdict(5, cell(cold=(2.0, 3.0))) == NO
    assert verdict(5, cell(steady=(1.0, 0.8, 0.5))) == NO
    assert verdict(5, cell(steady=(1.0, 1.2, 1.2))) == NO
    assert verdict(5, cell(steady=(1.0, 0.98, 0.98), spread=0.1)) == UNTOLD
    # and the sentence says when full has caught up: 8 s later, 0.04 s a step
    assert "full overtakes it after 201 steps" in conclusions([cell(steady=(1.0, 0.54, 0.5))])[4].sentence
    assert "full never overtakes it" in conclusions([cell()])[4].sentence


def test_conclusions_change_with_the_figures() -> None:
    # GIVEN two machines WHEN their figures differ THEN so does every sentence
    one = conclusions([cell(s, b) for s in (1, 2) for b in (1, 4)])
    other = conclusions(
        [cell(s, b, cold=(3.0, 7.0 + s), steady=(2.0, 1.1, 1.0 + b / 10)) for s in (1, 2) for b in (1, 4)]
    )
    assert all(a.sentence != b.sentence for a, b in zip(one, other, strict=True))
    assert [a.claim for a in one] == [b.claim for b in other]


@pytest.mark.parametrize("value", [0.0, -1.0, None])
def test_conclusions_bear_any_report(value: Any) -> None:
    # GIVEN reports with figures that no measurement gives WHEN conclusions are drawn THEN that does not fail
    report = cell(1, 4)
    for figures in report.strategies.values():
        figures.cold_seconds = figures.steady_seconds = figures.steady_spread = value
    for about in ("no dictionary", {}, {"model": 3, "batch": "many", "task": None}):
        odd = copy.deepcopy(cell(2))
        odd.settings["sweep"] = about
        assert len(conclusions([report, odd, cell()])) == 5


def test_paired_rounds_decide_over_the_spread() -> None:
    # GIVEN rounds that vary much, but of which each is half of eager's beside it WHEN conclusions are drawn
    reports = [cell(steady=(1.0, 0.56, 0.5), spread=0.5), cell(steady=(1.0, 0.56, 0.5), spread=0.5)]
    for name, ratio in (("regional", 0.56), ("full", 0.5)):
        figures = reports[1].strategies[name]
        figures.steady_ratio, figures.steady_ratio_low, figures.steady_ratio_high = ratio, 0.999 * ratio, 1.001 * ratio
    # THEN the pairs decide what the spread leaves open
    assert [verdict(1, report) for report in reports] == [UNTOLD, NO]
    assert "1.12 (±0 %)" in conclusions(reports[1:])[0].sentence
    # AND pairs that vary leave open what a spread of nothing would decide
    wide = cell(steady=(1.0, 0.56, 0.5))
    regional = wide.strategies["regional"]
    regional.steady_ratio, regional.steady_ratio_low, regional.steady_ratio_high = 0.56, 0.5, 0.62
    assert verdict(1, wide) == UNTOLD


def test_rounds_of_several_processes_are_paired() -> None:
    # GIVEN rounds of a machine that became three times slower, told by two processes as they tell them
    heard = HeardRounds()
    seconds = {"eager": 2.0, "full": 1.0}
    for factor, order in zip((1.0, 3.0), pairs.turns(list(seconds)), strict=False):
        for name in order:
            told = TellingRounds(lambda: None, seconds=0.1)
            told.add(name, Round(1, seconds[name] * factor, Use(wall=4.0, cpu=8.0, lost=0.5), 2, name == "full"))
            heard.add(name, json.loads(json.dumps(told.told())))
    # WHEN the figures are made THEN the ratio knows nothing of that, and CPU time and disturbance are told
    full, eager = heard.timing("full"), heard.timing("eager")
    assert full is not None
    assert eager is not None
    assert (eager.median, eager.ratio, eager.disturbed) == (4.0, None, 0)
    assert (full.median, full.spread, full.cpu, full.disturbed, full.lost) == (2.0, 2.0, 4.0, 2, 0.5)
    assert full.ratio is not None
    assert (full.ratio.median, full.ratio.low, full.ratio.high) == (0.5, 0.5, 0.5)
    assert heard.timing("regional") is None


# -- pictures ----------------------------------------------------------------------------------------------------------


def drawn_sweep() -> Sweep:
    found = [cell(s, b, t, cold=(2.0, 5.0 * s)) for t in ("inference", "training") for s in (1, 2) for b in (1, 4)]
    found[0].strategies["full"] = Strategy(failure="no <b>room</b>")
    return Sweep(found, ["size 3: left out"])


def test_figure_shows_every_figure_once() -> None:
    # GIVEN a sweep WHEN it is drawn
    figure = figure_dict(drawn_sweep().reports)
    # THEN each task has its two panels, each strategy its bars, as long as the figures
    bars = figure["data"]
    assert {bar["xaxis"] for bar in bars} == {"x", "x2", "x3", "x4"}
    assert {f"{kind}axis{n}" for kind in "xy" for n in ("", "2", "3", "4")} <= set(figure["layout"])
    full = {bar["xaxis"]: bar["x"] for bar in bars if bar["name"] == "full"}
    assert full == {"x": [5.0, 10.0, 10.0], "x2": [2.0] * 3, "x3": [5.0, 5.0, 10.0, 10.0], "x4": [2.0] * 4}
    # AND the legend names each strategy once
    assert sorted(bar["name"] for bar in bars if bar["showlegend"]) == ["eager", "full", "regional"]
    # AND a strategy that failed has no bar, not one of no length
    missing = [bar for bar in bars if bar["name"] == "full" and bar["xaxis"] == "x"]
    assert len(missing[0]["y"]) == 3
    # AND no two bars of a panel lie on one another
    for axis in ("x", "x3"):
        places = sorted(y for bar in bars if bar["xaxis"] == axis for y in bar["y"])
        assert min(b - a for a, b in itertools.pairwise(places)) >= bars[0]["width"]


def test_figure_is_a_plotly_figure_with_the_conclusions() -> None:
    # GIVEN a sweep WHEN its figure is made THEN plotly takes it, and the verdicts stand in it
    go = pytest.importorskip("plotly.graph_objects")
    figure = drawn_sweep().figure()
    assert isinstance(figure, go.Figure)
    assert "Borne out: yes" in " ".join(note.text for note in figure.layout.annotations)
    with pytest.raises(UsageError, match="holds no figures"):
        Sweep().figure()


def test_bars_in_html_are_as_long_as_the_figures() -> None:
    # GIVEN a sweep WHEN it is drawn as HTML THEN there is no script, and a bar for each figure
    html = str(drawn_sweep().to_html())
    assert "<script" not in html
    assert html.count("<svg") == 2
    bars = html.count('height="11"')
    assert bars == 2 * (3 * 8 - 1)


def test_text_has_table_conclusions_and_notes() -> None:
    # GIVEN a sweep WHEN it is printed
    text = str(drawn_sweep())
    # THEN each cell and strategy has a row, and each conclusion its verdict
    assert len([line for line in text.splitlines() if " size " in line and " batch " not in line]) >= 24
    assert text.count("Borne out:") == 5
    assert "size 3: left out" in text
    assert "no <b>room</b>" in text
    assert "Nothing has been measured." in str(Sweep())


def test_disturbed_rounds_stand_in_the_table() -> None:
    # GIVEN a strategy whose rounds lacked the cores WHEN the table is made THEN its row says so, and no other
    report = cell()
    report.strategies["full"].disturbed_rounds = 2
    rows = [line for line in Sweep([report]).table().splitlines() if "disturbed" in line]
    assert len(rows) == 1
    assert "full" in rows[0]
    assert "2 of 5 rounds disturbed" in rows[0]


def test_what_a_report_says_cannot_harm_the_page() -> None:
    # GIVEN a cell whose strings are hostile WHEN it is shown THEN they are text
    report = cell()
    report.settings["sweep"] = {"model": "<img src=x onerror=alert(1)>", "batch": 1, "task": "<script>"}
    report.strategies["full"].failure = "<script>alert(1)</script>"
    report.notes = ["<svg onload=alert(1)>"]
    for shown in (render_html([report], conclusions([report]), []), str(figure_dict([report], conclusions([report])))):
        assert "<script" not in shown
        assert "<img" not in shown
        assert "onload=alert(1)>" not in shown


def test_notebook_gets_every_form() -> None:
    # GIVEN a sweep WHEN a notebook shows it THEN it has a figure, HTML and text; the figure only where there is one
    found = drawn_sweep()
    bundle = found._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.plotly.v1+json", "text/html", "text/plain"}
    assert bundle == mime_bundle(found.reports, found.conclusions, found.notes)
    assert set(Sweep()._repr_mimebundle_()) == {"text/html", "text/plain"}


def test_page_is_written_and_not_replaced(tmp_path: Path) -> None:
    # GIVEN a sweep WHEN its page is written THEN it is whole, and not replaced unasked
    file = drawn_sweep().to_html(tmp_path / "sweep.html")
    assert Path(file).read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(UsageError, match="exists already"):
        drawn_sweep().to_html(tmp_path / "sweep.html")


def test_a_worker_tells_what_went_wrong() -> None:
    # GIVEN a job that cannot be done WHEN its report is asked for THEN the error is the reason
    job = {"strategy": "eager", "task": "inference", "source": {"file": "/nowhere"}, "settings": {}, "threads": 1}
    worker = Worker({**job, "round_seconds": 0.1}, 60)
    try:
        with pytest.raises(WorkerError, match=r"FileNotFoundError.*nowhere"):
            worker.report(lambda stage: None)
    finally:
        worker.stop()
        worker.stop()
    assert not psutil.pid_exists(worker.pid)


def test_sweep_is_public() -> None:
    # GIVEN the package THEN the function and its result are public names
    assert nbcompile.sweep is sweep
    assert {"sweep", "Sweep"} <= set(nbcompile.__all__)
