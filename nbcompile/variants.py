"""Variants: what blocks of a group call once they are compiled, and which block calls which.

A :class:`Variant` is one function with a code object of its own. The compiler keeps its versions, its recompile limit
and what it learnt about changing sizes per code object, so variants cannot use up each other's limit. A :class:`Group`
hands each of its blocks the variant that fits.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import logging
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch._dynamo.exc import RestartAnalysis, SkipFrame

from . import cache, events, explain, fastpath, kernels, misses, startup
from .errors import CompilationError, CompilationWarning
from .integrations import layer_index
from .interrupts import delivered_safely
from .methods import Methods
from .nested import REMEDY, Nested, dissolve
from .parallel import this_rank
from .plugin import Backend, TorchDynamoPlugin, backend_name
from .regions import structure

if TYPE_CHECKING:
    from .border import Region
    from .waiting import GroupBeside

_serial = itertools.count(1)


class Call(threading.local):
    """The call of a block that this thread is in.

    Attributes:
        block: the block's path.
        ran_eager: set when the region's own frame runs uncompiled.
        began: when the call began, in seconds since the epoch.
        breaks: :func:`events.breaks_seen` when it began.
        graphs_run: number of compiled graphs run, counted only once a graph break has split the block.
        index_hidden: whether the block's layer index can only find the block's own layer of a KV cache.
    """

    block: str = ""
    ran_eager: bool = False
    began: float = 0.0
    breaks: int = 0
    graphs_run: int = 0
    index_hidden: bool = False

    def enter(self, block: str, began: float, breaks: int, *, index_hidden: bool) -> tuple[Any, ...]:
        """Begin a call; what to give to :meth:`leave` when it ends."""
        outer = self.block, self.ran_eager, self.began, self.breaks, self.graphs_run, self.index_hidden
        self.block, self.ran_eager, self.began = block, False, began
        self.breaks, self.graphs_run, self.index_hidden = breaks, 0, index_hidden
        return outer

    def leave(self, outer: tuple[Any, ...]) -> None:
        """Go back to the call around the one that ends."""
        self.block, self.ran_eager, self.began, self.breaks, self.graphs_run, self.index_hidden = outer


call = Call()


def _region(block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # The condition is settled while the compiler traces this, so compiled code holds nothing of it. The line runs
    # only where this very frame runs uncompiled: past the recompile limit, or skipped by the compiler.
    if not torch.compiler.is_compiling():
        call.ran_eager = True
    return block._call_impl(*args, **kwargs)


def _region_inside_hooks(block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # The same for a block whose own hooks the border runs.
    if not torch.compiler.is_compiling():
        call.ran_eager = True
    return block.forward(*args, **kwargs)


class Circumstances(NamedTuple):
    """What is known beforehand to need another graph, so that it neither counts as a recompile nor is found by trial.

    Attributes:
        training: the block's training flag.
        gradients: whether the block's input takes part in a gradient, in words.
        cache: the kind of layer of a KV cache that the block is handed; ``""`` without one.
        absent: names of the arguments that are ``None``.
        hooks: ids of the hooks in force: traced code holds the hooks that it was traced with.
        code: version of the blocks' methods, which traced code takes as constants, see ``methods.Methods``.
        hooked: whether the block's own hooks run around the compiled code, so that it holds the ``forward`` alone.
    """

    training: bool
    gradients: str
    cache: str
    absent: tuple[str, ...]
    hooks: tuple[int, ...] = ()
    code: int = 0
    hooked: bool = False


class Variant:
    """One function that the blocks sharing a graph call, with the compiler's versions of it.

    Attributes:
        structure: see ``regions.structure``; every block that uses this variant has it.
        circumstances: what it is for.
        guarded: attributes of the block that the compiler relied on, each with the values it was compiled for.
        blocks: paths of the blocks that use it.
        log: what the compiler did for it.
        dynamic: what its newest graph takes as it comes, see ``explain.dynamic_inputs``.
        failure: the compiler's message, if it failed.
        broken: whether it is of no use: its blocks run eager.
    """

    def __init__(
        self, group: Group, structure: tuple[object, ...], circumstances: Circumstances, hooks: Sequence[Any]
    ) -> None:
        self.group = weakref.ref(group)
        self.structure = structure
        self.circumstances = circumstances
        self.plugin = group.plugin
        self.guarded: dict[str, set[tuple[type, object]]] = {}
        self.blocks: set[str] = set()
        self.log = events.Log()
        self.dynamic: list[list[str]] = []
        self.failure = ""
        self.broken = False
        self.most_graphs_run = 0
        self._hooks = list(hooks)  # keeps their ids, which tell circumstances apart, from passing to other objects
        plugin = group.plugin
        options, filter_guards = _without_guard_filter(plugin.options)
        self.function: Callable[..., Any] = torch.compile(
            _fresh_function(group.class_name, inside_hooks=circumstances.hooked),
            backend=_Backend(self, group.compilation, plugin, options),
            fullgraph=bool(plugin.fullgraph),
            dynamic=plugin.dynamic,
            options={"guard_filter_fn": _guard_reader(weakref.ref(self), filter_guards)},
            **_isolation(),  # type: ignore[call-overload]  # only the implementation's signature has the keyword
        )
        self._guard_collectives = group.guard_collectives
        self._whole = group.whole
        self._fast_paths = fastpath.FastPaths(self.function) if fastpath.usable(plugin.mode, options) else None

    def suits(self, block: nn.Module) -> bool:
        """Whether the block has the values that this variant was compiled for."""
        return all(explain.typed(explain.read(block, source)) in values for source, values in self.guarded.items())

    def ran_compiled(self) -> bool:
        """Whether the call that has just ended in this thread ran compiled code all the way.

        Past a graph break the compiler goes on in the functions that the block calls, each with versions and a limit of
        its own; then what counts is whether as many graphs ran as in the best call so far.
        """
        if call.ran_eager:
            return False
        if not self.log.breaks:
            return True
        self.most_graphs_run = max(self.most_graphs_run, call.graphs_run)
        limited = any(done.hit_limit for done in self.log.compiles)
        return call.graphs_run == self.most_graphs_run > 0 or (call.graphs_run > 0 and not limited)

    def call(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call :attr:`function`, with settings of the compiler for what is compiled by that.

        Code that can be called directly is spared a note to the profiler at each call. Inside of DDP the compiler
        splits a graph where a bucket of gradients is full, so that they are sent while others are computed: of a whole
        model that makes one graph several, of a block it would make splinters, and blocks are graphs of their own.
        """
        settings = self._compiler_settings()
        if self.log.compiles and not settings and not self._guard_collectives:
            return self.function(block, args, kwargs)
        with contextlib.ExitStack() as around:
            if not self.log.compiles:
                around.enter_context(startup.fewer_collections)
            if self._guard_collectives:
                before = torch.compiler.set_enable_guard_collectives(True)
                around.callback(torch.compiler.set_enable_guard_collectives, before)
            if settings:
                around.enter_context(torch._dynamo.config.patch(settings))
            return self.function(block, args, kwargs)

    def _compiler_settings(self) -> dict[str, Any]:
        """Settings for a call; none where it goes the compiler's own way each time, since this costs, too."""
        group = self.group()
        settings: dict[str, Any] = {}
        if group is not None and group.nested is not None:
            settings.update(group.nested.compiler_settings())
        if not self._whole and this_rank() is not None:
            settings["optimize_ddp"] = False
        if settings or (self._fast_paths is not None and not self.log.breaks):
            settings["record_runtime_overhead"] = False
        return settings

    @property
    def direct(self) -> bool:
        """Whether its code can be called without the compiler's entry."""
        return self._fast_paths is not None and not self.log.breaks

    def fast_path(self, arguments: dict[str, Any]) -> fastpath.FastPath | None:
        """A direct way to the code for these arguments of :attr:`function`; ``None`` without one.

        Past a graph break the compiler has to see the calls that the code makes, and a graph that was not compiled has
        to tell so.
        """
        if self._fast_paths is None or self.log.breaks or self.failure:
            return None
        return self._fast_paths.find(arguments)

    def note_miss(self, inputs: Sequence[Any]) -> None:
        """Tell why code was not found in the compiler's cache, where it has been there before."""
        group = self.group()
        if group is None or self.plugin.backend != "inductor":
            return
        shape = [part if not isinstance(part[1], type) else (part[0], part[1].__qualname__) for part in self._parts()]
        flags = {"training": self.circumstances.training, "cache": self.circumstances.cache}
        with contextlib.suppress(Exception):  # no compile is to fail for want of words
            why = misses.tell(group.class_name, misses.facts(shape, inputs, flags, self.plugin.options))
            if why:
                group.note(f"compiled anew, not found in the compiler's cache: {why}")

    def _parts(self) -> Iterator[tuple[Any, ...]]:
        for part in self.structure:
            if isinstance(part, tuple):
                yield part

    def note_failure(self, error: BaseException) -> None:
        """Keep the compiler's message, and say once for the group that it failed."""
        self.failure = explain.failure(error)
        group = self.group()
        if group is not None:
            remedy = "" if group.nested is None else f". {REMEDY}"
            group.warn(f"could not be compiled and runs eager: {explain.failure_line(error)}{remedy}")


class Group:
    """Regions that share variants: the repeated blocks of one container, one part of the rest, or a whole model."""

    def __init__(
        self,
        path: str,
        name: str,
        plugin: TorchDynamoPlugin,
        compilation: object,
        *,
        whole: bool = False,
        guard_collectives: bool = False,
    ) -> None:
        self.whole = whole
        self.guard_collectives = guard_collectives and this_rank() is not None
        self.exchanges = self.guard_collectives  # or whoever turned them on for the process
        self.path = path
        self.compilation = compilation  # only its identity counts, see _Backend
        self.class_name = name
        self.plugin = plugin
        self.variants: list[Variant] = []
        self.regions: list[Region] = []
        self.known: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # what the container held when it was compiled
        self.methods = Methods()
        self.latest = 0  # the place among the regions of the block that was called last
        self.fitted: fastpath.FastPath | None = None  # the path all of whose guards held for a block of this step
        self.notes: dict[str, None] = {}
        self.nested: Nested | None = None  # marked blocks inside a whole model
        self.beside: GroupBeside | None = None  # what compiles in the background, if that was asked for
        self._warned: set[str] = set()

    @functools.cached_property
    def index_use(self) -> str:
        """Why the blocks' layer index cannot be hidden from the compiler; ``""`` if it can."""
        for region in self.regions:
            block = region.block()
            if block is not None:
                use = layer_index.other_use(block)
                if use:
                    return f"its index is used otherwise, in {use}"
        return ""

    @functools.cached_property
    def layers(self) -> int:
        """Number of entries that a view of a KV cache needs for every block's index to be one of them."""
        return 1 + max((region.index for region in self.regions if region.index is not None), default=0)

    def look_at_methods(self) -> None:
        """Learn which classes the blocks' modules have now."""
        blocks = [region.block() for region in self.regions]
        self.methods.look_at(block for block in blocks if block is not None)
        self.__dict__.pop("index_use", None)

    def note(self, text: str) -> None:
        """Add a line to the report's notes, once."""
        self.notes[f"{self.path or 'the model'}: {text}"] = None

    def find(self, region: Region, circumstances: Circumstances, hooks: Sequence[Any]) -> Variant | None:
        """A variant that a block can share under these circumstances; ``None`` if there is none yet."""
        block = region.block()
        assert block is not None  # the border holds the block and is what called
        shape = structure(block, by_identity=True)
        # A hook may ask which module it is called for, and the compiler settles that once, unguarded: never share it.
        for variant in () if hooks else self.variants:
            if variant.circumstances == circumstances and variant.structure == shape and variant.suits(block):
                return variant
        return None

    def choose(self, region: Region, circumstances: Circumstances, hooks: Sequence[Any]) -> Variant:
        """The variant for a block that has none yet under these circumstances."""
        variant = self.find(region, circumstances, hooks)
        if variant is None:
            block = region.block()
            assert block is not None
            variant = Variant(self, structure(block, by_identity=True), circumstances, hooks)
            self.variants.append(variant)
        variant.blocks.add(region.path)
        return variant

    def warn(self, message: str) -> None:
        """Warn about this group, each message once."""
        if message not in self._warned:
            self._warned.add(message)
            where = f"{self.path or 'the model'} ({self.class_name})"
            try:
                warnings.warn(f"{where}: {message}", CompilationWarning, stacklevel=2)
            except CompilationWarning:  # warnings are errors in this process; the model still has to run
                logging.getLogger("nbcompile").warning("%s: %s", where, message)


def all_variants(groups: Sequence[Group]) -> Iterator[Variant]:
    for group in groups:
        yield from group.variants


def _fresh_function(name: str, *, inside_hooks: bool) -> Callable[..., Any]:
    """A copy of :func:`_region`, or of :func:`_region_inside_hooks`, with a code object of its own.

    The compiler keeps versions, recompile limit and what it learnt about changing sizes per code object, the latter by
    its name and line; the name is therefore used once.
    """
    region = _region_inside_hooks if inside_hooks else _region
    code = region.__code__.replace(co_name=f"{name}_{next(_serial)}")
    return types.FunctionType(code, region.__globals__, code.co_name)


class _Backend:
    """A backend that knows whose graph it compiles, and hands the graph back uncompiled if the real one fails.

    Handing the graph back is what keeps a failing compile harmless: nothing has run yet, and nothing is run twice. The
    compiler keeps every backend for the life of the process, so this one holds its variant weakly.

    Behind a graph break the compiler keeps code by the model's own functions, which all variants share. It uses such
    code again where the backends are equal; here, where they belong to one compilation of one model.
    """

    def __init__(
        self, variant: Variant, compilation: object, plugin: TorchDynamoPlugin, options: dict[str, Any] | None
    ) -> None:
        self.__name__ = backend_name(plugin.backend)
        self._variant = weakref.ref(variant)
        self._compilation = compilation
        self._inner = _torch_backend(plugin.backend, plugin.mode, options, plugin.dynamic)
        self._fullgraph = bool(plugin.fullgraph)
        self._is_inductor = plugin.backend == "inductor"

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        variant = self._variant()
        waited = startup.wait()
        if variant is not None:
            events.claim(variant, call.block, waited)
            group = variant.group()
            if group is not None and group.nested is not None:
                group.nested.share(graph)
            if call.breaks == events.breaks_seen():  # behind a graph break inputs are no longer the block's
                variant.dynamic = explain.dynamic_inputs(graph)
        try:
            before = misses.missed()
            with delivered_safely(), self._kernels_together():
                compiled = self._compiled(graph, inputs)
            if variant is not None and misses.missed() != before:
                variant.note_miss(inputs)
            return _counted(compiled) if events.breaks_seen() != call.breaks else compiled
        except (RestartAnalysis, SkipFrame):
            raise  # no failures: this is how a backend asks Dynamo to trace again, or not at all
        except Exception as error:
            if self._fullgraph or variant is None:
                raise
            variant.note_failure(error)
            dissolve(graph)
            return _uncompiled(graph.forward)

    def _compiled(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The backend's code; once more if it stumbled over a kernel that a process left half written in its cache."""
        try:
            return self._inner(graph, inputs)  # type: ignore[no-any-return]
        except Exception as error:
            if not self._is_inductor or not cache.is_cut_short(error) or not cache.mend():
                raise
        return self._inner(graph, inputs)  # type: ignore[no-any-return]

    def _kernels_together(self) -> contextlib.AbstractContextManager[None]:
        if not _puts_kernels_together(self._variant()):
            return contextlib.nullcontext()
        kernels.also_backward(lambda compile_id: _puts_kernels_together(events.claimant(compile_id)))
        return kernels.together()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Backend) and self._compilation is other._compilation

    def __hash__(self) -> int:
        return id(self._compilation)

    def reset(self) -> None:
        if hasattr(self._inner, "reset"):
            self._inner.reset()


def _puts_kernels_together(variant: Any) -> bool:
    """A whole model is what regions are held against, so it is compiled as ``torch.compile`` does it."""
    if not isinstance(variant, Variant) or variant.plugin.backend != "inductor":
        return False
    group = variant.group()
    return not variant._whole or (group is not None and group.nested is not None)


def _uncompiled(graph: Callable[..., Any]) -> Callable[..., Any]:
    """A graph that says so when it runs, since it was not compiled."""

    def run(*args: Any) -> Any:
        call.ran_eager = True
        return graph(*args)

    return run


def _counted(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled graph that counts its runs; only for blocks that a graph break has split."""

    def run(*args: Any) -> Any:
        call.graphs_run += 1
        return compiled(*args)

    return run


def _torch_backend(
    backend: Backend | None, mode: str | None, options: dict[str, Any] | None, dynamic: bool | None
) -> Any:
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


def _isolation() -> dict[str, bool]:
    """The keyword that gives a compiled function a cache and a recompile limit of its own in all that it calls, too.

    It matters behind graph breaks only, where the compiler goes on in the model's own functions. torch 2.11 has no such
    keyword, and compilations of one class share the limit there.
    """
    known = inspect.signature(torch.compile).parameters
    return {"isolate_recompiles": True} if "isolate_recompiles" in known else {}


def _without_guard_filter(options: dict[str, Any] | None) -> tuple[dict[str, Any] | None, Callable[..., Any] | None]:
    rest = dict(options or {})
    return_filter = rest.pop("guard_filter_fn", None)
    return rest or None, return_filter


def _guard_reader(
    variant: weakref.ref[Variant], users_filter: Callable[..., Any] | None
) -> Callable[[Sequence[Any]], list[bool]]:
    """A ``guard_filter_fn`` that notes which attributes of the block were relied on, and drops a hidden index."""

    def read(entries: Sequence[Any]) -> list[bool]:
        keep = list(users_filter(entries)) if users_filter is not None else [True] * len(entries)
        if call.index_hidden:
            index = tuple("." + name for name in layer_index.INDEXES)
            keep = [kept and not entry.name.endswith(index) for kept, entry in zip(keep, entries, strict=True)]
        owner = variant()
        if owner is not None:
            kept_entries = [entry for entry, kept in zip(entries, keep, strict=True) if kept]
            for source, value in explain.guarded_attributes(kept_entries):
                owner.guarded.setdefault(source, set()).add(explain.typed(value))
        return keep

    return read
