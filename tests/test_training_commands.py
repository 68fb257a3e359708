"""A script of a user's, started by ``torchrun`` and by ``accelerate launch``: what their variables say is compiled."""

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
BIN = Path(sys.executable).parent


def found(folder: Path, commands: list[tuple[list[str], dict[str, str]]]) -> list[dict[str, Any]]:
    """Run commands at the same time, each with variables of its own; what their two ranks found."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    plain["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    running = [
        subprocess.Popen(
            command,
            cwd=folder,
            env={**plain, "OMP_NUM_THREADS": "1", **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command, more in commands
    ]
    try:
        for process in running:
            out, _ = process.communicate(timeout=200)
            assert process.returncode == 0, out[-3000:]
    finally:
        for process in running:
            process.kill()
    return [json.loads((folder / f"rank{number}.json").read_text()) for number in range(2)]


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.mark.parametrize(
    ("regional", "strategy", "counts"), [("true", "regional", [2, 2, 0]), (None, "full", [1, 1, 0])]
)
def test_torchrun_of_a_script_with_accelerates_variables(
    tmp_path: Path, regional: str | None, strategy: str, counts: list[int]
) -> None:
    # GIVEN a script that names no plugin, and the variables that say how to compile
    variables = {"ACCELERATE_DYNAMO_BACKEND": "AOT_EAGER"}
    if regional is not None:
        variables["ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"] = regional
    command = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"]
    # WHEN torchrun starts it on two ranks THEN each compiles as they say, and all blocks run compiled
    for rank in found(tmp_path, [([*command, "-m", "tests.training_script", str(tmp_path), "ddp"], variables)]):
        assert (rank["strategy"], rank["backend"], rank["counts"]) == (strategy, "aot_eager", counts)
        assert rank["kind"] == "DistributedDataParallel"


@pytest.mark.parametrize(("flags", "strategy"), [(["--dynamo_use_regional_compilation"], "regional"), ([], "full")])
def test_accelerate_launch_with_its_flags(tmp_path: Path, flags: list[str], strategy: str) -> None:
    # GIVEN the real command. On a CPU it starts one rank, and expects what starts it several times, such as mpirun, to
    # number them
    port = free_port()
    command = [str(BIN / "accelerate"), "launch", "--cpu", "--num_processes", "2", "--num_machines", "1"]
    command += ["--main_process_port", port, "--mixed_precision", "bf16", "--dynamo_backend", "aot_eager", *flags]
    command += ["-m", "tests.training_script", str(tmp_path), "ddp"]
    numbered = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
    # WHEN two ranks are started by it THEN both train together, compiled as the flags say
    first, second = found(tmp_path, [(command, variables) for variables in numbered])
    for rank in (first, second):
        assert (rank["strategy"], rank["backend"]) == (strategy, "aot_eager")
        assert rank["counts"][2] == 0
    assert [entry[0] for entry in first["ranks"]] == [0, 1]
    assert second["ranks"] is None
