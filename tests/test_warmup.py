"""The compiler's start-up ahead of time: a real process that compiles, watched from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from jupyter_client.manager import start_new_kernel

from nbcompile import warmup
from nbcompile.doctor import examine
from nbcompile.warmup import WarmUp, warm_up

pytestmark = [pytest.mark.slow, pytest.mark.inductor]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder, in a process that has begun no start-up."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(warmup, "_latest", None)
    yield tmp_path / "cache"
    begun = warmup.latest()
    if begun is not None:
        begun.stop()


def soon(condition: Callable[[], object], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def process_of(begun: WarmUp) -> psutil.Process:
    assert begun._process is not None
    return psutil.Process(begun._process.pid)


def test_it_is_done_once_and_is_not_felt(folder: Path) -> None:
    # GIVEN an empty cache folder WHEN a start-up is begun
    begun = warm_up()
    assert begun.state == "running"
    assert "running" in _told()
    # THEN it is nice, in this session and in a group of its own, as an interrupt goes to the kernel's group
    process = process_of(begun)
    assert soon(lambda: process.nice() == 19)
    assert os.getsid(process.pid) == os.getsid(0)
    assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
    # AND a second one is not begun
    assert warm_up() is begun
    # AND it ends by itself, and has left what it found out about the processor
    assert begun.wait(180) == "done"
    assert list(folder.rglob("*.so"))
    assert "done" in _told()
    # AND for another process there is nothing left to do
    code = "from nbcompile.warmup import warm_up; print(warm_up().state)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "not needed"
    # AND for another torch there would be
    assert not warmup._done_before(folder, "another key")


def test_it_ends_with_its_parent(folder: Path) -> None:
    # GIVEN a process that has begun a start-up, and is killed
    code = "from nbcompile.warmup import warm_up; print(warm_up()._process.pid, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None
        started = psutil.Process(int(p.stdout.readline()))
        assert soon(lambda: started.nice() == 19)
        p.kill()
    # THEN the start-up ends too, with all that it has started
    family = [started, *started.children(recursive=True)]
    assert soon(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in family), 10)


def test_it_can_be_stopped(folder: Path) -> None:
    # GIVEN a start-up that runs a compiler WHEN it is stopped
    begun = warm_up()
    process = process_of(begun)
    assert soon(lambda: process.children(recursive=True))
    family = process.children(recursive=True)
    begun.stop()
    # THEN nothing of it is left, and a new one can be begun
    assert begun.state == "failed"
    assert soon(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in family), 10)
    assert warm_up() is not begun


def test_a_failure_is_told_and_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a compiler that does not work WHEN a start-up is done
    monkeypatch.setenv("CXX", "/bin/false")
    begun = warm_up(wait=True)  # this process's own part is then left out
    # THEN it has failed, which can be read, and nothing says that it was done
    assert begun.state == "failed"
    assert "Error" in begun.reason
    assert "failed" in _told()
    assert not (folder / "nbcompile-start-up.json").exists()


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    # GIVEN a file in the place of the cache folder WHEN a start-up is asked for THEN that is the error
    (tmp_path / "file").touch()
    code = """\
import nbcompile
try:
    nbcompile.warm_up()
except nbcompile.UsageError as error:
    print("told", error)"""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "file")}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert told.stdout.startswith("told")
    assert "is not a folder" in told.stdout


@pytest.mark.parametrize(("value", "off"), [("0", True), ("off", True), ("", False), ("1", False)])
def test_switch(value: str, off: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(warmup.SWITCH, value)
    assert warmup.switched_off() is off


@pytest.mark.parametrize(("switch", "state"), [("1", "running"), ("0", "None")])
def test_loading_the_extension_begins_it(folder: Path, switch: str, state: str) -> None:
    # GIVEN a kernel WHEN the extension is loaded THEN a start-up runs, unless that is switched off
    environment = {**os.environ, warmup.SWITCH: switch}
    manager, client = start_new_kernel(kernel_name="python3", env=environment, cwd=str(folder.parent))
    try:
        told: list[str] = []
        code = (
            "%load_ext nbcompile\nfrom nbcompile import warmup\nbegun = warmup.latest()\nprint(begun and begun.state)"
        )
        client.execute_interactive(
            code, timeout=60, output_hook=lambda message: told.append(message["content"].get("text", ""))
        )
        assert "".join(told).strip() == state
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def test_a_kernel_does_its_own_part_between_cells(folder: Path) -> None:
    # GIVEN a kernel with the extension
    manager, client = start_new_kernel(
        kernel_name="python3", env={**os.environ, warmup.SWITCH: "1"}, cwd=str(folder.parent)
    )

    def run(code: str) -> str:
        told: list[str] = []
        reply = client.execute_interactive(
            code, timeout=60, output_hook=lambda message: told.append(message["content"].get("text", ""))
        )
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(told).strip()

    try:
        run("%load_ext nbcompile\nimport sys")
        part = "print(getattr(sys.modules.get('nbcompile.startup'), '_ahead', None) and startup.ahead().state)"
        assert run("from nbcompile import warmup; print(warmup.latest().wait(180))") == "done"
        # WHEN no cell has imported torch THEN nothing imports it
        time.sleep(1)
        assert run("print('torch' in sys.modules)") == "False"
        # WHEN torch is imported and no cell comes THEN the kernel does its own part
        assert run("from nbcompile import startup") == ""

        def soon_done() -> bool:
            time.sleep(2)  # a cell takes precedence: asked all the time, nothing would be begun
            return run(part) == "done"

        assert soon(soon_done)
        # AND it is done once: nothing is left that would look at the cells that follow
        left = "[f for fs in get_ipython().events.callbacks.values() for f in fs if 'WhileIdle' in f.__qualname__]"
        assert run(f"print({left})") == "[]"
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def _told() -> str:
    """What the doctor says of it."""
    return next(check.found for check in examine().checks if check.name == "start-up ahead")
