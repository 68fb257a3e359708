"""A training as a user's script does it: a real model (two layers of MiniLM), bf16, ``Accelerator`` and ``prepare``.

``python -m tests.training_script FOLDER KIND [BACKEND]`` trains on as many ranks as it was started with, and each
writes what it found to ``FOLDER/rankN.json``. ``KIND`` is ``ddp``, ``fsdp2`` or ``zero1`` to ``zero3``. Without
a backend the variables ``ACCELERATE_DYNAMO_*`` decide, as ``accelerate launch`` sets them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType, PartialState
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from torch import distributed

import nbcompile

from .models import minilm

LAYERS, STEPS = 2, 5


def small_model(layers: int = LAYERS) -> Any:
    """The first layers of MiniLM with its real weights, without dropout, so that two trainings can be compared."""
    model: Any = minilm()[0]
    model.encoder.layer = model.encoder.layer[:layers]
    model.pooler = None  # the loss is of the tokens alone, and DDP wants a gradient of every parameter
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.config.attention_probs_dropout_prob = 0.0
    return model.train()


def make_accelerator(kind: str, backend: str | None) -> Any:
    """An accelerator for one kind of parallel training."""
    how: dict[str, Any] = {"mixed_precision": "bf16"}
    if backend is not None:
        how["dynamo_plugin"] = nbcompile.TorchDynamoPlugin(backend=backend)
    if kind.startswith("zero"):
        zero = {"stage": int(kind[-1]), "stage3_param_persistence_threshold": 0}
        config = {
            "zero_optimization": {**zero, "stage3_gather_16bit_weights_on_model_save": True},
            "train_micro_batch_size_per_gpu": 2,
            "bf16": {"enabled": True},
            "zero_force_ds_cpu_optimizer": False,
        }
        return nbcompile.Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config), **how)
    return nbcompile.Accelerator(cpu=True, **how)


@contextlib.contextmanager
def told(accelerator: Any, kind: str) -> Iterator[None]:
    """Accelerate chooses FSDP on accelerators only: its state is told that it did."""
    if kind != "fsdp2":
        yield
        return
    state = accelerator.state
    state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["BertLayer"],
        cpu_ram_efficient_loading=False,
    )
    both, before = (state, PartialState()), state.distributed_type  # accelerate copies the second into the first
    for one in both:
        one.distributed_type = DistributedType.FSDP
    try:
        yield
    finally:
        for one in both:
            one.distributed_type = before


def train(kind: str, backend: str | None) -> dict[str, Any]:
    """Train, and tell the losses and what was compiled."""
    accelerator = make_accelerator(kind, backend)
    with told(accelerator, kind):
        model = small_model()
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4)
        model, optimizer = accelerator.prepare(model, optimizer)
        numbers = torch.Generator().manual_seed(distributed.get_rank())
        losses = []
        for _ in range(STEPS):
            ids = torch.randint(1000, 3000, (2, 16), generator=numbers)
            with accelerator.autocast():
                loss = (model(input_ids=ids).last_hidden_state.float() - 0.5).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        keys = list(accelerator.get_state_dict(model) or {})  # of some kinds the first rank alone has it
    found: dict[str, Any] = {"kind": type(model).__name__, "losses": losses, "keys": keys}
    with contextlib.suppress(nbcompile.UsageError):  # it was not to be compiled
        report = nbcompile.report(model)
        group = report.groups[0]
        found.update(
            strategy=report.settings["strategy"],
            backend=report.settings["backend"],
            counts=[group.instances, group.compiled, group.eager],
            graphs=group.graphs,
        )
        gathered = nbcompile.gather_report(model)
        found["ranks"] = None if gathered is None else [[r.rank, r.compiled, r.eager] for r in gathered.ranks]
    return found


def main(folder: str, kind: str, backend: str | None = None) -> None:
    torch.set_num_threads(1)
    if kind.startswith("zero"):
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    found = train(kind, backend)
    Path(folder, f"rank{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.barrier()
    if kind.startswith("zero"):
        os._exit(0)  # destroying the process group can wait for ever for DeepSpeed's own groups
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
