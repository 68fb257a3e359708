"""The JupyterLab extension as a part of the package; what it does is tested in labextension/tests and tests/browser."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbcompile
from nbcompile.report import FILE_ENDING, MIME_TYPE

from . import words

EXTENSION = Path(__file__).parents[1] / "labextension"


def test_versions_agree() -> None:
    # GIVEN one package in two languages WHEN their versions are read THEN they are one
    package = json.loads((EXTENSION / "package.json").read_text(encoding="utf-8"))
    assert package["version"] == nbcompile.__version__


def test_names_of_the_report_agree() -> None:
    # GIVEN the names by which a report is known WHEN the extension's are read THEN they are those of the Python side
    names = re.findall(r"'([^']+)'", (EXTENSION / "src" / "mime.ts").read_text(encoding="utf-8"))
    assert names == [MIME_TYPE, FILE_ENDING]


def test_words_are_those_that_the_extension_is_tested_with() -> None:
    # GIVEN the words that the extension's tests read WHEN this side says the same things THEN not a letter differs
    held = json.loads(words.FILE.read_text(encoding="utf-8"))
    assert held == json.loads(json.dumps(words.words())), "run `python -m tests.words`, then `make test-extension`"
