"""How a model stands: what a recorded graph relies on, and whether that is still so.

A recorded graph holds addresses of weights and the outcome of everything that Python decided. So before each replay it
is looked at whether the model's tensors lie where they lay, whether its modules, their attributes and the objects that
these hold (a config) are the same, and whether the code of its methods is. Weights that are changed in place are no
change here: a replay reads them.

The look has to be cheap, for it is part of each step: some tens of microseconds for a model of some hundred modules.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import operator
import types
import weakref
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import nn

from .methods import Methods

_SLOT = "_compiled_call_impl"
#: What every module has, but for the flag that decides how it computes.
_STANDARD = (frozenset(vars(nn.Module())) - {"training"}) | {_SLOT}
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, range, type, enum.Enum, torch.dtype, torch.device, torch.Size,
    types.FunctionType, types.BuiltinFunctionType, types.MethodType,
)  # fmt: skip
_VALUES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
#: Packages whose own code and globals do not change under a model.
_FOREIGN = frozenset({"torch", "builtins", "typing", "abc", "collections", "functools", "nbcompile"})
#: Containers with more entries are looked at by identity alone.
_LARGE = 64
_CODE = (types.FunctionType, types.MethodType)
_CONTAINERS = (list, tuple, dict, set, frozenset)
_TENSORS = (torch.Tensor, nn.Parameter, nn.Buffer)

_address, _elements, _strides = torch.Tensor.data_ptr, torch.Tensor.numel, torch.Tensor.stride


class Standing:
    """A model at one moment. Holds its parts strongly, so keep it where it goes when the model does.

    Attributes:
        device: where all of its weights lie; ``None`` if it has none.
        unfit: why no graph of it can be relied on, ``""`` if one can.
        tensors: its parameters, buffers, and tensors that are plain attributes.
        faint: all of it in values, numbers and weak references, to tell later whether another moment is the same.
    """

    def __init__(self, model: nn.Module) -> None:
        named = list(model.named_modules())
        modules = [module for _, module in named]
        self._parts, self._classes = modules, [*map(type, modules)]
        self._children = _Members([module._modules for module in modules])
        self._slots = _Members([members for module in modules for members in (module._parameters, module._buffers)])
        self.tensors = [tensor for tensor in self._slots.values if tensor is not None]
        self._attributes: list[tuple[dict[str, Any], int, Callable[[dict[str, Any]], Any], Any]] = []
        self._objects: list[tuple[dict[str, Any], str, Any]] = []
        self._containers: list[tuple[Any, Any, bool]] = []
        self._inner: list[tuple[dict[str, Any], int, dict[str, Any]]] = []
        self._plain: list[dict[str, Any]] = []
        self._where: list[str] = []
        seen: set[int] = set()
        for name, module in named:
            self._look_at(name, module, seen)
        self._names: list[tuple[dict[str, Any], Callable[[dict[str, Any]], tuple[Any, ...]], tuple[Any, ...]]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._look_outside(seen)
        self.unfit = _unfit(self.tensors, model)
        first = next(model.parameters(), None)
        self.device: torch.device | None = (
            (self.tensors[0] if first is None else first).device if self.tensors else None
        )
        if not self.unfit:
            self._addresses = [*map(_address, self.tensors)]
            self._sizes, self._all_strides = [*map(_elements, self.tensors)], [*map(_strides, self.tensors)]
            # of a tensor elsewhere a graph knows the values that it had, so those may not change either
            self._elsewhere = [tensor for tensor in self.tensors if tensor.device != self.device]
            self._versions = [tensor._version for tensor in self._elsewhere]
        hooks = [(m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks) for m in modules]
        own = nn.modules.module
        self._hooks: tuple[dict[int, Any], ...] = (
            own._global_forward_hooks, own._global_forward_pre_hooks, *chain.from_iterable(hooks)
        )  # fmt: skip
        self._methods = Methods()
        self._methods.look_at([model])
        self._code = self._methods.version
        self.faint = self._faint(modules)

    def hooked(self) -> bool:
        """Whether a hook is in force, which a replay would not run."""
        return any(self._hooks)

    def changed(self) -> str:
        """What is no longer as it was, in words; ``""`` if nothing is."""
        try:
            if not self._children.same():
                return "a module was put in, taken away or exchanged"
            if [*map(type, self._parts)] != self._classes:
                return "a module was given another class"
            if not self._slots.same():
                return "a weight or buffer was exchanged"
            if [*map(_address, self.tensors)] != self._addresses:
                return "weights or buffers were moved to other memory"
            if [*map(_elements, self.tensors)] != self._sizes or [*map(_strides, self.tensors)] != self._all_strides:
                return "a weight or buffer has another shape"
            if any(map(operator.ne, (tensor._version for tensor in self._elsewhere), self._versions)):
                return "a tensor that the model keeps on another device was written to"
            for place, (members, count, get, values) in enumerate(self._attributes):
                if len(members) != count or get(members) != values:
                    return self._which(place)
            for members, name, value in self._objects:
                if members.get(name) is not value:
                    return f"the attribute {name} of one of its modules is another object"
            for members, count, values in self._inner:
                if len(members) != count or any(members[name] != value for name, value in values.items()):
                    return "an object that its modules hold, such as its config, has another value"
            for held, content, plain in self._containers:
                if (held if plain else _content(held)) != content:
                    return "a list or dictionary that its modules hold has other contents"
            for held, get, values in self._names:
                if not all(map(operator.is_, get(held), values)):
                    return "a global name that its code uses stands for something else"
            if any(cell.cell_contents is not value for cell, value in self._cells):
                return "a variable that its code has from around it stands for something else"
            self._methods.check()
            if self._methods.version != self._code:
                return "the code of its methods was exchanged"
        except (KeyError, RuntimeError, TypeError, ValueError):  # gone, or of a kind that cannot be compared
            return "an attribute of one of its modules is of another kind"
        return ""

    def _which(self, place: int) -> str:
        members, before = self._attributes[place][0], self._plain[place]
        where = self._where[place] or "the model itself"
        gone = [name for name in before if name not in members]
        new = [name for name in members if name not in before and isinstance(members[name], _PLAIN)]
        other = [name for name, value in before.items() if name in members and members[name] != value]
        names = ", ".join([*other, *gone, *(name for name in new if name not in _STANDARD)])
        return f"{names or 'an attribute'} of {where} was changed"

    def _look_at(self, name: str, module: nn.Module, seen: set[int]) -> None:
        members = vars(module)
        plain: list[str] = []
        for attribute, value in members.items():
            if attribute in _STANDARD:
                continue
            if isinstance(value, _PLAIN):
                plain.append(attribute)
                continue
            self._objects.append((members, attribute, value))
            if isinstance(value, torch.Tensor):
                self.tensors.append(value)
            elif id(value) not in seen:
                seen.add(id(value))
                self._look_into(value)
        get = operator.itemgetter(*plain) if plain else _nothing
        self._attributes.append((members, len(members), get, get(members)))
        self._plain.append({attribute: members[attribute] for attribute in plain})
        self._where.append(name)

    def _look_into(self, value: Any) -> None:
        """Take note of an object that modules hold: one level, and the containers in it."""
        if isinstance(value, _CONTAINERS):
            self._look_into_container(value)
            return
        members = getattr(value, "__dict__", None)
        if not isinstance(members, dict) or isinstance(value, nn.Module):
            return
        values = {name: inner for name, inner in members.items() if isinstance(inner, _PLAIN)}
        self._inner.append((members, len(members), values))
        for inner in members.values():
            if isinstance(inner, _CONTAINERS):
                self._look_into_container(inner)

    def _look_into_container(self, held: Any) -> None:
        plain = _is_plain(held)  # then it can be compared as it is, which is ten times as fast
        self._containers.append((held, copy.deepcopy(held) if plain else _content(held), plain))

    def _look_outside(self, seen: set[int]) -> None:
        """Take note of what the code of the modules reads beside them: class attributes, global names, closures."""
        classes = [
            kind
            for kind in dict.fromkeys(base for own in self._classes for base in own.__mro__)
            if kind.__module__.partition(".")[0] not in _FOREIGN
        ]
        for kind in classes:
            plain = [name for name, value in vars(kind).items() if type(value) in _VALUES and name[:2] != "__"]
            if plain:
                get = operator.itemgetter(*plain)
                members: Any = vars(kind)
                self._attributes.append((members, len(members), get, get(members)))
                self._plain.append({name: members[name] for name in plain})
                self._where.append(f"the class {kind.__name__}")
        by_globals: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        for function in _reached(classes, self._parts):
            space = function.__globals__
            _, used = by_globals.setdefault(id(space), (space, {}))
            for name in _names_in(function.__code__):
                if name in space:
                    used[name] = space[name]
            for cell in function.__closure__ or ():
                with contextlib.suppress(ValueError):  # it is empty as yet
                    self._cells.append((cell, cell.cell_contents))
        for space, used in by_globals.values():
            if used:
                names = list(used)
                get = operator.itemgetter(*names, names[0])  # of one name it would give no tuple
                self._names.append((space, get, get(space)))
        for value in (*(value for _, used in by_globals.values() for value in used.values()), *_contents(self._cells)):
            if type(value) in _TENSORS:
                self.tensors.append(value)
            elif isinstance(value, _CONTAINERS) and len(value) <= _LARGE and id(value) not in seen:
                seen.add(id(value))
                self._look_into_container(value)

    def _faint(self, modules: list[nn.Module]) -> list[Any]:
        facts: list[Any] = [weakref.ref(module) for module in modules]
        facts += map(id, self._classes)
        facts += map(id, self._slots.values)
        if not self.unfit:
            facts += [self._addresses, self._sizes, self._all_strides, self._versions]
        facts += [(len(members), _told(get(members))) for members, _, get, _ in self._attributes]
        facts += [(name, id(value)) for _, name, value in self._objects]
        facts += [(len(members), _told(tuple(values.values()))) for members, _, values in self._inner]
        facts += [_content(held) for held, _, _ in self._containers]
        facts += [[*map(id, values)] for _, _, values in self._names]
        facts += [id(value) for _, value in self._cells]
        facts.append(self._methods._seen)
        return facts


def _reached(classes: list[type], modules: list[nn.Module]) -> list[types.FunctionType]:
    """The functions that a forward may come to, by name: methods of the classes, and functions that they call."""
    found: dict[types.FunctionType, None] = {}
    methods: dict[str, list[Any]] = {}
    for kind in classes:
        for name, value in vars(kind).items():
            methods.setdefault(name, []).append(value)
    todo: list[Any] = [*methods.get("forward", ())]
    todo += [vars(module)["forward"] for module in modules if "forward" in vars(module)]
    asked = {"forward"}
    while todo:
        value = todo.pop()
        # of a property, of a method or class method, or the function itself
        value = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
        inner = getattr(value, "__wrapped__", None)
        if inner is not None:
            todo.append(inner)
        if not isinstance(value, types.FunctionType) or value in found:
            continue
        if (value.__module__ or "").partition(".")[0] in _FOREIGN:
            continue
        found[value] = None
        for name in _names_in(value.__code__):
            if name in value.__globals__:
                todo.append(value.__globals__[name])
            if name not in asked:
                asked.add(name)
                todo += methods.get(name, ())
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):
                todo.append(cell.cell_contents)
    return list(found)


def _names_in(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
    return names


def _contents(cells: list[tuple[types.CellType, Any]]) -> list[Any]:
    return [value for _, value in cells]


class _Members:
    """What is in some dictionaries, by identity."""

    def __init__(self, dictionaries: list[dict[str, Any]]) -> None:
        self._dictionaries = dictionaries
        self._views = [members.values() for members in dictionaries if members]  # they show what comes later, too
        self.values = list(chain.from_iterable(self._views))

    def same(self) -> bool:
        together = sum(map(len, self._dictionaries))
        return together == len(self.values) and all(map(operator.is_, chain.from_iterable(self._views), self.values))


def _nothing(members: dict[str, Any]) -> tuple[()]:
    return ()


def _content(held: Any) -> Any:
    """What a container holds: plain values by themselves, containers by what they hold, anything else by identity."""
    if isinstance(held, dict):
        return [(_content(key), _content(value)) for key, value in dict.items(held)]  # a subclass may tell otherwise
    if isinstance(held, _CONTAINERS):
        return [_content(value) for value in held]
    return held if isinstance(held, _PLAIN) and not isinstance(held, _CODE) else id(held)


def _is_plain(held: Any) -> bool:
    if type(held) is dict:
        return all(map(_is_plain, held.keys())) and all(map(_is_plain, held.values()))
    if type(held) in _CONTAINERS:
        return all(map(_is_plain, held))
    return isinstance(held, _PLAIN) and not isinstance(held, _CODE)


def _told(values: Any) -> Any:
    """Plain values without what could keep a model alive: a bound method or a closure may hold it."""
    if isinstance(values, (tuple, list)):
        return [_told(value) for value in values]
    if isinstance(values, types.MethodType):
        return "method", id(values.__self__), id(values.__func__)
    return ("function", id(values)) if isinstance(values, types.FunctionType) else values


def _unfit(tensors: list[torch.Tensor], model: nn.Module) -> str:
    for tensor in tensors:
        if type(tensor) not in _TENSORS:
            return f"it holds a {type(tensor).__name__}, of which it cannot be told whether its memory has moved"
        if tensor.layout is not torch.strided or tensor.device.type == "meta":
            where = "on the meta device" if tensor.device.type == "meta" else f"in the layout {tensor.layout}"
            return f"a part of its weights is {where}"
        if tensor.is_inference():
            return "its weights were made in inference mode, where torch does not count writes to them"
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) > 1:
        return f"its weights lie on several devices: {', '.join(sorted(map(str, devices)))}"
    return ""
