"""Why a block was compiled again: the guard that failed, with the value it was compiled for and the one it met.

The compiler hands out the text of the guard (``CompilationMetrics.recompile_reason``). What the guard's source holds
now is read from the call itself, while it is still there. Nothing of the text is run.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import explain

_PREFIX = re.compile(r"^\d+/\d+(_\d+)?: ")
_LOCAL = re.compile(r"L\['(\w+)'\]")
#: How the compiler names what the code up to a graph break hands to the code behind it.
_COMPUTED = re.compile(r"(?:___as_tensor\()?___stack\d+.*")
_MISSING = object()

#: What the compiler's words for the process's state mean, and what to do about a change of each.
_STATE = {
    "grad_mode": ("gradients were switched on or off", "call the model either always or never under torch.no_grad()"),
    "autocast": ("autocast was switched on or off", "call the model either always or never under torch.autocast"),
    "deterministic_algorithms": (
        "torch.use_deterministic_algorithms was switched on or off",
        "set it once, before the model is compiled",
    ),
    "num_threads": ("torch.set_num_threads was called", "set the number of threads once, before the model is compiled"),
    "default_dtype": ("torch.set_default_dtype was called", "set it once, before the model is compiled"),
    "allow_tf32": ("the setting of TF32 changed", "set it once, before the model is compiled"),
}
#: The names that the compiler's messages use for dtypes.
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
_NUMBER_REMEDY = "each value of a Python number is compiled apart; if it changes from call to call, pass it as a tensor"
_VALUE_REMEDY = "each value is compiled apart; keep to a few of them"
_ATTRIBUTE_REMEDY = (
    "a block's attributes are taken as constants; set it before the first call, or keep what changes in a buffer"
)
_SIZE_REMEDY = (
    "mark the dimension as changing with torch._dynamo.mark_dynamic(tensor, dimension), compile with dynamic=True, or "
    "pad to a few sizes"
)
#: Torch compiles for a size of 0 or 1 apart from all others whatever a tensor's dimensions are marked as.
_ONE_REMEDY = (
    "nothing, if it happens once: sizes 0 and 1 are compiled apart from all others, also with dynamic=True. To save "
    "the compile, pad to 2 or more"
)


@dataclass(frozen=True)
class Cause:
    """Why something was compiled again.

    Attributes:
        reason: what changed, in the user's terms.
        old: the value it was compiled for, ``""`` if the guard does not tell.
        new: the value it met.
        remedy: what to do if it should not happen again.
        caller: the user's line whose call it was, ``""`` if none was found.
    """

    reason: str
    old: str = ""
    new: str = ""
    remedy: str = ""
    caller: str = ""


def cause_of(guard: str, roots: Mapping[str, Any], forward: Callable[..., Any] | None, caller: str = "") -> Cause:
    """Explain a failed guard.

    Args:
        guard: the compiler's text.
        roots: what the names in it stand for at this call: ``block``, ``args`` and ``kwargs``.
        forward: the block's forward, for the names of its arguments.
        caller: the user's line, see :func:`users_line`.
    """
    text = _PREFIX.sub("", guard.strip()).splitlines()[0] if guard.strip() else ""
    text = _LOCAL.sub(r"\1", text.split("  # ")[0].strip())

    def named(source: str) -> str:
        if _COMPUTED.fullmatch(source):
            return "a value computed just before a graph break"
        variable = re.fullmatch(r"G\['[^']+'\]\.(.+)", source)
        return f"the global {variable[1]}" if variable else explain.guard(source, forward)

    def now(source: str) -> Any:
        return _read(source, roots)

    for pattern, tell in _PATTERNS:
        match = re.search(pattern, text)
        if match:
            reason, old, new, remedy = tell(match, named, now)
            return Cause(reason, old, new, remedy, caller)
    return Cause(explain.guard(guard, forward), caller=caller)


def users_line() -> str:
    """The innermost line of the user's own code, outside of any module's methods, that led here.

    Returns:
        A notebook's cell and line, or a file and line; ``""`` if there is none.
    """
    module_class = sys.modules["torch"].nn.Module
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(first, module_class) and _is_method_of(type(first), code):  # the model's own: who called that?
            frame = frame.f_back
            continue
        file = code.co_filename
        if _is_users(file):
            return place(file, frame.f_lineno)
        frame = frame.f_back
    return ""


def place(file: str, line: int) -> str:
    """A place in code: ``Cell In[3], line 2`` in a notebook, ``folder/file.py:2`` elsewhere."""
    cell = _cell(file)
    return f"{cell}, line {line}" if cell else f"{os.sep.join(file.split(os.sep)[-2:])}:{line}"


def place_in(stack: Sequence[tuple[str, int]]) -> str:
    """The place of a stack's innermost line, and the user's own line that led there if it is in a library's code.

    Args:
        stack: files and lines, outermost first.
    """
    if not stack:
        return ""
    innermost = place(*stack[-1])
    own = next((place(*entry) for entry in reversed(stack) if _is_users(entry[0])), innermost)
    return innermost if own == innermost else f"{innermost}, called from {own}"


def _is_users(file: str) -> bool:
    return bool(_cell(file)) or not (file.startswith(_NOT_THE_USERS) or file.startswith("<"))


def _is_method_of(kind: type, code: types.CodeType) -> bool:
    owner = code.co_qualname.rpartition(".")[0].rpartition(".")[2]
    return any(base.__name__ == owner for base in kind.__mro__)


def _cell(file: str) -> str:
    """The notebook's name for a cell, from IPython if it is there: ``Cell In[3]``."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    name = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    return " ".join(name) if name else ""


#: Where code lies that is not the user's: this package, installed packages and Python's own library.
_NOT_THE_USERS = tuple(
    {os.path.dirname(__file__) + os.sep}
    | {os.path.join(path, "") for path in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))}
    | {os.path.join(path, "") for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))}
)

Told = tuple[str, str, str, str]
Named = Callable[[str], str]
Now = Callable[[str], Any]


def _size(match: re.Match[str], named: Named, now: Now) -> Told:
    source, dimension, old, new = match.groups()
    words = f"{named(source)} changed its size in dimension {dimension} from {old} to {new}"
    return words, old, new, _ONE_REMEDY if {old, new} & {"0", "1"} else _SIZE_REMEDY


def _bounds(match: re.Match[str], named: Named, now: Now) -> Told:
    low, source, dimension, high = match.groups()
    tensor = now(source)
    new = str(tensor.shape[int(dimension)]) if hasattr(tensor, "shape") else ""
    old = f"{low} to {high}" if low and high else f"{low} or more" if low else f"up to {high}"
    words = f"{named(source)} was compiled for sizes {old} in dimension {dimension}"
    words += f", and has {new} now" if new else ""
    return words, old, new, "sizes 0 and 1 and those past a bound in the code are compiled apart; pad to a size within"


def _rank(match: re.Match[str], named: Named, now: Now) -> Told:
    source, old, new = match.groups()
    words = f"{named(source)} had {old} dimensions when it was compiled and has {new} now"
    return words, old, new, "each number of dimensions is compiled apart; reshape before the block"


def _dtype(match: re.Match[str], named: Named, now: Now) -> Told:
    source, *kinds = match.groups()
    old, new = (_DTYPES.get(kind, kind) for kind in kinds)
    return f"{named(source)} changed its dtype from {old} to {new}", old, new, "convert inputs to one dtype"


def _stride(match: re.Match[str], named: Named, now: Now) -> Told:
    source, dimension, old, new = match.groups()
    words = f"{named(source)} changed its layout in memory: the stride of dimension {dimension} was {old} and is {new}"
    return words, old, new, "call .contiguous() on it before the block"


def _requires_grad(match: re.Match[str], named: Named, now: Now) -> Told:
    source, old = match.groups()
    had, has = ("did", "does not") if old == "1" else ("did not", "does")
    words = f"{named(source)} {had} require a gradient when it was compiled, and {has} now"
    return words, str(old == "1"), str(old != "1"), "call the model under torch.no_grad() always or never"


def _dispatch_keys(match: re.Match[str], named: Named, now: Now) -> Told:
    words = f"{named(match[1])} is of another kind than when it was compiled: made under torch.inference_mode(), or not"
    return words, "", "", "make inputs and call the model in one mode, torch.inference_mode() or not"


def _no_tensor(match: re.Match[str], named: Named, now: Now) -> Told:
    source, new = match.groups()
    new = new.rpartition(".")[2]
    return f"{named(source)} was a tensor and is a {new} now", "Tensor", new, "pass the same kind of object each time"


def _equals(match: re.Match[str], named: Named, now: Now) -> Told:
    source, old = match.groups()
    value = now(source)
    new = "" if value is _MISSING else _short(value)
    words = f"{named(source)} was {old} when it was compiled" + (f" and is {new} now" if new else " and has changed")
    if _COMPUTED.fullmatch(source):
        remedy = "it is taken as a constant; keep it in a tensor, or compute it outside of the block"
    elif source.startswith("block"):
        remedy = _ATTRIBUTE_REMEDY
    elif source.startswith("G["):
        remedy = "a global variable is taken as a constant; pass it as an argument, as a tensor if it changes often"
    else:
        remedy = _NUMBER_REMEDY if re.fullmatch(r"-?[\d.e+-]+", old) else _VALUE_REMEDY
    return words, old, new, remedy


def _sizes(match: re.Match[str], named: Named, now: Now) -> Told:
    words = f"sizes are not as they were when it was compiled: {named(match[1])}"
    return words, "", "", "sizes that fit together otherwise are compiled apart; pad to a few sizes"


def _range(match: re.Match[str], named: Named, now: Now) -> Told:
    source, sign, bound = match.groups()
    value = now(source)
    new = "" if value is _MISSING else _short(value)
    words = f"{named(source)} was {sign} {bound} when it was compiled" + (
        f" and is {new} now" if new else " and is not now"
    )
    remedy = "a condition on a Python number is settled once; decide before the block, or use torch.where on a tensor"
    return words, f"{sign} {bound}", new, remedy


def _length(match: re.Match[str], named: Named, now: Now) -> Told:
    source, sign, old = match.groups()
    value = now(source)
    new = str(len(value)) if hasattr(value, "__len__") else ""
    words = f"{named(source)} has another length than when it was compiled"
    if sign == "==":
        words = f"{named(source)} had {old} entries when it was compiled" + (f" and has {new} now" if new else "")
    return words, old if sign == "==" else "", new, "each length is compiled apart; stack the entries into one tensor"


def _arguments(match: re.Match[str], named: Named, now: Now) -> Told:
    given = now("kwargs")
    new = ", ".join(given) if isinstance(given, dict) else ""
    return "other arguments were passed by name than when it was compiled", "", new, "pass the same arguments each time"


def _type(match: re.Match[str], named: Named, now: Now) -> Told:
    source, old = match.groups()
    value = now(source)
    old = old.rpartition(".")[2]
    new = "" if value is _MISSING else type(value).__name__
    words = f"{named(source)} was a {old} when it was compiled" + (f" and is a {new} now" if new else "")
    return words, old, new, "pass the same kind of object each time"


def _object(match: re.Match[str], named: Named, now: Now) -> Told:
    value = now(match[1])
    new = "" if value is _MISSING else _short(value)
    return f"{named(match[1])} is another object than when it was compiled", "", new, _ATTRIBUTE_REMEDY


def _alias(match: re.Match[str], named: Named, now: Now) -> Told:
    one, negated, other = match.groups()
    was, is_now = ("two objects", "the same one") if negated else ("the same object", "two")
    words = f"{named(one)} and {named(other)} were {was} when it was compiled and are {is_now} now"
    return words, was, is_now, "pass one object in both places each time, or never"


def _gone(match: re.Match[str], named: Named, now: Now) -> Told:
    words = f"an object that it was compiled for is gone: {named(match[1])}"
    return words, "", "", "keep the object, and hand in the same one at each call"


def _state(match: re.Match[str], named: Named, now: Now) -> Told:
    for name, (words, remedy) in _STATE.items():
        if name in match[1]:
            return words, "", "", remedy
    return f"a setting of torch changed: {match[1].strip()}", "", "", "set it once, before the model is compiled"


def _mode_stack(match: re.Match[str], named: Named, now: Now) -> Told:
    words = "a mode around the call came or went, such as `with torch.device(...)`"
    return words, "", "", "call the model inside the mode always or never"


_SOURCE = r"(\S+?)"
_PATTERNS: tuple[tuple[str, Callable[[re.Match[str], Named, Now], Told]], ...] = (
    (r"tensor '(.+?)' size mismatch at index (\d+)\. expected (\w+), actual (\w+)", _size),
    (r"tensor '(.+?)' rank mismatch\. expected (\d+), actual (\d+)", _rank),
    (r"tensor '(.+?)' dtype mismatch\. expected (\w+), actual (\w+)", _dtype),
    (r"tensor '(.+?)' stride mismatch at index (\d+)\. expected (\w+), actual (\w+)", _stride),
    (r"tensor '(.+?)' requires_grad mismatch\. expected requires_grad=(\d)", _requires_grad),
    (r"tensor '(.+?)' dispatch key set mismatch", _dispatch_keys),
    (r"expected type of '(.+)' to be a tensor type, ' but found <class '(.+?)'>", _no_tensor),
    (r"Cache line invalidated because (.+) got deallocated", _gone),
    (r"GLOBAL_STATE changed: (.+)", _state),
    (r"___check_torch_function_mode_stack", _mode_stack),
    (rf"___check_type_id\({_SOURCE}, \d+\), type=<class '(.+?)'>", _type),
    (rf"___check_obj_id\({_SOURCE}, \d+\)", _object),
    (rf"^(?:(\d+) <= )?{_SOURCE}\.size\(\)\[(\d+)\](?: <= (\d+))?$", _bounds),
    (rf"^len\({_SOURCE}\) (==|!=) (\d+)$", _length),
    (r"^not kwargs$", _arguments),
    (r"^(.*\.size\(\)\[\d+\].*\.size\(\)\[\d+\].*)$", _sizes),  # a relation between sizes, "==" among them
    (rf"^{_SOURCE} == (.+)$", _equals),
    (rf"^{_SOURCE} is (not )?{_SOURCE}$", _alias),
    (r"^(.*\.size\(\)\[\d+\].*)$", _sizes),
    (rf"^{_SOURCE} (<|<=|>|>=|!=) (-?[\d.]\S*)$", _range),
)


def _short(value: object) -> str:
    """A value in few characters; of a tensor only its kind, since its numbers would say nothing."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"a tensor of shape {list(value.shape)}"
    text = getattr(value, "__name__", None) or repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _read(source: str, roots: Mapping[str, Any]) -> Any:
    """What a source holds at this call; a marker of its own if it cannot be told. Attributes and keys only."""
    try:
        steps = list(_steps(ast.parse(source, mode="eval").body))
    except (SyntaxError, ValueError):
        return _MISSING
    value: Any = roots
    for kind, name in steps:
        try:
            if value is roots and name == "G":
                value = _GLOBALS
            elif value is _GLOBALS:
                value = sys.modules[str(name).removeprefix("__import_").replace("_dot_", ".")]
            else:
                value = getattr(value, name) if kind == "attribute" else value[name]
        except (AttributeError, KeyError, IndexError, TypeError):
            return _MISSING
    return value


_GLOBALS = object()


def _steps(node: ast.AST) -> Iterator[tuple[str, Any]]:
    if isinstance(node, ast.Name):
        yield "key", node.id
    elif isinstance(node, ast.Attribute):
        yield from _steps(node.value)
        yield "attribute", node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        yield from _steps(node.value)
        yield "key", node.slice.value
    else:
        raise ValueError("not a chain of attributes and keys")
