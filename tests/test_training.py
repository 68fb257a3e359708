"""``nbcompile.Accelerator`` in one process: what it compiles, what it takes; training and saving go on as before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from torch import nn

import nbcompile
from nbcompile import TorchDynamoPlugin

from .models import llama

BACKEND = "aot_eager"
TheirPlugin = accelerate.utils.TorchDynamoPlugin


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    """Accelerate's state is one for the process, and libraries set its variables: each test begins with none."""
    before = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith("ACCELERATE_")}
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    for name in [*os.environ]:
        if name.startswith("ACCELERATE_"):
            del os.environ[name]
    os.environ.update(before)


def accelerator(plugin: Any = None, **others: Any) -> Any:
    plugin = TorchDynamoPlugin(backend=BACKEND) if plugin is None else plugin
    return nbcompile.Accelerator(cpu=True, dynamo_plugin=plugin, **others)


def counts(model: Any) -> list[tuple[int, int, int, int]]:
    return [(g.instances, g.compiled, g.eager, g.graphs) for g in nbcompile.report(model).groups]


def batches(number: int) -> list[torch.Tensor]:
    numbers = torch.Generator().manual_seed(1)
    return [torch.randint(3, 128, (2, 16), generator=numbers) for _ in range(number)]


def losses(accel: Any, model: Any, steps: int = 8, *, clip: float | None = None) -> list[float]:
    """Losses of a training by the accelerator's own means, gradients accumulated as it was told."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accel.prepare(model, optimizer)
    found = []
    for ids in batches(steps):
        with accel.accumulate(model):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            accel.backward(loss)
            if clip is not None and accel.sync_gradients:
                accel.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
    return found


# -- the document's samples -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [TorchDynamoPlugin, TheirPlugin], ids=["ours", "accelerate's"])
def test_the_documents_sample_for_regional_compilation(make: Any) -> None:
    # GIVEN the document's plugin, of either library
    plugin = make(backend=BACKEND, mode="default", fullgraph=True, dynamic=False, use_regional_compilation=True)
    accel = accelerator(plugin)
    # WHEN a model is prepared and called
    model, inputs = llama(4)
    prepared = accel.prepare(model)
    prepared(**inputs, use_cache=False)
    # THEN its blocks run compiled by one graph, in place
    assert prepared is model
    assert counts(prepared) == [(4, 4, 0, 1)]


@pytest.mark.parametrize("make", [TorchDynamoPlugin, TheirPlugin], ids=["ours", "accelerate's"])
def test_the_documents_sample_for_full_compilation(make: Any) -> None:
    accel = accelerator(make(backend=BACKEND, use_regional_compilation=False))
    model, inputs = llama(2)
    model = accel.prepare_model(model)
    model(**inputs, use_cache=False)
    report = nbcompile.report(model)
    assert report.settings["strategy"] == "full"
    assert [group.compiled for group in report.groups] == [1]


@pytest.mark.parametrize(("regional", "strategy"), [("true", "regional"), ("false", "full"), (None, "full")])
def test_the_variables_that_accelerate_launch_sets(
    monkeypatch: pytest.MonkeyPatch, regional: str | None, strategy: str
) -> None:
    # GIVEN the environment of `accelerate launch --dynamo_backend aot_eager`, with and without its other flag
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", BACKEND.upper())
    if regional is not None:
        monkeypatch.setenv("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", regional)
    # WHEN the accelerator is made without a plugin THEN it compiles as accelerate would
    model = nbcompile.Accelerator(cpu=True).prepare(llama(2)[0])
    assert nbcompile.report(model).settings["strategy"] == strategy


def test_nothing_is_compiled_unless_it_is_asked_for() -> None:
    # GIVEN no plugin and no variables WHEN a model is prepared THEN it is not compiled, as with accelerate
    model = nbcompile.Accelerator(cpu=True).prepare(llama(2)[0])
    with pytest.raises(nbcompile.UsageError, match="has not compiled"):
        nbcompile.report(model)


def test_a_backend_by_name_alone() -> None:
    model = nbcompile.Accelerator(cpu=True, dynamo_backend=BACKEND).prepare(llama(2)[0])
    assert nbcompile.report(model).settings["backend"] == BACKEND


def test_a_second_accelerator_has_settings_of_its_own() -> None:
    # GIVEN accelerate's state, which all accelerators of a process share, with another plugin in it
    first = accelerate.Accelerator(cpu=True, dynamo_plugin=TheirPlugin(backend="eager"))
    second = accelerator(TorchDynamoPlugin(backend=BACKEND))
    # WHEN the second one prepares a model THEN it is compiled once, by this package, and the state is as it was
    model = second.prepare(llama(2)[0])
    assert nbcompile.report(model).settings["backend"] == BACKEND
    assert not isinstance(model, torch._dynamo.OptimizedModule)
    assert first.state.dynamo_plugin.backend.value == "EAGER"


# -- what is refused --------------------------------------------------------------------------------------------------


def test_both_plugin_and_backend() -> None:
    with pytest.raises(ValueError, match="leave out dynamo_backend"):
        accelerator(dynamo_backend="eager")


def test_a_plugin_of_another_kind() -> None:
    with pytest.raises(nbcompile.UsageError, match=r"accelerate\.utils\.TorchDynamoPlugin\(\.\.\.\), not dict"):
        accelerator({"backend": "inductor"})


def test_a_model_without_repeated_blocks_is_refused_before_it_is_touched() -> None:
    accel = accelerator()
    model = nn.Linear(2, 2)
    with pytest.raises(nbcompile.NoRepeatedBlocksError):
        accel.prepare(model)
    assert not hasattr(model, "_is_accelerate_prepared")
    assert accel._models == []


def test_what_torch_compile_returned_stays_as_it_is() -> None:
    compiled = torch.compile(llama(2)[0], backend=BACKEND)
    assert accelerator().prepare(compiled) is compiled


# -- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("variation", ["plain", "accumulated and clipped", "checkpointed", "checkpointed, reentrant"])
def test_losses_are_eagers(precision: str, variation: str) -> None:
    # GIVEN a training, uncompiled and compiled, of models with equal weights
    found = []
    for backend in ("no", BACKEND):
        accel = accelerator(
            TorchDynamoPlugin(backend=backend),
            mixed_precision=precision,
            gradient_accumulation_steps=2 if variation.startswith("accumulated") else 1,
        )
        model = llama(4)[0].train()
        if variation.startswith("checkpointed"):
            model.gradient_checkpointing_enable({"use_reentrant": variation.endswith("reentrant")})
        found.append(losses(accel, model, clip=0.5 if variation.startswith("accumulated") else None))
    # WHEN their losses are compared THEN they are equal within the precision, and every block ran compiled
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-5 if precision == "no" else 2e-2)
    assert [(blocks, compiled, eager) for blocks, compiled, eager, _ in counts(model)] == [(4, 4, 0)]


def test_evaluation_between_steps_is_compiled_too() -> None:
    accel, model = accelerator(), llama(4)[0].train()
    losses(accel, model, 2)
    model.eval()
    ids = batches(1)[0]
    with torch.no_grad():
        compiled = model(input_ids=ids, use_cache=False).logits
        with nbcompile.eager(model):
            torch.testing.assert_close(compiled, model(input_ids=ids, use_cache=False).logits)
        model(input_ids=ids, use_cache=False)
    model.train()
    assert counts(model) == [(4, 4, 0, 2)]


def test_lora_by_peft_trains_as_eager_does() -> None:
    from peft import LoraConfig, get_peft_model

    found = []
    for backend in ("no", BACKEND):
        torch.manual_seed(0)
        model = get_peft_model(llama(4)[0], LoraConfig(target_modules=["q_proj", "v_proj"], r=4)).train()
        found.append(losses(accelerator(TorchDynamoPlugin(backend=backend)), model))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-5)
    assert [entry[:3] for entry in counts(model)] == [(4, 4, 0)]


# -- keeping ----------------------------------------------------------------------------------------------------------


def test_what_is_saved_compiled_loads_uncompiled_and_back(tmp_path: Path) -> None:
    # GIVEN a model that was trained compiled
    accel, model = accelerator(), llama(2)[0].train()
    losses(accel, model, 2)
    plain = llama(2)[0]
    # WHEN its keys are asked for in every way that accelerate has
    keys = list(accel.get_state_dict(model))
    accel.save_model(model, tmp_path / "model")
    # THEN they are the model's own, and the files load into a model that was never compiled
    assert keys == list(plain.state_dict())
    assert accel.unwrap_model(model) is model
    loaded = llama(2)[0]
    accelerate.load_checkpoint_in_model(loaded, tmp_path / "model")
    torch.testing.assert_close(dict(loaded.named_parameters()), dict(model.named_parameters()))
    # AND what such a model saved loads into the compiled one
    model.load_state_dict(plain.state_dict())
    torch.testing.assert_close(dict(model.named_parameters()), dict(plain.named_parameters()))


def test_save_state_and_load_state(tmp_path: Path) -> None:
    # GIVEN a state saved from a compiled training that then went on
    accel, model = accelerator(), llama(2)[0].train()
    losses(accel, model, 2)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    accel.save_state(str(tmp_path / "state"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    # WHEN it is loaded THEN the model is what it was, and no key tells of a compilation
    accel.load_state(str(tmp_path / "state"))
    torch.testing.assert_close(dict(model.state_dict()), kept)
    from safetensors import safe_open

    with safe_open(next((tmp_path / "state").glob("model*.safetensors")), "pt") as file:
        assert not [key for key in file.keys() if "_orig_mod" in key]  # noqa: SIM118  # no dictionary


# -- Trainer ----------------------------------------------------------------------------------------------------------


def trainer(model: nn.Module, folder: Path, callbacks: list[Any], **others: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=3, report_to=[], use_cpu=True, disable_tqdm=True, seed=0, **others
    )
    data = [{"input_ids": ids[0], "labels": ids[0]} for ids in batches(24)]
    return Trainer(model=model, args=arguments, train_dataset=data, callbacks=callbacks)


def test_the_trainers_callback_compiles_and_reports(tmp_path: Path) -> None:
    from nbcompile.integrations.trainer import CompileCallback

    # GIVEN two trainers, one with the callback
    callback = CompileCallback(TorchDynamoPlugin(backend=BACKEND))
    plain = trainer(llama(4)[0], tmp_path, []).train()
    model = llama(4)[0]
    # WHEN both have trained THEN the losses are equal and the callback has the report
    assert trainer(model, tmp_path, [callback]).train().training_loss == pytest.approx(plain.training_loss, abs=1e-5)
    assert callback.report is not None
    assert [(group.compiled, group.eager) for group in callback.report.groups] == [(4, 0)]


def test_the_trainers_own_compilation_is_left_alone(tmp_path: Path) -> None:
    from nbcompile.integrations.trainer import CompileCallback

    callback = CompileCallback(TorchDynamoPlugin(backend=BACKEND))
    made = trainer(llama(2)[0], tmp_path, [callback], torch_compile=True, torch_compile_backend=BACKEND)
    with pytest.warns(nbcompile.CompilationWarning, match="torch_compile=True"):
        made.train()
    assert isinstance(made.model_wrapped, torch._dynamo.OptimizedModule)
    assert callback.report is None


# -- who draws --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "shown"), [(0, ["here"]), (1, [])])
def test_of_several_ranks_only_the_first_one_draws(
    bare_shell: Any, monkeypatch: pytest.MonkeyPatch, rank: int, shown: list[str]
) -> None:
    from nbcompile.notebook.output import CellOutput

    # GIVEN a kernel that is one of several ranks, as an engine of ipyparallel is
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    # WHEN the output of a cell is written THEN it appears on the first rank alone
    CellOutput(bare_shell).line("here")
    assert [output["data"]["text/plain"] for output in bare_shell.display_pub.outputs] == shown
