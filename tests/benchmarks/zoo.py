"""What really ran: many architectures compiled by blocks in three ways, and how many blocks each way really compiled.

    make zoo                                     # every model
    make zoo ZOO_ARGS='--models llama,t5'        # some
    make zoo ZOO_ARGS='--layers 4'

Each model has more blocks than the compiler's recompile limit (8), random weights and a small width; figures here are
counts, not times. The ways are

- ``nbcompile``: ``nbcompile.compile_regions``
- ``accelerate``: ``accelerate.utils.compile_regions``
- ``blocks``: ``block.compile()`` on each block

and each model and way runs in a process of its own, in the same order: one forward as the library does it by default
(with a KV cache where the model has one), ``generate`` of eight tokens, one training step. Graphs are counted by the
compiler, anew for each of the three. Whether a block ran compiled is seen from inside it: one of its layers tells when
it runs outside the compiler, at the second and later calls. The difference is from the same model uncompiled.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WAYS = ("nbcompile", "accelerate", "blocks")
TIMEOUT_SECONDS = 600


def main() -> int:
    sys.path.insert(0, str(ROOT))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="names, separated by commas (default: all)")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"default: {','.join(WAYS)}")
    parser.add_argument("--layers", type=int, default=12, help="blocks per stack where a model can choose (default 12)")
    parser.add_argument("--backend", default="aot_eager", help="default: aot_eager, which needs no C++ compiler")
    parser.add_argument("--worker", nargs=2, metavar=("MODEL", "WAY"), help="measure one in this process")
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(measure(*arguments.worker, arguments.layers, arguments.backend)))
        return 0
    from tests.models import WIDE_ZOO

    names = arguments.models.split(",") if arguments.models else list(WIDE_ZOO)
    unknown = [name for name in names if name not in WIDE_ZOO]
    if unknown:
        parser.error(f"no model {unknown[0]!r}; those that exist: {', '.join(WIDE_ZOO)}")
    return print_table(names, arguments.ways.split(","), arguments)


# -- the parent -------------------------------------------------------------------------------------------------------

COLUMNS = (
    ("model", "model"),
    ("way", "way"),
    ("blocks", "blocks"),
    ("variants", "variants"),
    ("prefill", "graphs: prefill"),
    ("decode", "decode"),
    ("training", "training"),
    ("eager_prefill", "eager blocks: prefill"),
    ("eager_decode", "decode"),
    ("eager_training", "training"),
    ("diff", "largest difference"),
)


def print_table(names: Sequence[str], ways: Sequence[str], arguments: argparse.Namespace) -> int:
    print("  ".join(title for _, title in COLUMNS), flush=True)
    complete = True
    for name in names:
        for way in ways:
            row = run_worker(name, way, arguments)
            cells = [str(row.get(key, "–")) for key, _ in COLUMNS]
            widths = [max(12 if key == "model" else 10 if key == "way" else 0, len(title)) for key, title in COLUMNS]
            line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
            print(line + (f"  {row['failure']}" if "failure" in row else ""), flush=True)
            if way == "nbcompile":
                eager = [row.get(key) for key in ("eager_prefill", "eager_decode", "eager_training")]
                complete &= "failure" not in row and not any(eager)
    print(f"\nnbcompile: {'every block of every model' if complete else 'NOT every block'} ran compiled")
    return 0 if complete else 1


def run_worker(name: str, way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--worker", name, way, "--layers", str(arguments.layers)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TORCH_LOGS": "-all"}
    try:
        done = subprocess.run(
            [*command, "--backend", arguments.backend],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"model": name, "way": way, "failure": f"more than {TIMEOUT_SECONDS} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        last = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
        return {"model": name, "way": way, "failure": last[-1][:100]}
    row = json.loads(lines[-1])
    assert isinstance(row, dict)
    return row


# -- one model, one way -----------------------------------------------------------------------------------------------


def measure(name: str, way: str, layers: int, backend: str) -> dict[str, Any]:
    """One row of the table."""
    import torch
    from torch._dynamo.utils import counters

    import nbcompile
    from tests.models import WIDE_ZOO

    warnings.simplefilter("ignore")
    model, inputs = WIDE_ZOO[name](layers)
    reference = copy.deepcopy(model)
    paths = [path for group in nbcompile.plan_regions(model).groups for path in group.blocks]
    blocks = [model.get_submodule(path) for path in paths]
    ran_eager = watch(blocks)
    compiled = apply(way, model, blocks, backend)
    row: dict[str, Any] = {"model": name, "way": way, "blocks": len(blocks)}
    differences: list[float] = []

    def phase(key: str, call: Callable[[Any], Any]) -> None:
        expected = list(numbers(call(reference)))
        counters.clear()
        for _ in range(3):  # the third call is a steady one: sizes that change have changed by then
            ran_eager.clear()
            found = list(numbers(call(compiled)))
        row[key], row[f"eager_{key}"] = counters["stats"]["unique_graphs"], len(ran_eager)
        differences.extend(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True) if a.numel())

    with torch.no_grad():
        phase("prefill", lambda m: m(**inputs))
        if hasattr(model, "generate") and getattr(model, "can_generate", lambda: False)():
            settings = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
            sources = {key: value for key, value in inputs.items() if not key.startswith("decoder_")}
            phase("decode", lambda m: m.generate(**sources, **settings).float())

    def train(m: Any) -> list[Any]:
        m.zero_grad()
        total = sum(t.float().pow(2).mean() for t in numbers(m(**inputs, **without_cache(inputs))) if t.requires_grad)
        total.backward()  # type: ignore[union-attr]
        return [p.grad for p in m.parameters() if p.grad is not None]

    phase("training", train)
    row["diff"] = f"{max(differences):.1e}"
    if way == "nbcompile":
        row["variants"] = sum(len(group.variants) for group in nbcompile.report(model).groups)
        told = sum(group.eager for group in nbcompile.report(model).groups)
        if told != row["eager_training"]:
            row["failure"] = f"the report says {told} eager, {row['eager_training']} were"
    return row


def apply(way: str, model: Any, blocks: Sequence[Any], backend: str) -> Any:
    """The model compiled in one of the ways."""
    if way == "nbcompile":
        import nbcompile

        return nbcompile.compile_regions(model, backend=backend)
    if way == "accelerate":
        from accelerate.utils import compile_regions

        return compile_regions(model, backend=backend)
    for block in blocks:
        block.compile(backend=backend)
    return model


def watch(blocks: Sequence[Any]) -> set[int]:
    """The set that collects a block's number whenever its first layer runs outside the compiler."""
    import torch

    ran: set[int] = set()
    classes: dict[type, type] = {}
    for block in blocks:
        leaf = next(m for m in block.modules() if not list(m.children()) and list(m.parameters()))
        base = type(leaf)
        if base not in classes:

            def forward(self: Any, *args: Any, base: Any = base, **kwargs: Any) -> Any:
                if not torch.compiler.is_compiling():
                    ran.add(id(self))
                return base.forward(self, *args, **kwargs)

            classes[base] = type(base.__name__, (base,), {"forward": forward, "__module__": base.__module__})
        leaf.__class__ = classes[base]
    return ran


def numbers(value: Any) -> Iterator[Any]:
    """The floating point tensors of a result; caches left out."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if "cache" not in key and "past" not in key:
                yield from numbers(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from numbers(item)


def without_cache(inputs: dict[str, Any]) -> dict[str, Any]:
    """Training needs no cache; only models of text take the argument."""
    return {"use_cache": False} if "input_ids" in inputs or "input_features" in inputs else {}


if __name__ == "__main__":
    sys.exit(main())
