"""What happens each time a block is called: which variant it uses, and whether it really ran compiled.

A *border* is the function in a block's slot for a compiled call. It picks the block's variant, calls it, and notes the
outcome. It must be cheap, since it runs once per block and step: a few attribute reads when nothing changed.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.exc import TorchDynamoException, TorchRuntimeError

from . import events, explain
from .errors import CompilationError
from .integrations import transformers
from .variants import Group, Variant
from .variants import call as _call

#: Hooks that are registered anew at each call would need a new variant each time; after this many a block stays eager.
_MOST_HOOKED_VARIANTS = 8
#: Entries of a key without hooks: training flag, gradients, kind of KV cache, arguments that are None.
_PLAIN_KEY = 4


class Region:
    """One block behind a border.

    Attributes:
        compiled: whether the latest call ran compiled; ``None`` before the first call.
        eager_reason: why it did not.
    """

    def __init__(self, path: str, block: nn.Module, group: Group) -> None:
        self.path = path
        self.block = weakref.ref(block)
        self.group = group
        self.table: dict[tuple[object, ...], Variant] = {}
        self.hooks = hook_dictionaries(block)
        self.index = transformers.own_index(block)
        self.compiled: bool | None = None
        self.eager_reason = ""
        group.regions.append(self)

    def hooked_key(self, key: tuple[object, ...]) -> tuple[tuple[object, ...], list[Any]]:
        """The key of a call under hooks, and those hooks: traced code holds the hooks it was traced with."""
        hooks = [hook for dictionary in self.hooks for hook in dictionary.values()]
        return (*key, tuple(map(id, hooks))), hooks

    def pick(self, key: tuple[object, ...], hooks: Sequence[Any]) -> Variant | None:
        """The variant for this call; ``None`` if the block had better run eager."""
        variant = self.table.get(key)
        if variant is None:
            if hooks and sum(1 for known in self.table if len(known) > _PLAIN_KEY) >= _MOST_HOOKED_VARIANTS:
                self.eager_reason = (
                    "its hooks are new at each call, and each would need a compile of its own: register them once"
                )
                self.group.warn(f"runs eager: {self.eager_reason}")
                return None
            variant = self.table[key] = self.group.choose(self, key, hooks)
        return variant

    def after_compile(self, variant: Variant) -> None:
        """Take the compiler's records of the call that is just ending, and look at the block afresh."""
        events.collect(variant, self.path, since=_call.began, breaks_before=_call.breaks)
        block = self.block()
        if block is not None:  # a new guard may mean that modules were exchanged: their hooks are other dictionaries
            self.hooks = hook_dictionaries(block)
            self.index = transformers.own_index(block)
        if variant.log.compiles and variant.log.compiles[-1].hit_limit:
            last = variant.log.compiles[-1]
            self.eager_reason = (
                f"the recompile limit ({torch._dynamo.config.recompile_limit}) is reached: "
                + explain.guard(last.recompile_reason, self.forward())
            )
            self.group.warn(
                f"runs eager where its compiled versions do not fit: {self.eager_reason}. {explain.RECOMPILE_REMEDY}"
            )

    def own_layer_only(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], transformers.PutBack | None, str, bool]:
        """A call's arguments with a KV cache narrowed to this block's layer.

        Returns:
            The arguments, what to do with the result, the layer's kind, and whether the block's index is without
            meaning now. Arguments with a cache that cannot be narrowed come back as they are.
        """
        found = transformers.find_cache(args, kwargs)
        if found is None:
            return args, kwargs, None, "", not self.group.index_use
        place, cache = found
        assert self.index is not None  # the caller has looked
        narrowed = None if self.group.index_use else transformers.view(cache, self.index, self.group.layers)
        if narrowed is None:
            why = self.group.index_use or f"{type(cache).__name__} is not a cache that nbcompile knows"
            self.group.note(f"each block selects its own layer of the KV cache, which takes a graph per block ({why})")
            return args, kwargs, None, "", False
        seen, put_back = narrowed
        if isinstance(place, str):
            kwargs = {**kwargs, place: seen}
        else:
            args = (*args[:place], seen, *args[place + 1 :])
        return args, kwargs, put_back, transformers.layer_kind(seen), True

    def forward(self) -> Callable[..., Any] | None:
        block = self.block()
        return getattr(block, "forward", None)


def make_border(block: nn.Module, region: Region) -> Callable[..., Any]:
    """The function for the block's slot. It holds the block; the region only looks at it weakly."""
    call_impl: Callable[..., Any] = block._call_impl
    table = region.table
    is_compiling: Callable[[], bool] = torch.compiler.is_compiling
    is_tracing: Callable[[], bool] = torch.jit.is_tracing
    is_grad_enabled = torch.is_grad_enabled
    cache_can_be_there = transformers.loaded
    frames_seen, breaks_seen, now = events.frames_seen, events.breaks_seen, time.time

    def border(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or is_tracing():  # someone compiles or traces the model around us: be invisible
            return call_impl(*args, **kwargs)
        given = args, kwargs
        put_back, cache_kind, index_hidden = None, "", False
        if region.index is not None and cache_can_be_there():
            args, kwargs, put_back, cache_kind, index_hidden = region.own_layer_only(args, kwargs)
        hooks: Sequence[Any] = ()
        # What is known to need another graph is told apart here, so that it neither counts as a recompile nor makes the
        # blocks' versions be tried in turn: the first block's input may need no gradient, some blocks get no mask.
        gradients = _gradients(args) if is_grad_enabled() else "gradients off"
        absent = tuple([name for name, value in kwargs.items() if value is None])
        key: tuple[object, ...] = (block.training, gradients, cache_kind, absent)
        if any(region.hooks):
            key, hooks = region.hooked_key(key)
        variant = table.get(key) or region.pick(key, hooks)
        if variant is None or variant.failure:
            region.compiled = False
            if variant is not None:
                region.eager_reason = "compiling failed"
            return call_impl(*given[0], **given[1])
        frames = frames_seen()
        outer = dict(_call.__dict__)
        _call.block, _call.began, _call.ran_eager = region.path, now(), False
        _call.breaks, _call.graphs_run, _call.index_hidden = breaks_seen(), 0, index_hidden
        try:
            result = variant.function(block, args, kwargs)
            if frames_seen() != frames:
                region.after_compile(variant)
                frames = frames_seen()
            region.compiled = variant.ran_compiled()
        except TorchDynamoException as error:
            region.compiled = False
            if breaks_seen() != _call.breaks:
                raise  # code before the break has run: running the block again could do things twice
            if variant.group().plugin.fullgraph:  # type: ignore[union-attr]
                raise _fullgraph_error(region, variant, error) from error
            if not isinstance(error, TorchRuntimeError):  # that one is the model's own error, met while tracing
                variant.fail(error)
            return call_impl(*given[0], **given[1])
        finally:
            if frames_seen() != frames:  # an exception came out of a compile
                region.after_compile(variant)
            _call.__dict__.update(outer)
        return result if put_back is None else put_back(result)

    return border


def hook_dictionaries(block: nn.Module) -> tuple[dict[int, Any], ...]:
    """Every dictionary in which a hook that concerns this block can appear.

    The compiler does not look at the hooks of inner modules again once it has traced a block, so the border does.
    ``any()`` over these is the whole cost while there are none.
    """
    own = nn.modules.module
    found: list[dict[int, Any]] = [
        own._global_forward_hooks,
        own._global_forward_pre_hooks,
        own._global_backward_hooks,
        own._global_backward_pre_hooks,
    ]
    for module in block.modules():
        found += (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
            module._backward_pre_hooks,
        )
    return tuple(found)


def _gradients(args: tuple[Any, ...]) -> str:
    """Whether the block's input takes part in a gradient, in words for a variant's name."""
    if not args or not isinstance(args[0], torch.Tensor):
        return "gradients on"
    return "input with gradient" if args[0].requires_grad else "input without gradient"


def _fullgraph_error(region: Region, variant: Variant, error: BaseException) -> CompilationError:
    variant.failure = explain.failure(error)
    return CompilationError(
        f"{region.path or 'the model'} ({region.group.class_name}) cannot be compiled with fullgraph=True: "
        f"{explain.failure_line(error)}. It runs eager from now on, and so does every block like it; fullgraph=False "
        "compiles what can be compiled"
    )
