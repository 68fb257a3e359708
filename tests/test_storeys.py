"""The house of the package: each storey imports only from those under it, and the core runs where torch alone is."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nbcompile

PACKAGE = Path(nbcompile.__file__).parent

#: From the ground up. A module imports only from storeys below its own; those of a folder also from one another.
STOREYS: list[set[str]] = [
    {"errors", "cores", "device", "pairs", "parallel", "primer", "ranking"},
    {"interrupts", "kernels", "startup"},
    {"plugin", "regions", "report"},
    # data, and a builder that asks for transformers only when a preset of a sweep is measured
    {"integrations.llama", "conclusions"},
    {"cache", "estimate", "ongoing", "space"},
    {"progress"},
    {"explain", "measure"},
    {"misses", "standins", "warmup"},
    {"breaks", "causes", "fastpath", "methods", "nested"},
    {"remembered", "standing"},
    {"graphs"},
    {"events"},
    # reads what transformers defines once the user has loaded it; knows nothing of this package
    {"integrations.layer_index"},
    {"integrations.transformers"},
    {"variants"},
    {"border"},
    {"replay"},
    {"helper"},
    {"helperprocess", "waiting"},
    {"background"},
    {"describe"},
    {"compiler"},
    {"check"},
    {"dispatch"},
    {"compare", "cells", "processes", "portable", "ranks", "rounds"},
    {"worker", "cellrun"},
    {"tune", "sweep"},
    # what other libraries are given of this package
    {"integrations"},
    {"render"},
    {"doctor"},
    {"notebook"},
    {"__main__"},
    {"__init__"},
]

#: Imports that go up, each with its reason. They are made when the function is called, so the core stands without them.
GOES_UP = {
    # `report.to_html()` and `report.figure()` are the public way to a picture; the methods only ask the render storey
    ("report", "render"),
    # the same of a sweep
    ("sweep", "render"),
    # `report.apply(model)` is the way from a recommendation to a compiled model; the method only hands the setting over
    ("report", "tune"),
}

#: What only the upper storeys may import, and never to import the core.
UPSTAIRS = {"IPython", "ipywidgets", "plotly", "transformers", "accelerate"}

MODULES = {
    ".".join(file.relative_to(PACKAGE).with_suffix("").parts): file
    for file in PACKAGE.rglob("*.py")
    if "labextension" not in file.relative_to(PACKAGE).parts
}
CORE = sorted(name for name in MODULES if name.split(".")[0] not in ("notebook", "render", "integrations"))


def storey(module: str) -> int:
    """The storey of a module of this package: its own, or that of its folder."""
    for name in (module, module.rpartition(".")[0]):
        for number, members in enumerate(STOREYS):
            if name in members:
                return number
    pytest.fail(f"nbcompile/{module.replace('.', '/')}.py has no place in STOREYS: say on which storey it stands")


def imports(module: str) -> Iterator[tuple[str, bool]]:
    """What a module imports, in functions too, by full names; and whether it does so when it is itself imported.

    Imports for type checkers alone are left out.
    """
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    yield from _imports(tree, ["nbcompile", *module.split(".")], True)


def _imports(node: ast.AST, here: list[str], at_once: bool) -> Iterator[tuple[str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield alias.name, at_once
        elif isinstance(child, ast.ImportFrom):
            start = ".".join(here[: len(here) - child.level]) if child.level else ""
            source = ".".join(part for part in (start, child.module) if part)
            for alias in child.names:
                yield f"{source}.{alias.name}", at_once
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _imports(ast.Module([other], []), here, at_once)
        else:
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _imports(child, here, at_once and not function)


def own_module(name: str) -> str | None:
    """The module of this package that a full name lies in; ``None`` for other packages and the package's own names."""
    parts = name.split(".")
    if parts[0] != "nbcompile":
        return None
    for end in range(len(parts), 1, -1):
        inside = ".".join(parts[1:end])
        if inside in MODULES:
            return inside
        if f"{inside}.__init__" in MODULES:
            return inside
    return None


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_down(module: str) -> None:
    # GIVEN a module WHEN its imports from this package are read, those inside of functions too
    wrong = []
    own = module.removesuffix(".__init__")
    folder = own if module.endswith(".__init__") else own.rpartition(".")[0]
    here = storey(own)
    for name, at_once in imports(module):
        other = own_module(name)
        if other is None:
            continue
        neighbours = folder != "" and other.rpartition(".")[0] == folder and storey(other) == here
        allowed = not at_once and (own, other.split(".")[0]) in GOES_UP
        if storey(other) >= here and not neighbours and not allowed:
            wrong.append(name)
    # THEN each lies on a lower storey, or is a neighbour in the same folder
    assert wrong == []


@pytest.mark.parametrize("module", CORE)
def test_core_imports_nothing_from_upstairs(module: str) -> None:
    # GIVEN a module of the core WHEN its imports are read THEN none is of a library that only upper storeys may know
    assert [name for name, _ in imports(module) if name.split(".")[0] in UPSTAIRS] == []


def test_only_the_notebook_knows_ipython() -> None:
    # GIVEN all modules WHEN those that import IPython or ipywidgets are listed THEN they are the notebook's
    users = {
        module for module in MODULES for name, _ in imports(module) if name.split(".")[0] in ("IPython", "ipywidgets")
    }
    assert {module.split(".")[0] for module in users} == {"notebook"}


@pytest.mark.parametrize("module", sorted(name for name in MODULES if name.startswith("render.")))
def test_pictures_are_made_from_a_report_alone(module: str) -> None:
    # GIVEN a module that draws WHEN its imports are read THEN of this package it knows the report and the errors, and
    # of others none but plotly, and that only once it is asked for a figure
    own = {own_module(name) for name, _ in imports(module)} - {None}
    assert {name for name in own if name.split(".")[0] != "render"} <= {"report", "errors"}
    others = {(name.split(".")[0], at_once) for name, at_once in imports(module)}
    foreign = {(name, at_once) for name, at_once in others if name not in {*sys.stdlib_module_names, "nbcompile"}}
    assert foreign <= {("plotly", False)}


@pytest.mark.parametrize("module", ["report", "errors", "__init__"])
def test_what_stands_without_torch(module: str) -> None:
    # GIVEN what a reader of a saved report needs WHEN its imports are read THEN torch is not among them
    assert [name for name, _ in imports(module) if name.split(".")[0] in ("torch", "numpy")] == []


def test_importing_the_core_loads_nothing_from_upstairs() -> None:
    # GIVEN a fresh interpreter WHEN nbcompile.compiler is imported, and then all of the core
    others = [f"nbcompile.{name}" for name in CORE if name not in ("__init__", "__main__")]
    code = f"""
import importlib, sys
import nbcompile.compiler
print(sorted({UPSTAIRS} & set(sys.modules)))
for name in {others}:
    importlib.import_module(name)
print(sorted({UPSTAIRS} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    # THEN none of those libraries was loaded
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["[]", "[]"]


# -- the reader of imports itself --------------------------------------------------------------------------------------


def test_reader_finds_every_import() -> None:
    # GIVEN source with imports of every form WHEN it is read THEN each is found, with the time at which it is made
    source = """
from __future__ import annotations
import a.b, c as d
from . import e
from ..render import f
from .g import h as i
if TYPE_CHECKING:
    import never
else:
    import j
try:
    import k
except ImportError:
    pass
class L:
    import m
    def n(self):
        import o
        if True:
            from .p import q
"""
    assert list(_imports(ast.parse(source), ["nbcompile", "notebook", "x"], True)) == [
        ("__future__.annotations", True),
        ("a.b", True),
        ("c", True),
        ("nbcompile.notebook.e", True),
        ("nbcompile.render.f", True),
        ("nbcompile.notebook.g.h", True),
        ("j", True),
        ("k", True),
        ("m", True),
        ("o", False),
        ("nbcompile.notebook.p.q", False),
    ]
