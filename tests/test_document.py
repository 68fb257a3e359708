"""Every part of Accelerate's compilation guide, run on a real model: two layers of MiniLM with their own weights.

The rows are numbered as the guide goes: full compilation, the plugin, ``Accelerator`` and ``prepare``, together with
mixed precision and parallel training, regional compilation, its two ways in, slow first and fast later runs, and the
benchmark with its five conclusions. What each can do beyond the guide is tested elsewhere.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState

import nbcompile
from nbcompile.conclusions import NO, UNTOLD, YES
from nbcompile.plugin import list_modes

from .models import gpt2
from .training_script import STEPS, small_model

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]

#: The guide's first sample.
WHOLE_SAMPLE = """
from accelerate import Accelerator
from accelerate.utils import TorchDynamoPlugin

# Configure the compilation backend
dynamo_plugin = TorchDynamoPlugin(
    backend="inductor",  # Options: "inductor", "aot_eager", "aot_nvfuser", etc.
    mode="default",      # Options: "default", "reduce-overhead", "max-autotune"
    fullgraph=True,
    dynamic=False
)

# Initialize accelerator with the plugin
accelerator = Accelerator(dynamo_plugin=dynamo_plugin)
# This will apply torch.compile to your model
model = accelerator.prepare(model)
"""

#: The guide's second sample. It leaves out its imports, and its other parameters, by dots that Python refuses there.
REGIONAL_SAMPLE = """
# Configure the compilation backend
dynamo_plugin = TorchDynamoPlugin(
    use_regional_compilation=True,
    ... # other parameters
)
# Initialize accelerator with the plugin
accelerator = Accelerator(dynamo_plugin=dynamo_plugin)
# This will apply compile_regions to your model
model = accelerator.prepare(model)
"""

OURS = {
    "from accelerate import Accelerator": "from nbcompile import Accelerator",
    "from accelerate.utils import TorchDynamoPlugin": "from nbcompile import TorchDynamoPlugin",
}


@pytest.fixture(autouse=True)
def _fresh_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Accelerate's state is one for the process: each test begins with none, and none of its variables set."""
    for name in [*os.environ]:
        if name.startswith("ACCELERATE_"):
            monkeypatch.delenv(name)
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def tokens(rows: int = 2) -> torch.Tensor:
    return torch.randint(1000, 3000, (rows, 16), generator=torch.Generator().manual_seed(0))


def model_to_run() -> Any:
    return small_model().eval()


def run_sample(text: str, model: Any) -> Any:
    """Run a sample in a namespace that holds a model; what the model is afterwards."""
    names = {"model": model}
    exec(text, names)
    return names["model"]


def differs(model: Any) -> float:
    """How far what a compiled model gives lies from what it gives uncompiled, and that every block ran compiled."""
    ids = tokens()
    with torch.no_grad():
        compiled = model(input_ids=ids).last_hidden_state
        with nbcompile.eager(model):
            expected = model(input_ids=ids).last_hidden_state
        model(input_ids=ids)
    for group in nbcompile.report(model).groups:
        assert (group.compiled, group.eager) == (group.instances, 0)
    return float((compiled - expected).abs().max())


# -- 1: torch.compile on the whole model -------------------------------------------------------------------------------


@pytest.mark.inductor
@pytest.mark.parametrize("mode", list_modes())
def test_row_1_the_whole_model_in_every_mode(mode: str) -> None:
    # GIVEN a real model WHEN it is compiled as a whole in a mode of torch's THEN it is one region, and right
    model = nbcompile.compile_model(model_to_run(), mode=mode)
    assert differs(model) < 1e-3
    report = nbcompile.report(model)
    assert (report.settings["strategy"], report.settings["mode"]) == ("full", mode)
    assert [(group.instances, group.graphs) for group in report.groups] == [(1, 1)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "callable"])
def test_row_1_any_backend(backend: str) -> None:
    seen: list[int] = []

    def own(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(len(graph.graph.nodes))
        return graph.forward

    model = nbcompile.compile_model(model_to_run(), backend=own if backend == "callable" else backend)
    assert differs(model) < 1e-3
    assert bool(seen) == (backend == "callable")


# -- 2: the plugin -----------------------------------------------------------------------------------------------------


def test_row_2_the_plugin_has_the_fields_of_the_guides() -> None:
    theirs = list(inspect.signature(accelerate.utils.TorchDynamoPlugin).parameters)
    assert list(inspect.signature(nbcompile.TorchDynamoPlugin).parameters) == theirs


def test_row_2_the_plugins_defaults_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN every variable that the guide's plugin reads
    values = {"BACKEND": "AOT_EAGER", "MODE": "default", "USE_FULLGRAPH": "true", "USE_DYNAMIC": "false"}
    for name, value in {**values, "USE_REGIONAL_COMPILATION": "true"}.items():
        monkeypatch.setenv(f"ACCELERATE_DYNAMO_{name}", value)
    # WHEN a model is prepared with a plugin that names nothing THEN it is compiled as the variables say
    accelerator = nbcompile.Accelerator(cpu=True, dynamo_plugin=nbcompile.TorchDynamoPlugin())
    model = accelerator.prepare(model_to_run())
    assert differs(model) < 1e-3
    settings = nbcompile.report(model).settings
    said = {"strategy": "regional", "backend": "aot_eager", "fullgraph": True, "dynamic": False}
    assert {name: settings[name] for name in said} == said


# -- 3: Accelerator(dynamo_plugin=...) and prepare: the guide's samples ------------------------------------------------


@pytest.mark.inductor
@pytest.mark.parametrize(("plugin", "strategy"), [("ours", "regional"), ("accelerate's", "full")])
def test_row_3_the_first_sample_with_its_import_changed(plugin: str, strategy: str) -> None:
    # GIVEN the guide's first sample with both imports changed, or with that of the accelerator alone
    text = WHOLE_SAMPLE
    for theirs, ours in list(OURS.items())[: 2 if plugin == "ours" else 1]:
        assert theirs in text
        text = text.replace(theirs, ours)
    # WHEN it has run THEN the model in it is compiled in place: by accelerate's plugin, which says nothing of regions,
    # as a whole, and by this package's block by block, since that is the default here
    given = model_to_run()
    model = run_sample(text, given)
    assert model is given
    assert differs(model) < 1e-3
    settings = nbcompile.report(model).settings
    said = {"strategy": strategy, "backend": "inductor", "mode": "default", "fullgraph": True, "dynamic": False}
    assert {name: settings[name] for name in said} == said


@pytest.mark.inductor
@pytest.mark.parametrize("parameters", ["", 'backend="inductor", mode="default", fullgraph=True, dynamic=False'])
def test_row_3_the_second_sample_with_its_import_changed(parameters: str) -> None:
    text = REGIONAL_SAMPLE.replace("... # other parameters", parameters)
    model = run_sample("\n".join([*OURS.values(), text]), model_to_run())
    assert differs(model) < 1e-3
    report = nbcompile.report(model)
    assert report.settings["strategy"] == "regional"
    assert [(group.class_name, group.compiled, group.graphs) for group in report.groups] == [("BertLayer", 2, 1)]


# -- 4: with mixed precision, DDP, FSDP and DeepSpeed ------------------------------------------------------------------

needs_deepspeed = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")


def trained(folder: Path, kind: str, backend: str) -> list[dict[str, Any]]:
    """What two ranks found that trained the model in bf16."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "-m", "tests.training_script", str(folder), kind, backend],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{number}.json").read_text()) for number in range(2)]


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("ddp", "DistributedDataParallel"),
        ("fsdp2", "FSDPBertModel"),
        pytest.param("zero1", "DeepSpeedEngine", marks=needs_deepspeed),
        pytest.param("zero2", "DeepSpeedEngine", marks=needs_deepspeed),
        pytest.param("zero3", "DeepSpeedEngine", marks=needs_deepspeed),
    ],
)
def test_row_4_mixed_precision_and_parallel_training(tmp_path: Path, kind: str, made: str) -> None:
    # GIVEN two ranks that train in bf16, uncompiled and with the plugin
    plain, compiled = trained(tmp_path, kind, "no"), trained(tmp_path, kind, "aot_eager")
    for before, after in zip(plain, compiled, strict=True):
        # WHEN both are compared THEN what is trained is what the parallel library made, with the same losses
        assert after["kind"] == before["kind"] == made
        assert len(after["losses"]) == STEPS
        assert after["losses"] == pytest.approx(before["losses"], abs=1e-2)
        assert before["losses"][-1] < before["losses"][0]
        # AND its keys are the same, and every block ran compiled on every rank
        assert after["keys"] == before["keys"]
        assert (after["counts"], after["graphs"]) == ([2, 2, 0], 1)
    assert compiled[0]["ranks"] == [[0, 2, 0], [1, 2, 0]]
    assert compiled[0]["losses"] != compiled[1]["losses"]


@pytest.mark.inductor
def test_row_4_mixed_precision_in_one_process() -> None:
    # GIVEN a training in bf16 WHEN it is compiled by the default backend THEN its losses are eager's, as bf16 goes
    found = []
    for backend in ("no", "inductor"):
        accelerator: Any = nbcompile.Accelerator(
            cpu=True, mixed_precision="bf16", dynamo_plugin=nbcompile.TorchDynamoPlugin(backend=backend)
        )
        model: Any = small_model()
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
        losses = []
        for _ in range(STEPS):
            loss = (model(input_ids=tokens()).last_hidden_state.float() - 0.5).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        found.append(losses)
    assert found[1] == pytest.approx(found[0], abs=1e-2)
    assert found[0][-1] < found[0][0]
    report = nbcompile.report(model)
    assert [(group.compiled, group.eager, group.graphs) for group in report.groups] == [(2, 0, 1)]


# -- 5: repeated blocks of one class, and the rest ---------------------------------------------------------------------


def test_row_5_gpt2s_blocks_share_a_graph_and_the_head_is_compiled_apart() -> None:
    # GIVEN the guide's own example, GPT2LMHeadModel, whose block is model.transformer.h[0]
    model, inputs = gpt2(6)
    nbcompile.compile_regions(model, backend="aot_eager", rest="compile")
    # WHEN it has run THEN six blocks have run by one graph, and the head by another
    with torch.no_grad():
        model(**inputs, use_cache=False)
    report = nbcompile.report(model)
    assert [(g.path, g.class_name, g.instances, g.compiled, g.graphs) for g in report.groups] == [
        ("transformer.h", "GPT2Block", 6, 6, 1)
    ]
    rest = {part.path: (part.decision, part.graphs) for part in report.rest}
    assert rest["lm_head"] == ("compile", 1)


# -- 6: compile_regions as one would call torch.compile ----------------------------------------------------------------


def test_row_6_compile_regions_is_called_as_torch_compile_is() -> None:
    # GIVEN the keywords of torch.compile that the guide's plugin has, too
    keywords: dict[str, Any] = {"fullgraph": True, "dynamic": False, "backend": "aot_eager", "mode": None}
    keywords |= {"options": None, "disable": False}
    assert set(keywords) <= set(inspect.signature(torch.compile).parameters)
    # WHEN the utility is called with them THEN the same model comes back, its blocks compiled
    model = model_to_run()
    assert nbcompile.compile_regions(model, **keywords) is model
    assert differs(model) < 1e-3
    assert [group.class_name for group in nbcompile.report(model).groups] == ["BertLayer"]


# -- 7: the first run is slow, later ones are not ----------------------------------------------------------------------


@pytest.mark.inductor
def test_row_7_first_and_later_runs_are_measured_and_shown() -> None:
    # GIVEN a real model WHEN it is compared THEN each strategy has the time of its first run and of its later ones
    model, ids = model_to_run(), tokens()
    with torch.no_grad():
        report = nbcompile.compare(model, lambda: model(input_ids=ids), ["eager", "regional", "full"], rounds=3)
    for name in ("regional", "full"):
        figures = report.strategies[name]
        assert figures.cold_seconds is not None
        assert figures.steady_seconds is not None
        assert figures.cold_seconds > 5 * figures.steady_seconds
    # AND the table shows both
    text = report.to_text()
    assert "cold" in text
    assert "steady" in text


# -- 8: the benchmark and its conclusions ------------------------------------------------------------------------------


class Layers:
    """Makes MiniLM with so many layers, for the sweep's other processes."""

    def __init__(self, layers: int) -> None:
        self.layers = layers

    def __call__(self, batch: int) -> tuple[Any, dict[str, Any]]:
        return small_model(self.layers).eval(), {"input_ids": tokens(batch)}


@pytest.mark.alone  # rounds that lack the cores are timed again
def test_row_8_the_benchmark_and_its_five_conclusions() -> None:
    # GIVEN two sizes of a real model and two batch sizes WHEN they are swept
    swept = nbcompile.sweep(
        models={f"minilm-{layers}": Layers(layers) for layers in (2, 4)},
        batches=[1, 4],
        tasks=["forward"],
        strategies=["regional", "full"],
        backend="aot_eager",
        rounds=2,
    )
    # THEN there is a figure for each strategy of each cell, and a verdict on each of the conclusions
    assert len(swept.reports) == 4
    for report in swept.reports:
        assert set(report.strategies) == {"eager", "regional", "full"}
        told = {name: (one.failure, one.notes) for name, one in report.strategies.items()}
        assert all(strategy.steady_seconds for strategy in report.strategies.values()), told
        assert all(report.strategies[name].cold_seconds for name in ("regional", "full"))
    assert [conclusion.number for conclusion in swept.conclusions] == [1, 2, 3, 4, 5]
    for one in swept.conclusions:
        assert one.verdict in (YES, NO, UNTOLD)
        assert one.sentence
        assert one.verdict == UNTOLD or any(sign.isdigit() for sign in one.sentence)
