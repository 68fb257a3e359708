"""Importing the package: what it costs, and which object each public name is, whatever was imported before."""

from __future__ import annotations

import subprocess
import sys

import pytest

import nbcompile

HEAVY = ("torch", "numpy", "plotly", "ipywidgets", "transformers", "accelerate", "IPython")


def run_python(code: str) -> str:
    """Run ``code`` in a Python that has imported nothing yet, and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_loads_nothing_heavy() -> None:
    # GIVEN a fresh interpreter
    # WHEN the package, its errors and its report are imported, and the names are listed
    code = (
        "import sys, nbcompile; from nbcompile import Report, UsageError; dir(nbcompile); "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    # THEN none of the large packages was imported
    assert run_python(code).strip() == "[]"


def test_every_public_name_exists() -> None:
    # GIVEN the list of public names
    # WHEN each is asked for
    # THEN it is there, is listed, and is no module
    for name in nbcompile.__all__:
        assert name in dir(nbcompile)
        assert not isinstance(getattr(nbcompile, name), type(sys)), name


def test_unknown_name_is_an_attribute_error() -> None:
    # GIVEN a name that does not exist
    # WHEN it is asked for THEN the error is the one that hasattr() and IPython expect
    with pytest.raises(AttributeError, match="no attribute 'compile_region'"):
        nbcompile.compile_region  # type: ignore[attr-defined]


IMPORTS = [
    "import nbcompile",
    "from nbcompile.report import Report",
    "import nbcompile.report",
    "import nbcompile.report as r",
    "import importlib; importlib.import_module('nbcompile.report'); importlib.import_module('nbcompile.compare')",
    "import nbcompile.compare",
    "from nbcompile.compare import compare",
    "import nbcompile.compare as c, nbcompile.report as r",
    "import nbcompile.compiler",
    "import nbcompile.__main__",
    "import nbcompile; nbcompile.report; import nbcompile.report; nbcompile.compare; import nbcompile.compare",
    "from nbcompile import report; from nbcompile.report import load_report",
    "import nbcompile, importlib; nbcompile.report; importlib.reload(nbcompile)",
    "import importlib, sys, nbcompile.report; importlib.reload(sys.modules['nbcompile.report'])",
]


def test_report_and_compare_are_functions_whatever_was_imported_first() -> None:
    # GIVEN modules that have the names of two public functions
    # WHEN they are imported in some order, each time as if for the first time, and then the public names are asked for
    code = f"""
import sys
for imports in {IMPORTS}:
    for name in [name for name in sys.modules if name.split(".")[0] == "nbcompile"]:
        del sys.modules[name]
    space = {{}}
    exec(imports, space)
    exec("import nbcompile; from nbcompile import report, compare; from nbcompile.report import Report", space)
    nbcompile = space["nbcompile"]
    assert nbcompile.report.__module__ == "nbcompile.compiler", imports
    assert nbcompile.compare.__module__ == "nbcompile.compare", imports
    assert nbcompile.report is space["report"] and callable(nbcompile.report), imports
    assert nbcompile.compare is space["compare"] and callable(nbcompile.compare), imports
    assert sys.modules["nbcompile.report"].Report is space["Report"] is nbcompile.Report, imports
"""
    # THEN they are the functions, and what else is in the modules is reached by `from ... import`
    run_python(code)


def test_public_name_can_be_replaced_by_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a public name that gives way to no module
    # WHEN something else is set in its place
    monkeypatch.setattr(nbcompile, "report", "another")
    # THEN that is there
    assert nbcompile.report == "another"


def test_loading_the_extension_is_quick_and_light() -> None:
    # GIVEN a fresh shell that keeps no history file
    # WHEN the extension is loaded, and the manual of a magic is built
    code = """
import sys, time
start = time.process_time()
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
config = Config()
config.HistoryManager.enabled = False
shell = InteractiveShell(config=config)
shell_seconds, before = time.process_time() - start, set(sys.modules)
start = time.process_time()
shell.run_line_magic("load_ext", "nbcompile")
print((time.process_time() - start) / shell_seconds)
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new - sys.stdlib_module_names))
print(shell.find_cell_magic("compile_regional") is not None, shell.find_line_magic("nbcompile") is not None)
"""
    runs = [run_python(code).splitlines() for _ in range(3)]  # the first may have to write the byte code of a change
    # THEN it imported nothing but the standard library and itself, and the magics are there
    for _, packages, magics in runs:
        assert packages == "['IPython', 'nbcompile']"
        assert magics == "True True"
    # AND took less than twice the processor's time that the shell itself takes, measured beside it: 0.9 of it
    assert min(float(ratio) for ratio, _, _ in runs) < 2
