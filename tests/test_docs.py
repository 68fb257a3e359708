"""The texts beside the code: the reference has every public name and builds, and no link leads nowhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nbcompile
from nbcompile import errors

ROOT = Path(__file__).parents[1]
TEXTS = sorted([*ROOT.glob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")])

#: A link or picture of Markdown: what stands in the brackets behind it.
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.slow
def test_reference_builds_without_a_warning(tmp_path: Path) -> None:
    # GIVEN the docstrings WHEN the reference is made of them, as `make docs` does it
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "-b", "html", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    # THEN nothing in them is wrong, and every public name has a place that can be linked to
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    names = [name for name in nbcompile.__all__ if name != "__version__"]
    assert [name for name in names if f'id="nbcompile.{name}"' not in page and not hasattr(errors, name)] == []
    assert [name for name in names if hasattr(errors, name) and f'id="nbcompile.errors.{name}"' not in page] == []


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.name)
def test_links_within_the_repository_lead_somewhere(text: Path) -> None:
    # GIVEN a text WHEN its links to files of the repository are followed THEN each file is there
    links = [link.partition("#")[0] for part in _prose(text) for link in LINK.findall(part)]
    within = [link for link in links if link and not re.match(r"[a-z]+:", link)]
    assert [link for link in within if not (text.parent / link).exists()] == []


@pytest.mark.parametrize("text", ["README.md", "CONTRIBUTING.md"])
def test_files_and_targets_that_a_text_names_exist(text: str) -> None:
    # GIVEN a text that names files, folders and targets of make in code
    words = re.findall(r"`([^`\n]+)`", (ROOT / text).read_text(encoding="utf-8"))
    # WHEN they are looked up THEN all are there
    paths = [word for word in words if re.fullmatch(r"(nbcompile|tests|notebooks|labextension|docs)/[\w./*]*", word)]
    assert [path for path in paths if not any(ROOT.glob(path.rstrip("/")))] == []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    named = {match[1] for word in words if (match := re.match(r"make ([a-z-]+)", word))}
    assert named - targets == set()


def _prose(text: Path) -> Iterator[str]:
    """A Markdown file's text, or that of a notebook's cells of prose."""
    whole = text.read_text(encoding="utf-8")
    if text.suffix == ".md":
        yield whole
        return
    for cell in json.loads(whole)["cells"]:
        if cell["cell_type"] == "markdown":
            yield "".join(cell["source"])
