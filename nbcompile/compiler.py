"""Compile, undo, run eager: the regions of a plan put to work on a model, in place.

A region is entered through ``nn.Module``'s own slot for a compiled call, the one that ``nn.Module.compile`` fills.
Hooks, ``state_dict`` keys, ``isinstance``, deepcopy and pickle therefore see the module they know. What differs from
calling ``block.compile()`` on each block is what lies behind the slot, see :mod:`nbcompile.border`:

- Blocks of one group that need the same graph call one function. Each such variant has a code object of its own, and
  the compiler keeps its versions and its recompile limit per code object: no group uses up another's limit, nor that of
  the user's own code, and no setting of the process has to change.
- Which blocks need another variant is learnt from the compiler: it tells which of a block's attributes it relied on (a
  layer's index, a drop-path rate). A block with other values there gets another variant; all others share.
- After each call it is known whether the block ran compiled. Nothing falls back to eager unseen.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from . import describe, events, startup
from .background import Beside, check_background
from .border import Region, is_passage, make_border, make_passage, region_of
from .errors import NoRepeatedBlocksError, UsageError
from .graphs import Replays, check_setting
from .nested import Nested, check_available, plan_problem
from .plugin import Backend, TorchDynamoPlugin
from .regions import (
    RegionPlan,
    called_part,
    check_model,
    class_name,
    model_inside,
    plan_regions,
    refuse_flat_parameters,
)
from .report import Report, Strategy
from .variants import Group, all_variants, call

#: The attribute of a module in which it looks for its compiled call.
SLOT = "_compiled_call_impl"
#: The ways in which :func:`compile_model` compiles.
WHOLE_MODEL_STRATEGIES = ("full", "hierarchical")
_compilations: dict[int, Compilation] = {}
#: The latest tuning of a model, finished or stopped, until the model is restored.
_tunings: dict[int, tuple[weakref.ref[nn.Module], Report]] = {}


class Compilation:
    """One way of compiling one model: its regions, with what has been compiled for them.

    It can be taken off the model and put back without losing compiled code.
    """

    def __init__(
        self,
        model: nn.Module,
        plugin: TorchDynamoPlugin,
        *,
        strategy: str,
        plan: RegionPlan | None,
        rest: str = "auto",
        cuda_graph: bool = False,
        guard_collectives: bool = False,
        background: bool = False,
    ) -> None:
        self.guard_collectives = guard_collectives
        self.model = weakref.ref(model)
        self.plugin = plugin
        self.strategy = strategy
        self.rest = rest
        self.nested = Nested(model, plan) if plan is not None and strategy == "hierarchical" else None
        if self.nested is not None:  # the whole model is one region; the plan says which blocks are marked inside it
            plan = None
        self.plan = plan
        self.replays = Replays(lambda: [region for _, region in self.regions()]) if cuda_graph else None
        self.started = time.time()
        self.notes = [*describe.notes_on(model), *(self.nested.notes if self.nested is not None else ())]
        self.groups: list[Group] = []
        self.rest_groups: list[Group] = []
        self._identity = object()
        # for another thread that looks on: the call of a block that the thread which compiles is in
        self.thread, self.call = threading.get_ident(), vars(call)
        self.strategies: dict[str, Strategy] = {}  # what a comparison measured that left this compilation on the model
        if plan is None:
            self._add(self.groups, "", [""])
            self.groups[0].nested = self.nested
        else:
            for planned in plan.groups:
                self._add(self.groups, planned.path, planned.blocks)
            for part in plan.rest:
                if part.decision == "compile":
                    self._add(self.rest_groups, part.path, [part.path])
        self.beside = None
        if background and not plugin.disable:
            self.beside = Beside([*self.groups, *self.rest_groups], describe.device_of(model))

    def _add(self, groups: list[Group], path: str, blocks: Sequence[str]) -> None:
        model = self.model()
        assert model is not None  # called while the caller holds it
        name = class_name(model.get_submodule(blocks[0]))
        group = Group(
            path,
            name,
            self.plugin,
            self._identity,
            whole=self.strategy != "regional",
            guard_collectives=self.guard_collectives,
        )
        group.known.update(model.get_submodule(path).children())
        groups.append(group)
        for block in blocks:
            Region(block, called_part(model.get_submodule(block)), group)
        group.look_at_methods()

    def regions(self) -> Iterator[tuple[nn.Module, Region]]:
        """Every region with its block, of those blocks that are still there."""
        for group in (*self.groups, *self.rest_groups):
            for region in group.regions:
                block = region.block()
                if block is not None:
                    yield block, region

    @property
    def installed(self) -> bool:
        """Whether calls of the model go through this compilation."""
        return any(region_of(block.__dict__.get(SLOT)) is region for block, region in self.regions())

    def install(self) -> None:
        """Fill the blocks' slots; what a slot held before comes back with :meth:`uninstall`."""
        if self.plugin.disable:
            return
        for block, region in self.regions():
            before = block.__dict__.get(SLOT)
            if is_passage(before):
                before = None
            if region_of(before) is not region:
                # The slot alone holds the border, which holds the block: kept here, a model would never be freed.
                block.__dict__[SLOT] = make_border(block, region, before)
        model = self.model()
        if self.replays is not None and model is not None:
            self.replays.put_on(model)

    def uninstall(self) -> None:
        """Empty the slots again, unless someone else has filled them since."""
        model = self.model()
        if self.replays is not None and model is not None:
            self.replays.take_off(model)
        for block, region in self.regions():
            slot: Any = block.__dict__.get(SLOT)
            if region_of(slot) is region:
                before = slot.before
                earlier = region_of(before)
                if before is None or (earlier is not None and earlier.retired):
                    del block.__dict__[SLOT]
                else:
                    block.__dict__[SLOT] = before

    def retire(self) -> None:
        """Uninstall for good."""
        if self.beside is not None:
            self.beside.stop()
        for _, region in self.regions():
            region.retired = True
        if self.replays is not None:
            self.replays.retire()
        self.uninstall()

    def report(self) -> Report:
        """What has been compiled so far."""
        events.collect()
        return describe.report(self)

    def compiles(self) -> int:
        """Number of compiles so far, forward, backward and failed ones."""
        events.collect()
        return sum(len(variant.log.compiles) for variant in all_variants([*self.groups, *self.rest_groups]))

    def graphs(self) -> int:
        """Number of forward graphs made so far."""
        events.collect()
        variants = all_variants([*self.groups, *self.rest_groups])
        return sum(1 for variant in variants for done in variant.log.compiles if done.made_graph and done.forward)


def compile_regions(
    model: nn.Module,
    *,
    fullgraph: bool | None = None,
    dynamic: bool | None = None,
    backend: Backend | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
    rest: str = "auto",
    regions: Sequence[str | type[nn.Module]] | None = None,
    plugin: TorchDynamoPlugin | None = None,
    cuda_graph: bool = False,
    guard_collectives: bool = False,
    background: bool = False,
) -> nn.Module:
    """Compile a model's repeated blocks, each group sharing its graphs; in place, at each block's first call.

    Of a model that is wrapped for training in parallel (DDP, FSDP, DeepSpeed's engine) the model inside is compiled; it
    may also be wrapped afterwards. The keywords are those of ``torch.compile``. Compiling a model again replaces the
    first settings. A plugin's ``use_regional_compilation`` is for callers that choose between this function and
    :func:`compile_model`; here it changes nothing.

    Args:
        rest: what to do with parts outside the blocks: ``"auto"`` compiles those that are large enough to pay,
            ``"compile"`` all of them, ``"eager"`` none.
        regions: the blocks, chosen by hand; see :func:`plan_regions`.
        plugin: all of the settings in one object, instead of the keywords.
        cuda_graph: record the model's whole step as a CUDA graph and replay it, for calls without gradients whose
            shapes come again. Where that cannot be, the model runs as without it and the report's notes say why; see
            :mod:`nbcompile.graphs`.
        guard_collectives: where several ranks train together, let all of them compile a block again as soon as one has
            to. They exchange a word at each block and step for that, so it is slow; it keeps a rank that compiles
            alone from having the others wait in an exchange of gradients until that times out. All ranks must call
            the same blocks in the same order.
        background: run eager at once, and compile beside it in a nice process of its own. Blocks go over to their
            compiled code when it is ready, between two steps. Only what this process holds is sent to it, and no data:
            tensors of the same kind stand in for them. See :mod:`nbcompile.background`.

    Returns:
        The same model.

    Raises:
        NoRepeatedBlocksError: nothing repeats in the model.
        UsageError: a backend, mode or option that does not exist here, or a model that cannot be compiled. The model is
            as it was.
    """
    check_model(model)
    settings = _settings(plugin, fullgraph, dynamic, backend, mode, options, disable)
    check_setting(cuda_graph, settings)
    if background:
        check_background(settings, cuda_graph=cuda_graph, guard_collectives=guard_collectives)
    inside = model_inside(model)
    plan = plan_regions(inside, rest=rest, regions=regions)
    _refuse_offloaded(inside, [path for group in plan.groups for path in group.blocks])
    startup.begin(settings.backend, describe.device_of(inside))
    compilation = Compilation(
        inside,
        settings,
        strategy="regional",
        plan=plan,
        rest=rest,
        cuda_graph=cuda_graph,
        guard_collectives=guard_collectives,
        background=background,
    )
    adopt(inside, compilation)
    if compilation.beside is not None:
        compilation.beside.prepare()
    return model


def compile_model(
    model: nn.Module,
    *,
    fullgraph: bool | None = None,
    dynamic: bool | None = None,
    backend: Backend | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
    plugin: TorchDynamoPlugin | None = None,
    strategy: str = "full",
    regions: Sequence[str | type[nn.Module]] | None = None,
) -> nn.Module:
    """Compile the whole model as one region, in place, at its first call. Keywords as in ``torch.compile``.

    Args:
        strategy: ``"full"`` compiles all of it. ``"hierarchical"`` gives the same single graph, but of the repeated
            blocks the compiler compiles each distinct one once (``torch.compiler.nested_compile_region``); it takes
            less time, and gives up what could be fused across the blocks' borders. A model that it does not suit (one
            whose blocks write into a sliding KV cache, say) runs eager with a warning.
        regions: the blocks for ``"hierarchical"``, chosen by hand; see :func:`plan_regions`.

    Returns:
        The same model.

    Raises:
        NoRepeatedBlocksError: nothing repeats in the model, and the strategy is ``"hierarchical"``.
        UsageError: a backend, mode, option or strategy that does not exist here, or a model that cannot be compiled.
    """
    check_model(model)
    refuse_flat_parameters(model)
    if strategy not in WHOLE_MODEL_STRATEGIES:
        raise UsageError(
            f"compile_model has no strategy {strategy!r}; those that exist: {', '.join(WHOLE_MODEL_STRATEGIES)}. "
            "compile_regions compiles block by block"
        )
    if regions is not None and strategy != "hierarchical":
        raise UsageError(
            "regions=... names the blocks for strategy='hierarchical'; the strategy 'full' knows no blocks"
        )
    settings = _settings(plugin, fullgraph, dynamic, backend, mode, options, disable)
    inside = model_inside(model)
    plan = plan_nested(inside, regions=regions) if strategy == "hierarchical" else None
    _refuse_offloaded(inside, [""])
    startup.begin(settings.backend, describe.device_of(inside))
    adopt(inside, Compilation(inside, settings, strategy=strategy, plan=plan))
    return model


def plan_nested(model: nn.Module, *, regions: Sequence[str | type[nn.Module]] | None = None) -> RegionPlan:
    """Which blocks hierarchical compilation marks.

    Raises:
        NoRepeatedBlocksError: nothing repeats in the model.
        UsageError: this torch cannot mark blocks, or ``regions`` names something that does not exist.
    """
    check_available()
    try:
        return plan_regions(model, regions=regions)
    except NoRepeatedBlocksError as error:
        raise plan_problem(error) from None


def restore(model: nn.Module) -> nn.Module:
    """Make the model as if this package had never compiled it, and free the compiled code. Returns the same model."""
    check_model(model)
    inside = model_inside(model)
    _tunings.pop(id(inside), None)
    take_off(inside)
    return model


def take_off(model: nn.Module) -> None:
    """Take a model's compilation off for good."""
    compilation = _compilations.pop(id(model), None)
    if compilation is not None:
        compilation.retire()
        events.forget_dead_owners()


@contextlib.contextmanager
def eager(model: nn.Module) -> Iterator[nn.Module]:
    """Run a model uncompiled inside a ``with`` block, and keep what was compiled for afterwards.

    That holds for whatever fills the slots of its modules for compiled calls: this package, for the model or a part of
    it, and ``nn.Module.compile``.
    """
    with taken_off(model) as slots:
        passages = []
        for module, slot in slots:
            region = region_of(slot)
            if region is not None:  # so that the report knows what ran
                module.__dict__[SLOT] = passage = make_passage(module, region, slot)
                passages.append((module, passage))
        try:
            yield model
        finally:
            for module, passage in passages:
                if module.__dict__.get(SLOT) is passage:
                    del module.__dict__[SLOT]


@contextlib.contextmanager
def taken_off(model: nn.Module) -> Iterator[list[tuple[nn.Module, Any]]]:
    """Empty the slots of a model's modules inside a ``with`` block: the same as :func:`eager`, and nothing is noted."""
    check_model(model)
    taken = [(module, module.__dict__.pop(SLOT)) for module in model.modules() if SLOT in module.__dict__]
    try:
        yield taken
    finally:
        for module, slot in taken:
            region = region_of(slot)
            if SLOT not in module.__dict__ and not (region is not None and region.retired):
                module.__dict__[SLOT] = slot


@contextlib.contextmanager
def replacing(model: nn.Module) -> Iterator[None]:
    """Compile a model anew inside a ``with`` block; if the block fails, what was compiled before is there again."""
    check_model(model)
    before = _compilations.pop(id(model), None)
    if before is not None:
        before.uninstall()
    try:
        yield
    except BaseException:
        take_off(model)
        if before is not None:
            before.install()
            _compilations[id(model)] = before
        raise
    if before is not None:
        before.retire()
        events.forget_dead_owners()


def report(model: nn.Module) -> Report:
    """What was compiled for a model so far, how long it took, what was compiled again and why, what ran eager.

    The latest tuning of the model is in it, also one that was stopped on its way.

    Raises:
        UsageError: this package has not compiled the model. A copy of a compiled model is a model of its own.
    """
    check_model(model)
    model = model_inside(model)
    compilation, tuned = current(model), latest_tuning(model)
    if compilation is None and tuned is not None:
        return tuned
    if compilation is None:
        raise UsageError(
            f"nbcompile has not compiled this {class_name(model)}; call nbcompile.compile_regions(model) first, or run "
            "a %%compile_regional cell. A copy (deepcopy, pickle) of a compiled model is not compiled"
        )
    result = compilation.report()
    if tuned is not None:
        result.tuning, result.settings = tuned.tuning, {**result.settings, **tuned.settings}
    return result


def remember_tuning(model: nn.Module, tuned: Report) -> None:
    """Let :func:`report` tell a tuning of the model."""
    key = id(model)

    def forget(gone: weakref.ref[nn.Module]) -> None:
        if _tunings.get(key, (None,))[0] is gone:
            del _tunings[key]

    _tunings[key] = (weakref.ref(model, forget), tuned)


def latest_tuning(model: nn.Module) -> Report | None:
    """The latest tuning of the model, if it had one since it was last restored."""
    alive, tuned = _tunings.get(id(model), (None, None))
    return tuned if alive is not None and alive() is model else None


def current(model: nn.Module) -> Compilation | None:
    """The compilation of a model, if it has one."""
    model = model_inside(model)
    compilation = _compilations.get(id(model))
    return compilation if compilation is not None and compilation.model() is model else None


def compilations() -> list[Compilation]:
    """The compilations of all models that have one."""
    return [compilation for compilation in _compilations.values() if compilation.model() is not None]


def latest() -> Compilation | None:
    """The compilation that was put to work last, of those that are on a model still."""
    return next(reversed(list(_compilations.values())), None)


def adopt(model: nn.Module, compilation: Compilation) -> None:
    """Put a compilation to work in place of the one the model had."""
    take_off(model)
    compilation.install()
    _compilations[id(model)] = compilation
    weakref.finalize(model, _forget, id(model), weakref.ref(compilation))


def _forget(key: int, compilation: weakref.ref[Compilation]) -> None:
    known = _compilations.get(key)
    if known is not None and known is compilation():
        del _compilations[key]
        known.retire()  # the model is gone, a part of it may live on in another


def _settings(
    plugin: TorchDynamoPlugin | None,
    fullgraph: bool | None,
    dynamic: bool | None,
    backend: Backend | None,
    mode: str | None,
    options: dict[str, Any] | None,
    disable: bool,
) -> TorchDynamoPlugin:
    if plugin is None:
        return TorchDynamoPlugin(
            backend=backend, mode=mode, fullgraph=fullgraph, dynamic=dynamic, options=options, disable=disable
        )
    given = (fullgraph, dynamic, backend, mode, options, disable or None)
    if any(value is not None for value in given):
        raise UsageError("settings were given twice: pass plugin=... or the keywords, not both")
    return plugin


def _refuse_offloaded(model: nn.Module, blocks: Sequence[str]) -> None:
    """Blocks whose weights come and go with each call cannot be compiled: accelerate's hooks move them in Python."""
    for path in blocks:
        for name, module in model.get_submodule(path).named_modules():
            hook = getattr(module, "_hf_hook", None)
            if any(getattr(part, "offload", False) for part in (hook, *getattr(hook, "hooks", ()))):
                where = ".".join(part for part in (path, name) if part)
                raise UsageError(
                    f"{where or 'the model'} is offloaded by accelerate's hook {type(hook).__name__}, which loads its "
                    "weights for each call and drops them after it; such a block cannot be compiled. Load the model "
                    "onto one device, or take the hooks off: accelerate.hooks.remove_hook_from_submodules(model)"
                )
