"""The JupyterLab extension as a part of the package; what it does is tested in labextension/tests and tests/browser."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbcompile
from nbcompile.report import FILE_ENDING, MIME_TYPE

EXTENSION = Path(__file__).parents[1] / "labextension"


def test_versions_agree() -> None:
    # GIVEN one package in two languages WHEN their versions are read THEN they are one
    package = json.loads((EXTENSION / "package.json").read_text(encoding="utf-8"))
    assert package["version"] == nbcompile.__version__


def test_names_of_the_report_agree() -> None:
    # GIVEN the names by which a report is known WHEN the extension's are read THEN they are those of the Python side
    names = re.findall(r"'([^']+)'", (EXTENSION / "src" / "mime.ts").read_text(encoding="utf-8"))
    assert names == [MIME_TYPE, FILE_ENDING]
