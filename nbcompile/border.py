"""What happens each time a block is called: which compiled version it uses, and whether it really ran compiled.

A *border* is the function in a block's slot for a compiled call. It picks the block's :class:`Variant`, calls it, and
notes the outcome. It must be cheap, since it runs once per block and step: a few attribute reads when nothing changed.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.exc import RestartAnalysis, SkipFrame, TorchDynamoException, TorchRuntimeError

from . import events, explain
from .errors import CompilationError, CompilationWarning
from .plugin import Backend, TorchDynamoPlugin, backend_name
from .integrations import transformers
from .regions import structure

#: Hooks that are registered anew at each call would need a new variant each time; after this many a block stays eager.
_MOST_HOOKED_VARIANTS = 8

#: Entries of a key without hooks: training flag, gradients, kind of KV cache.
_PLAIN_KEY = 3

_serial = itertools.count(1)


class _Call(threading.local):
    """The call of a block that this thread is in.

    Attributes:
        block: the block's path.
        ran_eager: set when the region's own frame runs uncompiled.
        began: when the call began, in seconds since the epoch.
        breaks: :func:`events.breaks_seen` when it began.
        graphs_run: number of compiled graphs run, counted only once a graph break has split the block.
    """

    block: str = ""
    ran_eager: bool = False
    began: float = 0.0
    breaks: int = 0
    graphs_run: int = 0


_call = _Call()


def _region(block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # The condition is settled while the compiler traces this, so compiled code holds nothing of it. The line runs
    # only where this very frame runs uncompiled: past the recompile limit, or skipped by the compiler.
    if not torch.compiler.is_compiling():
        _call.ran_eager = True
    return block._call_impl(*args, **kwargs)


class Variant:
    """One function that the blocks sharing a graph call, with the compiler's versions of it.

    Attributes:
        structure: see ``regions.structure``; every block that uses this variant has it.
        key: the circumstances it is for: training flag, part in a gradient, kind of KV cache, hooks in force.
        guarded: attributes of the block that the compiler relied on, each with the values it was compiled for.
        blocks: paths of the blocks that use it.
        log: what the compiler did for it.
        failure: why it cannot be compiled; its blocks run eager then.
    """

    def __init__(self, group: Group, structure_of_blocks: tuple[object, ...], key: tuple[object, ...], hooks: Sequence[Any]) -> None:
        self.group = weakref.ref(group)
        self.structure = structure_of_blocks
        self.key = key
        self.guarded: dict[str, set[tuple[type, object]]] = {}
        self.blocks: set[str] = set()
        self.log = events.Log()
        self.failure = ""
        self.most_graphs_run = 0
        self._hooks = list(hooks)  # keeps their ids, which are part of the key, from being given to other objects
        plugin = group.plugin
        options, filter_guards = _without_guard_filter(plugin.options)
        self.call: Callable[..., Any] = torch.compile(
            _fresh_function(group.class_name),
            backend=_Backend(self, plugin.backend, plugin.mode, options, plugin.dynamic, bool(plugin.fullgraph)),
            fullgraph=bool(plugin.fullgraph),
            dynamic=plugin.dynamic,
            options={"guard_filter_fn": _guard_reader(weakref.ref(self), filter_guards)},
        )

    def suits(self, block: nn.Module) -> bool:
        """Whether the block has the values that this variant was compiled for."""
        return all(explain.typed(explain.read(block, source)) in values for source, values in self.guarded.items())

    def ran_compiled(self) -> bool:
        """Whether the call that has just ended in this thread ran compiled code all the way.

        Past a graph break the compiler goes on in the functions that the block calls, each with versions and a limit of
        its own; then what counts is whether as many graphs ran as in the best call so far.
        """
        if _call.ran_eager or self.failure:
            return False
        if not self.log.breaks:
            return True
        self.most_graphs_run = max(self.most_graphs_run, _call.graphs_run)
        limited = any(done.hit_limit for done in self.log.compiles)
        return _call.graphs_run == self.most_graphs_run > 0 or (_call.graphs_run > 0 and not limited)

    def fail(self, error: BaseException) -> None:
        """Note that compiling failed, and say so once for the group."""
        self.failure = explain.failure(error)
        group = self.group()
        if group is not None:
            group.warn(f"could not be compiled and runs eager: {explain.failure_line(error)}")


class Group:
    """Regions that share variants: the repeated blocks of one container, one part of the rest, or a whole model."""

    def __init__(self, path: str, name: str, plugin: TorchDynamoPlugin) -> None:
        self.path = path
        self.class_name = name
        self.plugin = plugin
        self.variants: list[Variant] = []
        self.regions: list[Region] = []
        self.notes: dict[str, None] = {}
        self._warned: set[str] = set()

    @functools.cached_property
    def index_use(self) -> str:
        """Why the blocks' layer index cannot be hidden from the compiler; ``""`` if it can."""
        for region in self.regions:
            block = region.block()
            if block is not None:
                use = transformers.other_use(block)
                if use:
                    return f"its index is used otherwise, in {use}"
        return ""

    @functools.cached_property
    def layers(self) -> int:
        """Number of entries that a view of a KV cache needs for every block's index to be one of them."""
        return 1 + max((region.index for region in self.regions if region.index is not None), default=0)

    def note(self, text: str) -> None:
        """Add a line to the report's notes, once."""
        self.notes[f"{self.path or 'the model'}: {text}"] = None

    def choose(self, region: Region, key: tuple[object, ...], hooks: Sequence[Any]) -> Variant:
        """The variant for a block that has none yet under these circumstances."""
        block = region.block()
        assert block is not None  # the border holds the block and is what called
        shape = structure(block, by_identity=True)
        for variant in self.variants:
            if variant.key == key and variant.structure == shape and variant.suits(block):
                break
        else:
            variant = Variant(self, shape, key, hooks)
            self.variants.append(variant)
        variant.blocks.add(region.path)
        return variant

    def warn(self, message: str) -> None:
        """Warn about this group, each message once."""
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(f"{self.path or 'the model'} ({self.class_name}): {message}", CompilationWarning, stacklevel=2)


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
            self.group.warn(f"runs eager where its compiled versions do not fit: {self.eager_reason}. {explain.REMEDY}")

    def own_layer_only(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], transformers.PutBack, str] | None:
        """A call's arguments with a KV cache narrowed to this block's layer, and the layer's kind.

        ``None`` if there is nothing to narrow.
        """
        found = transformers.find_cache(args, kwargs)
        if found is None:
            return None
        place, cache = found
        assert self.index is not None  # the caller has looked
        narrowed = None if self.group.index_use else transformers.view(cache, self.index, self.group.layers)
        if narrowed is None:
            why = self.group.index_use or f"{type(cache).__name__} is not a cache that nbcompile knows"
            self.group.note(f"each block selects its own layer of the KV cache and needs a graph of its own for it ({why})")
            return None
        seen, put_back = narrowed
        kind = transformers.layer_kind(seen)
        if isinstance(place, str):
            return args, {**kwargs, place: seen}, put_back, kind
        return (*args[:place], seen, *args[place + 1 :]), kwargs, put_back, kind

    def forward(self) -> Callable[..., Any] | None:
        block = self.block()
        return getattr(block, "forward", None)


def _gradients(args: tuple[Any, ...]) -> str:
    """Whether the block's input takes part in a gradient, in words for a variant's name."""
    if not args or not isinstance(args[0], torch.Tensor):
        return "gradients on"
    return "input with gradient" if args[0].requires_grad else "input without gradient"


def make_border(block: nn.Module, region: Region) -> Callable[..., Any]:
    """The function for the block's slot. It holds the block; the region only looks at it weakly."""
    call_impl = block._call_impl
    table = region.table
    is_compiling, is_tracing = torch.compiler.is_compiling, torch.jit.is_tracing
    is_grad_enabled = torch.is_grad_enabled
    cache_can_be_there = transformers.loaded
    frames_seen, breaks_seen, now = events.frames_seen, events.breaks_seen, time.time

    def border(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or is_tracing():  # someone compiles or traces the model around us: be invisible
            return call_impl(*args, **kwargs)
        put_back, cache_kind = None, ""
        given = args, kwargs
        if region.index is not None and cache_can_be_there():
            narrowed = region.own_layer_only(args, kwargs)
            if narrowed is not None:
                args, kwargs, put_back, cache_kind = narrowed
        hooks: Sequence[Any] = ()
        # The first block's input often needs no gradient where all others' do: to the compiler that is another graph.
        gradients = _gradients(args) if is_grad_enabled() else "gradients off"
        key: tuple[object, ...] = (block.training, gradients, cache_kind)
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
        _call.breaks, _call.graphs_run = breaks_seen(), 0
        try:
            result = variant.call(block, args, kwargs)
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


def _fullgraph_error(region: Region, variant: Variant, error: BaseException) -> CompilationError:
    variant.failure = explain.failure(error)
    return CompilationError(
        f"{region.path or 'the model'} ({region.group.class_name}) cannot be compiled with fullgraph=True: "
        f"{explain.failure_line(error)}. It runs eager from now on; fullgraph=False compiles what can be compiled"
    )


def _fresh_function(name: str) -> Callable[..., Any]:
    """A copy of :func:`_region` with a code object of its own.

    The compiler keeps versions, recompile limit and what it learnt about changing sizes per code object, the latter by
    its name and line; the name is therefore used once.
    """
    code = _region.__code__.replace(co_name=f"{name}_{next(_serial)}")
    return types.FunctionType(code, _region.__globals__, code.co_name)


class _Backend:
    """A backend that knows whose graph it compiles, and hands the graph back uncompiled if the real one fails.

    Handing the graph back is what keeps a failing compile harmless: nothing has run yet, and nothing is run twice. The
    compiler keeps every backend for the life of the process, so this one holds its variant weakly.
    """

    def __init__(
        self,
        variant: Variant,
        backend: Backend | None,
        mode: str | None,
        options: dict[str, Any] | None,
        dynamic: bool | None,
        fullgraph: bool,
    ) -> None:
        self.__name__ = backend_name(backend)
        self._variant = weakref.ref(variant)
        self._inner = _torch_backend(backend, mode, options, dynamic)
        self._fullgraph = fullgraph

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        variant = self._variant()
        if variant is not None:
            events.claim(variant, _call.block)
        try:
            compiled = self._inner(graph, inputs)
            return _counted(compiled) if events.breaks_seen() != _call.breaks else compiled  # type: ignore[no-any-return]
        except (RestartAnalysis, SkipFrame):
            raise  # no failures: this is how a backend asks Dynamo to trace again, or not at all
        except Exception as error:
            if self._fullgraph or variant is None:
                raise
            variant.fail(error)
            return graph.forward  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> bool:
        # Behind a graph break, code of the model's own functions is shared by variants: equal settings, same code.
        return isinstance(other, _Backend) and (self._inner, self._fullgraph) == (other._inner, other._fullgraph)

    def __hash__(self) -> int:
        return hash(self.__name__)

    def reset(self) -> None:
        if hasattr(self._inner, "reset"):
            self._inner.reset()


def _counted(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled graph that counts its runs; only for blocks that a graph break has split."""

    def run(*args: Any) -> Any:
        _call.graphs_run += 1
        return compiled(*args)

    return run


def _torch_backend(backend: Backend | None, mode: str | None, options: dict[str, Any] | None, dynamic: bool | None) -> Any:
    """The callable that ``torch.compile`` would give to Dynamo for these settings.

    It applies a mode's or the user's options for the time of a compile. There is no public way to get at it; these
    two classes are what ``torch.compile`` itself uses, checked on torch 2.11 and 2.13.
    """
    name = "_TorchCompileInductorWrapper" if backend == "inductor" else "_TorchCompileWrapper"
    wrapper = getattr(torch, name, None)
    if wrapper is None:
        raise CompilationError(
            f"torch {torch.__version__} has no {name}, which nbcompile needs; it was checked on torch 2.11 and 2.13"
        )
    if backend == "inductor":
        return wrapper(mode, options, dynamic)
    return wrapper(backend, mode, options, dynamic)


def _without_guard_filter(options: dict[str, Any] | None) -> tuple[dict[str, Any] | None, Callable[..., Any] | None]:
    rest = dict(options or {})
    return_filter = rest.pop("guard_filter_fn", None)
    return rest or None, return_filter


def _guard_reader(
    variant: weakref.ref[Variant], users_filter: Callable[..., Any] | None
) -> Callable[[Sequence[Any]], list[bool]]:
    """A ``guard_filter_fn`` that notes which of the block's attributes were relied on, and drops those that do not count."""

    def read(entries: Sequence[Any]) -> list[bool]:
        owner = variant()
        group = owner.group() if owner is not None else None
        keep = list(users_filter(entries)) if users_filter is not None else [True] * len(entries)
        if owner is None or group is None:
            return keep
        if transformers.loaded() and not group.index_use:
            # see integrations/transformers.py: the index only finds the block's own layer of a cache
            keep = [kept and not entry.name.endswith("." + transformers.INDEX) for kept, entry in zip(keep, entries, strict=True)]
        for source, value in explain.guarded_attributes([e for e, kept in zip(entries, keep, strict=True) if kept]):
            owner.guarded.setdefault(source, set()).add(explain.typed(value))
        return keep

    return read


def all_variants(groups: Sequence[Group]) -> Iterator[Variant]:
    for group in groups:
        yield from group.variants
