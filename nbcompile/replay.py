"""Make a call of a block once more with stand-ins, so that its code is compiled, or found in the compiler's cache.

Two processes do this with the same call: the helper of :mod:`nbcompile.background`, which fills the cache, and the
kernel, which then finds all of it there. That they make the same graphs, in the same order, is what it rests on: which
sizes the compiler takes as they come depends on the sizes that it has seen before.
"""

from __future__ import annotations

import contextlib
import time
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from . import events
from .border import Region
from .misses import missed
from .variants import Circumstances, Variant
from .variants import call as _call


class Ambient(NamedTuple):
    """What of torch's state a call was made under.

    Attributes:
        autocast: for each kind of device on which it is on the kind, the dtype, and whether casts are kept.
        threads: ``torch.get_num_threads()``, which CPU code is compiled for.
    """

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype, bool], ...]
    threads: int
    default_dtype: torch.dtype
    deterministic: tuple[bool, bool]
    matmul: str

    @classmethod
    def now(cls, device: str) -> Ambient:
        kinds = dict.fromkeys(("cpu", device))
        kept = torch.is_autocast_cache_enabled()
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            tuple((kind, torch.get_autocast_dtype(kind), kept) for kind in kinds if torch.is_autocast_enabled(kind)),
            torch.get_num_threads(),
            torch.get_default_dtype(),
            (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
            torch.get_float32_matmul_precision(),
        )

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """The modes that go with a call. The rest is the process's, see :meth:`settle`."""
        with contextlib.ExitStack() as stack:
            if self.inference:
                stack.enter_context(torch.inference_mode())
            stack.enter_context(torch.set_grad_enabled(self.grad))
            on = {kind for kind, _, _ in self.autocast}
            for kind, dtype, kept in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=kept))
            for kind in ("cpu", "cuda"):
                if kind not in on and torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            yield

    def settle(self) -> None:
        """Make the process's settings these; for a process that has none of its own."""
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.default_dtype)
        torch.use_deterministic_algorithms(self.deterministic[0], warn_only=self.deterministic[1])
        if torch.get_float32_matmul_precision() != self.matmul:
            # setting even what it is leaves "ieee" for "none" in a place that is part of every key in the cache
            torch.set_float32_matmul_precision(self.matmul)


class Outcome(NamedTuple):
    """What a replayed call came to.

    Attributes:
        variant: what it ran.
        compiles: how many graphs were made, or found in the cache.
        misses: how many of them were not in the cache.
        seconds: wall time.
    """

    variant: Variant
    compiles: int
    misses: int
    seconds: float


def replay(
    region: Region,
    block: nn.Module,
    circumstances: Circumstances,
    ambient: Ambient,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    index_hidden: bool,
) -> Outcome:
    """Call a block's variant once, and go back through it if the result has a gradient.

    Args:
        block: what is called in the place of the region's own.

    Raises:
        Exception: whatever the compiler or the block raises.
    """
    begin, before, frames = time.perf_counter(), missed(), events.frames_seen()
    with ambient.around():
        variant = region.group.choose(region, circumstances, ())
        known = len(variant.log.compiles)
        outer = _call.enter(region.path, time.time(), events.breaks_seen(), index_hidden=index_hidden)
        try:
            result = variant.call(block, args, kwargs)
            if ambient.grad:
                _go_back(result)
        finally:
            if events.frames_seen() != frames:
                region.after_compile(variant, args, kwargs)
            _call.leave(outer)
    made = sum(done.made_graph for done in variant.log.compiles[known:])
    return Outcome(variant, made, missed() - before, time.perf_counter() - begin)


def shadow(block: nn.Module, *, to_call: bool = True) -> nn.Module:
    """Modules of their own with the block's weights: what is done to them, but to the weights' values, is not seen.

    Gradients that arrive are the shadow's.

    Args:
        to_call: copy the buffers, since a call may write into them.
    """
    made: dict[int, Any] = {}

    def tensor(value: torch.Tensor, copied: bool) -> torch.Tensor:
        if id(value) not in made:
            if copied:
                made[id(value)] = value.detach().clone()
            elif isinstance(value, nn.Parameter):
                made[id(value)] = nn.Parameter(value.detach(), requires_grad=value.requires_grad)
            else:
                made[id(value)] = value
        return made[id(value)]  # type: ignore[no-any-return]

    def module(value: nn.Module) -> nn.Module:
        if id(value) in made:
            return made[id(value)]  # type: ignore[no-any-return]
        new = made[id(value)] = object.__new__(type(value))
        members = dict(vars(value))
        members.pop("_compiled_call_impl", None)
        members["_parameters"] = {n: None if p is None else tensor(p, False) for n, p in value._parameters.items()}
        members["_buffers"] = {n: None if b is None else tensor(b, to_call) for n, b in value._buffers.items()}
        members["_modules"] = {n: None if m is None else module(m) for n, m in value._modules.items()}
        new.__dict__.update(members)
        for name, own in members.items():  # a method that someone has put on the module knows which one it is of
            if isinstance(own, types.MethodType) and own.__self__ is value:
                new.__dict__[name] = types.MethodType(own.__func__, new)
        return new

    return module(block)


def _go_back(result: Any) -> None:
    """A backward pass through all that a call has returned, whose code is compiled only then."""
    ends = [tensor for tensor in _tensors(result, 0) if tensor.requires_grad]
    if ends:
        torch.autograd.backward(ends, [torch.zeros_like(end) for end in ends])


def _tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict) and depth < 4:
        for inner in value.values():
            yield from _tensors(inner, depth + 1)
    elif isinstance(value, (list, tuple)) and depth < 4:
        for inner in value:
            yield from _tensors(inner, depth + 1)
