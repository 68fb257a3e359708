"""Training launched from a notebook's process: it trains, and when a rank fails the cell has an error soon."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


def launch(how: str) -> dict[str, Any]:
    """Launch a training in a process group of its own, and wait for what it tells; its ranks must be gone by then."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.launching", how, port],
        cwd=ROOT,
        env={**os.environ, "ACCELERATE_USE_CPU": "yes", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = started.communicate(timeout=150)
    finally:
        try:
            os.killpg(started.pid, 0)
            left = True
        except ProcessLookupError:
            left = False
        else:
            os.killpg(started.pid, 9)
    assert started.returncode == 0, errors[-3000:]
    assert not left, "ranks outlived the launcher"
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def test_notebook_launcher_trains_compiled_on_every_rank() -> None:
    assert launch("fine") == {"error": "", "ranks": [[0, 2, 0], [1, 2, 0]]}


@pytest.mark.parametrize(
    ("how", "said"),
    [("raises", "ChildFailedError"), ("killed", "ChildFailedError"), ("interrupted", "got signal: 2")],
)
def test_a_failing_rank_ends_the_cell_within_30_seconds(how: str, said: str) -> None:
    # GIVEN a training on two ranks WHEN one raises, is killed, or the cell is interrupted
    found = launch(how)
    # THEN the cell has an error, soon, and no process is left. It is torch's: which rank it calls the root cause, the
    # one that failed or the one that lost its peer by that, depends on which of them has ended first
    assert said in found["error"]
    assert found["seconds"] < 30
