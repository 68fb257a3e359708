"""What every test needs: no network, a compiler cache of its own, and a compiler that remembers no earlier test.

Where several processes share the tests (``make test``: pytest-xdist, a file at a time), the files that take longest
begin first, and a test that is marked ``alone`` runs while none of the other processes runs any.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Set when pytest starts, before any test module can import a library that reads them once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # else tokenizers warns in every process a test forks
os.environ["NBCOMPILE_WARM_UP"] = "0"  # kernels of tests have work enough; test_warmup.py is about it

#: The folder of the two locks by which the processes that share the tests take turns.
_TURNS = "NBCOMPILE_TEST_TURNS"

_CACHE_FOLDERS = pytest.StashKey[tuple["tempfile.TemporaryDirectory[str]", str | None]]()


def pytest_configure(config: pytest.Config) -> None:
    folder = tempfile.TemporaryDirectory(prefix="nbcompile-inductor-", ignore_cleanup_errors=True)
    config.stash[_CACHE_FOLDERS] = (folder, os.environ.get("TORCHINDUCTOR_CACHE_DIR"))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name
    if not hasattr(config, "workerinput"):  # the process that starts the others, which inherit its environment
        os.environ[_TURNS] = folder.name


def pytest_unconfigure(config: pytest.Config) -> None:
    folder, earlier = config.stash[_CACHE_FOLDERS]
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
    if earlier is not None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = earlier
    folder.cleanup()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files first that take longest, or one of them would still run when all others are done."""
    weights: Counter[Path] = Counter()
    for item in items:
        slow = item.get_closest_marker("slow") or item.get_closest_marker("inductor")
        weights[item.path] += 10 if slow else 1
    items.sort(key=lambda item: -weights[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Wait until this test may run beside those of the other processes, if there are any."""
    if os.environ.get("PYTEST_XDIST_WORKER") is None:
        return (yield)
    with _turn(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextlib.contextmanager
def _turn(*, alone: bool) -> Iterator[None]:
    """Hold the one lock with others or alone; whoever waits for it holds the other, so that each comes in turn."""
    folder = Path(os.environ[_TURNS])
    with (folder / "next").open("w") as following, (folder / "running").open("w") as running:
        fcntl.flock(following, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(following, fcntl.LOCK_UN)
        try:
            yield
        finally:  # not by closing it alone, as a process that a test forked may hold it, too
            fcntl.flock(running, fcntl.LOCK_UN)


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
