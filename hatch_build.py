"""Puts the built JupyterLab extension where JupyterLab looks for it: into the wheel's share/jupyter/labextensions.

It is built before, by `make extension`, as that needs Node.js: so neither installing from a source archive, which holds
the built files, nor an editable install ever needs it. From a checkout where it was not built a wheel without it is
made, as the package is of use without JupyterLab too; it is told, and `make wheel` builds both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILT = "nbcompile/labextension"
PLACE = "share/jupyter/labextensions/nbcompile"


class ExtensionHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the extension's files to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # a copy would grow old; `make extension` links to the built files instead
        if not Path(self.root, BUILT, "package.json").is_file():
            self.app.display_warning(
                f"{BUILT} is not there, so this wheel is without the JupyterLab extension; `make extension` builds it"
            )
            return
        build_data["shared_data"] |= {
            BUILT: PLACE,
            "labextension/install.json": f"{PLACE}/install.json",  # how JupyterLab names the package that brought it
        }
