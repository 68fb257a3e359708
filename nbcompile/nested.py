"""Repeated blocks inside a graph of the whole model: marked, so that the compiler compiles equal ones once.

The mark is torch's own, ``torch.compiler.nested_compile_region``. It goes onto a function, and the compiler looks for a
block's ``forward`` on the block itself before it looks in its class; so for the time of a call of the model each
block has a marked ``forward`` of its own. It is there at each call, not only where something is compiled: the compiler
guards on it. Putting it on and off takes about a microsecond for two dozen blocks. Between calls nothing is to be seen.

The compiler does not take a marked function that returns what it was given; such an output is copied, see
:func:`_marked`.
"""

from __future__ import annotations

import inspect
import itertools
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .errors import NoRepeatedBlocksError, UsageError
from .regions import RegionPlan, class_name

REMEDY = "Compile it with strategy='full', or block by block with nbcompile.compile_regions(model)"

_serial = itertools.count(1)


@dataclass
class Container:
    """The marked blocks of one container.

    Attributes:
        blocks: by path, without keeping them alive.
        ran_as: for each path that the compiler has met as a nested region, which of the compiled blocks it shares.
    """

    path: str
    class_name: str
    reason: str
    blocks: dict[str, weakref.ref[nn.Module]]
    mark: Callable[..., Any]
    ran_as: dict[str, tuple[int, str]] = field(default_factory=dict)


class Nested:
    """The blocks of one model that are marked.

    Attributes:
        notes: what a reader must know: blocks that are not marked, and why.

    Raises:
        UsageError: this torch has no nested compile regions, or no block can be marked.
    """

    def __init__(self, model: nn.Module, plan: RegionPlan) -> None:
        check_available()
        self.containers: list[Container] = []
        self.notes: list[str] = []
        self._graphs = 0
        own: list[str] = []
        for group in plan.groups:
            blocks = {path: model.get_submodule(path) for path in group.blocks}
            own += [path for path, block in blocks.items() if "forward" in vars(block)]
            marked = {path: weakref.ref(block) for path, block in blocks.items() if "forward" not in vars(block)}
            if marked:
                mark = _marked(group.class_name, len(marked))
                self.containers.append(Container(group.path, group.class_name, group.reason, marked, mark))
        if own:
            which = own[0] if len(own) == 1 else f"{own[0]} and {len(own) - 1} more"
            self.notes.append(
                f"{which}: not compiled as nested blocks, since something has put a forward of its own onto them"
            )
        if not self.containers:
            raise UsageError(
                f"no block of this {class_name(model)} can be marked for hierarchical compilation: each has a forward "
                f"of its own, which a library or the notebook has put there. {REMEDY}"
            )

    def around(self, model: nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function that does what ``call`` does while the blocks of ``model`` are marked. It holds the blocks."""
        switch = _Switch(
            [
                (block.__dict__, types.MethodType(container.mark, block))
                for container in self.containers
                for reference in container.blocks.values()
                if (block := reference()) is not None
            ]
        )
        is_compiling, is_tracing = torch.compiler.is_compiling, torch.jit.is_tracing

        def with_marks(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or is_tracing():  # someone compiles or traces the model around us: be invisible
                return call(*args, **kwargs)
            try:
                switch.on()
                return call(*args, **kwargs)
            finally:
                switch.off()

        return with_marks

    def saw(self, graph: torch.fx.GraphModule) -> None:
        """Take note of which blocks a graph that is to be compiled holds as nested regions."""
        places = {
            str(id(block)): (container, path)
            for container in self.containers
            for path, reference in container.blocks.items()
            if (block := reference()) is not None
        }
        self._graphs += 1
        for owners, name in _nested_regions(graph):
            found = next((places[key] for key in reversed(owners) if key in places), None)
            if found is not None:
                container, path = found
                container.ran_as[path] = self._graphs, name


class _Switch:
    """Marked forwards on and off; calls in several threads, or within each other, share them."""

    def __init__(self, forwards: list[tuple[dict[str, Any], Any]]) -> None:
        self._forwards = forwards
        self._inside = 0
        self._lock = threading.Lock()

    def on(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                for members, forward in self._forwards:
                    members.setdefault("forward", forward)  # one that someone has put there since goes first

    def off(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                for members, forward in self._forwards:
                    if members.get("forward") is forward:
                        del members["forward"]


def plan_problem(error: NoRepeatedBlocksError) -> NoRepeatedBlocksError:
    """The error for a model in which nothing repeats, in words for this strategy."""
    return NoRepeatedBlocksError(
        f"there is nothing that hierarchical compilation could compile once and use again. {error}"
    )


def check_available() -> None:
    """Raise :class:`UsageError` unless this torch has nested compile regions."""
    if not hasattr(torch.compiler, "nested_compile_region"):
        raise UsageError(
            f"torch {torch.__version__} has no torch.compiler.nested_compile_region, which strategy='hierarchical' "
            "needs; strategy='full' and nbcompile.compile_regions(model) do without"
        )


def _forward(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    # The class is asked at each trace: a notebook may have given it another forward since.
    result = type(block).forward(block, *args, **kwargs)
    if not torch.compiler.is_compiling():
        return result, None
    # The None is there so that torch 2.13 traces each block, and finds the equal ones by their graphs. Otherwise it
    # takes over the first block's trace without looking, and with it, for some models, the first block's weights.
    return _apart(result, _tensors((args, kwargs))), None


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in inner for tensor in _tensors(part)]


def _apart(value: Any, known: list[torch.Tensor]) -> Any:
    """A block's result with a copy of each tensor in it that is an argument too: T5's blocks hand their bias on."""
    if isinstance(value, torch.Tensor):
        for other in known:
            if value is other:
                return value.clone()
        return value
    if type(value) is tuple:
        return tuple([_apart(part, known) for part in value])
    if type(value) is list:
        return [_apart(part, known) for part in value]
    return value


def _marked(name: str, blocks: int) -> Callable[..., Any]:
    """:func:`_forward`, marked, with a code object of its own: by that the compiler knows which blocks may share.

    Args:
        blocks: how many there are. If no two are equal, as many are compiled, and the compiler's own limit, past which
            it fails, is lower.
    """
    code = _forward.__code__.replace(co_name=f"{name}_{next(_serial)}")
    function = types.FunctionType(code, _forward.__globals__, code.co_name)
    limit = "max_reuse_entries"  # torch 2.13 has it, torch 2.11 has no limit
    known = inspect.signature(torch.compiler.nested_compile_region).parameters
    more: dict[str, Any] = {limit: max(8, blocks)} if limit in known else {}
    marked: Callable[..., Any] = torch.compiler.nested_compile_region(function, **more)

    def forward(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return marked(block, *args, **kwargs)[0]

    return forward


def _nested_regions(graph: torch.fx.GraphModule) -> Iterator[tuple[list[str], str]]:
    """For each nested region of a graph the ids of the modules that it lies in, outermost first, and its code's name.

    There is no public way to ask; checked on torch 2.13. Where it has changed, blocks are told as not nested.
    """
    operation = getattr(torch.ops.higher_order, "invoke_subgraph", None)
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target is operation:
            owners = [str(key).partition("@")[0] for key in node.meta.get("nn_module_stack") or {}]
            yield owners, str(getattr(node.args[0], "target", node.args[0]))
