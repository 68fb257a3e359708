"""What to compile, and why: a plan made from the model alone. Nothing here compiles, calls or changes a model.

The search goes from the model downwards and looks at the children of each module, those of a ``ModuleList``,
``Sequential`` or ``ModuleDict`` counting as children too. Two or more siblings of one class are a *set*. A set becomes
a group of repeated blocks where compiling one block serves others. Where no member of a set equals another (the stages
of a ResNet, say, each of another width) while the sets inside the members repeat, the search goes on inside.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .errors import NoRepeatedBlocksError, UsageError

REST_CHOICES = ("auto", "compile", "eager")

#: A set whose parameters are fewer than this share of the largest set's is not worth a graph of its own.
_SMALLEST_SHARE = 0.01
#: A part of the rest is compiled only if it holds at least this share of a block's layers.
_WORTHWHILE_SHARE = 0.5
#: Sets inside the members of a set must hold this share of its parameters before the search goes on inside.
_INNER_COVERAGE = 0.5
#: Equal siblings that are plain attributes, and no more than this, are searched for repeated blocks themselves.
_MOST_TOWERS = 3
#: A module that torch does not define runs an unknown number of kernels; it counts as this many layers.
_LAYERS_OF_UNKNOWN = 3

_NO_KERNEL = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
#: Wrappers of whole models that :func:`model_inside` looks into.
_PARALLEL = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine")
#: Where wrappers keep the module they wrap: FSDP1, activation checkpointing, and what ``torch.compile`` returns.
_WRAPPED = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")


@dataclass(frozen=True)
class PlannedGroup:
    """Repeated blocks of one container that share compiled code.

    Attributes:
        path: the container's path in the model, ``""`` for the model itself.
        class_name: the blocks' class.
        blocks: the blocks' paths.
        kinds: number of different structures among them; each needs a graph of its own.
        reason: why they are regions.
    """

    path: str
    class_name: str
    blocks: tuple[str, ...]
    kinds: int
    reason: str


@dataclass(frozen=True)
class PlannedRest:
    """A part of the model outside every group; ``decision`` is ``"compile"`` or ``"eager"``."""

    path: str
    class_name: str
    decision: str
    reason: str


@dataclass(frozen=True)
class RegionPlan:
    """What :func:`plan_regions` found. Printing it shows a table."""

    model_class: str
    groups: tuple[PlannedGroup, ...]
    rest: tuple[PlannedRest, ...] = field(default=())

    def _rows(self) -> list[tuple[str, str, str, str]]:
        rows = [("part", "class", "decision", "reason")]
        for group in self.groups:
            rows.append(
                (
                    f"{group.path or '(model)'} x{len(group.blocks)}",
                    group.class_name,
                    "region",
                    group.reason,
                )
            )
        rows += [(part.path, part.class_name, part.decision, part.reason) for part in self.rest]
        return rows

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
        ]
        return "\n".join([f"Regions of {self.model_class}", *lines])

    def _repr_html_(self) -> str:
        head, *body = self._rows()
        cells = "".join(f'<th style="text-align:left">{html.escape(cell)}</th>' for cell in head)
        lines = "".join(
            "<tr>" + "".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in row) + "</tr>"
            for row in body
        )
        caption = f"Regions of {html.escape(self.model_class)}"
        return f"<table><caption>{caption}</caption><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"


def plan_regions(
    model: nn.Module, *, rest: str = "auto", regions: Sequence[str | type[nn.Module]] | None = None
) -> RegionPlan:
    """Decide which parts of a model to compile on their own. Compiles nothing.

    Args:
        model: the model to look at.
        rest: what to do with parts in no group: ``"auto"`` compiles those that are large enough to pay,
            ``"compile"`` all of them, ``"eager"`` none.
        regions: blocks chosen by hand instead of found: paths of modules, paths of containers, class names or classes.

    Raises:
        NoRepeatedBlocksError: nothing repeats; the message lists what the model holds and what to do instead.
        UsageError: ``model`` is no module, or an argument names something that does not exist.
    """
    check_model(model)
    _refuse_lazy(model)
    refuse_flat_parameters(model)
    if rest not in REST_CHOICES:
        raise UsageError(f"rest takes {', '.join(map(repr, REST_CHOICES))}, not {rest!r}")
    groups = list(_find_groups(model) if regions is None else _chosen_groups(model, regions))
    if not groups:
        raise NoRepeatedBlocksError(_nothing_repeats(model))
    return RegionPlan(class_name(model), tuple(groups), tuple(_plan_rest(model, groups, rest)))


def check_model(model: object) -> None:
    """Raise :class:`UsageError` unless ``model`` is a module that can be compiled in place."""
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise UsageError(f"{model.__name__} is a class; create the model first: model = {model.__name__}(...)")
    if not isinstance(model, nn.Module):
        shown = repr(model)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        raise UsageError(f"expected a torch.nn.Module, got {type(model).__name__}: {shown}")
    if "_orig_mod" in model._modules:
        raise UsageError(
            f"this is what torch.compile returned for a {class_name(model)}; it compiles the whole model already. "
            "Pass the model itself: model._orig_mod"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError("a TorchScript module is compiled already; pass the nn.Module that it was made from")


def _refuse_lazy(model: nn.Module) -> None:
    parameters: Iterable[tuple[str, Any]] = model.named_parameters()
    lazy = next((name for name, parameter in parameters if nn.parameter.is_lazy(parameter)), None)
    if lazy is not None:
        raise UsageError(
            f"{lazy!r} has no size yet: {class_name(model)} holds lazy modules, which learn their sizes at the first "
            "call. Call the model once, then try again"
        )


FLAT_PARAMETERS = (
    "FSDP1 keeps the weights of a block as one flat parameter, which the compiler does not support: the blocks would "
    "run uncompiled. Keep the model's own parameters"
)


def refuse_flat_parameters(model: nn.Module) -> None:
    """Raise :class:`UsageError` for a model that FSDP1 has wrapped without ``use_orig_params``."""
    if has_flat_parameters(model):
        raise UsageError(f"{FLAT_PARAMETERS}: FullyShardedDataParallel(..., use_orig_params=True)")


def has_flat_parameters(model: nn.Module) -> bool:
    """Whether FSDP1 keeps flat parameters in a model, as it says for the compiler. Checked on torch 2.13."""
    return any(getattr(module, "_fsdp_use_orig_params", True) is False for module in model.modules())


def class_name(module: nn.Module) -> str:
    """The name of a module's class, wrappers (FSDP, checkpointing, torch.compile) taken off."""
    module = unwrapped(module)
    for base in type(module).__mro__:
        # FSDP2 (fully_shard) gives each module a class of its own, derived from FSDPModule and the original
        if not (base.__name__.startswith("FSDP") and base.__module__.startswith("torch.distributed")):
            return base.__name__
    return type(module).__name__


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside wrappers that only add behaviour around it."""
    while True:
        inner = next((module._modules[name] for name in _WRAPPED if name in module._modules), None)
        if inner is None:
            return module
        module = inner


def model_inside(model: nn.Module) -> nn.Module:
    """The model that was handed to what trains it in parallel: DDP, FSDP1's outermost wrapper, DeepSpeed's engine.

    Those wrappers run Python of their own around the model's call; the regions are the model's.
    """
    while True:
        inner = model._modules.get("module", model._modules.get("_fsdp_wrapped_module"))
        if inner is None or not _trains_in_parallel(type(model)):
            return model
        model = inner


def _trains_in_parallel(kind: type) -> bool:
    return any(
        base.__name__ in _PARALLEL and base.__module__.partition(".")[0] in ("torch", "deepspeed")
        for base in kind.__mro__
    )


def called_part(block: nn.Module) -> nn.Module:
    """The module whose call is compiled for a block: what a wrapper of FSDP1 or of activation checkpointing calls.

    FSDP1's wrapper gathers the weights in Python around that call. In that of checkpointing FSDP2 has its hooks on the
    module inside; and it calls that module once more in the backward pass, which is compiled code as well.
    """
    while True:
        inner = next((block._modules[name] for name in _WRAPPED[:2] if name in block._modules), None)
        if inner is None:
            return block
        block = inner


def structure(module: nn.Module, *, by_identity: bool = False) -> tuple[object, ...]:
    """What two blocks must have in common to share a graph: their modules' classes and their tensors' kinds.

    Args:
        by_identity: compare classes themselves rather than their names. The compiler does; a parametrization (weight
            norm, say) gives each layer a class of its own under one name.
    """
    parts: list[object] = []
    for name, part in module.named_modules():
        kind = type(part)
        parts.append((name, kind if by_identity else f"{kind.__module__}.{kind.__qualname__}"))
        for key, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None:
                shape = getattr(tensor, "ds_shape", tensor.shape)  # whole, where ZeRO 3 keeps a part of it
                parts.append((key, tuple(shape), tensor.dtype, tensor.device, tensor.requires_grad))
    return tuple(parts)


# -- groups -----------------------------------------------------------------------------------------------------------


@dataclass
class _Set:
    """Siblings of one class."""

    path: str
    members: list[tuple[str, nn.Module]]

    @property
    def size(self) -> int:
        return sum(_parameter_count(module) for _, module in self.members)

    @property
    def kinds(self) -> int:
        return len({structure(module) for _, module in self.members})


def _find_groups(model: nn.Module) -> Iterator[PlannedGroup]:
    hints = _hints(model)
    sets = list(_repeating_sets(model, ""))
    largest = max((s.size for s in sets), default=0)
    seen: set[int] = set()
    for found in sets:
        # a block that two containers share (tied stacks) is one block, and belongs to the first of them
        found = _Set(found.path, [(name, member) for name, member in found.members if id(member) not in seen])
        if len(found.members) >= 2 and found.size >= _SMALLEST_SHARE * largest:
            seen.update(id(member) for _, member in found.members)
            yield _planned(found, hints)


def _repeating_sets(module: nn.Module, path: str) -> Iterator[_Set]:
    """The outermost sets below ``module`` whose members share work, in the order of the model."""
    taken: set[str] = set()
    for found in _sibling_sets(module, path):
        if found.kinds == len(found.members) and type(unwrapped(found.members[0][1])) is nn.Sequential:
            continue  # their class says nothing: a model's `features` and `classifier`, say
        divisible = found.kinds == len(found.members) or _are_towers(found, module, path)
        inside = [s for name, member in found.members for s in _repeating_sets(member, name)] if divisible else []
        if _worth_going_inside(found, inside):
            continue
        taken.update(name for name, _ in found.members)
        yield found
    for name, child in _children(module, path):
        if name not in taken:
            yield from _repeating_sets(child, name)


def _sibling_sets(module: nn.Module, path: str) -> Iterator[_Set]:
    by_class: dict[tuple[str, type], list[tuple[str, nn.Module]]] = {}
    for name, child in _children(module, path):
        if _can_be_block(child):
            container = name.rpartition(".")[0]
            by_class.setdefault((container, type(unwrapped(child))), []).append((name, child))
    # classes that a wrapper made one by one share a name only
    merged: dict[tuple[str, str], list[tuple[str, nn.Module]]] = {}
    for (container, _), members in by_class.items():
        merged.setdefault((container, class_name(members[0][1])), []).extend(members)
    for (container, _), members in merged.items():
        if len(members) >= 2:
            yield _Set(container, members)


def _children(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """The children of a module with their paths, each once; a list or dictionary of modules stands for its items."""
    for name, child in module.named_children():
        full = f"{path}.{name}" if path else name
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _children(child, full)
        else:
            yield full, child


def _can_be_block(module: nn.Module) -> bool:
    """Whether a module runs more than one kernel: a layer of torch's own is a single one."""
    if _is_single_kernel(module) or isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return False
    return _parameter_count(module) > 0


def _worth_going_inside(outer: _Set, inner: list[_Set]) -> bool:
    if not inner or sum(s.size for s in inner) < _INNER_COVERAGE * outer.size:
        return False
    return sum(s.kinds for s in inner) < sum(len(s.members) for s in inner)


def _are_towers(found: _Set, module: nn.Module, path: str) -> bool:
    """Whether equal siblings may be models of their own, such as the two encoders of a retrieval model, and no blocks.

    Blocks are kept in a list; these are a few plain attributes of ``module``.
    """
    return found.path == path and not isinstance(module, _CONTAINERS) and len(found.members) <= _MOST_TOWERS


def _planned(found: _Set, hints: dict[str, str]) -> PlannedGroup:
    name, kinds, count = class_name(found.members[0][1]), found.kinds, len(found.members)
    if kinds == 1:
        reason = f"{count} repeated blocks, one structure"
    elif kinds < count:
        reason = f"{count} repeated blocks of {kinds} structures"
    else:
        reason = f"{count} blocks of one class, each with tensors of other sizes: a graph each"
    if name in hints:
        reason += f"; the model's {hints[name]} names the class too"
    return PlannedGroup(found.path, name, tuple(path for path, _ in found.members), kinds, reason)


def _hints(model: nn.Module) -> dict[str, str]:
    """Class names that the model's own library declares as blocks, and where it does so."""
    hints: dict[str, str] = {}
    for attribute in ("_no_split_modules", "_repeated_blocks"):
        declared = getattr(model, attribute, None)
        if isinstance(declared, (list, tuple, set)):
            hints.update({name: attribute for name in declared if isinstance(name, str)})
    return hints


def _chosen_groups(model: nn.Module, regions: object) -> Iterator[PlannedGroup]:
    """Groups of the blocks that a user named."""
    if isinstance(regions, (str, type)):
        regions = [regions]
    if not isinstance(regions, Iterable) or isinstance(regions, nn.Module):
        raise UsageError(f"regions takes a list of paths, class names or classes, not {type(regions).__name__}")
    modules = {name: module for name, module in model.named_modules(remove_duplicate=False) if name}
    chosen: dict[str, nn.Module] = {}
    for region in regions:
        for path, module in _matching(region, modules).items():
            if not any(module is other for other in chosen.values()):
                chosen[path] = module
    if not chosen:
        raise UsageError("regions is empty; name the blocks to compile, or leave regions out to have them found")
    for path in list(chosen):
        outer = next((other for other in chosen if path.startswith(other + ".")), None)
        if outer is not None:
            raise UsageError(f"regions names {path!r} and {outer!r}, which contains it; name one of the two")
    grouped: dict[tuple[str, str], list[str]] = {}
    for path, module in chosen.items():
        grouped.setdefault((path.rpartition(".")[0], class_name(module)), []).append(path)
    for (container, name), paths in grouped.items():
        kinds = len({structure(modules[path]) for path in paths})
        yield PlannedGroup(container, name, tuple(paths), kinds, "chosen by hand")


def _matching(region: object, modules: dict[str, nn.Module]) -> dict[str, nn.Module]:
    if isinstance(region, nn.Module):
        raise UsageError(
            f"regions takes paths, class names or classes, not a module ({class_name(region)}); give its path in the "
            "model"
        )
    # what a wrapper holds is found by the wrapper already
    outside = {name: module for name, module in modules.items() if name.rpartition(".")[2] not in _WRAPPED}
    if isinstance(region, type):
        found = {name: module for name, module in outside.items() if isinstance(unwrapped(module), region)}
    elif isinstance(region, str) and region in modules:
        module = modules[region]
        if isinstance(module, _CONTAINERS):
            found = {f"{region}.{name}": child for name, child in module.named_children()}
        else:
            found = {region: module}
    else:
        found = {name: module for name, module in outside.items() if class_name(module) == region}
    if not found:
        known = sorted({class_name(module) for module in modules.values()})
        raise UsageError(
            f"regions: {region!r} is neither the path of a module nor a class in this model. "
            f"Classes in it: {', '.join(known[:40])}"
        )
    return found


def _nothing_repeats(model: nn.Module) -> str:
    seen = Counter(class_name(module) for name, module in model.named_modules() if name)
    listed = ", ".join(f"{name} x{count}" if count > 1 else name for name, count in seen.most_common(12))
    return (
        f"{class_name(model)} has no repeated blocks: no two sibling modules of one class that hold parameters and run "
        f"more than one kernel. It holds: {listed or 'no modules'}. "
        "Use nbcompile.compile_model(model) to compile it as a whole, or name the blocks yourself: "
        "nbcompile.compile_regions(model, regions=['path.of.a.module', ...])"
    )


# -- rest -------------------------------------------------------------------------------------------------------------


def _plan_rest(model: nn.Module, groups: Sequence[PlannedGroup], rest: str) -> Iterator[PlannedRest]:
    blocks = [model.get_submodule(path) for group in groups for path in group.blocks]
    block_layers = max(_layer_count(block) for block in blocks)
    kinds = {(group.path, group.class_name) for group in groups}
    for path, part in _parts_outside(model, "", {id(block) for block in blocks}, set()):
        if rest == "auto" and (path.rpartition(".")[0], class_name(part)) in kinds:
            decision, reason = "eager", "a block like those that are compiled, left out by hand"
        elif rest == "auto":
            decision, reason = _decide(part, block_layers)
        elif rest == "compile" and not isinstance(part, _NO_KERNEL):
            decision, reason = "compile", "rest='compile'"
        else:
            decision, reason = "eager", "runs no kernel" if rest == "compile" else "rest='eager'"
        yield PlannedRest(path, class_name(part), decision, reason)


def _parts_outside(module: nn.Module, path: str, blocks: set[int], seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    """The largest modules that neither are nor contain nor lie in a block, each once.

    Args:
        blocks: the blocks' identities; a block may lie in several places.
        seen: identities of what was met already.
    """
    for name, child in module.named_children():
        full = f"{path}.{name}" if path else name
        if id(child) in blocks or id(child) in seen:
            continue
        seen.add(id(child))
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)) or any(id(part) in blocks for part in child.modules()):
            yield from _parts_outside(child, full, blocks, seen)
        else:
            yield full, child


def _decide(part: nn.Module, block_layers: int) -> tuple[str, str]:
    layers = _layer_count(part)
    if layers == 0:
        return "eager", "runs no kernel in evaluation"
    if layers == 1:
        return "eager", "runs one kernel: nothing to fuse"
    if layers < _WORTHWHILE_SHARE * block_layers:
        return "eager", "runs once a step and is small beside a block: a graph of its own would not pay"
    return "compile", "runs once a step and is as large as a block"


def _layer_count(module: nn.Module) -> int:
    """Roughly how many kernels a module launches: its layers, one of unknown making counting as several."""
    return sum(
        0 if isinstance(part, _NO_KERNEL) else 1 if _is_single_kernel(part) else _LAYERS_OF_UNKNOWN
        for part in module.modules()
        if not any(True for _ in part.children())
    )


def _is_single_kernel(module: nn.Module) -> bool:
    """Whether a module is one of torch's own layers, which launch one kernel each."""
    if any(True for _ in module.children()):
        return False
    return type(module).__module__.startswith(("torch.nn.modules.", "torch.nn.quantized.", "torch.ao.nn."))


def _parameter_count(module: nn.Module) -> int:
    # where ZeRO 3 keeps a part of a parameter, the parameter itself is empty
    return sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in module.parameters())
