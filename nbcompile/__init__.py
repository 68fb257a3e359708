"""Compile PyTorch models block by block in the live kernel, and see what it was worth.

The names below are loaded when they are first used, so ``import nbcompile`` and ``%load_ext nbcompile`` cost
milliseconds and do not import torch. In a notebook, ``%load_ext nbcompile`` adds ``%%compile_regional``,
``%%tune`` and ``%nbcompile``.

``nbcompile.report``, ``nbcompile.compare``, ``nbcompile.sweep`` and ``nbcompile.tune`` are functions, although modules
of the same names exist. To reach something else in such a module write ``from nbcompile.report import ...``.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compare import compare as compare
    from .compiler import compile_model as compile_model
    from .compiler import compile_regions as compile_regions
    from .compiler import eager as eager
    from .compiler import report as report
    from .compiler import restore as restore
    from .errors import CompilationError as CompilationError
    from .errors import CompilationWarning as CompilationWarning
    from .errors import NbcompileError as NbcompileError
    from .errors import NoRepeatedBlocksError as NoRepeatedBlocksError
    from .errors import RankError as RankError
    from .errors import ReportError as ReportError
    from .errors import UsageError as UsageError
    from .integrations.accelerate import Accelerator as Accelerator
    from .integrations.launcher import notebook_launcher as notebook_launcher
    from .notebook.panel import panel as panel
    from .plugin import TorchDynamoPlugin as TorchDynamoPlugin
    from .portable import load_cache as load_cache
    from .portable import save_cache as save_cache
    from .ranks import gather_report as gather_report
    from .regions import RegionPlan as RegionPlan
    from .regions import plan_regions as plan_regions
    from .report import Report as Report
    from .report import load_report as load_report
    from .sweep import Sweep as Sweep
    from .sweep import sweep as sweep
    from .tune import tune as tune
    from .warmup import warm_up as warm_up

__version__ = "0.1.0"

_MODULE_OF = {
    "Accelerator": "integrations.accelerate",
    "CompilationError": "errors",
    "CompilationWarning": "errors",
    "NbcompileError": "errors",
    "NoRepeatedBlocksError": "errors",
    "RankError": "errors",
    "RegionPlan": "regions",
    "Report": "report",
    "ReportError": "errors",
    "Sweep": "sweep",
    "TorchDynamoPlugin": "plugin",
    "UsageError": "errors",
    "compare": "compare",
    "compile_model": "compiler",
    "compile_regions": "compiler",
    "eager": "compiler",
    "gather_report": "ranks",
    "load_cache": "portable",
    "load_report": "report",
    "notebook_launcher": "integrations.launcher",
    "panel": "notebook.panel",
    "plan_regions": "regions",
    "report": "compiler",
    "restore": "compiler",
    "save_cache": "portable",
    "sweep": "sweep",
    "tune": "tune",
    "warm_up": "warmup",
}

#: Modules that import torch's compiler, which needs a cache folder that it can use.
_NEED_COMPILER = (
    "compare", "compiler", "integrations.accelerate", "notebook.panel", "portable", "ranks", "sweep", "tune",
)  # fmt: skip

__all__ = [*_MODULE_OF, "__version__"]


class _Package(types.ModuleType):
    """This package's own class: a public name never gives way to the module of the same name.

    Python sets a submodule as an attribute of its package whenever, and by whomever, it is first imported. Without
    this, ``nbcompile.report`` would be a function or a module depending on what else had been imported before.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _MODULE_OF and isinstance(value, types.ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULE_OF[name] in _NEED_COMPILER:
        from .cache import require_folder

        require_folder()
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})


def load_ipython_extension(shell: Any) -> None:
    """Add ``%%compile_regional``, ``%%tune`` and ``%nbcompile``: what ``%load_ext nbcompile`` calls."""
    from .notebook.magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Take the magics away again: what ``%unload_ext nbcompile`` calls. Compiled models stay compiled."""
    from .notebook.magics import unload

    unload(shell)
