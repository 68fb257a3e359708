"""Engines of ipyparallel train together by ``%%px`` cells of a notebook, each compiling for itself."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator

import pytest

from .front import FrontEnd

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ipyparallel") is None, reason="ipyparallel is not installed"),
]

START = """\
import socket
import ipyparallel as ipp
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
cluster = ipp.Cluster(n=2, log_level=40)
engines = cluster.start_and_connect_sync(activate=True)
view = engines[:]
view.scatter("rank", range(2), flatten=True)
view.push({"port": port}, block=True);
"""

JOIN = """\
%%px --no-stream
import os
os.environ.update(
    MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2"
)
%load_ext nbcompile
import torch
import nbcompile
from tests.models import llama
torch.set_num_threads(1)
accelerator = nbcompile.Accelerator(cpu=True, dynamo_plugin=nbcompile.TorchDynamoPlugin(backend="aot_eager"))
model = llama(2)[0].train()
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
numbers = torch.Generator().manual_seed(rank)
print("is", type(model).__name__)
"""

TRAIN = """\
%%px --no-stream
for _ in range(5):
    ids = torch.randint(3, 128, (2, 16), generator=numbers)
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
print("sum", float(sum(p.detach().double().abs().sum() for p in model.parameters())))
report = nbcompile.gather_report(model)
if report is not None:
    print([(rank.rank, rank.compiled, rank.eager) for rank in report.ranks])
"""


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontEnd]:
    folder = tmp_path_factory.mktemp("engines")
    more = {"ACCELERATE_USE_CPU": "yes", "OMP_NUM_THREADS": "1", "IPYTHONDIR": str(folder / "ipython")}
    before = {name: os.environ.get(name) for name in more}
    os.environ |= more
    try:
        front = FrontEnd(folder)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    run(front, START)
    yield front
    run(front, "cluster.stop_cluster_sync()")
    front.stop()


def run(front: FrontEnd, code: str) -> str:
    """What a cell printed, which has to succeed."""
    cell = front.start(code)
    assert front.ended(cell, 120) == "ok", front.printed(cell)
    return re.sub(r"\x1b\[[0-9;]*m", "", front.printed(cell))


def test_engines_compile_and_train_together_cell_by_cell(front: FrontEnd) -> None:
    # GIVEN two engines that have joined one process group, each with a compiled model WHEN a cell trains on both
    assert run(front, JOIN).count("is DistributedDataParallel") == 2
    printed = run(front, TRAIN)
    # THEN both hold the same parameters, though each has seen data of its own
    sums = re.findall(r"sum ([\d.]+)", printed)
    assert len(sums) == 2
    assert sums[0] == sums[1]
    # AND the first one has the report of both, in which every block ran compiled
    assert printed.count("[(0, 2, 0), (1, 2, 0)]") == 1
    # AND the next cell goes on with what is there
    assert run(front, TRAIN).count("[(0, 2, 0), (1, 2, 0)]") == 1


def test_an_engine_that_fails_shows_its_own_error(front: FrontEnd) -> None:
    # GIVEN the engines WHEN a cell fails on one of them THEN the notebook has its error, and both go on
    cell = front.start("%%px --no-stream\nif rank == 1:\n    raise ValueError('rank 1 has had enough')")
    assert front.ended(cell, 60) != "ok"
    assert "rank 1 has had enough" in front.printed(cell)
    assert run(front, "%%px --no-stream\nprint('here', rank)").count("here") == 2
