"""Why a block is compiled anew although the cache has been there before."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from nbcompile import misses

_PROGRAM = """
import sys, torch, nbcompile
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 16)
    def forward(self, x):
        return x + torch.relu(self.fc(x)).sin()
threads, dtype, size = int(sys.argv[1]), getattr(torch, sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
model = nn.Sequential(*[Block() for _ in range(3)]).to(dtype)
nbcompile.compile_regions(model)
with torch.no_grad():
    model(torch.ones(size, 16, dtype=dtype))
print("|".join(note for note in nbcompile.report(model).notes if "compiled anew" in note))
"""


@pytest.mark.inductor
@pytest.mark.slow
def test_a_restarted_process_is_told_what_changed(tmp_path: Path) -> None:
    def run(*arguments: object) -> str:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(_PROGRAM), *map(str, arguments)],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout.strip()

    assert run(2, "float32", 4) == "" == run(2, "float32", 4)  # nothing to tell at the first time, and of a hit
    told = run(1, "float32", 4)
    assert "torch.get_num_threads(): 1, compiled before for 2" in told
    assert "sizes" not in told
    told = run(2, "float32", 6)
    assert "sizes: " in told
    assert "6x16" in told
    assert "threads" not in told
    assert "dtypes: bfloat16, compiled before for float32" in run(2, "bfloat16", 4)


def test_words_are_no_condition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    folder = tmp_path / misses.FOLDER
    folder.mkdir()
    for number, text in enumerate(["", "[]", "{", '{"class": "Block", "facts": 3}']):
        (folder / f"{number}.json").write_text(text)
    now = misses.facts([("", "Block")], [torch.ones(2, 3)], {}, None)
    assert misses.tell("Block", now) == ""
    assert misses.tell("Block", now).startswith("the same was compiled before")
    assert misses.tell("Other", now) == ""
