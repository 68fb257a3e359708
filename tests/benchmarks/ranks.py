"""A rank of the benchmark of training: torchrun starts it, ``-m tests.benchmarks.ranks FOLDER JOB``; the job is JSON.

Each way is taken as its user takes it: ``Accelerator(dynamo_plugin=...)`` and ``prepare``, of accelerate or of this
package. The clock starts before the accelerator is made, once the libraries are imported and the ranks have met, and
the first step ends with the optimizer's. Each rank writes what it found to ``FOLDER/rankN.json``.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate import DistributedType, PartialState
from accelerate.utils import FullyShardedDataParallelPlugin, TorchDynamoPlugin
from torch import distributed
from transformers import LlamaConfig, LlamaForCausalLM


def llama(layers: int, width: int) -> Any:
    """A Llama with random weights, equal on all ranks."""
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=width,
        intermediate_size=8 * width // 3,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).train()


def make_accelerator(way: str, backend: str) -> Any:
    """The accelerator of one way."""
    if way == "regional":
        import nbcompile

        return nbcompile.Accelerator(cpu=True, dynamo_plugin=nbcompile.TorchDynamoPlugin(backend=backend))
    plugin = TorchDynamoPlugin(
        backend="no" if way == "eager" else backend, use_regional_compilation=way == "accelerate"
    )
    return accelerate.Accelerator(cpu=True, dynamo_plugin=plugin)


def choose_fsdp2(accelerator: Any) -> None:
    """Accelerate chooses FSDP on accelerators only: its state is told that it did."""
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        cpu_ram_efficient_loading=False,
    )
    for state in (accelerator.state, PartialState()):
        state.distributed_type = DistributedType.FSDP


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Train, and tell when steps had ended, the losses, and what the parameters add up to."""
    distributed.barrier()
    ends, losses = [time.perf_counter()], []
    accelerator = make_accelerator(job["way"], job["backend"])
    if job["kind"] == "fsdp2":
        choose_fsdp2(accelerator)
    model: Any = llama(job["layers"], job["width"])
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-3)
    numbers = torch.Generator().manual_seed(distributed.get_rank())
    model, optimizer = accelerator.prepare(model, optimizer)
    for _ in range(job["steps"]):
        ids = torch.randint(3, 512, (2, job["tokens"]), generator=numbers)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        ends.append(time.perf_counter())
    took = [after - before for before, after in itertools.pairwise(ends)]
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    found: dict[str, Any] = {
        "first": took[0],
        "step": statistics.median(took[2:]),
        "all": ends[-1] - ends[0],
        "losses": losses,
        "parameters": float(sum(p.detach().double().abs().sum() for p in whole)),
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
    }
    if job["way"] == "regional":
        import nbcompile

        report = nbcompile.report(model)
        found["counts"] = [[group.instances, group.compiled, group.eager] for group in report.groups]
        found["phases"] = _phases(report)
    return found


def _phases(report: Any) -> dict[str, float]:
    """Seconds of compiling by phase, of all parts of the model."""
    total: dict[str, float] = {}
    for part in [*report.groups, *report.rest]:
        for phase, seconds in part.phases.items():
            total[phase] = total.get(phase, 0.0) + seconds
    return total


def main(folder: str, job: str) -> None:
    settings = json.loads(job)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    found = measure(settings)
    Path(folder, f"rank{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
