"""The process of one strategy in a cell of a sweep: it builds the model, compiles it cold, then times rounds when told.

It speaks JSON, a line a message. The first line that it reads is the job; it answers with its stages and then with the
report of a comparison of the strategy with eager. Every further line asks for a round.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from typing import IO, Any

from .helper import end_with_parent


def main(parent: int, folder: str) -> None:
    """Do the job that comes on standard input, for a parent with this process number.

    Args:
        folder: what lies there is this process's alone. The parent removes it, unless it ends first.
    """
    threading.Thread(target=end_with_parent, args=(parent, folder), daemon=True).start()
    answers = _private_stdout()
    job = json.loads(sys.stdin.readline())
    try:
        _work(job, answers)
    except Exception as error:  # told to the parent, whose line in the report it is
        _tell(answers, {"error": f"{type(error).__name__}: {error}"})


def _work(job: dict[str, Any], answers: IO[str]) -> None:
    import torch

    from . import cells, compiler
    from .compare import compare
    from .rounds import TellingRounds

    strategy, task = job["strategy"], job["task"]
    torch.set_num_threads(job["threads"])
    model, inputs = cells.build(job["source"], task)
    step = cells.step_of(model, inputs, task)

    def stage(line: str) -> None:
        if not line.startswith("steady"):  # those that count are timed later, beside the other strategies' processes
            _tell(answers, {"stage": line})

    with contextlib.nullcontext() if task != "inference" else torch.no_grad():
        names = list(dict.fromkeys(["eager", strategy]))
        report = compare(model, step, names, rounds=1, calls=1, keep=strategy, progress=stage, **job["settings"])
        _tell(answers, {"report": report.to_dict()})
        rounds = TellingRounds(step, seconds=job["round_seconds"])
        for line in sys.stdin:
            name = json.loads(line)["round"]
            with compiler.eager(model) if name != strategy else contextlib.nullcontext():
                rounds.take(name)
            _tell(answers, rounds.told())


def _private_stdout() -> IO[str]:
    """A stream to the parent that no library can print into; what they print goes to standard error."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream


def _tell(stream: IO[str], answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()
