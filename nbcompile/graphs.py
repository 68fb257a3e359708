"""CUDA graphs over the whole step of a model that is compiled block by block.

Compiled block by block, a model pays the compiler's entry and the launches of its kernels once a block, which at small
batches is what it loses to a model compiled as a whole. A CUDA graph takes both away: the step is recorded once, and a
replay is one launch. Here that is done at the model's own call, around all of its blocks.

The first two calls of a kind (shapes, strides, dtypes, plain arguments, autocast and so on) run as they would without
this; in the second it is looked at whether the call does anything that a replay would leave out. The third is
recorded: with input buffers of its own, after two calls on the stream that is recorded on, as torch's notes on CUDA
graphs ask. From then on a call copies its arguments into the buffers, replays and returns copies of the result,
because the next replay overwrites the graph's own. All of it is for calls without gradients.

Never a stale result: before each replay :mod:`nbcompile.standing` says whether the model is still what was recorded. If
it is not, the graphs are given back and the call counts as a first one. Where a graph cannot be used, the model runs as
without it, and the reason is in the report's notes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from .device import Layer, layer_for
from .errors import UsageError, leave_out_compiler
from .plugin import TorchDynamoPlugin
from .standing import Standing

SLOT = "_compiled_call_impl"
#: Graphs kept at a time; the one that was not used for longest makes room.
MOST_GRAPHS = 8
#: Kinds of call that are remembered while they have no graph yet.
_MOST_KINDS = 64
#: Graphs given back, each for little use, until recording more is given up.
_MOST_WASTED = 16
#: Replays from which on a graph has been of use: recording one costs some four calls.
_WORTH_IT = 8

#: Calls that may change the model, one after another, until that counts as what it does.
_MOST_CHANGES = 3
_HOOKS = "the model has hooks, which a replay would not run"

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, slice, type(...))
_TENSORS = (torch.Tensor, nn.Parameter)

#: A process records one graph at a time. A model within another is not recorded while the other is.
_one_at_a_time = threading.RLock()
#: Modes of the inductor backend that record CUDA graphs themselves, and what to use in their place.
_RECORDING_MODES = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}

Inputs = Sequence[torch.Tensor]


def check_setting(cuda_graph: object, plugin: TorchDynamoPlugin) -> None:
    """Refuse what cannot be meant.

    Raises:
        UsageError: no boolean, or settings by which the backend records graphs too, which does not go within another.
    """
    if not isinstance(cuda_graph, bool):
        raise UsageError(f"cuda_graph takes True or False, not {cuda_graph!r}")
    instead = _RECORDING_MODES.get(plugin.mode or "")
    if cuda_graph and instead is not None:
        raise UsageError(
            f"mode={plugin.mode!r} records a CUDA graph for each block, and cuda_graph=True one for the whole step, "
            f"which cannot hold others. Use cuda_graph=True with mode={instead!r}, or the mode alone"
        )
    if cuda_graph and (plugin.options or {}).get("triton.cudagraphs"):
        raise UsageError("the option triton.cudagraphs and cuda_graph=True exclude one another; leave the option out")


class Unfit(Exception):
    """A call that a graph cannot stand for; the message says why."""


class _Kind:
    """Calls that one graph can stand for.

    Attributes:
        calls: how many there were, since something last spoke against recording them.
        changes: how many of them changed the model.
        reason: why they are not recorded, ``""`` if they may be.
    """

    def __init__(self) -> None:
        self.calls = self.changes = 0
        self.reason = ""


class _Recorded:
    """A graph with its input buffers, its result, and how each of the model's regions ran when it was recorded."""

    def __init__(
        self, graph: Any, buffers: list[torch.Tensor], result: Callable[[Inputs], Any], ran: list[tuple[Any, Any, str]]
    ) -> None:
        self.graph, self.result, self.ran = graph, result, ran
        self.places = [_compact(buffer) for buffer in buffers]
        self.replays = 0

    def fill(self, inputs: Inputs) -> None:
        """Put a call's arguments into the buffers."""
        for place, given in zip(self.places, inputs, strict=True):
            place.copy_(_compact(given))


class _Seat:
    """Where a model's standing is kept: with the function in its slot, so that it goes when the model does."""

    standing: Standing | None = None


class Replays:
    """The graphs of one compilation of a model, and what became of its calls.

    It does not hold the model, so that the model can go.

    Args:
        regions: the regions of the compilation (see :class:`nbcompile.border.Region`), which tell how they ran.

    Attributes:
        retired: whether it is of no use any more: its compilation is taken back.
        compiled: ``None``, as of a region before its first call: whether a call ran compiled is for the regions to say.
        recorded: number of graphs recorded so far.
        replayed: number of calls that were replays.
    """

    def __init__(self, regions: Callable[[], Sequence[Any]] = tuple) -> None:
        self.retired, self.compiled = False, None
        self._regions, self._ran_eager = regions, False
        self.recorded = self.replayed = 0
        self._reasons: dict[str, None] = {}
        self._kinds: OrderedDict[Any, _Kind] = OrderedDict()
        self._graphs: OrderedDict[Any, _Recorded] = OrderedDict()
        self._seat: weakref.ref[_Seat] | None = None
        self._faint: list[Any] | None = None
        self._layer: Layer | None = None
        self._pool: Any = None
        self._stream: Any = None
        self._wasted = 0
        self._given_up = ""
        self._lock = threading.Lock()

    @property
    def _standing(self) -> Standing | None:
        seat = None if self._seat is None else self._seat()
        return None if seat is None else seat.standing

    @_standing.setter
    def _standing(self, standing: Standing | None) -> None:
        seat = None if self._seat is None else self._seat()
        if seat is not None:
            seat.standing = standing

    # -- on and off the model ------------------------------------------------------------------------------------------

    def put_on(self, model: nn.Module) -> None:
        """Fill the slot of the model's own call; what it held before is called behind it.

        Graphs recorded earlier are used again if the model is what it was.
        """
        before = model.__dict__.get(SLOT)
        if getattr(before, "region", None) is self:
            return
        model.__dict__[SLOT] = self._slot(model, before)
        if self._graphs:
            standing = Standing(model)
            if standing.faint == self._faint:
                self._standing = standing
            else:
                self._drop("the model was changed while it was not compiled")

    def take_off(self, model: nn.Module) -> None:
        """Empty the slot again, unless someone else has filled it since. The graphs are kept."""
        slot: Any = model.__dict__.get(SLOT)
        self._standing = None
        if getattr(slot, "region", None) is self:
            before = slot.before
            if before is None or getattr(getattr(before, "region", None), "retired", False):
                del model.__dict__[SLOT]
            else:
                model.__dict__[SLOT] = before

    def retire(self) -> None:
        """Give the graphs and their memory back, for good."""
        self.retired = True
        self._clear()

    def ran(self, compiled: bool, reason: str = "") -> None:
        """Take note that the model's latest call went past its graphs, uncompiled, and its regions noted that."""
        self._ran_eager = True

    def notes(self) -> list[str]:
        """Lines for a report: how much was replayed, and why other calls were not."""
        told = [f"CUDA graph: {self.recorded} recorded, {self.replayed} calls replayed"]
        return told + [f"CUDA graph: {reason}" for reason in self._reasons]

    # -- a call --------------------------------------------------------------------------------------------------------

    def _slot(self, model: nn.Module, before: Callable[..., Any] | None) -> Callable[..., Any]:
        run: Callable[..., Any] = model._call_impl if before is None else before
        is_compiling: Callable[[], bool] = torch.compiler.is_compiling
        is_tracing: Callable[[], bool] = torch.jit.is_tracing
        is_grad_enabled = torch.is_grad_enabled
        seat = _Seat()
        self._seat = weakref.ref(seat)

        def slot(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or is_tracing() or _watched():
                return run(*args, **kwargs)
            if is_grad_enabled():
                self._reasons.setdefault("gradients are on: call the model under torch.no_grad()", None)
                return run(*args, **kwargs)
            if self._given_up or not self._lock.acquire(blocking=False):
                return run(*args, **kwargs)  # another thread is in the graphs' buffers
            try:
                return self._call(model, run, args, kwargs)
            except KeyboardInterrupt as interrupt:
                leave_out_compiler(interrupt)
                raise
            finally:
                self._lock.release()

        slot.region, slot.before, slot.seat = self, before, seat  # type: ignore[attr-defined]
        return slot

    def _call(self, model: nn.Module, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        standing = self._standing
        if standing is not None:
            if standing.hooked():
                self._reasons.setdefault(_HOOKS, None)
                return run(*args, **kwargs)
            changed = standing.changed()
            if changed:
                self._drop(changed)
                standing = None
        try:
            inputs: list[torch.Tensor] = []
            key = (_state(), *_described(args, kwargs, inputs))
            hash(key)
        except (Unfit, TypeError) as error:
            self._reasons.setdefault(str(error), None)
            return run(*args, **kwargs)
        recorded = self._graphs.get(key)
        if recorded is not None:
            self._graphs.move_to_end(key)
            return self._replayed(recorded, inputs)
        kind = self._kind(key)
        if kind.reason or kind.calls == 1:
            return run(*args, **kwargs)
        why = self._elsewhere(model, inputs)
        if why:
            return self._without(kind, why, run, args, kwargs)
        if standing is None:
            standing = self._standing = Standing(model)
            self._faint = standing.faint
            if standing.unfit:
                self._standing, kind.reason = None, standing.unfit
                return self._without(kind, standing.unfit, run, args, kwargs)
            if standing.hooked():
                return self._without(kind, _HOOKS, run, args, kwargs)
        if kind.calls == 2:
            return self._observed(kind, standing, run, args, kwargs, inputs)
        if not self._room():
            return run(*args, **kwargs)
        try:
            recorded = self._record(standing, run, args, kwargs, inputs)
        except Exception as error:
            kind.reason = str(error) if isinstance(error, Unfit) else f"recording failed: {_first_line(error)}"
            self._reasons.setdefault(kind.reason, None)
            return run(*args, **kwargs)
        self._graphs[key] = recorded
        del self._kinds[key]
        return self._replayed(recorded, inputs)

    def _without(
        self, kind: _Kind, reason: str, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run as without graphs, and begin anew with the next call of the kind: what hinders may go away."""
        self._reasons.setdefault(reason, None)
        kind.calls = 1
        return run(*args, **kwargs)

    def _kind(self, key: Any) -> _Kind:
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind()
            if len(self._kinds) > _MOST_KINDS:
                self._kinds.popitem(last=False)
                self._reasons.setdefault(
                    f"the calls differ in shape or arguments, {_MOST_KINDS} kinds and more: only what comes three "
                    "times is recorded. Pad the inputs to a few lengths",
                    None,
                )
        self._kinds.move_to_end(key)
        kind.calls += 1
        return kind

    def _elsewhere(self, model: nn.Module, inputs: Inputs) -> str:
        """Why a call cannot be recorded where it computes, ``""`` if it can."""
        first = next(model.parameters(), None)
        if first is None:
            return "the model has no weights, so that it is not known on which device it computes"
        self._layer = layer_for(first.device)
        if self._layer is None:
            return f"the model is on {first.device}, where there are no CUDA graphs"
        if _distributed():
            return "the model runs on several processes, which have to meet in each call"
        for tensor in inputs:
            if tensor.device != first.device:
                return f"it is handed a tensor on {tensor.device} while the model is on {first.device}"
        return ""

    # -- is it fit -----------------------------------------------------------------------------------------------------

    def _observed(
        self,
        kind: _Kind,
        standing: Standing,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[torch.Tensor],
    ) -> Any:
        """Run a call as without graphs, and see whether it does what a replay would not, or twice, or elsewhere."""
        assert self._layer is not None  # known since _elsewhere
        given = [tensor._version if not tensor.is_inference() else tensor.clone() for tensor in inputs]
        written = [tensor._version for tensor in standing.tensors]
        drawn = self._random_states()
        shape = _described(args, kwargs, [])
        result = run(*args, **kwargs)
        reason = ""
        changed = standing.changed()
        if changed:
            self._standing = None
            kind.changes += 1
            if kind.changes < _MOST_CHANGES:  # something that is made when it is first needed
                kind.calls = 1
                return result
            reason = f"the call changes the model ({changed}), which a replay would not"
        elif [tensor._version for tensor in standing.tensors] != written:
            reason = "the call writes to the model's own weights or buffers"
        elif not all(map(_untouched, inputs, given)) or _described(args, kwargs, []) != shape:
            reason = "the call changes its arguments, and a replay has buffers of its own for them"
        elif not all(map(_equal, drawn, self._random_states())):
            reason = "the call draws random numbers"
        kind.reason = reason
        if reason:
            self._reasons.setdefault(reason, None)
        return result

    def _random_states(self) -> list[Any]:
        assert self._layer is not None
        return [self._layer.random_state(), torch.get_rng_state(), random.getstate()]

    def _room(self) -> bool:
        """Make room for another graph; whether it is worth while."""
        while len(self._graphs) >= MOST_GRAPHS:
            _, old = self._graphs.popitem(last=False)
            self._waste(old)
            old.graph.reset()
        if self._wasted >= _MOST_WASTED:
            self._give_up(
                f"{self._wasted} graphs were hardly used before they had to go: shapes or model change too often"
            )
            return False
        return True

    # -- record and replay ---------------------------------------------------------------------------------------------

    def _record(
        self,
        standing: Standing,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[torch.Tensor],
    ) -> _Recorded:
        layer = self._layer
        assert layer is not None
        buffers = [_buffer_like(tensor) for tensor in inputs]
        for buffer, tensor in zip(buffers, inputs, strict=True):
            _compact(buffer).copy_(_compact(tensor))
        own = iter(buffers)
        own_args, own_kwargs = _exchanged(args, own), _exchanged(kwargs, own)
        if self._pool is None:
            self._pool = layer.new_pool()

        def call() -> Any:
            return run(*own_args, **own_kwargs)

        with _one_at_a_time, _no_cached_casts():
            places = layer.rehearse(call)
            changed = standing.changed()
            if changed:
                self._standing = None
                raise Unfit(f"the call changes the model ({changed}), which a replay would not")
            if places:
                raise Unfit(f"the call waits for the device, at {', '.join(dict.fromkeys(places))}")
            try:
                graph, result = layer.record(call, self._pool)
            except BaseException:
                self._pool = None  # what the failed one holds of it may never be given back
                raise
        try:
            rebuild = _Rebuild(buffers, standing.tensors).of(result, "the result")
        except Unfit:
            graph.reset()
            raise
        self.recorded += 1
        return _Recorded(graph, buffers, rebuild, [(r, r.compiled, r.eager_reason) for r in self._regions()])

    def _replayed(self, recorded: _Recorded, inputs: Inputs) -> Any:
        layer = self._layer
        assert layer is not None
        if self._stream is not None:
            layer.follow(self._stream)  # graphs share their memory, so no two may run at a time
        self._stream = layer.stream()
        recorded.fill(inputs)
        recorded.graph.replay()
        if self._ran_eager:
            for region, compiled, reason in recorded.ran:
                region.ran(compiled, reason)
            self._ran_eager = False
        recorded.replays += 1
        self.replayed += 1
        return recorded.result(inputs)

    def _drop(self, reason: str) -> None:
        """Give all graphs back: they are of a model that has changed."""
        if self._graphs:
            self._reasons.setdefault(f"recorded anew: {reason}", None)
        for recorded in self._graphs.values():
            self._waste(recorded)
        self._clear()

    def _waste(self, recorded: _Recorded) -> None:
        self._wasted = self._wasted + 1 if recorded.replays < _WORTH_IT else 0

    def _give_up(self, reason: str) -> None:
        self._given_up = reason
        self._reasons.setdefault(reason, None)
        self._clear()

    def _clear(self) -> None:
        for recorded in self._graphs.values():
            with contextlib.suppress(RuntimeError):
                recorded.graph.reset()
        self._graphs.clear()
        self._kinds.clear()
        self._standing, self._faint, self._pool = None, None, None


# -- what tells calls apart --------------------------------------------------------------------------------------------


def _state() -> tuple[Any, ...]:
    """What of the process changes what a call computes."""
    cuda = torch.backends.cuda
    autocast = torch.is_autocast_enabled("cuda"), torch.is_autocast_enabled("cpu")
    return (
        torch.is_inference_mode_enabled(),
        autocast,
        torch.get_autocast_dtype("cuda") if autocast[0] else None,
        torch.get_autocast_dtype("cpu") if autocast[1] else None,
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    )


def _described(args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[torch.Tensor]) -> tuple[Any, ...]:
    """A call's arguments but for the values in tensors, which are collected."""
    told = [_of(value, inputs) for value in args]
    return tuple(told), tuple([(name, _of(value, inputs)) for name, value in kwargs.items()])


def _of(value: Any, inputs: list[torch.Tensor]) -> Any:
    kind = type(value)
    if kind in _TENSORS:
        if value.layout is not torch.strided or value.is_nested or value.is_conj() or value.is_neg():
            raise Unfit("it is handed a tensor that is sparse, nested, conjugated or negated")
        inputs.append(value)
        return value.shape, value.stride(), value.dtype, value.device
    if kind in _PLAIN:
        return kind, value
    if kind in (list, tuple):
        return kind, tuple([_of(part, inputs) for part in value])
    if kind is dict:
        return kind, tuple([(key, _of(part, inputs)) for key, part in value.items()])
    if "transformers.cache_utils" in (base.__module__ for base in kind.__mro__):
        raise Unfit(
            f"it is handed a KV cache ({kind.__name__}), which the call changes; use_cache=False for a plain forward"
        )
    raise Unfit(f"it is handed a {kind.__name__}, of which it is not known what the call takes from it")


def _exchanged(value: Any, own: Iterator[torch.Tensor]) -> Any:
    """The same arguments with other tensors."""
    if type(value) in _TENSORS:
        return next(own)
    if type(value) in (list, tuple):
        return type(value)([_exchanged(part, own) for part in value])
    return {key: _exchanged(part, own) for key, part in value.items()} if type(value) is dict else value


def _buffer_like(tensor: torch.Tensor) -> torch.Tensor:
    if _overlaps(_compact(tensor)):
        raise Unfit("it is handed a tensor in which elements share their memory")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without its expanded dimensions, in which all entries are one."""
    if 0 in tensor.stride():
        for dimension, stride in enumerate(tensor.stride()):
            if stride == 0 and tensor.shape[dimension] > 1:
                tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _overlaps(tensor: torch.Tensor) -> bool:
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def _untouched(tensor: torch.Tensor, before: Any) -> bool:
    return torch.equal(tensor, before) if isinstance(before, torch.Tensor) else bool(tensor._version == before)


def _equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def _watched() -> bool:
    """Whether someone looks at each operation: a profile of FLOPs, a trace, ``torch.func``, a graph of someone else's.

    There is no public way to ask. Checked on torch 2.11 and 2.13; where a name is missing the answer is no.
    """
    if _modes() or _functions():
        return True
    return _transforms() is not None or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def _functions() -> bool:
    """Whether a ``TorchFunctionMode`` is in force, other than that of ``torch.set_default_device``."""
    return bool(_function_modes()) and any(
        type(mode).__name__ != "DeviceContext" for mode in torch.overrides._get_current_function_mode_stack()
    )


_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_function_modes: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", lambda: 0)
_transforms: Callable[[], Any] = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)


def _distributed() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


@contextlib.contextmanager
def _no_cached_casts() -> Iterator[None]:
    """Autocast keeps weights that it has cast until its context ends; a graph may neither read nor leave such."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


def _first_line(error: BaseException) -> str:
    """What went wrong first: behind it come the errors of ending a recording that had failed already."""
    while error.__context__ is not None:
        error = error.__context__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


# -- results -----------------------------------------------------------------------------------------------------------


class _Rebuild:
    """Makes of a recorded result a function that gives the user a copy of it: the next replay overwrites the tensors.

    A tensor that is an argument or belongs to the model is handed back itself, as the model does.
    """

    def __init__(self, buffers: list[torch.Tensor], own: list[torch.Tensor]) -> None:
        self._places = {id(buffer): number for number, buffer in enumerate(buffers)}
        self._own = {id(tensor) for tensor in own}
        self._device = (buffers or own)[0].device

    def of(self, value: Any, where: str) -> Callable[[Inputs], Any]:
        kind = type(value)
        if kind in _TENSORS:
            return self._tensor(value, where)
        if kind in _PLAIN or isinstance(value, type):
            return lambda inputs: value
        if isinstance(value, tuple):
            parts = [self.of(part, where) for part in value]
            make: Callable[[list[Any]], Any] = getattr(kind, "_make", kind)
            return lambda inputs: make([part(inputs) for part in parts])
        if kind is list:
            parts = [self.of(part, where) for part in value]
            return lambda inputs: [part(inputs) for part in parts]
        if dataclasses.is_dataclass(value):  # transformers' and diffusers' outputs are dictionaries too
            named = {f.name: self.of(getattr(value, f.name), f.name) for f in dataclasses.fields(value) if f.init}
            return lambda inputs: kind(**{name: part(inputs) for name, part in named.items()})
        if kind in (dict, OrderedDict):
            keyed = {key: self.of(part, str(key)) for key, part in value.items()}
            return lambda inputs: kind([(key, part(inputs)) for key, part in keyed.items()])
        if kind.__module__ == "transformers.cache_utils":
            members = {name: self.of(part, where) for name, part in vars(value).items()}
            return lambda inputs: _made(kind, {name: part(inputs) for name, part in members.items()})
        raise Unfit(f"it returns a {kind.__name__} ({where}), of which no safe copy can be made")

    def _tensor(self, value: torch.Tensor, where: str) -> Callable[[Inputs], Any]:
        place = self._places.get(id(value))
        if place is not None:
            return lambda inputs: inputs[place]
        if id(value) in self._own:
            return lambda inputs: value
        if value.device != self._device:
            raise Unfit(f"it returns a tensor on {value.device} ({where}), which a replay would not make anew")
        return lambda inputs: value.clone()


def _made(kind: type, members: dict[str, Any]) -> Any:
    made: Any = object.__new__(kind)
    made.__dict__.update(members)
    return made
