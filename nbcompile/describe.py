"""A report made from a compilation, and the facts about model and environment that go with it."""

from __future__ import annotations

import datetime
import os
import platform
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import __version__, explain
from .border import Region
from .causes import Cause
from .events import Compile
from .nested import Nested
from .plugin import TorchDynamoPlugin, backend_name
from .progress import Compiling, Tally
from .regions import class_name, structure
from .report import Event, GraphBreak, Recompile, RegionTime, Report, Rest
from .report import Group as GroupReport
from .report import Variant as VariantReport
from .variants import Group, Variant, call

if TYPE_CHECKING:
    from .compiler import Compilation

WHOLE_MODEL = "(whole model)"


def report(compilation: Compilation) -> Report:
    """The report of one compilation as it stands. The model may be gone; what was compiled for it is still known."""
    model = compilation.model()
    result = new_report(model)
    result.settings = {"strategy": compilation.strategy, **compilation.plugin.to_dict()}
    if compilation.plan is not None:
        result.settings["rest"] = compilation.rest
    reasons = {group.path: group.reason for group in compilation.plan.groups} if compilation.plan else {}
    result.groups = [
        _group(group, reasons.get(group.path, "compiled as a whole"), model) for group in compilation.groups
    ]
    if compilation.nested is not None:
        result.groups += _nested_groups(compilation.nested, compilation.groups[0])
    compiled_rest = {group.path: group for group in compilation.rest_groups}
    if compilation.plan is not None:
        for part in compilation.plan.rest:
            entry = Rest(part.path, part.class_name, part.decision, part.reason)
            group = compiled_rest.get(part.path)
            if group is not None:
                times = region_time(group)
                entry.compiled = all(region.compiled is True for region in group.regions)
                entry.compile_seconds, entry.phases, entry.graphs = times.seconds, times.phases, times.graphs
            result.rest.append(entry)
    result.timeline = _timeline([*compilation.groups, *compilation.rest_groups], compilation.started)
    result.notes = [*compilation.notes, *(note for group in compilation.groups for note in group.notes)]
    if compilation.beside is not None:
        result.settings["background"] = True
        result.notes += compilation.beside.told()
    if compilation.replays is not None:
        result.settings["cuda_graph"] = True
        result.notes += compilation.replays.notes()
    result.strategies = dict(compilation.strategies)
    if compilation.plugin.disable:
        result.notes.append("disable=True: nothing is compiled")
    elif not compilation.installed and model is not None:
        result.notes.append("the model runs eager at present: its compiled calls are taken off")
    return result


def new_report(model: nn.Module | None) -> Report:
    """A report that knows model and environment, and nothing else yet."""
    return Report(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        environment=environment(model),
        model=model_facts(model),
    )


def environment(model: nn.Module | None = None) -> dict[str, Any]:
    """Versions, device and processor: what a reader needs to judge a time."""
    device = device_of(model)
    facts: dict[str, Any] = {
        "nbcompile": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "device": device.type if device is not None else "cpu",
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    if device is not None and device.type == "cuda":
        facts["device_name"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
    return facts


def model_facts(model: nn.Module | None) -> dict[str, Any]:
    """Class, size, dtype and device of a model."""
    if model is None:
        return {}
    parameters = list(model.parameters())
    dtypes = Counter(str(p.dtype).removeprefix("torch.") for p in parameters)
    device = device_of(model)
    return {
        "class_name": class_name(model),
        "parameters": sum(p.numel() for p in parameters),
        "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "dtype": dtypes.most_common(1)[0][0] if dtypes else None,
        "device": str(device) if device is not None else None,
        "training": model.training,
    }


def notes_on(model: nn.Module) -> list[str]:
    """What a reader must know about this model's compilation beforehand."""
    hook = getattr(model, "_hf_hook", None)
    if hook is None:
        return []
    return [
        f"the model itself carries accelerate's hook {type(hook).__name__}: the hook runs uncompiled around the blocks"
    ]


def region_time(group: Group) -> RegionTime:
    """What compiling a group took, by phase."""
    compiles = [done for variant in group.variants for done in variant.log.compiles]
    phases: Counter[str] = Counter()
    for done in compiles:
        phases.update(done.phases)
    return RegionTime(
        path=group.path or WHOLE_MODEL,
        class_name=group.class_name,
        seconds=sum(done.seconds for done in compiles),
        phases=dict(phases),
        graphs=sum(1 for done in compiles if done.made_graph and done.forward),
    )


def compiling(compilation: Compilation) -> Compiling:
    """What an onlooker in another thread may see of a compilation's cold start, which this thread is about to make."""
    groups = [*compilation.groups, *compilation.rest_groups]
    graphs = 0
    for group in groups:
        blocks = [block for region in group.regions if (block := region.block()) is not None]
        graphs += len({structure(block, by_identity=True) for block in blocks})
    model = compilation.model()
    facts = {**model_facts(model), **compilation.plugin.to_dict(), "rest": compilation.rest, "graphs": graphs}
    facts["torch"], facts["threads"] = str(torch.__version__), torch.get_num_threads()
    return Compiling(
        strategy=compilation.strategy,
        settings=compilation.plugin.to_dict(),
        signature=repr(sorted((name, str(value)) for name, value in facts.items())),
        regions={
            region.path: (group.path or WHOLE_MODEL, group.class_name) for group in groups for region in group.regions
        },
        graphs=graphs,
        times=lambda: [region_time(group) for group in groups if any(v.log.compiles for v in group.variants)],
        tally=lambda: tally(compilation),
        call=vars(call),  # the dictionary of this thread, which the other one has no other way to
    )


def tally(compilation: Compilation) -> Tally:
    """How the regions have run so far, from plain data alone: for another thread while this one compiles."""
    groups = [*compilation.groups, *compilation.rest_groups]
    ran = Counter(region.compiled for group in groups for region in list(group.regions))
    compiles = [done for group in groups for variant in list(group.variants) for done in list(variant.log.compiles)]
    return Tally(
        compiled=ran[True],
        eager=ran[False],
        pending=ran[None],
        seconds=sum(done.seconds for done in compiles),
        recompiles=sum(map(_is_recompile, compiles)),
    )


def _group(group: Group, reason: str, model: nn.Module | None) -> GroupReport:
    """A group's report. Blocks that are no longer in the model do not count; those that were added since run eager."""
    times = region_time(group)
    alive = None if model is None else {id(module) for module in model.modules()}
    regions = [region for region in group.regions if alive is None or id(region.block()) in alive]
    added = [] if model is None else _added(group, model)
    compiled = sum(1 for region in regions if region.compiled is True)
    used = [variant for variant in group.variants if variant.blocks]
    forward = group.regions[0].forward() if group.regions else None
    return GroupReport(
        path=group.path,
        class_name=group.class_name,
        instances=len(regions) + len(added),
        compiled=compiled,
        eager=len(regions) + len(added) - compiled,
        variants=[_variant(v, name, forward) for v, name in zip(used, explain.variant_names(used), strict=True)]
        if used
        else [],
        compile_seconds=times.seconds,
        recompiles=[again for variant in used for again in _recompiles(variant, forward)],
        graph_breaks=_breaks(used),
        phases=times.phases,
        blocks=[*(region.path for region in regions), *added],
        reason=reason,
        graphs=times.graphs,
        eager_reason=_eager_reason(regions, len(added)),
        failure=next((variant.failure for variant in used if variant.failure), ""),
    )


def _nested_groups(nested: Nested, whole: Group) -> list[GroupReport]:
    """The blocks inside a whole model, a group a container.

    They ran compiled if the model did. A block that the compiler did not take as a nested region is part of the model's
    own code; behind a graph break it cannot be told whether that was compiled, and it counts as eager.
    """
    model_ran = bool(whole.regions) and all(region.compiled is True for region in whole.regions)
    broken = any(variant.log.breaks for variant in whole.variants)
    found = []
    for container in nested.containers:
        paths = [path for path, reference in container.blocks.items() if reference() is not None]
        shared = Counter(container.ran_as[path] for path in paths if path in container.ran_as)
        inlined = len(paths) - shared.total()
        if not model_ran:
            compiled, why = 0, _eager_reason(whole.regions, 0)
        elif broken:
            compiled, why = shared.total(), "behind a graph break, and in none of the graphs as a nested region"
        else:
            compiled, why = len(paths), ""
        variants = []
        if model_ran and shared:
            firsts = {key: path for path, key in reversed(container.ran_as.items())}
            variants = [
                VariantReport("all blocks" if count == len(paths) else f"like {firsts[key]}", count, 1, None)
                for key, count in shared.items()
            ]
            if inlined and not broken:
                variants.append(VariantReport("part of the model's own code", inlined, 0, None))
        found.append(
            GroupReport(
                path=container.path,
                class_name=container.class_name,
                instances=len(paths),
                compiled=compiled,
                eager=len(paths) - compiled,
                variants=variants,
                compile_seconds=None,
                blocks=paths,
                reason=f"{container.reason}; compiled inside the whole model's graph",
                graphs=len(shared) if model_ran else 0,
                eager_reason=why if compiled < len(paths) else "",
            )
        )
    return found


def _variant(variant: Variant, name: str, forward: Any) -> VariantReport:
    compiles = variant.log.compiles
    return VariantReport(
        name=name,
        instances=len(variant.blocks),
        graphs=sum(1 for done in compiles if done.made_graph and done.forward),
        compile_seconds=sum(done.seconds for done in compiles),
        dynamic=[explain.dynamic_words(sources, forward) for sources in variant.dynamic],
    )


def _recompiles(variant: Variant, forward: Any) -> list[Recompile]:
    found = []
    for done in variant.log.compiles:
        if _is_recompile(done):
            cause = done.cause or Cause(explain.guard(done.recompile_reason, forward))
            seconds = None if done.hit_limit else done.seconds
            found.append(Recompile(block=done.block, guard=done.recompile_reason, seconds=seconds, **vars(cause)))
    return found


def _is_recompile(done: Compile) -> bool:
    # behind a graph break, code is found that another compilation of the same class left: no guard of ours failed
    return bool(done.recompile_reason) and done.forward and "BACKEND_MATCH" not in done.recompile_reason


def _breaks(variants: Sequence[Variant]) -> list[GraphBreak]:
    """Each place once a block: the compiler meets it again for every version."""
    found = dict.fromkeys(broken for variant in variants for broken in variant.log.breaks)
    return [GraphBreak(**vars(broken)) for broken in found]


def _added(group: Group, model: nn.Module) -> list[str]:
    """Paths of blocks that came to the group's container after it was compiled."""
    try:
        container = model.get_submodule(group.path)
    except AttributeError:  # the container itself has been taken away
        return []
    kinds = {type(region.block()) for region in group.regions}
    new = [name for name, module in container.named_children() if type(module) in kinds and module not in group.known]
    return [".".join(part for part in (group.path, name) if part) for name in new]


def _eager_reason(regions: Sequence[Region], added: int) -> str:
    reasons: Counter[str] = Counter()
    if added:
        reasons["added after the model was compiled: compile it again"] = added
    for region in regions:
        if region.compiled is None:
            reasons["not called yet, or called as block.forward(...), which bypasses hooks and compiled code"] += 1
        elif region.compiled is False:
            reasons[region.eager_reason or "the compiler skipped it"] += 1
    return "; ".join(f"{reason} (x{count})" for reason, count in reasons.most_common())


def _timeline(groups: Sequence[Group], started: float) -> list[Event]:
    """Every compile's phases, laid one after another from the compile's start, in the order in which they begin."""
    events = []
    for group in groups:
        for variant in group.variants:
            for done in variant.log.compiles:
                at = done.start - started
                for phase, seconds in done.phases.items():
                    events.append(Event(group.path or WHOLE_MODEL, phase, at, seconds))
                    at += seconds
    return sorted(events, key=lambda event: event.start)


def device_of(model: nn.Module | None) -> torch.device | None:
    """Where a model's first parameter or buffer lies."""
    if model is None:
        return None
    tensor: torch.Tensor | None = next(model.parameters(), None)
    if tensor is None:
        tensor = next(model.buffers(), None)
    return None if tensor is None else tensor.device


def backend_of(plugin: TorchDynamoPlugin) -> str:
    """The name of a plugin's backend, for people."""
    return backend_name(plugin.backend)


def _processor() -> str:
    """The processor's name; on Linux ``platform.processor()`` knows only the architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
