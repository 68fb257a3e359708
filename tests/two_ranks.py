"""What two processes do that train one model together: started by torchrun from test_training_ranks.py.

``python -m torch.distributed.run --standalone --nproc-per-node 2 -m tests.two_ranks FOLDER SCENARIO...`` writes what
each rank found to ``FOLDER/rank0.json`` and ``FOLDER/rank1.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

import nbcompile

from .models import llama

LAYERS, STEPS = 12, 30
BACKEND = "aot_eager"

Prepare = Callable[[nn.Module, torch.optim.Optimizer], tuple[Any, Any]]


def train(prepare: Prepare, *, wrap: Callable[[nn.Module], Any] | None = None) -> tuple[Any, list[float]]:
    """Train a small Llama on this rank's own data. Returns what was trained and the losses.

    Args:
        wrap: what is done to the model before there is an optimizer, which holds the parameters as they are then.
        prepare: what is done to both.
    """
    model: Any = llama(LAYERS)[0].train()
    if wrap is not None:
        model = wrap(model)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = prepare(model, optimizer)
    numbers = torch.Generator().manual_seed(distributed.get_rank())
    losses = []
    for _ in range(STEPS):
        ids = torch.randint(3, 128, (2, 16), generator=numbers)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


def facts(trained: Any, losses: list[float], eager: list[float]) -> dict[str, Any]:
    """What a test asks of a compiled training and of the same one uncompiled."""
    report = nbcompile.report(trained)
    group = report.groups[0]
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in trained.parameters()]
    return {
        "kind": type(trained).__name__,
        "losses": losses,
        "difference": max(abs(a - b) for a, b in zip(losses, eager, strict=True)),
        "parameters": float(sum(p.detach().double().abs().sum() for p in whole)),
        "groups": len(report.groups),
        "path": group.path,
        "counts": [group.instances, group.compiled, group.eager],
        "graphs": group.graphs,
        "recompiles": [again.reason for again in group.recompiles],
        "breaks": [found.reason for found in group.graph_breaks],
    }


def ddp() -> dict[str, Any]:
    """DDP by the Accelerator."""
    results = []
    for backend in ("no", BACKEND):
        accelerator = nbcompile.Accelerator(cpu=True, dynamo_plugin=nbcompile.TorchDynamoPlugin(backend=backend))
        results.append(train(accelerator.prepare))
    (_, eager), (model, losses) = results
    keys = list(accelerator.get_state_dict(model))
    return {**facts(model, losses, eager), "keys": keys == list(accelerator.unwrap_model(model).state_dict())}


def ddp_buckets() -> dict[str, Any]:
    """DDP with buckets so small that the compiler's way with DDP would split every block."""
    distributed._DEFAULT_FIRST_BUCKET_BYTES = 4000

    def wrap(model: nn.Module) -> Any:
        return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)

    _, eager = train(_both, wrap=wrap)
    return facts(*train(_both, wrap=lambda model: _compiled(wrap(model))), eager)


def fsdp2(*, before: bool = False, checkpointed: bool = False) -> dict[str, Any]:
    """FSDP2, each block sharded on its own; compiled before or after that."""
    from torch.distributed.fsdp import fully_shard

    def wrap(model: Any) -> Any:
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        for block in model.model.layers:
            fully_shard(block)
        return fully_shard(model)

    _, eager = train(_both, wrap=wrap)
    order = (_compiled, wrap) if before else (wrap, _compiled)
    return facts(*train(_both, wrap=lambda model: order[1](order[0](model))), eager)


def fsdp2_by_accelerator() -> dict[str, Any]:
    """FSDP2 by the Accelerator, which chooses it on accelerators only: here its state is told that it did."""
    from accelerate import DistributedType
    from accelerate.utils import FullyShardedDataParallelPlugin

    sharding = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        cpu_ram_efficient_loading=False,
        activation_checkpointing=True,
    )
    results = []
    for backend in ("no", BACKEND):
        plugin = nbcompile.TorchDynamoPlugin(backend=backend)
        accelerator = nbcompile.Accelerator(cpu=True, dynamo_plugin=plugin, fsdp_plugin=sharding)
        accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, sharding
        results.append(train(accelerator.prepare))
    (plain, eager), (model, losses) = results
    keys = [list(accelerator.get_state_dict(trained)) for trained in (plain, model)]
    told = {**facts(model, losses, eager), "keys": keys[0] == keys[1]}
    accelerator.state.distributed_type = DistributedType.MULTI_CPU
    return told


def fsdp1(*, before: bool = False) -> dict[str, Any]:
    """FSDP1, each block in a wrapper of its own; compiled before or after that."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    def wrap(model: Any) -> Any:
        policy = ModuleWrapPolicy({type(model.model.layers[0])})
        return FullyShardedDataParallel(
            model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu")
        )

    _, eager = train(_both, wrap=wrap)
    order = (_compiled, wrap) if before else (wrap, _compiled)
    model, losses = train(_both, wrap=lambda model: order[1](order[0](model)))
    with FullyShardedDataParallel.summon_full_params(model):
        return facts(model, losses, eager)


def flat_parameters() -> dict[str, Any]:
    """FSDP1 without the model's own parameters: compiled after that and before, and by the Accelerator."""
    from accelerate import DistributedType
    from accelerate.utils import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    def wrap(model: Any) -> Any:
        policy = ModuleWrapPolicy({type(model.model.layers[0])})
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"))

    found: dict[str, Any] = {}
    wrapped = wrap(llama(2)[0])
    for name, compiles in (("regions", _compiled), ("model", nbcompile.compile_model)):
        try:
            compiles(wrapped)
        except nbcompile.UsageError as error:
            found[name] = str(error)
    accelerator = nbcompile.Accelerator(cpu=True, dynamo_plugin=nbcompile.TorchDynamoPlugin(backend=BACKEND))
    state, bare = accelerator.state, llama(2)[0]
    before, state.distributed_type = state.distributed_type, DistributedType.FSDP
    state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=1, use_orig_params=False)
    try:
        accelerator.prepare(bare)
    except nbcompile.UsageError as error:
        found["accelerator"] = str(error)
    finally:
        state.distributed_type = before
    found["prepared"] = hasattr(bare, "_is_accelerate_prepared")
    _, eager = train(_both, wrap=wrap)
    model, losses = train(_both, wrap=lambda model: wrap(_compiled(model)))
    group = nbcompile.report(model).groups[0]
    return {**found, "same": losses == eager, "eager": group.eager, "reason": group.eager_reason}


def alone() -> dict[str, Any]:
    """One rank is handed another length, and compiles again while the other waits."""
    model = _compiled(nn.parallel.DistributedDataParallel(llama(2)[0].train()))
    second = 24 if distributed.get_rank() == 1 else 16
    for length in (16, second, 16):
        ids = torch.randint(3, 128, (2, length))
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    report = nbcompile.gather_report(model)
    if report is None:
        return {"report": None}
    found = [(rank.rank, again.block, again.reason) for rank, again in report.recompiled_alone()]
    ranks = [(rank.rank, rank.instances, rank.compiled, len(rank.recompiles)) for rank in report.ranks]
    return {"report": report.to_text(), "alone": found, "ranks": ranks}


def together() -> dict[str, Any]:
    """The same with guard collectives, by the keyword and by torch's own switch: both ranks compile again."""
    found = {}
    for way in ("keyword", "switch"):
        model: Any = nn.parallel.DistributedDataParallel(llama(2)[0].train())
        nbcompile.compile_regions(model, backend=BACKEND, guard_collectives=way == "keyword")
        before = torch.compiler.set_enable_guard_collectives(way == "switch")
        second = 24 if distributed.get_rank() == 1 else 16
        for length in (16, second, 16):
            ids = torch.randint(3, 128, (2, length))
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        on = torch.compiler.set_enable_guard_collectives(before)
        report = nbcompile.report(model)
        found[way] = {"graphs": report.groups[0].graphs, "still on": on}
    return found


def not_compiled() -> dict[str, Any]:
    """The second rank has nothing to report."""
    model = llama(2)[0]
    if distributed.get_rank() == 0:
        _compiled(model)(input_ids=torch.ones(1, 4, dtype=torch.long))
    try:
        nbcompile.gather_report(model)
    except nbcompile.UsageError as error:
        return {"error": str(error)}
    return {}


def _both(model: Any, optimizer: Any) -> tuple[Any, Any]:
    return model, optimizer


def _compiled(model: Any) -> Any:
    return nbcompile.compile_regions(model, backend=BACKEND)


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    "ddp": ddp,
    "ddp buckets": ddp_buckets,
    "fsdp2": fsdp2,
    "fsdp2 compiled before": lambda: fsdp2(before=True),
    "fsdp2 checkpointed": lambda: fsdp2(checkpointed=True),
    "fsdp1": fsdp1,
    "fsdp1 compiled before": lambda: fsdp1(before=True),
    "fsdp2 by the accelerator": fsdp2_by_accelerator,
    "flat parameters": flat_parameters,
    "alone": alone,
    "together": together,
    "not compiled": not_compiled,
}


def main(folder: str, *names: str) -> None:
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    found = {}
    for name in names:
        torch._dynamo.reset()
        found[name] = SCENARIOS[name]()
    Path(folder, f"rank{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
