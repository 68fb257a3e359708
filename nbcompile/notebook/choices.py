"""What can be chosen in a panel, and the code that does what was chosen: plain data, no widgets, compiles nothing.

A value that gains nothing on this machine, or cannot work on it, is offered all the same, with the reason: a reader who
looks for it should learn why it is not to be had.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import NoRepeatedBlocksError, UsageError

if TYPE_CHECKING:
    from torch import nn

    from ..regions import PlannedRest

ACTIONS = ("compile", "compare", "tune", "restore")

#: What ``dynamic`` takes, by the words of the magics.
DYNAMIC: dict[str, bool | None] = {"auto": None, "true": True, "false": False}

#: Backends that show where a problem lies: offered although torch lists them among those for debugging.
_DEBUGGING = ("aot_eager", "eager")
#: Backends that torch lists whether or not the package is there that they need.
_NEEDS_PACKAGE = {"openxla": "torch_xla", "openxla_eval": "torch_xla", "tvm": "tvm", "onnxrt": "onnxruntime"}
#: Strategies that look for repeated blocks.
_BY_BLOCKS = {"regional", "hierarchical"}
_LONGEST_LINE = 100


@dataclass(frozen=True)
class Offer:
    """One value of a setting; ``reason`` says why it is not to be had here, ``""`` if it is."""

    value: Any
    label: str
    reason: str = ""

    @property
    def text(self) -> str:
        """What a list of values shows."""
        return f"{self.label} (not here: {self.reason})" if self.reason else self.label


@dataclass(frozen=True)
class Branch:
    """One group of the tree of regions: a container and its blocks.

    Attributes:
        whole: what names all of its blocks at once in ``regions=[...]``, ``""`` if nothing does.
    """

    path: str
    class_name: str
    blocks: tuple[str, ...]
    whole: str = ""

    @property
    def label(self) -> str:
        """The container, how many blocks it has, and their class."""
        return f"{self.path or '(model)'}: {len(self.blocks)} x {self.class_name}"


@dataclass(frozen=True)
class Tree:
    """The regions that can be chosen from; ``reason`` says why there are none."""

    branches: tuple[Branch, ...] = ()
    reason: str = ""

    @property
    def blocks(self) -> tuple[str, ...]:
        """The paths of all blocks."""
        return tuple(path for branch in self.branches for path in branch.blocks)

    def regions(self, left_out: Iterable[str]) -> list[str] | None:
        """What ``regions=`` takes to compile all blocks but these; ``None``, its default, if none is left out.

        A group of which every block is chosen is named by its container where that names them all.
        """
        out = set(left_out)
        if not out & set(self.blocks):
            return None
        chosen: list[str] = []
        for branch in self.branches:
            kept = [path for path in branch.blocks if path not in out]
            chosen += [branch.whole] if branch.whole and len(kept) == len(branch.blocks) else kept
        return chosen


@dataclass(frozen=True)
class Names:
    """How the user's own code names the model and the step; ``step`` is ``""`` if it has no name."""

    model: str = "model"
    step: str = ""


@dataclass(frozen=True)
class Choices:
    """The settings of one compilation, as a panel holds them.

    Attributes:
        left_out: paths of the blocks that were unchecked.
        compare: the strategies that are measured beside eager.
        calls: the number of calls for which a tuning looks for the best setting.
        budget: how long a tuning may take, in seconds.
    """

    strategy: str = "regional"
    backend: str = "inductor"
    mode: str = "default"
    dynamic: bool | None = None
    fullgraph: bool = False
    rest: str = "auto"
    left_out: frozenset[str] = frozenset()
    cuda_graph: bool = False
    background: bool = False
    compare: tuple[str, ...] = ("regional", "full")
    calls: int = 1000
    budget: float = 180.0

    @classmethod
    def default(cls) -> Choices:
        """The settings that the functions of this package take if nothing is given; the environment may set some."""
        from ..plugin import TorchDynamoPlugin, backend_name

        plugin = TorchDynamoPlugin()
        return cls(
            strategy="regional" if plugin.use_regional_compilation else "full",
            backend=backend_name(plugin.backend),
            mode=plugin.mode or "default",
            dynamic=plugin.dynamic,
            fullgraph=bool(plugin.fullgraph),
        )

    def with_setting(self, settings: Mapping[str, Any]) -> Choices:
        """These choices with those of a measured setting in place of their own."""
        usual = Choices.default()
        return replace(
            self,
            strategy=str(settings.get("strategy", self.strategy)),
            backend=settings.get("backend") or usual.backend,
            mode=settings.get("mode") or "default",
            dynamic=settings.get("dynamic"),
            rest=settings.get("rest") or "auto",
        )

    def keywords(self, action: str, tree: Tree) -> dict[str, Any]:
        """The keywords for the function that carries ``action`` out; what is at its default is left out."""
        if action == "tune":  # it tries strategies, modes and rest itself, but with the backend that is chosen
            space = {} if self.backend == Choices.default().backend else {"space": {"backend": [self.backend]}}
            return {"calls": self.calls, "budget": self.budget, **space}
        if action == "restore":
            return {}
        usual = Choices.default()
        names = ["backend", "mode", "dynamic", "fullgraph"]
        strategies = self._strategies(action)
        if "regional" in strategies:
            names.append("rest")
        keywords = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(usual, name)}
        if "regional" in strategies and self.cuda_graph:
            keywords["cuda_graph"] = True
        if action == "compile" and self.strategy == "regional" and self.background:
            keywords["background"] = True
        if _BY_BLOCKS & strategies and (regions := tree.regions(self.left_out)) is not None:
            keywords["regions"] = regions
        if action == "compile" and self.strategy not in ("regional", "full"):
            keywords["strategy"] = self.strategy
        return keywords

    def obstacle(self, action: str, tree: Tree) -> str:
        """Why ``action`` cannot be carried out with these choices, ``""`` if it can."""
        by_blocks = _BY_BLOCKS & self._strategies(action)
        if by_blocks and tree.reason:
            return tree.reason
        if by_blocks and tree.regions(self.left_out) == []:
            return "no block is chosen: check at least one in the tree of regions"
        if "regional" in self._strategies(action) and self.cuda_graph and (why := self._conflict()):
            return why
        if action == "compile" and self.strategy == "regional" and self.background and (why := self._no_background()):
            return why
        if action == "compare" and not self.compare:
            return "nothing is chosen to compare eager with: check at least one strategy"
        return ""

    def _strategies(self, action: str) -> set[str]:
        """What ``action`` compiles with."""
        return {"compile": {self.strategy}, "compare": set(self.compare)}.get(action, set())

    def _conflict(self) -> str:
        """Why a CUDA graph over the step does not go with the mode, ``""`` if it does."""
        from ..graphs import check_setting
        from ..plugin import TorchDynamoPlugin

        try:
            check_setting(True, TorchDynamoPlugin(backend=self.backend, mode=self.mode))
        except UsageError as error:
            return str(error)
        return ""

    def _no_background(self) -> str:
        """Why nothing can be compiled in the background with these choices, ``""`` if it can."""
        from ..background import check_background
        from ..plugin import TorchDynamoPlugin

        try:
            check_background(
                TorchDynamoPlugin(backend=self.backend, mode=self.mode),
                cuda_graph=self.cuda_graph,
                guard_collectives=False,
            )
        except UsageError as error:
            return str(error)
        return ""

    def code(self, action: str, tree: Tree, names: Names) -> str:
        """Lines of Python that do the same as the button for ``action``."""
        keywords = self.keywords(action, tree)
        step = names.step or "step"
        if action == "compile":
            function = "compile_regions" if self.strategy == "regional" else "compile_model"
            call = _call(f"nbcompile.{function}", [names.model], keywords)
            first = "runs eager while a process compiles" if keywords.get("background") else "the first call compiles"
            lines = [call, f"{step}()  # {first}"] if names.step else [call]
        elif action == "compare":
            strategies = repr(["eager", *self.compare])
            lines = [_call("report = nbcompile.compare", [names.model, step, strategies], keywords), "report"]
        elif action == "tune":
            lines = [_call("report = nbcompile.tune", [names.model, step], keywords), "report"]
        else:
            lines = [f"nbcompile.restore({names.model})"]
        if action in ("compare", "tune") and not names.step:
            lines.insert(0, "# step: your function that runs the model once, such as lambda: model(**batch)")
        return "\n".join(["import nbcompile", *lines])


@dataclass(frozen=True)
class Offers:
    """What a panel for one model on this machine offers.

    Attributes:
        cuda_graph: whether a step can be recorded as a CUDA graph on the model's device.
    """

    strategies: tuple[Offer, ...]
    backends: tuple[Offer, ...]
    modes: tuple[Offer, ...]
    dynamic: tuple[Offer, ...] = (Offer("auto", "auto"), Offer("true", "true"), Offer("false", "false"))
    rest: tuple[Offer, ...] = field(default=())
    cuda_graph: bool = False

    def refusal(self, setting: str, value: Any) -> str:
        """Why a value cannot be chosen, ``""`` if it can."""
        offers: tuple[Offer, ...] = getattr(self, setting)
        return next((offer.reason for offer in offers if offer.value == value), "")


def offers_for(model: nn.Module, tree: Tree) -> Offers:
    """What can be chosen for a model, each value with the reason if this machine cannot make use of it."""
    from ..describe import device_of
    from ..device import layer_for
    from ..plugin import list_modes
    from ..regions import REST_CHOICES
    from ..space import STRATEGIES

    without_cuda = _without_cuda(model)
    reasons = {"regional": _no_blocks(tree), "hierarchical": _no_blocks(tree) or _no_marks()}
    strategies = [Offer(name, name, reasons.get(name, "")) for name in compiled(STRATEGIES)]
    modes = [
        Offer(name, name, f"gains nothing, {without_cuda}" if name == "reduce-overhead" and without_cuda else "")
        for name in list_modes()
    ]
    return Offers(
        strategies=tuple(strategies),
        backends=tuple(_backend(name, without_cuda) for name in _backends()),
        modes=tuple(modes),
        rest=tuple(Offer(name, name) for name in REST_CHOICES),
        cuda_graph=layer_for(device_of(model)) is not None,
    )


def compiled(strategies: Sequence[str]) -> list[str]:
    """Those strategies that compile something."""
    return [name for name in strategies if name != "eager"]


@functools.cache
def takes_modes(backend: str) -> bool:
    """Whether a backend has modes."""
    from ..plugin import TorchDynamoPlugin

    try:
        TorchDynamoPlugin(backend=backend, mode="max-autotune")
    except UsageError:
        return False
    return True


def tree_of(model: nn.Module) -> Tree:
    """The regions of a model that can be chosen from."""
    from ..regions import plan_regions

    try:
        plan = plan_regions(model)
    except NoRepeatedBlocksError as error:
        return Tree(reason=str(error))
    return Tree(tuple(Branch(g.path, g.class_name, g.blocks, _whole(model, g.path, g.blocks)) for g in plan.groups))


def rest_of(model: nn.Module, choices: Choices, tree: Tree) -> tuple[PlannedRest, ...]:
    """What becomes of the parts outside the chosen blocks."""
    from ..regions import plan_regions

    regions = tree.regions(choices.left_out)
    if tree.reason or regions == []:
        return ()
    return plan_regions(model, rest=choices.rest, regions=regions).rest


def _whole(model: nn.Module, path: str, blocks: tuple[str, ...]) -> str:
    """The container's path if, as a value of ``regions=``, it stands for exactly these blocks."""
    from ..regions import plan_regions

    if not path:
        return ""
    try:
        found = plan_regions(model, regions=[path])
    except UsageError:
        return ""
    return path if [group.blocks for group in found.groups] == [blocks] else ""


def _no_blocks(tree: Tree) -> str:
    return "no repeated blocks" if tree.reason else ""


def _no_marks() -> str:
    from ..nested import check_available

    try:
        check_available()
    except UsageError:
        return "this torch has no nested_compile_region"
    return ""


def _without_cuda(model: nn.Module) -> str:
    """Why CUDA is of no use to this model, ``""`` if it is."""
    import torch

    from ..describe import device_of

    device = device_of(model)
    if device is not None and device.type == "cuda":
        return ""
    return f"the model is on the {device or 'CPU'}" if torch.cuda.is_available() else "no CUDA device"


def _backends() -> list[str]:
    import torch

    from ..plugin import TorchDynamoPlugin, backend_name

    usual = backend_name(TorchDynamoPlugin().backend)
    listed = ["inductor", *_DEBUGGING, *sorted(torch.compiler.list_backends()), usual]
    return list(dict.fromkeys(listed))


def _backend(name: str, without_cuda: str) -> Offer:
    label = f"{name} (debug)" if name in _DEBUGGING else name
    if name == "cudagraphs" and without_cuda:
        return Offer(name, label, without_cuda)
    if (package := _NEEDS_PACKAGE.get(name)) and find_spec(package) is None:
        return Offer(name, label, f"{package} is not installed")
    if name == "inductor" and without_cuda:
        from ..doctor import check_cxx

        compiler = check_cxx()
        if compiler.ok is False:
            return Offer(name, label, f"no C++ compiler: {compiler.remedy}")
    return Offer(name, label)


def _call(function: str, arguments: list[str], keywords: dict[str, Any]) -> str:
    """A call as code, on several lines where one would be too long."""
    parts = [*arguments, *(f"{name}={value!r}" for name, value in keywords.items())]
    line = f"{function}({', '.join(parts)})"
    if len(line) <= _LONGEST_LINE:
        return line
    parts = [*arguments, *(f"{name}={_value(value)}" for name, value in keywords.items())]
    return f"{function}(\n" + "".join(f"    {part},\n" for part in parts) + ")"


def _value(value: Any) -> str:
    """A value as code; a long list on several lines, never broken within an item."""
    if not isinstance(value, list) or len(repr(value)) < _LONGEST_LINE - 20:
        return repr(value)
    lines = [""]
    for item in value:
        if len(lines[-1]) + len(repr(item)) > _LONGEST_LINE - 12:
            lines.append("")
        lines[-1] += f"{item!r}, "
    return "[\n" + "".join(f"        {line.rstrip()}\n" for line in lines) + "    ]"
