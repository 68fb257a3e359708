"""What another process needs to compile a block for a call: the block and the arguments, but none of the user's data.

A tensor is sent as what can be known of it without its values. The other process makes a tensor of that kind, filled
with zeros: an index of zero is one that exists, and zeros take no time to make.

Classes and functions that were defined in a notebook's cell are sent by value, which is what cloudpickle is for.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from .errors import NbcompileError

#: Attributes of which the compiler sees nothing: where a view of a KV cache keeps the whole of it.
_LEFT_OUT = frozenset({"_nbcompile_origin"})
_PLAIN_TENSORS = (torch.Tensor, nn.Parameter, nn.Buffer)
#: A scalar of the user's may decide what is traced (the position of a KV cache, say), so its value is sent.
_MOST_VALUES = 1


class CannotSendError(NbcompileError):
    """A block or its arguments cannot be sent to another process; the message is the reason."""


class Kind(NamedTuple):
    """All that is sent of a tensor.

    Attributes:
        form: ``"tensor"``, ``"parameter"`` or ``"buffer"``.
        leaf: whether it is where a gradient would arrive, not the result of an operation that has one.
        inference: whether it was made in inference mode.
        value: of a tensor with one element on the CPU the element, for any other ``None``.
    """

    form: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    leaf: bool
    inference: bool
    value: Any = None


def kind_of(tensor: torch.Tensor) -> Kind:
    """What is sent of a tensor.

    Raises:
        CannotSendError: it is not a plain tensor.
    """
    if type(tensor) not in _PLAIN_TENSORS or tensor.layout is not torch.strided or tensor.is_nested:
        raise CannotSendError(f"it has a {type(tensor).__name__} in the layout {tensor.layout}, which is not sent")
    if tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
        raise CannotSendError("it has a tensor that is conjugated, negated lazily or quantized, which is not sent")
    form = "tensor"
    if isinstance(tensor, nn.Parameter):
        form = "parameter"
    elif isinstance(tensor, nn.Buffer):
        form = "buffer"
    small = tensor.device.type == "cpu" and tensor.numel() <= _MOST_VALUES and not tensor.is_floating_point()
    return Kind(
        form,
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor.requires_grad,
        tensor.is_leaf,
        tensor.is_inference(),
        tensor.item() if small and tensor.numel() else None,
    )


def stand_in(kind: Kind) -> torch.Tensor:
    """A fresh tensor of a kind."""
    with torch.inference_mode(kind.inference):
        tensor = torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype, device=kind.device)
        tensor.fill_(kind.value) if _is_scalar(kind.value) else tensor.zero_()
    if kind.form == "parameter":
        return nn.Parameter(tensor, requires_grad=kind.requires_grad)
    if kind.form == "buffer":
        return nn.Buffer(tensor)
    if kind.requires_grad:
        tensor.requires_grad_()
        if not kind.leaf:
            with torch.enable_grad():
                result = torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype, device=kind.device)
                return result.copy_(tensor)
    return tensor


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (bool, int))


def dumps(value: Any) -> bytes:
    """Something with tensors in it for :func:`loads`; the same tensor twice is the same there.

    Raises:
        CannotSendError: a part of it cannot be sent.
    """
    try:
        import cloudpickle
    except ImportError:
        raise CannotSendError("the package cloudpickle is not installed: pip install cloudpickle") from None
    numbers: dict[int, tuple[int, Kind, torch.Tensor]] = {}

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        def persistent_id(self, found: Any) -> tuple[int, Kind] | None:
            if not isinstance(found, torch.Tensor):
                return None
            known = numbers.get(id(found))
            if known is None:
                known = numbers[id(found)] = len(numbers), kind_of(found), found  # holds it, so that its id stays its
            return known[:2]

        def reducer_override(self, found: Any) -> Any:
            members = getattr(found, "__dict__", None)
            if type(members) is dict and not _LEFT_OUT.isdisjoint(members):
                kept = {name: value for name, value in members.items() if name not in _LEFT_OUT}
                return _bare, (type(found),), kept
            return super().reducer_override(found)

    stream = io.BytesIO()
    try:
        Pickler(stream).dump(value)
    except CannotSendError:
        raise
    except Exception as error:  # of any kind: it is the user's objects that are asked to describe themselves
        raise CannotSendError(f"it cannot be sent to another process: {type(error).__name__}: {error}") from error
    return stream.getvalue()


def loads(data: bytes) -> Any:
    """What :func:`dumps` was given, with stand-ins for its tensors."""
    import pickle

    made: dict[int, torch.Tensor] = {}

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, told: tuple[int, Kind]) -> torch.Tensor:
            number, kind = told
            if number not in made:
                made[number] = stand_in(kind)
            return made[number]

    return Unpickler(io.BytesIO(data)).load()


def _bare(kind: type) -> Any:
    return object.__new__(kind)


def signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[object, ...]:
    """What of a call's arguments the compiler is likely to compile anew for; equal for calls that are alike.

    Of objects that it does not know, it tells the class and looks one level into them, and at lists in them: a KV cache
    holds a tensor for each layer.
    """
    return tuple(_told(args, 0)), tuple(_told(kwargs, 0))


def _told(value: Any, depth: int) -> Iterator[object]:
    if isinstance(value, torch.Tensor):
        # not a Kind, which takes three times as long to make
        yield value.dtype, value.device, value.requires_grad, value.is_inference(), *value.shape, *value.stride()
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes, torch.dtype, torch.device)):
        yield type(value), value
    elif depth > _DEEPEST:
        yield type(value)
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield type(value), len(value)
        latest: object = _NOTHING
        for inner in value:
            if inner is not latest:  # a cache that shows one layer for all
                yield from _told(inner, depth + 1)
            latest = inner
    elif isinstance(value, dict):
        yield type(value), len(value)
        for key, inner in value.items():
            yield key if isinstance(key, str) else type(key)
            yield from _told(inner, depth + 1)
    elif isinstance(value, nn.Module) or callable(value):
        yield type(value)
    else:
        yield type(value)
        for name, inner in getattr(value, "__dict__", {}).items():
            if name in _LEFT_OUT:
                continue
            yield name
            yield from _told(inner, depth + 1)


_DEEPEST = 5
_NOTHING = object()
