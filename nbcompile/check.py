"""Right, region by region: does each block compute compiled what it computes eager, on the inputs it really received?

A difference of the whole model's output does not say where it comes from, and small ones can cancel. Here the step runs
once with the model eager. Each time it reaches a region, that call is first made twice on copies of what the region
was given, eager and compiled, with the same random numbers, and outputs and gradients are held against each other.
So every region is fed with eager inputs, an error of one does not show in the next, and only one region's copies are in
memory at a time. The calls on copies leave the model as it was: buffers, attributes and gradients.
"""

from __future__ import annotations

import contextlib
import copy
import math
import random
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from . import describe, events, measure
from .border import Region, make_border
from .compiler import SLOT, Compilation
from .regions import class_name
from .report import RegionCheck
from .variants import all_variants

_ABSENT: Any = object()
_LONGEST = 200


def check_regions(compilation: Compilation, step: Callable[[], Any]) -> tuple[list[RegionCheck], str]:
    """Run the step once, and hold each region's compiled calls in it against eager ones.

    Args:
        compilation: what is checked. It must have run the step, and must not be installed now; nor is it afterwards.
        step: runs the model once.

    Returns:
        A check for each region in the order in which they were called, and the path of the first that drifts, ``""``
        if none does.
    """
    checker = _Checker(compilation)
    if not compilation.plugin.disable:
        with _backward_compiles_forgotten(compilation), checker.slots(checker.watchers), measure.same_randomness():
            step()
    return checker.all(), checker.first_drift


@dataclass
class _Run:
    """What one call of a region gave.

    Attributes:
        outputs: the tensors in its result.
        arguments: the tensors in its arguments as it left them: what it wrote into a KV cache, say.
        gradients: of its inputs and parameters; ``None`` if its result takes no part in a gradient.
        gradient_failure: why the gradients could not be had.
        drew: whether it drew random numbers.
    """

    outputs: list[torch.Tensor]
    arguments: list[torch.Tensor]
    gradients: list[torch.Tensor | None] | None
    gradient_failure: str
    drew: bool


class _Checker:
    """The checks of one run of the step."""

    def __init__(self, compilation: Compilation) -> None:
        regions = {id(block): region for block, region in compilation.regions()}  # a block of two paths has one slot
        self.blocks = [block for block, region in compilation.regions() if regions[id(block)] is region]
        self.regions = [regions[id(block)] for block in self.blocks]
        self.originals = [block.__dict__.get(SLOT, _ABSENT) for block in self.blocks]
        self.borders = [make_border(block, region) for block, region in zip(self.blocks, self.regions, strict=True)]
        self.watchers = [self._watcher(index) for index in range(len(self.blocks))]
        self.found: dict[str, RegionCheck] = {}
        self.first_drift = ""

    def all(self) -> list[RegionCheck]:
        """The checks in call order, then the regions that were not called."""
        missing = [
            RegionCheck(
                _path(region), class_name(block), note="not checked: not called, or called as block.forward(...)"
            )
            for region, block in zip(self.regions, self.blocks, strict=True)
            if _path(region) not in self.found
        ]
        return [*self.found.values(), *missing]

    @contextlib.contextmanager
    def slots(self, contents: Sequence[Any]) -> Iterator[None]:
        """Other functions in the blocks' slots for a compiled call; afterwards those that were there."""
        before = [block.__dict__.get(SLOT, _ABSENT) for block in self.blocks]
        try:
            _fill(self.blocks, contents)
            yield
        finally:
            _fill(self.blocks, before)

    def _watcher(self, index: int) -> Callable[..., Any]:
        """A function for a block's slot that checks each call before it goes on, eager."""
        original = self.originals[index]
        eager = original if callable(original) else self.blocks[index]._call_impl

        def watcher(*args: Any, **kwargs: Any) -> Any:
            if not (torch.compiler.is_compiling() or torch.jit.is_tracing()):
                self._add(self._check(index, eager, args, kwargs))
            return eager(*args, **kwargs)

        return watcher

    def _add(self, new: RegionCheck) -> None:
        known = self.found.get(new.block)
        if new.drifts and not self.first_drift:
            self.first_drift = new.block
        if known is None:
            self.found[new.block] = new
            return
        for name in ("max_abs_diff", "max_abs_grad_diff", "largest"):
            setattr(known, name, _largest([getattr(known, name), getattr(new, name)]))
        known.drifts |= new.drifts
        known.note = known.note or new.note

    def _check(
        self, index: int, eager: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> RegionCheck:
        """Call a block eager and compiled on copies of its arguments, and compare."""
        region, block = self.regions[index], self.blocks[index]
        result = RegionCheck(_path(region), class_name(block))
        try:
            with self.slots(self.originals):
                expected = _run(eager, block, args, kwargs)
        except _NotCopiedError as error:
            result.note = f"not checked: it was given what cannot be copied ({error})"
            return result
        except Exception as error:
            result.note = f"not checked: it fails on a copy of what it was given ({_brief(error)})"
            return result
        try:
            with self.slots(self.borders):
                actual = _run(self.borders[index], block, args, kwargs)
        except Exception as error:
            result.note = f"fails compiled: {_brief(error)}"
            return result
        if region.compiled is not True:
            reason = f": {region.eager_reason}" if region.eager_reason else ""
            result.note = f"not checked: it ran eager when called compiled{reason}"
            return result
        try:
            _judge(result, expected, actual)
        except Exception as error:
            result.note = f"not checked: its results cannot be compared ({_brief(error)})"
        return result


# -- one call ----------------------------------------------------------------------------------------------------------


def _run(call: Callable[..., Any], block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Run:
    """Call a block on copies of its arguments, and leave no trace of that."""
    device = describe.device_of(block) or torch.device("cpu")
    with as_found(block), same_random_numbers(device), _own_graph():
        try:
            args, kwargs, sources = _copied(args, kwargs)
        except Exception as error:
            raise _NotCopiedError(_brief(error)) from error
        known = {id(source) for source in sources}
        sources += [p for p in block.parameters() if p.requires_grad and id(p) not in known]
        before = measure.random_state(device)
        outputs = _tensors(call(*args, **kwargs))
        gradients, gradient_failure = None, ""
        try:
            gradients = _gradients(outputs, sources)
        except Exception as error:
            gradient_failure = _brief(error)
        after = measure.random_state(device)
        return _Run(
            # copied while the block's buffers are as it left them: an output may be one of them
            outputs=[output.detach().clone() for output in outputs],
            arguments=[argument.detach() for argument in _tensors((args, kwargs))],
            gradients=gradients,
            gradient_failure=gradient_failure,
            drew=not all(map(torch.equal, before, after)),
        )


def _gradients(outputs: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> list[torch.Tensor | None] | None:
    """Gradients of a weighted sum of the outputs; ``None`` if there are none to be had. No ``.grad`` is touched."""
    outputs = [output for output in outputs if output.requires_grad and output.is_floating_point()]
    if not outputs or not sources:
        return None
    # Weights, since the plain sum of a normalised output is the same whatever the input.
    weights = [
        torch.linspace(0.5, 1.5, output.numel(), device=output.device).to(output.dtype).view(output.shape)
        for output in outputs
    ]
    # Autocast stays as it is: compiled code runs backward as it ran forward (torch._functorch.config
    # .backward_pass_autocast), and the same is to be held against the same.
    return list(torch.autograd.grad(outputs, sources, weights, allow_unused=True))


@contextlib.contextmanager
def as_found(block: nn.Module) -> Iterator[None]:
    """Give a block's buffers and attributes back the values that they have now."""
    modules = list(block.modules())
    buffers = [
        (module._buffers, name, buffer, buffer.detach().clone())
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None and not buffer.is_meta
    ]
    attributes = [(vars(module), dict(vars(module))) for module in modules]
    containers = [
        (value, copy.copy(value))
        for _, before in attributes
        for value in before.values()
        if type(value) in (list, dict, set)
    ]
    try:
        yield
    finally:
        for now, before in attributes:
            for name in [name for name in now if name not in before]:
                del now[name]
            now.update({name: value for name, value in before.items() if now.get(name, _ABSENT) is not value})
        for container, saved in containers:
            _refill(container, saved)
        for owner, name, buffer, saved in buffers:
            if owner.get(name) is not buffer:
                owner[name] = buffer
            if not torch.equal(buffer, saved):
                buffer.data.copy_(saved)  # .data: graphs that hold the buffer are not to take this for a change


def _refill(container: Any, saved: Any) -> None:
    if isinstance(container, list):
        if len(container) != len(saved) or any(a is not b for a, b in zip(container, saved, strict=True)):
            container[:] = saved
    elif container is not saved and (
        set(container) != set(saved)
        or (isinstance(container, dict) and any(container[key] is not saved[key] for key in saved))
    ):
        container.clear()
        container.update(saved)


@contextlib.contextmanager
def same_random_numbers(device: torch.device) -> Iterator[None]:
    """Put the generators back at the end, so that the next call draws the same numbers."""
    state = random.getstate()
    devices = [] if device.type in ("cpu", "meta") else [device]
    try:
        # torch 2.11 takes no None for the kind of device, and looks at none where the list is empty
        with torch.random.fork_rng(devices=devices, device_type=device.type if devices else "cuda"):
            yield
    finally:
        random.setstate(state)


@contextlib.contextmanager
def _own_graph() -> Iterator[None]:
    """Hide these calls from whoever looks at what is saved for backward: checkpointing counts those tensors."""
    if not torch.is_grad_enabled():
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        yield


@contextlib.contextmanager
def _backward_compiles_forgotten(compilation: Compilation) -> Iterator[None]:
    """Keep backward graphs that only this check needed out of the compilation's figures."""
    groups = [*compilation.groups, *compilation.rest_groups]
    events.collect()
    before = {id(variant): len(variant.log.compiles) for variant in all_variants(groups)}
    try:
        yield
    finally:
        events.collect()
        for variant in all_variants(groups):
            known = before.get(id(variant), 0)
            new = [done for done in variant.log.compiles[known:] if done.forward]
            variant.log.compiles[known:] = new


# -- copies ------------------------------------------------------------------------------------------------------------


class _NotCopiedError(Exception):
    """An argument cannot be copied; the message says why."""


def _copied(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor]]:
    """Copies of a call's arguments, and the tensors whose gradients are those of its inputs.

    A copied tensor has the layout of the original and is a view where that is one, since compiled code is made for
    that. Modules and parameters are the model's own and stay themselves.
    """
    memo: dict[int, Any] = {}  # deepcopy takes from here what it would otherwise copy
    sources: list[torch.Tensor] = []
    for found in _reachable((args, kwargs), set()):
        if isinstance(found, nn.Module):
            memo[id(found)] = found
        else:
            _copied_tensor(found, memo, sources)
    args, kwargs = copy.deepcopy((args, kwargs), memo)
    return args, kwargs, sources


def _copied_tensor(tensor: torch.Tensor, memo: dict[int, Any], sources: list[torch.Tensor]) -> torch.Tensor:
    """A copy that takes part in a gradient if the original does; the tensor that stands for it there is a source."""
    if id(tensor) in memo:
        known: torch.Tensor = memo[id(tensor)]
        return known
    is_source = tensor.requires_grad and (tensor.is_leaf or torch.is_inference_mode_enabled())
    descends = tensor.requires_grad and not is_source
    plain = tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg()
    base = tensor._base if plain and tensor._is_view() else None
    if isinstance(tensor, nn.Parameter):
        copied: torch.Tensor = tensor
    elif base is not None and base.dtype == tensor.dtype and (base.requires_grad or not descends):
        whole = _copied_tensor(base, memo, sources)
        with torch.set_grad_enabled(descends):
            copied = whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    else:
        copied = copy.deepcopy(tensor.detach(), memo)
        if descends:
            # Not a leaf, or a block that works in place could not be run. The source has no memory of its own.
            source = copied.new_empty(1).expand(copied.shape).requires_grad_()
            sources.append(source)
            with torch.enable_grad():
                copied = _Descendant.apply(source, [copied])  # type: ignore[no-untyped-call]
    if is_source:
        sources.append(copied.requires_grad_())
    for name, value in vars(tensor).items():
        if name.startswith("_dynamo_"):  # which sizes the user has marked as dynamic
            setattr(copied, name, value)
    memo[id(tensor)] = copied
    return copied


class _Descendant(torch.autograd.Function):
    """Makes a tensor the descendant of another: the gradient of the one is that of the other."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, box: list[torch.Tensor]) -> torch.Tensor:
        return box[0]  # in a list, as a tensor that is an input would come out as a view of itself

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        return gradients[0], None


def _reachable(value: Any, seen: set[int]) -> Iterator[torch.Tensor | nn.Module]:
    """Every tensor and module in a value: through containers and objects, each of these once."""
    if isinstance(value, (torch.Tensor, nn.Module)):
        yield value
        return
    if isinstance(value, Mapping):
        children = list(value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        children = list(value)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, types.FunctionType, types.ModuleType)):
        children = list(vars(value).values())
    else:
        return
    if id(value) not in seen:
        seen.add(id(value))
        for child in children:
            yield from _reachable(child, seen)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [found for found in _reachable(value, set()) if isinstance(found, torch.Tensor)]


# -- the verdict -------------------------------------------------------------------------------------------------------


def _judge(result: RegionCheck, expected: _Run, actual: _Run) -> None:
    """Fill a check's figures in."""
    result.largest = _largest([measure.magnitude(output) for output in expected.outputs])
    if len(expected.outputs) != len(actual.outputs):
        result.drifts = True
        result.note = f"returns {len(actual.outputs)} tensors, eager {len(expected.outputs)}"
        return
    pairs = list(zip(expected.outputs, actual.outputs, strict=True))
    if len(expected.arguments) == len(actual.arguments):
        pairs += zip(expected.arguments, actual.arguments, strict=True)
    difference, drifts, note = _held_together(pairs)
    gradient_difference: float | None = None
    if expected.gradient_failure:
        note = note or f"gradients not checked: {expected.gradient_failure}"
    elif actual.gradient_failure:
        note = note or f"fails compiled, in backward: {actual.gradient_failure}"
    elif expected.gradients is not None and actual.gradients is None:
        drifts, note = True, note or "its result takes part in no gradient, eager's does"
    elif expected.gradients is not None and actual.gradients is not None:
        gradient_pairs = [_both(*pair) for pair in zip(expected.gradients, actual.gradients, strict=True)]
        known = [pair for pair in gradient_pairs if pair is not None]
        gradient_difference, gradients_drift, gradient_note = _held_together(known)
        drifts = drifts or gradients_drift
        note = note or (gradient_note and f"gradients: {gradient_note}")
    if drifts and expected.drew:  # a compiler may have a generator of its own
        result.note = "not comparable: it draws random numbers"
        return
    result.max_abs_diff, result.max_abs_grad_diff = difference, gradient_difference
    result.drifts, result.note = drifts, note


def _held_together(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> tuple[float | None, bool, str]:
    """Largest difference of pairs of an eager and a compiled tensor, whether any pair drifts, and a note."""
    differences = [measure.max_abs_diff(*pair) for pair in pairs]
    drifts = any(measure.tensor_drifts(*pair, difference) for pair, difference in zip(pairs, differences, strict=True))
    largest = _largest(differences)
    if largest is not None and math.isinf(largest):
        return None, drifts, "of another shape, or not finite where eager is"
    return largest, drifts, ""


def _both(expected: torch.Tensor | None, actual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor] | None:
    """A pair of gradients; one that is absent is zero, which compiled code may say in either way."""
    if expected is None or actual is None:
        known = expected if actual is None else actual
        if known is None:
            return None
        zero = torch.zeros_like(known)
        return (zero, known) if expected is None else (known, zero)
    return expected, actual


def _largest(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None


def _path(region: Region) -> str:
    return region.path or describe.WHOLE_MODEL


def _fill(blocks: Sequence[nn.Module], contents: Sequence[Any]) -> None:
    for block, content in zip(blocks, contents, strict=True):
        if content is _ABSENT:
            block.__dict__.pop(SLOT, None)
        else:
            block.__dict__[SLOT] = content


def _brief(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
