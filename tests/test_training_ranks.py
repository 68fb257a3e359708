"""Two processes train one model together, with gloo: DDP and FSDP, compiled block by block, and one report of both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
#: Those that train, and are held against the same training uncompiled.
TRAINED = (
    *("ddp", "ddp buckets"),
    *("fsdp2", "fsdp2 compiled before", "fsdp2 checkpointed", "fsdp2 by the accelerator"),
    *("fsdp1", "fsdp1 compiled before"),
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two ranks found, of every scenario: they are all run by one pair of processes."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [
            *command,
            "-m",
            "tests.two_ranks",
            str(folder),
            *TRAINED,
            "flat parameters",
            "alone",
            "together",
            "not compiled",
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{number}.json").read_text()) for number in range(2)]


@pytest.mark.parametrize("way", TRAINED)
def test_losses_are_eagers_and_parameters_are_equal_on_both_ranks(ranks: list[dict[str, Any]], way: str) -> None:
    # GIVEN a training on two ranks, and the same one uncompiled WHEN their losses are compared
    first, second = ranks[0][way], ranks[1][way]
    # THEN they are equal on each rank, though the ranks were given different data, and both hold the same parameters
    assert first["difference"] < 1e-5
    assert second["difference"] < 1e-5
    assert first["losses"] != second["losses"]
    assert first["parameters"] == second["parameters"]


@pytest.mark.parametrize("way", TRAINED)
def test_every_block_runs_compiled_on_every_rank_by_one_graph(ranks: list[dict[str, Any]], way: str) -> None:
    # GIVEN the report of what was trained, asked of what the user holds WHEN the blocks are counted
    for rank in ranks:
        found = rank[way]
        # THEN all of them ran compiled, by one graph, never again, and nothing split it
        assert (found["path"], found["groups"]) == ("model.layers", 1)
        assert found["counts"] == [12, 12, 0]
        assert (found["graphs"], found["recompiles"], found["breaks"]) == (1, [], [])


def test_what_is_trained_is_what_the_parallel_library_made(ranks: list[dict[str, Any]]) -> None:
    # GIVEN the results THEN the wrappers are in place, which would otherwise make the tests above pass for nothing
    assert [ranks[0][way]["kind"] for way in TRAINED] == [
        *("DistributedDataParallel", "DistributedDataParallel"),
        *("FSDPLlamaForCausalLM", "FSDPLlamaForCausalLM", "FSDPLlamaForCausalLM", "FSDPLlamaForCausalLM"),
        *("FullyShardedDataParallel", "FullyShardedDataParallel"),
    ]


@pytest.mark.parametrize("way", ["ddp", "fsdp2 by the accelerator"])
def test_a_state_dict_from_the_accelerator_has_the_models_own_keys(ranks: list[dict[str, Any]], way: str) -> None:
    assert ranks[0][way]["keys"] is True


def test_flat_parameters_of_fsdp1_are_refused_with_the_reason(ranks: list[dict[str, Any]]) -> None:
    # GIVEN FSDP1 that keeps a block's weights as one flat parameter WHEN it is to be compiled
    found = ranks[0]["flat parameters"]
    # THEN it is refused with the remedy, before anything is wrapped
    for way in ("regions", "model", "accelerator"):
        assert "use_orig_params=True" in found[way]
    assert found["prepared"] is False
    # AND what was compiled before it was wrapped trains as it would uncompiled, and says why
    assert found["same"] is True
    assert found["eager"] == 12
    assert "use_orig_params=True" in found["reason"]


def test_one_report_names_the_rank_that_compiled_again_alone(ranks: list[dict[str, Any]]) -> None:
    # GIVEN two ranks of which the second met another length WHEN their reports are gathered
    first, second = ranks[0]["alone"], ranks[1]["alone"]
    # THEN the first rank has both side by side, and the second one draws nothing
    assert second["report"] is None
    assert first["ranks"] == [[0, 2, 2, 0], [1, 2, 2, 1]]
    # AND it is told who compiled again, where and why
    assert [entry[:2] for entry in first["alone"]] == [[1, "model.layers.0"]]
    assert "from 16 to 24" in first["alone"][0][2]
    assert "compiled again while others did not" in first["report"]


@pytest.mark.parametrize(("way", "still_on"), [("keyword", False), ("switch", True)])
def test_with_guard_collectives_all_ranks_compile_when_one_has_to(
    ranks: list[dict[str, Any]], way: str, still_on: bool
) -> None:
    # GIVEN the same, guard collectives on, for the model or for the process WHEN one rank meets another length
    graphs = [rank["together"][way]["graphs"] for rank in ranks]
    # THEN both made as many graphs, and torch's switch is where the user left it
    assert graphs[0] == graphs[1] >= 2
    assert [rank["together"][way]["still on"] for rank in ranks] == [still_on, still_on]


def test_a_rank_without_a_report_is_named_and_nobody_waits(ranks: list[dict[str, Any]]) -> None:
    first, second = ranks[0]["not compiled"], ranks[1]["not compiled"]
    assert first["error"].startswith("rank 1 has no report: nbcompile has not compiled this LlamaForCausalLM")
    assert second["error"].startswith("nbcompile has not compiled this LlamaForCausalLM")
