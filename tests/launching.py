"""What a notebook does that launches a training and has it fail: run by test_training_launch.py in another process.

``python -m tests.launching HOW PORT`` launches two ranks by ``accelerate.notebook_launcher``. Its last line is JSON:
the error that the cell would show, and how many seconds after the failure it was there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from accelerate import notebook_launcher

import nbcompile

from .models import llama


def train(how: str, failed_at: str) -> None:
    """Train without end, unless it is to be ``"fine"``; the second rank fails in its fourth step."""
    plugin = nbcompile.TorchDynamoPlugin(backend="aot_eager")
    accelerator: Any = nbcompile.Accelerator(cpu=True, dynamo_plugin=plugin)
    model: Any = llama(2)[0].train()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    step = 0
    while how != "fine" or step < 3:
        step += 1
        ids = torch.ones(2, 16, dtype=torch.long)
        accelerator.backward(model(input_ids=ids, labels=ids, use_cache=False).loss)
        optimizer.step()
        optimizer.zero_grad()
        if step == 4 and accelerator.process_index == 1:
            Path(failed_at).write_text(str(time.time()))
            if how == "raises":
                raise ValueError("rank 1 has had enough")
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
    report = nbcompile.gather_report(model)
    if report is not None:
        Path(failed_at).write_text(json.dumps([[rank.rank, rank.compiled, rank.eager] for rank in report.ranks]))


def interrupt(file: Path) -> None:
    """Interrupt this process and all that it started, as Jupyter does, once the training is in its fourth step."""
    while not file.exists():
        time.sleep(0.1)
    os.killpg(os.getpgid(0), signal.SIGINT)


def main(how: str, port: str) -> None:
    torch.randn(300, 300) @ torch.randn(300, 300)  # a kernel that has computed has threads, which a fork does not take
    file = Path(tempfile.mkdtemp(), "failed at")
    if how == "interrupted":
        threading.Thread(target=interrupt, args=(file,), daemon=True).start()
    error = ""
    try:
        notebook_launcher(train, (how, str(file)), num_processes=2, use_port=port)
    except BaseException as raised:  # a cell shows whatever it is
        error = f"{type(raised).__name__}: {raised}"
    told: dict[str, Any] = {"error": error}
    if how == "fine":
        told["ranks"] = json.loads(file.read_text())
    else:
        told["seconds"] = time.time() - float(file.read_text())
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
