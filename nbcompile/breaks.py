"""Why the compiler returned to Python in the middle of a block, and what to do about it.

The compiler's record of a graph break is a headline, which names the kind and is the same from version to version
(``torch/_dynamo/graph_break_registry.json``), followed by lines such as ``Explanation: ...`` and ``Hint: ...``. The
kinds that PyTorch's documentation lists, and those that models meet most, are put into words here. Of the others the
compiler's own explanation is kept, and a hint that a user can act on.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: Characters of the compiler's text that are kept.
_LONGEST = 300


class Told(NamedTuple):
    """A graph break in words: why it happened, and what to do."""

    reason: str
    remedy: str


_OUTSIDE = "do it outside of the block and pass in the result"
_AS_TENSOR = "keep the value in a tensor (torch.where, arithmetic with masks)"
_PRINTED = (
    "take it out of forward, or let the compiler move it to the end of the graph: "
    "torch._dynamo.config.reorderable_logging_functions.add({call})"
)
_SIZES = (
    "give the result a fixed size (torch.where, multiplying with a mask), or set "
    "torch._dynamo.config.capture_dynamic_output_shape_ops = True before compiling"
)
_DISABLED = "is marked with torch.compiler.disable"
_SKIPPED_REMEDY = (
    f"{_OUTSIDE}; if it is a kernel of your own that works on tensors, register it with torch.library.custom_op"
)
_WRONG = "the line fails when it is traced; it may be wrong without compiling too"

#: By how a headline starts: what happened (``{1}`` is what the pattern finds), what to do, the pattern.
_KINDS: tuple[tuple[str, str, str, str], ...] = (
    (
        "Unsupported Tensor.item() call",
        "a tensor's value is read into Python (.item(), int(), float())",
        f"{_AS_TENSOR}, or set torch._dynamo.config.capture_scalar_outputs = True before compiling",
        "",
    ),
    ("Tensor.tolist()", "a tensor's values are read into a list", _AS_TENSOR, ""),
    ("Tensor.numpy()", "a tensor is turned into a NumPy array", "use torch's functions instead of NumPy's", ""),
    (
        "Data-dependent branching",
        "an if or a loop depends on a tensor's value",
        "compute both branches and choose with torch.where, use torch.cond, or decide before the block",
        "",
    ),
    (
        "generic_jump",
        "an if or a loop depends on a tensor's value",
        "compute both branches and choose with torch.where, use torch.cond, or decide before the block",
        "",
    ),
    (
        "Data-dependent assertion",
        "an assert depends on a tensor's value",
        "use torch._assert_async, or check before the block",
        "",
    ),
    ("Data dependent operator", "the result of {1} is a value of a tensor", _AS_TENSOR, r"[Oo]perator `([^`]+)`"),
    (
        "Dynamic shape operator",
        "the size of the result of {1} depends on a tensor's values",
        _SIZES,
        r"[Oo]perator `([^`]+?)(?:\.default)?`",
    ),
    (
        "Failed to trace builtin operator",
        "the built-in function {1} is called",
        _PRINTED.format(call="print"),
        r"operator `(print)`",
    ),
    (
        "Failed to trace builtin operator",
        "the built-in function {1} is called with arguments that the compiler cannot trace",
        _OUTSIDE,
        r"operator `([^`]+)`",
    ),
    (
        "logging.Logger method",
        "a method of a logger is called",
        "take it out of forward, or let the compiler leave it out: "
        "torch._dynamo.config.ignore_logging_functions.add(logger.warning), or whichever method it is",
        "",
    ),
    (
        "Attempted to call function marked as skipped",
        "a warning is raised by warnings.warn",
        _PRINTED.format(call="warnings.warn"),
        r"builtin `(_?warnings\.warn)",
    ),
    (
        "Attempted to call function marked as skipped",
        "{1} is called, which the compiler cannot look into",
        _SKIPPED_REMEDY,
        r"(?:builtin|function) `(?:<unknown module>\.)?([^`]+?)\.?`",
    ),
    (
        "Attempted to inline function marked as skipped",
        "{1} is called, which the compiler cannot look into",
        _SKIPPED_REMEDY,
        r"function(?: with)? (?:qualname: )?`([^`]+)`",
    ),
    (
        "Skip calling `torch.compiler.disable()`d function",
        "{1} " + _DISABLED,
        "take the mark off, or call the function before or after the block",
        r"`<function ([\w.<>]+) at",
    ),
    (
        "Skip inlining `torch.compiler.disable()`d function",
        "{1} " + _DISABLED,
        "take the mark off, or call the function before or after the block",
        r"`<function ([\w.<>]+) at",
    ),
    (
        "Call to `torch._dynamo.graph_break()`",
        "torch._dynamo.graph_break() is called",
        "take the call out",
        "",
    ),
    ("TypeError when making fake tensor call", f"{_WRONG}: {{1}}", "run the block uncompiled", r"TypeError[^:]*: (.+)"),
    ("RuntimeError when making fake tensor call", _WRONG, "run the block uncompiled", ""),
    (
        "Operator does not support running with fake tensors",
        "an operator has no kernel that tells the compiler the shape of its result",
        "register one with torch.library.register_fake",
        "",
    ),
    (
        "Encountered non-PT2-compliant op",
        "an operator of a library is not registered in a way that the compiler can rely on",
        "register it with torch.library.custom_op",
        "",
    ),
    (
        "Attempted to wrap RNN, GRU, or LSTM",
        "the block holds an RNN, GRU or LSTM of torch.nn, which is left to its own kernels",
        "leave it: it is fast as it is; torch._dynamo.config.allow_rnn = True traces it all the same",
        "",
    ),
    (
        "Attempted to wrap sparse Tensor",
        "a sparse tensor is used, which the compiler does not trace",
        "make it dense before the block, or leave such blocks eager: regions=[...]",
        "",
    ),
    (
        "Unsupported Tensor.backward() call",
        "backward() is called inside of the block",
        "call it on the loss, after the model",
        "",
    ),
    (
        "using `torch.autograd.grad`",
        "torch.autograd.grad is called inside of the block",
        "set torch._dynamo.config.trace_autograd_ops = True before compiling, or call it outside of the block",
        "",
    ),
    (
        "Unsupported context manager",
        "a with statement uses a context manager that the compiler cannot trace",
        "put the with statement around the call of the model",
        "",
    ),
    (
        "Unsupported call_id()",
        "id() of a tensor is asked for",
        _OUTSIDE,
        "",
    ),
    (
        "tp_as_number slot not implemented",
        "arithmetic with a value that the compiler does not know, such as id() or data_ptr()",
        _OUTSIDE,
        "",
    ),
)
_NO_HELP = ("file an issue", "report an issue", "please report", "Dynamo bug", "Dynamo compiler bug")
_GENERAL = (
    f"{_OUTSIDE}, or put the line into a function marked with torch.compiler.disable, so that the break is in one place"
)


def explain_break(text: str) -> Told:
    """A graph break's reason and remedy in a user's words.

    Args:
        text: the compiler's record, headline first.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    headline = lines[0] if lines else ""
    for start, reason, remedy, detail in _KINDS:
        if headline.startswith(start):
            found = re.search(detail, text) if detail else None
            if found or not detail:
                return Told(reason.replace("{1}", found[1] if found else ""), remedy)
    explanation = next(iter(_labelled(lines, "Explanation:")), "")
    words = f"{headline}: {explanation}" if explanation else headline
    hints = _labelled(lines, "Hint:")
    helpful = next((hint for hint in hints if not any(words in hint for words in _NO_HELP)), _GENERAL)
    return Told(_without_folders(words)[:_LONGEST], _without_folders(helpful)[:_LONGEST])


def _labelled(lines: list[str], label: str) -> list[str]:
    return [line.removeprefix(label).strip() for line in lines if line.startswith(label)]


def _without_folders(text: str) -> str:
    """Files by their last folder and name: a report is handed on, and whose home folder it was is nobody's business."""
    return re.sub(r"(?<![\w.:])/(?:[^/\s`']+/)+([^/\s`']+/[^/\s`']+)", r"\1", text)
