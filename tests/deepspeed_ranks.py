"""What two processes do that train one model with DeepSpeed: started by torchrun from test_training_deepspeed.py.

``python -m torch.distributed.run --standalone --nproc-per-node 2 -m tests.deepspeed_ranks FOLDER WHO STAGE`` trains
with DeepSpeed's ZeRO of that stage, compiled by ``WHO``, and writes what each rank found to ``FOLDER/rank0.json`` and
``FOLDER/rank1.json``. A process has one accelerator only: DeepSpeed's state is one for the process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate.utils import DeepSpeedPlugin
from torch import distributed

import nbcompile

from .models import llama

STEPS = 10
BACKEND = "aot_eager"


def make_accelerator(who: str, stage: int) -> Any:
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    config = {
        "zero_optimization": {**zero, "stage3_gather_16bit_weights_on_model_save": True},
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "zero_force_ds_cpu_optimizer": False,  # else torch's own AdamW is refused
    }
    deepspeed = DeepSpeedPlugin(hf_ds_config=config)
    if who == "accelerate":
        theirs = accelerate.utils.TorchDynamoPlugin(backend=BACKEND, use_regional_compilation=True)
        return accelerate.Accelerator(dynamo_plugin=theirs, deepspeed_plugin=deepspeed)
    backend = "no" if who in ("nobody", "by hand") else BACKEND
    plugin = nbcompile.TorchDynamoPlugin(backend=backend, use_regional_compilation=who != "full")
    return nbcompile.Accelerator(dynamo_plugin=plugin, deepspeed_plugin=deepspeed)


def train(who: str, stage: int) -> dict[str, Any]:
    accelerator = make_accelerator(who, stage)
    bare = llama(4)[0].train()
    optimizer: Any = torch.optim.AdamW(bare.parameters(), lr=1e-2)
    try:
        model, optimizer = accelerator.prepare(bare, optimizer)
    except nbcompile.UsageError as error:
        return {"refused": str(error), "prepared": hasattr(bare, "_is_accelerate_prepared")}
    if who == "by hand":
        nbcompile.compile_regions(model, backend=BACKEND)
    numbers = torch.Generator().manual_seed(distributed.get_rank())
    losses = []
    for _ in range(STEPS):
        ids = torch.randint(3, 128, (2, 16), generator=numbers)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    found: dict[str, Any] = {"kind": type(model).__name__, "losses": losses}
    found["graphs of the process"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    found["keys"] = list(accelerator.get_state_dict(model) or {})  # under ZeRO 3 the first rank alone has it
    if who in ("nbcompile", "full", "by hand"):
        group = nbcompile.report(model).groups[0]
        found.update(
            path=group.path,
            counts=[group.instances, group.compiled, group.eager],
            graphs=group.graphs,
            eager_reason=group.eager_reason,
        )
    return found


def main(folder: str, who: str, stage: str) -> None:
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    torch.set_num_threads(1)
    found = train(who, int(stage))
    Path(folder, f"rank{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.barrier()
    os._exit(0)  # destroying the process group can wait for ever for DeepSpeed's own groups


if __name__ == "__main__":
    main(*sys.argv[1:])
