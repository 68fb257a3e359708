"""Why a block is compiled although the compiler's cache has been there before: what has changed since.

The compiler's own key for a graph is one number, and says nothing of why another is not it. So a small file is left
in the cache folder for each graph that was compiled: of what block, and what the code depends on, in words. When a
graph is not found, the nearest of these tells the reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from . import cache

#: The folder in the compiler's cache folder that the files are in.
FOLDER = "nbcompile-compiled"
_MOST_FILES, _LONGEST = 2000, 120


def missed() -> int:
    """How many graphs were not found in the cache so far in this process. Checked on torch 2.11 and 2.13."""
    return int(torch._dynamo.utils.counters["inductor"]["fxgraph_cache_miss"])


def facts(
    structure: Sequence[object], inputs: Sequence[Any], circumstances: Mapping[str, object], options: object
) -> dict[str, str]:
    """What a block's code depends on, each by a name for people.

    Args:
        structure: see ``regions.structure``, by names.
        inputs: of the graph.
        circumstances: flags of the call.
        options: the user's options of the backend.
    """
    kinds = sorted({str(x.dtype).removeprefix("torch.") for x in inputs if isinstance(x, torch.Tensor)})
    shapes = [list(map(str, x.shape)) for x in inputs if isinstance(x, torch.Tensor)]
    devices = sorted({x.device.type for x in inputs if isinstance(x, torch.Tensor)})
    found = {
        "torch": str(torch.__version__),
        "Python": platform.python_version(),
        "device": ", ".join(torch.cuda.get_device_name() if device == "cuda" else device for device in devices),
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "torch.get_num_threads()": str(torch.get_num_threads()),
        "torch.get_default_dtype()": str(torch.get_default_dtype()),
        "dtypes": ", ".join(kinds),
        "sizes": ", ".join("x".join(shape) or "()" for shape in shapes),
        "gradients": str(torch.is_grad_enabled()),
        "options": str(options or "none"),
        "C++ compiler": os.environ.get("CXX", "g++"),
        "the block's modules or weights": _number(structure),
        "settings of torch._inductor.config": _settings(),
    }
    found.update({name: str(value) for name, value in circumstances.items()})
    return found


def tell(class_name: str, now: Mapping[str, str]) -> str:
    """Why a block that was not found has to be compiled, in words; ``""`` if no block of its class was before.

    Leaves word that it has been compiled.
    """
    folder = cache.cache_folder() / FOLDER
    file = folder / f"{_number([class_name, dict(now)])}.json"
    known: list[tuple[float, dict[str, Any]]] = []
    with contextlib.suppress(OSError):
        for other in sorted(folder.glob("*.json"))[:_MOST_FILES]:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # or another's file
                content = json.loads(other.read_text(encoding="utf-8"))
                if content["class"] == class_name and isinstance(content["facts"], dict):
                    known.append((other.stat().st_mtime, content["facts"]))
    _leave(file, {"class": class_name, "facts": dict(now)})
    if not known:
        return ""
    _, before = min(known, key=lambda one: (len(_differing(one[1], now)), -one[0]))
    names = _differing(before, now)
    if not names:
        return "the same was compiled before, but is no longer in the cache, or could not be kept there"
    return "; ".join(_words(name, before.get(name), now.get(name)) for name in names)


def _differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [name for name in {**now, **before} if before.get(name) != now.get(name)]


def _words(name: str, before: str | None, now: str | None) -> str:
    if name == "the block's modules or weights":
        return f"{name} are others"
    short = [text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..." for text in (now or "none", before or "none")]
    return f"{name}: {short[0]}, compiled before for {short[1]}"


def _settings() -> str:
    """What is not at its default."""
    with contextlib.suppress(Exception):  # private, and no more than words hang on it
        return str(torch._inductor.config.codegen_config()) or "default"
    return "unknown"


def _number(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:20]


def _leave(file: Path, content: dict[str, Any]) -> None:
    temporary = file.with_name(f".{os.getpid()}.{file.name}.tmp")
    with contextlib.suppress(OSError):  # no more than words hang on it
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(file)
