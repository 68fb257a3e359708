"""DeepSpeed's ZeRO 1, 2 and 3 on two processes, with gloo: run where DeepSpeed is installed, skipped elsewhere."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
]

ROOT = Path(__file__).parents[1]


@functools.cache
def ranks(who: str, stage: int) -> list[dict[str, Any]]:
    """What each of the two ranks found of a training; of one that was asked for before, what it found then."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        done = subprocess.run(
            [*command, "-m", "tests.deepspeed_ranks", folder, who, str(stage)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return [json.loads(Path(folder, f"rank{number}.json").read_text()) for number in range(2)]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_block_is_compiled_by_one_graph_and_the_losses_are_the_uncompiled_ones(stage: int) -> None:
    # GIVEN a training, uncompiled and compiled WHEN both ranks have trained
    for plain, found in zip(ranks("nobody", stage), ranks("nbcompile", stage), strict=True):
        # THEN the losses are equal, all blocks ran compiled, by one graph, and no other graph was made
        assert found["kind"] == "DeepSpeedEngine"
        assert found["losses"] == pytest.approx(plain["losses"], abs=1e-5)
        assert (found["path"], found["counts"], found["graphs"]) == ("model.layers", [4, 4, 0], 1)
        assert found["graphs of the process"] == 1
        # AND a state dict has the keys of the uncompiled model
        assert found["keys"] == plain["keys"]


def test_a_whole_model_under_zero_3_is_refused_before_anything_is_prepared() -> None:
    for found in ranks("full", 3):
        assert found["refused"].startswith("a whole model cannot be compiled under DeepSpeed's ZeRO 3")
        assert found["prepared"] is False


def test_blocks_whose_weights_are_gathered_inside_run_eager_with_the_reason() -> None:
    # GIVEN a model that was prepared without this package, so that ZeRO 3 has hooks inside its blocks
    # WHEN it is compiled by hand and trained THEN nothing is lost: it runs eager, and the report says why
    for plain, found in zip(ranks("nobody", 3), ranks("by hand", 3), strict=True):
        assert found["losses"] == pytest.approx(plain["losses"], abs=1e-5)
        assert found["counts"] == [4, 0, 4]
        assert "gathers the weights of each module inside it apart" in found["eager_reason"]
