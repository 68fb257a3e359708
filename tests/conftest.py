"""What every test needs: no network, a compiler cache of its own, and a compiler that remembers no earlier test."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Set when pytest starts, before any test module can import a library that reads them once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # else tokenizers warns in every process a test forks
os.environ["NBCOMPILE_WARM_UP"] = "0"  # kernels of tests have work enough; test_warmup.py is about it

_CACHE_FOLDERS = pytest.StashKey[tuple["tempfile.TemporaryDirectory[str]", str | None]]()


def pytest_configure(config: pytest.Config) -> None:
    folder = tempfile.TemporaryDirectory(prefix="nbcompile-inductor-", ignore_cleanup_errors=True)
    config.stash[_CACHE_FOLDERS] = (folder, os.environ.get("TORCHINDUCTOR_CACHE_DIR"))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name


def pytest_unconfigure(config: pytest.Config) -> None:
    folder, earlier = config.stash[_CACHE_FOLDERS]
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
    if earlier is not None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = earlier
    folder.cleanup()


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    """Forget compiled code and counters after each test, where the compiler was loaded at all."""
    yield
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and hasattr(dynamo, "reset"):  # no `reset`: its import failed half way
        dynamo.reset()
        sys.modules["torch._dynamo.utils"].counters.clear()


@pytest.fixture
def bare_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """IPython's shell of this process, which keeps what it would display and leaves nothing on disk."""
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=config)
    shell.display_pub = CapturingDisplayPublisher()
    yield shell
    InteractiveShell.clear_instance()
