"""A cell's body as a step: something that can be called again and again and gives back what the cell computed.

The body runs in the user's namespace, as the cell itself would, so what it assigns stays. Its source is registered
the way IPython registers a cell, so a traceback shows the cell's own lines, with the numbers they have in the cell.
"""

from __future__ import annotations

import ast
from types import CodeType, EllipsisType, TracebackType
from typing import Any

from ..errors import UsageError

#: Stands in the namespace while the body runs, and calls back with each value. Never left behind.
_RECORD = "__nbcompile_record__"

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class Step:
    """Calls the body of a cell.

    Calling it returns the value of the last expression or assignment that was not ``None``: after
    ``loss = model(x).sum()`` and ``loss.backward()`` that is the loss, which can be compared, where the last value of
    all could not. Values of loops and ``with`` blocks count, those of functions defined in the cell do not.

    Attributes:
        filename: the name under which tracebacks know the body.
        names: the plain names that the body reads, each once, in the order in which they appear.
    """

    def __init__(self, shell: Any, body: str) -> None:
        """Compile ``body`` as ``shell`` would compile a cell, without running it.

        Raises:
            UsageError: there is nothing to run, or the body awaits at its top level.
            SyntaxError: the body is no Python; the error shows the cell's own line.
        """
        source = _with_own_line_numbers(body, shell.transform_cell(body))
        self.filename: str = shell.compile.cache(source, _number_of_this_cell(shell), raw_code=source)
        tree = shell.transform_ast(shell.compile.ast_parse(source, self.filename))
        if not tree.body:
            raise UsageError("the cell's body is empty: write the lines that call the model below the first line")
        _refuse_await(tree)
        self.names = names_read(tree)
        self._code: CodeType = shell.compile(
            ast.fix_missing_locations(_RecordValues().visit(tree)), self.filename, "exec"
        )
        self._shell = shell

    def __call__(self) -> Any:
        latest: Any = None

        def record(value: Any) -> Any:
            nonlocal latest
            if value is not None:
                latest = value
            return value

        namespace = self._shell.user_ns
        outer = namespace.get(_RECORD)  # a step whose body runs another step
        namespace[_RECORD] = record
        try:
            exec(self._code, self._shell.user_global_ns, namespace)  # the user's own cell
        finally:
            if outer is None:
                namespace.pop(_RECORD, None)
            else:
                namespace[_RECORD] = outer
        return latest

    def traceback_of(self, error: BaseException) -> TracebackType | None:
        """The part of an error's traceback that starts in the body; ``None`` if the error came from elsewhere."""
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename != self.filename:
            traceback = traceback.tb_next
        return traceback


class _RecordValues(ast.NodeTransformer):
    """Hand every value that the body assigns or leaves as an expression to the recorder, unchanged."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, (str, EllipsisType))):
            node.value = _recorded(node.value)  # a string or `...` on a line of its own is a remark, not a result
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        node.value = _recorded(node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AugAssign:
        # What is added, not the sum: a sum grows from call to call, so that no two calls could be compared.
        node.value = _recorded(node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        if node.value is not None:
            node.value = _recorded(node.value)
        return node

    def _leave(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _leave


def _recorded(value: ast.expr) -> ast.expr:
    call = ast.Call(func=ast.Name(id=_RECORD, ctx=ast.Load()), args=[value], keywords=[])
    ast.copy_location(call.func, value)
    return ast.copy_location(call, value)


def _with_own_line_numbers(body: str, transformed: str) -> str:
    """``transformed`` moved down to where it stands in the cell: the magic's own line comes first.

    IPython drops empty lines at the start of what it transforms; they count too.
    """
    empty = 0
    for line in body.splitlines():
        if line.strip():
            break
        empty += 1
    return "# %%compile_regional\n" + "\n" * empty + transformed


def names_read(tree: ast.AST) -> list[str]:
    """The plain names that code reads, each once, in the order in which they appear."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    names.sort(key=lambda node: (node.lineno, node.col_offset))
    return list(dict.fromkeys(node.id for node in names))


def _refuse_await(tree: ast.Module) -> None:
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith)) or (
            isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp)) and any(g.is_async for g in node.generators)
        ):
            raise UsageError(
                f"line {node.lineno} of the cell awaits; the body is called and timed as an ordinary function, which "
                "cannot await. Await what is needed in an earlier cell and leave only the calls of the model here"
            )
        pending.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, _SCOPES))


def _number_of_this_cell(shell: Any) -> int:
    """The number that the running cell has: IPython counts on before it runs a cell that it stores."""
    stored = len(shell.user_ns.get("In", ())) - 1
    return stored if stored == shell.execution_count - 1 else int(shell.execution_count)
