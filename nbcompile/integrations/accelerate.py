"""``nbcompile.Accelerator``: accelerate's own, whose ``prepare`` compiles through this package.

Accelerate decides by its plugin whether ``prepare`` compiles, and there is no place where it asks how. So while its
``prepare`` runs, the plugin of its state says that nothing is to be compiled; what it returns is compiled afterwards,
inside of whatever it was wrapped in. Everything else is accelerate's.

The compilation is in place: ``unwrap_model``, ``get_state_dict``, ``save_model`` and ``save_state`` see the modules and
the keys that they would see without it.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import weakref
from collections.abc import Iterator
from typing import Any

from torch import nn

from .. import compiler, regions, startup
from ..errors import UsageError
from ..plugin import Backend, TorchDynamoPlugin

try:
    import accelerate
    from accelerate.utils import DynamoBackend
    from accelerate.utils import TorchDynamoPlugin as TheirPlugin
except ImportError as _error:
    raise ImportError(f"nbcompile.Accelerator needs accelerate: run `pip install accelerate` ({_error})") from _error


class Accelerator(accelerate.Accelerator):
    """``accelerate.Accelerator``, with every argument and method of it; compilation is done by this package.

    Args:
        dynamo_plugin: this package's ``TorchDynamoPlugin`` or accelerate's. Without one, what ``dynamo_backend`` and
            the variables ``ACCELERATE_DYNAMO_*`` (which ``accelerate launch`` sets) ask for, as accelerate reads them:
            nothing is compiled unless a backend is named, and as a whole unless ``use_regional_compilation`` is set.
        rest: what becomes of the parts outside the blocks, see :func:`nbcompile.compile_regions`.
        guard_collectives: whether all ranks compile again as soon as one has to, see the same.

    Attributes:
        compile_plugin: the settings that ``prepare`` compiles with.

    Raises:
        UsageError: a backend, mode or option that does not exist here, or a plugin of another class.
        ValueError: both ``dynamo_plugin`` and ``dynamo_backend`` were given; and what accelerate raises.
    """

    def __init__(self, *args: Any, rest: str = "auto", guard_collectives: bool = False, **kwargs: Any) -> None:
        bound = inspect.signature(accelerate.Accelerator.__init__).bind(self, *args, **kwargs)
        given = bound.arguments
        plugin, backend = given.get("dynamo_plugin"), given.get("dynamo_backend")
        if plugin is not None and backend is not None:
            raise ValueError("dynamo_plugin and dynamo_backend were both given: leave out dynamo_backend")
        if rest not in regions.REST_CHOICES:
            raise UsageError(f"rest takes {', '.join(map(repr, regions.REST_CHOICES))}, not {rest!r}")
        self.compile_plugin = our_plugin(TheirPlugin(backend=backend) if plugin is None else plugin)
        self._how: dict[str, Any] = {"rest": rest, "guard_collectives": guard_collectives}
        self._compiled: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # prepared by this object, so not once more
        given.pop("dynamo_backend", None)
        given["dynamo_plugin"] = their_plugin(self.compile_plugin)
        del given["self"]
        super().__init__(**given)
        if self._compiles:  # what a first compile waits for is found while the model and the data are loaded
            startup.begin(self.compile_plugin.backend, self.device)

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """Prepare models, optimizers, data loaders and schedulers as accelerate does, and compile the models.

        Raises:
            NoRepeatedBlocksError: a model in which nothing repeats is to be compiled block by block.
            UsageError: a model that cannot be compiled. In both cases nothing has been prepared.
        """
        models = [model for model in args if isinstance(model, nn.Module)]
        for model in models:
            self._check(model)
        for model in models:
            self._gather_by_block(model)
        with self._without_their_compilation():
            result = super().prepare(*args, device_placement=device_placement)
        for model in result if len(args) > 1 else (result,):  # of several, a tuple or a list
            if isinstance(model, nn.Module):
                self._compile(model)
        return result

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> Any:
        """Prepare one model as accelerate does, and compile it. Raises what :meth:`prepare` raises."""
        self._check(model)
        with self._without_their_compilation():
            prepared = super().prepare_model(model, device_placement, evaluation_mode)
        self._compile(prepared)
        return prepared

    @property
    def _compiles(self) -> bool:
        return not self.compile_plugin.disable

    def _check(self, model: nn.Module) -> None:
        """Refuse what could not be compiled before anything is wrapped, moved or sharded."""
        if not self._compiles or model in self._compiled or _compiled_by_torch(model):
            return
        regions.check_model(model)
        if not self.compile_plugin.use_regional_compilation and self._zero_stage == 3:
            raise UsageError(
                "a whole model cannot be compiled under DeepSpeed's ZeRO 3, which gathers weights module by module "
                "while the model runs; use_regional_compilation=True compiles its blocks, and has each gathered at once"
            )
        if self._keeps_flat_parameters:
            raise UsageError(
                f"{regions.FLAT_PARAMETERS}: FullyShardedDataParallelPlugin(..., use_orig_params=True), "
                "or fsdp_version=2"
            )
        if self.compile_plugin.use_regional_compilation:
            regions.plan_regions(regions.model_inside(model), rest=self._how["rest"])

    def _gather_by_block(self, model: nn.Module) -> None:
        """Let ZeRO 3 gather the weights of a block at once, in hooks on the block, instead of module by module inside.

        Hooks inside a block return to Python in front of and behind each of its layers: then nothing is left to
        compile as one graph. The way to say so is DeepSpeed's own, for modules whose parts are not to be looked at.
        """
        if not self._compiles or self._zero_stage != 3 or model in self._compiled or _compiled_by_torch(model):
            return
        from deepspeed.utils import set_z3_leaf_module

        plan = regions.plan_regions(model, rest=self._how["rest"])
        for path in [path for group in plan.groups for path in group.blocks]:
            set_z3_leaf_module(model.get_submodule(path), True)

    @property
    def _keeps_flat_parameters(self) -> bool:
        """Whether FSDP1 is to wrap models without ``use_orig_params``."""
        if self.distributed_type != accelerate.DistributedType.FSDP or self.is_fsdp2:
            return False
        return not self.state.fsdp_plugin.use_orig_params

    @property
    def _zero_stage(self) -> int | None:
        """The stage of ZeRO; ``None`` without DeepSpeed."""
        if self.distributed_type != accelerate.DistributedType.DEEPSPEED:
            return None
        config: dict[str, Any] = self.deepspeed_plugin.deepspeed_config
        stage: int | None = config.get("zero_optimization", {}).get("stage")
        return stage

    def _compile(self, model: nn.Module) -> None:
        """Compile what accelerate has prepared, unless that was done already or torch.compile returned it."""
        if not self._compiles or model in self._compiled or _compiled_by_torch(model):
            return
        if self.compile_plugin.use_regional_compilation:
            compiler.compile_regions(model, plugin=self.compile_plugin, **self._how)
        else:
            compiler.compile_model(model, plugin=self.compile_plugin)
        self._compiled.add(model)

    @contextlib.contextmanager
    def _without_their_compilation(self) -> Iterator[None]:
        """Inside the ``with`` block accelerate's state, which all accelerators share, asks for no compilation."""
        asked = self.state.dynamo_plugin
        silent = copy.copy(asked)
        silent.backend = DynamoBackend.NO
        self.state.dynamo_plugin = silent
        try:
            yield
        finally:
            self.state.dynamo_plugin = asked


def our_plugin(plugin: Any) -> TorchDynamoPlugin:
    """A plugin as this package's own; of accelerate's, a field that is not set there takes accelerate's default.

    Raises:
        UsageError: it is neither, or its settings do not exist here.
    """
    if isinstance(plugin, TorchDynamoPlugin):
        return plugin
    if not isinstance(plugin, TheirPlugin):
        raise UsageError(
            "dynamo_plugin takes nbcompile.TorchDynamoPlugin(...) or accelerate.utils.TorchDynamoPlugin(...), not "
            f"{type(plugin).__name__}"
        )
    return TorchDynamoPlugin(
        backend=plugin.backend,
        # accelerate always names a mode; torch.compile takes none beside options
        mode=None if plugin.options and plugin.mode == "default" else plugin.mode,
        fullgraph=bool(plugin.fullgraph),
        dynamic=plugin.dynamic,
        options=plugin.options or None,
        disable=plugin.disable,
        use_regional_compilation=bool(plugin.use_regional_compilation),
    )


def their_plugin(plugin: TorchDynamoPlugin) -> Any:
    """A plugin as accelerate's, for its state: what else accelerate does where it compiles (TF32) stays as it is."""
    return TheirPlugin(
        backend=_their_backend(plugin),
        mode=plugin.mode or "default",
        fullgraph=plugin.fullgraph,
        dynamic=plugin.dynamic,
        options=plugin.options,
        disable=plugin.disable,
        use_regional_compilation=plugin.use_regional_compilation,
    )


def _their_backend(plugin: TorchDynamoPlugin) -> str:
    known = {backend.value for backend in DynamoBackend}
    backend: Backend | None = plugin.backend
    if plugin.disable and backend == "eager":  # what "no" becomes in this package's plugin
        return "no"
    # a backend that accelerate has no name for: any name but "no" does, for it never compiles with it
    return backend if isinstance(backend, str) and backend.upper() in known else "inductor"


def _compiled_by_torch(model: nn.Module) -> bool:
    """Whether this is what ``torch.compile(model)`` returned: accelerate leaves such a model as it is, and so do we."""
    return "_orig_mod" in model._modules
