"""What happens each time a block is called: which variant it uses, and whether it really ran compiled.

A *border* is the function in a block's slot for a compiled call. It picks the block's variant, calls it, and notes the
outcome. It must be cheap, since it runs once per block and step: a few attribute reads when nothing changed.

Hooks on the block itself run around the compiled code, as Python. So they are always the ones in force, blocks that
differ in nothing else share their code, and what hooks must do before the code is entered is done before: those of
FSDP and of DeepSpeed gather the block's weights. Hooks on modules inside a block are traced with it.
"""

from __future__ import annotations

import dataclasses
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException, TorchRuntimeError
from torch.utils.hooks import BackwardHook

from . import causes, events, explain
from .errors import CompilationError, leave_out_compiler
from .fastpath import FastPath, guards_are_collective, ordinary_stance
from .integrations import transformers
from .regions import FLAT_PARAMETERS, has_flat_parameters
from .variants import Circumstances, Group, Variant
from .variants import call as _call

COMPILER_ERRORS = (TorchDynamoException, FailOnRecompileLimitHit)

#: Hooks that are registered anew at each call would need a new variant each time; after this many a block stays eager.
_MOST_HOOKED_VARIANTS = 8
_GATHERED_INSIDE = (
    "DeepSpeed's ZeRO 3 gathers the weights of each module inside it apart, by hooks; have it gather whole blocks: "
    "train with nbcompile.Accelerator, or call deepspeed.utils.set_z3_leaf_module(block, True) for each block before "
    "deepspeed.initialize"
)
#: So many versions of its code (other shapes, other flags) a block tries before it goes the compiler's own way.
_MOST_FAST_PATHS = 4


class Region:
    """One block behind a border.

    Attributes:
        compiled: whether the latest call ran compiled; ``None`` before the first call.
        eager_reason: why it did not.
        retired: whether its compilation has been replaced or taken back for good.
    """

    def __init__(self, path: str, block: nn.Module, group: Group) -> None:
        self.path = path
        self.block = weakref.ref(block)
        self.group = group
        self.table: dict[Circumstances, Variant] = {}
        self.fast: list[tuple[FastPath, bool]] = []  # the latest first; each with whether the layer's index was hidden
        self.fast_version = 0  # of the blocks' methods, see methods.Methods
        self.look_at(block)
        self.compiled: bool | None = None
        self.eager_reason = ""
        self.retired = False
        group.regions.append(self)

    def look_at(self, block: nn.Module) -> None:
        """Take note of what of the block the border relies on: again whenever modules may have been exchanged."""
        registrations.watch(block)
        self.registrations = registrations.count
        self.hooks, self.backward_hooks = hook_dictionaries(block)
        self.all_hooks = self.hooks + self.backward_hooks
        self.traced_hooks = self.hooks[:_GLOBAL] + self.hooks[_GLOBAL + _OWN :]
        self.inner_backward_hooks = self.backward_hooks[:_GLOBAL] + self.backward_hooks[_GLOBAL + _OWN :]
        self.index_holders = transformers.index_holders(block)
        self.index = transformers.own_index(self.index_holders)

    def pick(self, circumstances: Circumstances, hooks: Sequence[Any]) -> Variant | None:
        """The variant for this call; ``None`` if the block had better run eager."""
        variant = self.table.get(circumstances)
        if variant is None:
            if any(str(getattr(hook, "__module__", "")).startswith("deepspeed.") for hook in hooks):
                self.group.warn(f"runs eager: {_GATHERED_INSIDE}")  # traced, they can end the process
                self.ran(False, _GATHERED_INSIDE)
                return None
            block = self.block()
            if block is not None and has_flat_parameters(block):
                reason = f"{FLAT_PARAMETERS}: FullyShardedDataParallel(..., use_orig_params=True)"
                self.group.warn(f"runs eager: {reason}")
                self.ran(False, reason)
                return None
            if hooks and sum(1 for known in self.table if known.hooks) >= _MOST_HOOKED_VARIANTS:
                reason = "its hooks are new at each call, and each would need a compile of its own: register them once"
                self.group.warn(f"runs eager: {reason}")
                self.ran(False, reason)
                return None
            variant = self.table[circumstances] = self.group.choose(self, circumstances, hooks)
        return variant

    def learn_fast_path(
        self, variant: Variant, arguments: dict[str, Any], *, index_hidden: bool, version: int
    ) -> FastPath | None:
        """Look for a direct way to the code that fits this call, and remember it."""
        path = variant.fast_path(arguments)
        if path is not None:
            if version != self.fast_version:
                self.fast, self.fast_version = [], version
            others = [known for known in self.fast if known[0].alive and known[0] is not path]
            self.fast = [(path, index_hidden), *others][:_MOST_FAST_PATHS]
        return path

    def shared_path(
        self, circumstances: Circumstances, arguments: dict[str, Any], *, index_hidden: bool
    ) -> FastPath | None:
        """A direct way to code that is there already and fits this call; nothing is compiled for it."""
        variant = self.table.get(circumstances) or self.group.find(self, circumstances, circumstances.hooks)
        if variant is None:
            return None
        path = self.learn_fast_path(variant, arguments, index_hidden=index_hidden, version=circumstances.code)
        if path is not None:
            self.table[circumstances] = variant
            variant.blocks.add(self.path)
        return path

    def ran(self, compiled: bool, reason: str = "") -> None:
        """Note how the block's latest call ran."""
        self.compiled = compiled
        self.eager_reason = "" if compiled else reason

    def why_eager(self, variant: Variant) -> str:
        """Why a call of this block did not run compiled."""
        if variant.failure:
            return "compiling failed"
        limited = next((done for done in reversed(variant.log.compiles) if done.hit_limit), None)
        if limited is None:
            return "the compiler skipped it"
        limit = torch._dynamo.config.recompile_limit
        reason = limited.cause.reason if limited.cause else explain.guard(limited.recompile_reason, self.forward())
        return f"the recompile limit ({limit}) is reached: {reason}"

    def after_compile(self, variant: Variant, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the compiler's records of the call that is just ending, and look at the block afresh."""
        compiles = variant.log.compiles
        known = len(compiles)
        events.collect(variant, self.path, since=_call.began, breaks_before=_call.breaks)
        block = self.block()
        for position in range(known, len(compiles)):
            guard = compiles[position].recompile_reason
            if guard and compiles[position].forward:
                roots = {"block": block, "args": args, "kwargs": kwargs}
                cause = causes.cause_of(guard, roots, self.forward(), causes.users_line())
                compiles[position] = dataclasses.replace(compiles[position], cause=cause)
        if block is not None:  # a new guard may mean that modules were taken away: their hooks no longer count
            self.look_at(block)
            self.group.look_at_methods()
        if compiles and compiles[-1].hit_limit:
            remedy = (compiles[-1].cause and compiles[-1].cause.remedy) or explain.RECOMPILE_REMEDY
            self.group.warn(f"runs eager where its compiled versions do not fit: {self.why_eager(variant)}. {remedy}")

    def own_layer_only(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], transformers.PutBack, str] | None:
        """A call's arguments with a KV cache narrowed to this block's layer.

        Returns:
            The arguments, what to do with the result, and the layer's kind; ``None`` if there is no cache among them or
            it cannot be narrowed, which goes into the report's notes.
        """
        found = transformers.find_caches(args, kwargs)
        if not found:
            return None
        place, cache = found[0]
        index = transformers.own_index(self.index_holders)  # pruning may have numbered blocks anew
        if index is None:
            return None
        why = self.group.index_use or ("the block is handed more than one" if len(found) > 1 else "")
        narrowed = None if why else transformers.view(cache, index, max(self.group.layers, index + 1))
        if narrowed is None:
            why = why or f"{type(cache).__name__} is not a cache that nbcompile knows"
            self.group.note(f"each block selects its own layer of the KV cache, which takes a graph per block ({why})")
            return None
        seen, put_back = narrowed
        if isinstance(place, str):
            kwargs = {**kwargs, place: seen}
        else:
            args = (*args[:place], seen, *args[place + 1 :])
        return args, kwargs, put_back, transformers.layer_kind(seen)

    def forward(self) -> Callable[..., Any] | None:
        block = self.block()
        return getattr(block, "forward", None)


def make_border(block: nn.Module, region: Region, before: Any = None) -> Callable[..., Any]:
    """The function for the block's slot. It holds the block; the region only looks at it weakly.

    Args:
        before: what the slot held, for whoever empties it.
    """
    call_impl: Callable[..., Any] = block._call_impl
    table, group = region.table, region.group
    methods, position, beside = group.methods, group.regions.index(region), group.beside
    is_compiling: Callable[[], bool] = torch.compiler.is_compiling
    is_tracing: Callable[[], bool] = torch.jit.is_tracing
    is_grad_enabled = torch.is_grad_enabled
    cache_class = transformers.cache_class
    frames_seen, breaks_seen, now = events.frames_seen, events.breaks_seen, time.time

    def border(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or is_tracing():  # someone compiles or traces the model around us: be invisible
            return call_impl(*args, **kwargs)
        if region.registrations != registrations.count:
            region.look_at(block)
            group.look_at_methods()
        if any(region.all_hooks):
            around = _own_hooks_can_run_around(block)
            if any(region.inner_backward_hooks if around else region.backward_hooks):
                region.ran(False, "it has backward hooks, which compiled code does not always run")
                return call_impl(*args, **kwargs)
            if around:
                return _run_around(block, inside, args, kwargs)
        return inside(call_impl, False, args, kwargs)

    def inside(eager: Callable[..., Any], hooked: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call without the block's own hooks if it is ``hooked``; ``eager`` is how to make it uncompiled."""
        if region.compiled is False and in_backward():
            return eager(*args, **kwargs)
        if position <= group.latest:  # no further on than the block before: a new step begins
            new_step, group.fitted = True, None
        else:
            new_step = False
        if new_step:
            methods.check()
            group.exchanges = group.guard_collectives or guards_are_collective()
            if beside is not None and beside.due:
                beside.at_step()
        group.latest = position
        given = args, kwargs
        hooks: Sequence[Any] = ()
        for value in args:
            if isinstance(value, Tensor) and value.is_nested:
                region.ran(False, "it was handed a nested tensor, on which the compiler's guards can end the process")
                return eager(*args, **kwargs)
        watched = region.traced_hooks if hooked else region.hooks
        if any(watched):
            hooks = [hook for dictionary in watched for hook in dictionary.values()]
        put_back, cache_kind = None, ""
        # a hook may look at the block's index, so under hooks the index has to mean what it says
        if region.index is not None and not hooks and (cache := cache_class()) is not None:
            for value in (*args, *kwargs.values()):
                if isinstance(value, cache):
                    narrowed = region.own_layer_only(args, kwargs)
                    if narrowed is not None:
                        args, kwargs, put_back, cache_kind = narrowed
                    break
        hidden = put_back is not None
        direct = not hooks and not group.exchanges and ordinary_stance()
        arguments = {"block": block, "args": args, "kwargs": kwargs}
        if direct and region.fast_version == methods.version:
            for path, for_hidden in region.fast:
                fits = path.fits_again if path is group.fitted else path.fits
                if for_hidden is hidden and path.alive and fits(arguments):
                    group.fitted = path
                    region.compiled = True
                    result = path.run(block, args, kwargs)
                    return result if put_back is None else put_back(result)
        circumstances = Circumstances(
            block.training,
            _gradients(args) if is_grad_enabled() else "gradients off",
            cache_kind,
            tuple([name for name, value in kwargs.items() if value is None]),
            tuple(map(id, hooks)),
            methods.version,
            hooked,
        )
        if beside is not None:
            way = region.shared_path(circumstances, arguments, index_hidden=hidden) if direct else None
            if way is not None:
                region.compiled = True
                result = way.run(block, args, kwargs)
                return result if put_back is None else put_back(result)
            if not beside.may_call(region, block, circumstances, args, kwargs, index_hidden=hidden):
                with beside.room_for_helper(position):
                    return eager(*given[0], **given[1])
        variant = table.get(circumstances) or region.pick(circumstances, hooks)
        if variant is None:
            return eager(*given[0], **given[1])
        if variant.broken and not (region.compiled and in_backward()):
            region.ran(False, "compiling failed")
            return eager(*given[0], **given[1])
        if direct:
            way = region.learn_fast_path(variant, arguments, index_hidden=hidden, version=circumstances.code)
            if way is not None:
                region.compiled = True
                result = way.run(block, args, kwargs)
                return result if put_back is None else put_back(result)
        frames = frames_seen()
        outer = _call.enter(region.path, now(), breaks_seen(), index_hidden=hidden)
        try:
            result = variant.call(block, args, kwargs)
            if frames_seen() != frames:
                region.after_compile(variant, args, kwargs)
                frames = frames_seen()
            compiled = variant.ran_compiled()
            region.ran(compiled, "" if compiled else region.why_eager(variant))
        except COMPILER_ERRORS as error:
            region.ran(False, "compiling failed")
            if variant.log.breaks or breaks_seen() != _call.breaks:
                raise  # code before a graph break has run: running the block again could do things twice
            if variant.plugin.fullgraph and not isinstance(error, TorchRuntimeError):
                raise _fullgraph_error(region, variant, error) from error
            result = eager(*given[0], **given[1])  # a TorchRuntimeError is mostly the model's own: then this raises
            variant.broken = True
            variant.note_failure(error)
            return result
        except KeyboardInterrupt as interrupt:
            leave_out_compiler(interrupt)
            raise
        finally:
            if frames_seen() != frames:  # an exception came out of a compile
                region.after_compile(variant, args, kwargs)
            _call.leave(outer)
        return result if put_back is None else put_back(result)

    entry: Any = border if group.nested is None else group.nested.around(block, border)
    entry.region, entry.before = region, before
    return entry  # type: ignore[no-any-return]


def region_of(slot: Any) -> Region | None:
    """The region whose border a slot holds; ``None`` if it holds someone else's function, or nothing."""
    return getattr(slot, "region", None)


def make_passage(block: nn.Module, region: Region, border: Callable[..., Any]) -> Callable[..., Any]:
    """A function for the block's slot that runs it uncompiled, and takes note of that; ``border`` is what was there."""
    call_impl: Callable[..., Any] = block._call_impl

    def passage(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            if region.compiled and in_backward():
                return border(*args, **kwargs)
            region.ran(False, "it was called under nbcompile.eager")
        return call_impl(*args, **kwargs)

    passage.is_passage = True  # type: ignore[attr-defined]
    return passage


def in_backward() -> bool:
    """Whether this thread is in a backward pass: a block that is called there is a checkpointed one, computed again.

    It has to run as it did in the forward pass, compiled or not: both ways keep other tensors for the backward pass,
    and torch's checkpoint compares them. It asks in the same way. Checked on torch 2.13.
    """
    return torch._C._current_graph_task_id() != -1


def is_passage(slot: Any) -> bool:
    """Whether a slot holds what :func:`make_passage` made."""
    return getattr(slot, "is_passage", False)


class _Registrations:
    """Counts the modules that become parts of compiled blocks: they may bring hooks, and code that is not known yet."""

    def __init__(self) -> None:
        self.count = 0
        self._watched: weakref.WeakSet[nn.Module] | None = None

    def watch(self, block: nn.Module) -> None:
        """Count what is put into this block from now on."""
        if self._watched is None:
            self._watched = weakref.WeakSet()
            nn.modules.module.register_module_module_registration_hook(self._note)
        self._watched.update(block.modules())

    def _note(self, module: nn.Module, name: str, part: nn.Module | None) -> None:
        # Code that is traced may make modules, too. The compiler would guard on what is watched, and a change of that
        # between tracing and guarding is an error of its own.
        if torch.compiler.is_compiling():
            return
        if self._watched is not None and module in self._watched:  # libraries make modules at every step, elsewhere
            self.count += 1


registrations = _Registrations()


def _gradients(args: tuple[Any, ...]) -> str:
    """Whether the block's input takes part in a gradient, in words for a variant's name."""
    if not args or not isinstance(args[0], torch.Tensor):
        return "gradients on"
    return "input with gradient" if args[0].requires_grad else "input without gradient"


Hooks = tuple[dict[int, Any], ...]


def hook_dictionaries(block: nn.Module) -> tuple[Hooks, Hooks]:
    """Every dictionary in which a hook that concerns this block can appear: forward ones, and backward ones.

    The compiler does not look at the hooks of inner modules again once it has traced a block, so the border does.
    ``any()`` over these is the whole cost while there are none.
    """
    own = nn.modules.module
    forward: list[dict[int, Any]] = [own._global_forward_hooks, own._global_forward_pre_hooks]
    backward: list[dict[int, Any]] = [own._global_backward_hooks, own._global_backward_pre_hooks]
    for module in block.modules():
        forward += (module._forward_hooks, module._forward_pre_hooks)
        backward += (module._backward_hooks, module._backward_pre_hooks)
    return tuple(forward), tuple(backward)


#: How many dictionaries :func:`hook_dictionaries` puts first: those of hooks on all modules, then the block's own.
_GLOBAL, _OWN = 2, 2


def _own_hooks_can_run_around(block: nn.Module) -> bool:
    """Whether the block has hooks of its own, and none that only torch's own call can run at the right moment."""
    own = nn.modules.module
    backward = block._backward_hooks or block._backward_pre_hooks
    if not (block._forward_hooks or block._forward_pre_hooks or backward):
        return False
    if backward and block._is_full_backward_hook is False:  # of the old kind, which looks at the result's graph
        return False
    everywhere = own._global_forward_hooks or own._global_forward_pre_hooks
    return not (everywhere or block._forward_hooks_always_called)


def _run_around(block: nn.Module, inside: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a block's own hooks around its call, in the order and with the arguments of ``nn.Module``'s own call."""
    for key, before in list(block._forward_pre_hooks.items()):
        if key in block._forward_pre_hooks_with_kwargs:
            both: Any = before(block, args, kwargs)
            if both is not None:
                if not isinstance(both, tuple) or len(both) != 2:
                    raise RuntimeError(f"a forward pre-hook returns None or (args, kwargs), not {both!r}")
                args, kwargs = both
        else:
            changed: Any = before(block, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
    backward = None
    if block._backward_hooks or block._backward_pre_hooks:
        backward = BackwardHook(block, [*block._backward_hooks.values()], [*block._backward_pre_hooks.values()])
        args = backward.setup_input_hook(args)
    result = inside(block.forward, True, args, kwargs)
    for key, after in list(block._forward_hooks.items()):
        with_kwargs = key in block._forward_hooks_with_kwargs
        changed = after(block, args, kwargs, result) if with_kwargs else after(block, args, result)
        if changed is not None:
            result = changed
    return result if backward is None else backward.setup_output_hook(result)


def _fullgraph_error(region: Region, variant: Variant, error: BaseException) -> CompilationError:
    variant.broken, variant.failure = True, explain.failure(error)
    return CompilationError(
        f"{region.path or 'the model'} ({region.group.class_name}) cannot be compiled with fullgraph=True: "
        f"{explain.failure_line(error)}. It runs eager from now on, and so does every block like it; fullgraph=False "
        "compiles what can be compiled"
    )
