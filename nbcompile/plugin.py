"""The settings of a compilation, checked before anything is compiled."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import UsageError

_PREFIX = "ACCELERATE_DYNAMO_"
_TRUE, _FALSE = ("y", "yes", "t", "true", "on", "1"), ("n", "no", "f", "false", "off", "0")

Backend = str | Callable[..., Any]


@dataclass
class TorchDynamoPlugin:
    """How to compile: the fields of ``torch.compile``, and whether block by block.

    The fields, their names and the environment variables that give their defaults are those of Accelerate's class of
    the same name, so that a script can change its import and nothing else. A field left at ``None`` takes its default
    from ``ACCELERATE_DYNAMO_BACKEND``, ``_MODE``, ``_USE_FULLGRAPH``, ``_USE_DYNAMIC`` and
    ``_USE_REGIONAL_COMPILATION``, and where those are not set, the default named below.

    Attributes:
        backend: a name from ``torch.compiler.list_backends(exclude_tags=())`` in any case, or a callable that takes a
            ``torch.fx.GraphModule`` and its example inputs. Default ``"inductor"``. ``"no"`` compiles nothing.
        mode: a key of ``torch._inductor.list_mode_options()``. Default ``"default"``.
        fullgraph: fail where the compiler would have to return to Python. Default false.
        dynamic: trace with dynamic shapes (true), never (false), or once a size has changed (``None``).
        options: options of the backend, see ``torch._inductor.list_options()``. Not together with ``mode``.
        disable: compile nothing.
        use_regional_compilation: compile block by block. Default true.

    Raises:
        UsageError: a backend, mode or option that does not exist here, or ``mode`` together with ``options``.
    """

    backend: Backend | None = None
    mode: str | None = None
    fullgraph: bool | None = None
    dynamic: bool | None = None
    options: dict[str, Any] | None = None
    disable: bool = False
    use_regional_compilation: bool | None = None

    def __post_init__(self) -> None:
        if self.backend is None:
            self.backend = os.environ.get(_PREFIX + "BACKEND") or "inductor"
        if isinstance(self.backend, str):
            self.backend = self.backend.lower()
        else:  # accelerate's DynamoBackend is an Enum whose values are the names in capitals
            self.backend = getattr(self.backend, "value", self.backend)
            self.backend = self.backend.lower() if isinstance(self.backend, str) else self.backend
        if self.mode is None and self.options is None:
            self.mode = os.environ.get(_PREFIX + "MODE") or "default"
        self.fullgraph = _default(self.fullgraph, "USE_FULLGRAPH", False)
        self.dynamic = _default(self.dynamic, "USE_DYNAMIC", None)
        self.use_regional_compilation = _default(self.use_regional_compilation, "USE_REGIONAL_COMPILATION", True)
        if self.backend == "no":
            self.backend, self.disable = "eager", True
        for name in ("fullgraph", "disable", "use_regional_compilation"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} takes True or False, not {getattr(self, name)!r}")
        if self.dynamic is not None and not isinstance(self.dynamic, bool):
            raise UsageError(f"dynamic takes True, False or None, not {self.dynamic!r}")
        _check_backend(self.backend)
        _check_mode(self.mode, self.options, self.backend)
        _check_options(self.options, self.backend)

    def to_kwargs(self) -> dict[str, Any]:
        """The keywords for ``torch.compile``: every field that differs from torch's own default."""
        kwargs: dict[str, Any] = {}
        if self.backend != "inductor":
            kwargs["backend"] = self.backend
        if self.mode not in (None, "default"):
            kwargs["mode"] = self.mode
        if self.fullgraph:
            kwargs["fullgraph"] = True
        if self.dynamic is not None:
            kwargs["dynamic"] = self.dynamic
        if self.options:
            kwargs["options"] = dict(self.options)
        if self.disable:
            kwargs["disable"] = True
        return kwargs

    def to_dict(self) -> dict[str, Any]:
        """Every field, JSON-ready: a callable backend by its name, an option that is no plain value by its text."""
        return {
            "backend": backend_name(self.backend),
            "mode": self.mode,
            "fullgraph": self.fullgraph,
            "dynamic": self.dynamic,
            "options": None if self.options is None else {k: _plain_option(v) for k, v in self.options.items()},
            "disable": self.disable,
            "use_regional_compilation": self.use_regional_compilation,
        }


def backend_name(backend: Backend | None) -> str:
    """A backend's name for people: the string itself, or what the callable is called."""
    if isinstance(backend, str):
        return backend
    return getattr(backend, "__name__", type(backend).__name__)


def list_backends() -> list[str]:
    """The backends that exist in this environment, those meant for debugging included."""
    import torch

    return sorted(torch.compiler.list_backends(exclude_tags=()))


def list_modes() -> list[str]:
    """The modes of the inductor backend in this version of torch."""
    import torch._inductor

    return list(torch._inductor.list_mode_options())


def _default(value: Any, name: str, otherwise: bool | None) -> Any:
    text = os.environ.get(_PREFIX + name)
    if value is not None or text is None:
        return otherwise if value is None else value
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise UsageError(f"{_PREFIX}{name} is {text!r}; it takes {' or '.join((_TRUE[3], _FALSE[3]))}")


def _plain_option(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _suggestion(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=3)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def _check_backend(backend: Any) -> None:
    if callable(backend) and not isinstance(backend, str):
        return
    if not isinstance(backend, str):
        raise UsageError(f"backend takes a name or a callable, not {type(backend).__name__}")
    if backend == "inductor":  # always there; asking for the list would import the other backends
        return
    known = list_backends()
    if backend not in known:
        raise UsageError(
            f"there is no backend {backend!r} in this environment.{_suggestion(backend, known)} "
            f"Those that exist: {', '.join(known)}"
        )


def _check_mode(mode: Any, options: Any, backend: Any) -> None:
    if mode is None:
        return
    if options is not None:
        raise UsageError(
            "torch.compile takes mode or options, not both: a mode is a set of options. Pass options alone, with what "
            f"the mode stands for added (torch._inductor.list_mode_options({mode!r}) lists it)"
        )
    if mode == "default":
        return
    known = list_modes()
    if mode not in known:
        raise UsageError(
            f"there is no mode {mode!r}.{_suggestion(str(mode), known)} Those that exist: {', '.join(known)}"
        )
    if backend != "inductor" and not _takes(backend, "mode"):
        raise UsageError(
            f"mode={mode!r} is a setting of the inductor backend; the backend {backend_name(backend)!r} has no modes. "
            "Leave mode out, or use backend='inductor'"
        )


def _check_options(options: Any, backend: Any) -> None:
    if options is None:
        return
    if not isinstance(options, dict):
        raise UsageError(f"options takes a dictionary, not {type(options).__name__}")
    if backend == "inductor":
        import torch._inductor

        known = torch._inductor.list_options()
        for name in options:
            # torch.compile itself takes these two out of the options before the backend sees them
            if name not in ("guard_filter_fn", "use_aoti") and str(name).replace("-", "_") not in known:
                raise UsageError(
                    f"the inductor backend has no option {name!r}.{_suggestion(str(name), known)} "
                    "torch._inductor.list_options() lists those that exist"
                )
        _check_option_types(options)
    elif options and not _takes(backend, "options"):
        raise UsageError(
            f"the backend {backend_name(backend)!r} takes no options; leave options out, or use backend='inductor'"
        )


def _check_option_types(options: dict[str, Any]) -> None:
    """Refuse a value of the wrong type, as torch would when it compiles, but before anything is compiled."""
    from torch._inductor import config

    for name, value in options.items():
        if name in ("guard_filter_fn", "use_aoti"):
            continue
        kind = config.get_type(name.replace("-", "_"))  # type: ignore[attr-defined]
        if isinstance(kind, type) and not isinstance(value, kind):
            raise UsageError(f"the option {name!r} takes {kind.__name__}, not {value!r}")


def _takes(backend: Any, keyword: str) -> bool:
    """Whether a backend's callable accepts a keyword; torch hands mode and options on as such.

    A registered backend must name the keyword: those of torch that take any keyword ignore what they do not know.
    """
    by_name = isinstance(backend, str)
    if by_name:
        import torch._dynamo

        backend = torch._dynamo.lookup_backend(backend)
    try:
        parameters = inspect.signature(backend).parameters.values()
    except (TypeError, ValueError):
        return True  # cannot be known beforehand: let the backend say
    return any(p.name == keyword or (p.kind is inspect.Parameter.VAR_KEYWORD and not by_name) for p in parameters)
