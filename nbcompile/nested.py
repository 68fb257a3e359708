"""Repeated blocks inside a graph of the whole model: marked, so that the compiler compiles equal ones once.

The mark is torch's own, ``torch.compiler.nested_compile_region``. It goes onto a function, and the compiler looks for a
block's ``forward`` on the block itself before it looks in its class; so for the time of a call of the model each
block has a marked ``forward`` of its own. It is there at each call, not only where something is compiled: the compiler
guards on it. Putting it on and off takes about a microsecond for two dozen blocks. Between calls nothing is to be seen.

Which blocks are equal is decided here. torch decides it among blocks that were marked with the same code, and gets it
wrong (2.11 and 2.13): ``gelu(x)`` and ``gelu(x, approximate="tanh")`` are the same to it, as it compares arguments only
as far as both have some; and 2.13 takes over the first block's trace without looking, and with it, for some models, the
first block's weights. So each block is marked with code of its own, which torch holds for different from all others;
each is traced, and equal graphs are made one before the backend gets them: :meth:`Nested.share`.

The compiler does not take a marked function that returns what it was given; such an output is copied, see
:func:`_apart`.
"""

from __future__ import annotations

import itertools
import operator
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
        marks: for each path its marked forward.
        ran_as: for each path that the compiler has met as a nested region, which of the compiled blocks it shares.
    """

    path: str
    class_name: str
    reason: str
    blocks: dict[str, weakref.ref[nn.Module]]
    marks: dict[str, Callable[..., Any]]
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
                marks = {path: _marked(group.class_name) for path in marked}
                self.containers.append(Container(group.path, group.class_name, group.reason, marked, marks))
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
                (block.__dict__, types.MethodType(container.marks[path], block))
                for container in self.containers
                for path, reference in container.blocks.items()
                if (block := reference()) is not None
            ]
        )
        is_compiling: Callable[[], bool] = torch.compiler.is_compiling
        is_tracing: Callable[[], bool] = torch.jit.is_tracing

        def with_marks(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or is_tracing():  # someone compiles or traces the model around us: be invisible
                return call(*args, **kwargs)
            try:
                switch.on()
                return call(*args, **kwargs)
            finally:
                switch.off()

        return with_marks

    @staticmethod
    def compiler_settings() -> dict[str, Any]:
        """Settings of the compiler for the time of a compile: regions that look used once are not to be dissolved.

        Checked on torch 2.11, which has none such and dissolves none, and 2.13.
        """
        name = "inline_single_use_invoke_subgraph"
        return {name: False} if hasattr(torch._dynamo.config, name) else {}

    def share(self, graph: torch.fx.GraphModule) -> None:
        """Make the equal ones among a graph's nested regions one, and take note of which blocks share it.

        The graph is changed in place; it is one that Dynamo hands to a backend.
        """
        places = {
            str(id(block)): (container, path)
            for container in self.containers
            for path, reference in container.blocks.items()
            if (block := reference()) is not None
        }
        self._graphs += 1
        first: dict[object, tuple[torch.fx.Node, Any]] = {}
        for node in _nested_regions(graph):
            region, identifier = node.args[0], node.args[1]
            assert isinstance(region, torch.fx.Node)
            inner = graph.get_submodule(str(region.target))
            node.args = (*first.setdefault(_fingerprint(inner), (region, identifier)), *node.args[2:])
            owners = [str(key).partition("@")[0] for key in node.meta.get("nn_module_stack") or {}]
            found = next((places[key] for key in reversed(owners) if key in places), None)
            if found is not None:
                container, path = found
                container.ran_as[path] = self._graphs, str(node.args[1])
        _tidy(graph)


def dissolve(graph: torch.fx.GraphModule) -> None:
    """Make a graph's nested regions plain calls, for a graph that runs uncompiled.

    A region that writes to a buffer, for one, cannot be run as a region where gradients are recorded.
    """
    for node in list(_nested_regions(graph)):
        region = node.args[0]
        assert isinstance(region, torch.fx.Node)
        with graph.graph.inserting_before(node):
            plain = graph.graph.call_module(str(region.target), tuple(node.args[2:]))
        node.replace_all_uses_with(plain)
        graph.graph.erase_node(node)
    _tidy(graph)


def _tidy(graph: torch.fx.GraphModule) -> None:
    for node in list(graph.graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.graph.erase_node(node)
    graph.delete_all_unused_submodules()
    graph.recompile()


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
    # The None keeps torch 2.13 from using the trace of one call for another one, see the top of this file.
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


def _marked(name: str) -> Callable[..., Any]:
    """:func:`_forward`, marked, with a code object of its own: the compiler shares nothing with other code."""
    code = _forward.__code__.replace(co_name=f"{name}_{next(_serial)}")
    function = types.FunctionType(code, _forward.__globals__, code.co_name)
    marked: Callable[..., Any] = torch.compiler.nested_compile_region(function)

    def forward(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return marked(block, *args, **kwargs)[0]

    return forward


def _nested_regions(graph: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """The nodes of a graph that call a nested region: its module and its name come before the arguments.

    There is no public way to ask; checked on torch 2.11 and 2.13. Where it has changed, nothing is shared, and blocks
    are told as part of the model's own code.
    """
    operation = getattr(torch.ops.higher_order, "invoke_subgraph", None)
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target is operation:
            yield node


def _fingerprint(graph: nn.Module) -> object:
    """What two graphs have in common if, and only if, the same compiled code does for both.

    All of what a node does is in it: its operation, each argument with its type and its place, and of each input the
    kind of tensor. What is not known here is taken to be like nothing else: then too little is shared, never too much.
    """
    if not isinstance(graph, torch.fx.GraphModule):
        return id(graph)
    places = {node: place for place, node in enumerate(graph.graph.nodes)}

    def of(value: object) -> object:
        match value:
            case torch.fx.Node():
                return "node", places[value]
            case tuple() | list():
                return type(value), tuple(map(of, value))
            case dict():
                return "dict", tuple((key, of(part)) for key, part in value.items())
            case slice():
                return "slice", of(value.start), of(value.stop), of(value.step)
            case torch.dtype() | torch.device() | torch.layout() | torch.memory_format():
                return str(value)
            case None | bool() | int() | float() | complex() | str():
                return type(value), repr(value)  # told apart: 1 and True, 0.0 and -0.0
        return id(value)

    found: list[object] = []
    for node in graph.graph.nodes:
        target: object = node.target
        if node.op == "placeholder":
            target = _kind(node.meta.get("example_value"))
        elif node.op == "get_attr":
            target = _fingerprint(operator.attrgetter(str(node.target))(graph))
        found.append((node.op, target, of(node.args), of(node.kwargs)))
    return tuple(found)


def _kind(value: object) -> object:
    """What compiled code relies on of an input. Of a size that may vary it is the compiler's symbol."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return type(value), str(value)
    if not isinstance(value, torch.Tensor) or hasattr(value, "__tensor_flatten__") or value.layout != torch.strided:
        return id(value)
    numbers = *value.shape, "strides", *value.stride(), "offset", value.storage_offset()
    flags = value.requires_grad, value.is_conj(), value.is_neg(), value.is_inference()
    return type(value), str(value.dtype), str(value.device), tuple(map(str, numbers)), flags
