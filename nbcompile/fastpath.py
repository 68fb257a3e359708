"""Calling a block's compiled code without the compiler's entry, under the compiler's own guards.

A call through ``torch.compile`` costs more in front of the compiled code than the guards do: a wrapper in Python saves
and sets the state of the compiler, and the frame is looked up. For a small block that is half of its time. What such a
call ends in is plain: a guard manager, the function ``check`` of which says whether the code fits these arguments, this
block and this process, and a code object that is run if it does. Both can be called directly.

So nothing is assumed here. Every guard of the compiler is checked at every call but those named in :class:`FastPath`,
and a call that does not fit goes the compiler's own way. What lies between the two ways is settled beforehand: see
:func:`usable` and :func:`ordinary_stance`.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import eval_frame

from .parallel import this_rank

#: Guards that ask whether something is the same object, or of the same type, as when the code was traced.
_IDENTITY = frozenset({"ID_MATCH", "TYPE_MATCH", "CLASS_MATCH", "FUNCTION_MATCH"})
#: Modes of torch.compile that record CUDA graphs, which count the calls through the compiler's entry.
_RECORDING_MODES = frozenset({"reduce-overhead", "max-autotune"})

#: How instructions begin that change something which is not the code's own.
_WRITES = ("STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_SUBSCR")


class FastPath:
    """One version of the code that the compiler made for a function, ready to be called.

    Attributes:
        fits: whether the code fits a call, given the function's arguments by name.
        fits_again: the same, less the guards that ask whether global names (modules, functions, classes) still stand
            for the objects they stood for. For a block that is called in the same step as one for which :attr:`fits`
            was true.
        run: what to call, with the function's arguments.
    """

    __slots__ = ("_manager", "fits", "fits_again", "run")

    def __init__(self, manager: Any, code: types.CodeType, function: types.FunctionType) -> None:
        self._manager = manager
        self.fits: Callable[[dict[str, Any]], bool] = manager.root.check
        self.fits_again = _without_identities(manager.root).check
        self.run = types.FunctionType(code, function.__globals__, code.co_name)

    @property
    def alive(self) -> bool:
        """Whether the compiler still holds the code. It drops it when an object that a guard knows by id is gone."""
        return self._manager.cache_entry is not None

    @property
    def graph(self) -> Callable[..., Any] | None:
        """What the code calls to compute: the backend's function for its graph; ``None`` unless there is just one."""
        names = self._graph_names()
        return self.run.__globals__.get(names[0]) if len(names) == 1 else None

    @property
    def only_calls_graph(self) -> bool:
        """Whether the code does nothing that could change anything but call one graph.

        What the traced function wrote into attributes and containers, the code writes at its end, mostly by calls.
        """
        steps = [step.opname for step in dis.get_instructions(self.run)]
        return sum(step.startswith("CALL") for step in steps) == 1 and not any(s.startswith(_WRITES) for s in steps)

    def with_graph(self, graph: Callable[..., Any]) -> FastPath:
        """The same path with another function in the place of :attr:`graph`, of which there must be one.

        The compiler has wrapped that function so that it does not look at it again; so is this one.
        """
        (name,) = self._graph_names()
        if hasattr(self.run.__globals__[name], "_torchdynamo_orig_callable"):
            graph = torch.compiler.disable(graph)
        other = object.__new__(FastPath)
        other._manager, other.fits, other.fits_again = self._manager, self.fits, self.fits_again
        code = self.run.__code__
        other.run = types.FunctionType(code, {**self.run.__globals__, name: graph}, code.co_name)
        return other

    def _graph_names(self) -> list[str]:
        """The global names under which the code finds its graphs. Checked on torch 2.11 and 2.13."""
        return [name for name in self.run.__code__.co_names if name.startswith("__compiled_fn")]


class FastPaths:
    """The fast paths of one compiled function."""

    def __init__(self, compiled: Callable[..., Any]) -> None:
        self._function = compiled._torchdynamo_orig_callable if available() else None  # type: ignore[attr-defined]
        self._known: list[FastPath] = []

    def find(self, arguments: dict[str, Any]) -> FastPath | None:
        """The path that fits these arguments of the function; ``None`` if there is none."""
        if self._function is None:
            return None
        self._known = [path for path in self._known if path.alive]
        for manager, code in _versions(self._function):
            if not any(path._manager is manager for path in self._known):
                self._known.append(FastPath(manager, code, self._function))
        return next((path for path in self._known if path.fits(arguments)), None)


def available() -> bool:
    """Whether this torch has what is needed here. Checked on torch 2.11 and 2.13; elsewhere calls are slower, no more.

    There is no public way to a compiled function's guards.
    """
    from torch._C._dynamo.guards import RootGuardManager

    needed = (eval_frame, "_stance"), (eval_frame, "_debug_get_cache_entry_list"), (RootGuardManager, "check")
    return all(hasattr(place, name) for place, name in (*needed, (RootGuardManager, "clone_manager")))


def usable(mode: str | None, options: dict[str, Any] | None) -> bool:
    """Whether code compiled with these settings may be called directly: not where it is recorded as CUDA graphs."""
    options = options or {}
    recording = options.get("triton.cudagraphs", mode in _RECORDING_MODES)
    return not recording and not torch._inductor.config.triton.cudagraphs


def guards_are_collective() -> bool:
    """Whether ``torch.compiler.set_enable_guard_collectives`` is on in a process that is one of several ranks.

    Then all ranks exchange whether their guards hold, in the compiler's entry: a rank that does not go there would
    leave the others waiting. Setting it is the only way to ask.
    """
    if this_rank() is None:
        return False
    enabled: bool = torch.compiler.set_enable_guard_collectives(False)
    if enabled:
        torch.compiler.set_enable_guard_collectives(True)
    return enabled


_ordinary: Any = None


def ordinary_stance() -> bool:
    """Whether no ``torch.compiler.set_stance`` is in force: the compiler's entry is what heeds it."""
    global _ordinary
    stance = eval_frame._stance
    if stance is not _ordinary:
        if stance != type(stance)():
            return False
        _ordinary = stance
    return True


def _versions(function: types.FunctionType) -> list[tuple[Any, types.CodeType]]:
    """The guards and the code of each version that the compiler holds of a function; a dropped one has no code left.

    The entries themselves belong to the compiler, which frees them when it likes; so only what they hold is kept.
    """
    entries: Any = eval_frame._debug_get_cache_entry_list(function.__code__)
    return [(entry.guard_manager, entry.code) for entry in entries if entry.code is not None]


def _without_identities(root: Any) -> Any:
    """A copy of a tree of guards that leaves out parts under the globals which hold nothing but identities."""
    dropped: set[str] = set()

    def only_identities(node: Any) -> bool:
        if hasattr(node, "get_key_value_managers"):  # a dictionary whose keys are guarded: seldom, and left as it is
            return False
        inner = [only_identities(child) for child in node.get_child_managers()]  # all of them, each decides for itself
        only = all(inner) and all(type(guard).__name__ in _IDENTITY for guard in node.get_leaf_guards())
        if only:
            dropped.add(node.get_source())
        return only

    for child in root.get_child_managers():
        if child.get_source() == "G":
            only_identities(child)
    return root.clone_manager(lambda node: node.get_source() not in dropped)
