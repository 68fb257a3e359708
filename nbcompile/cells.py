"""What a sweep measures: its presets, its cells, and the step that each of them times."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import describe
from .errors import UsageError
from .integrations import llama
from .integrations.llama import LlamaShape

#: What a step does, by name, with the words that a report has for it.
TASKS = {
    "inference": "forward under no_grad",
    "forward": "forward that records gradients, without a backward",
    "training": "forward, loss and backward; the optimizer's step, which no strategy compiles, is left out",
}

#: A user's model: called with a batch size, it gives the model and the keyword arguments of one call.
Factory = Callable[[int], tuple[nn.Module, Mapping[str, Any]]]


@dataclass(frozen=True)
class Preset:
    """A sweep that is ready made: Llama shapes with random weights.

    Attributes:
        sequence: tokens of an input.
        dtype: the name of a dtype of torch.
    """

    models: Mapping[str, LlamaShape]
    batches: tuple[int, ...]
    tasks: tuple[str, ...]
    sequence: int
    dtype: str
    device: str


PRESETS = {
    # Small enough for a machine of two cores.
    "cpu": Preset(
        {
            "Llama 3x192": LlamaShape(3, 192, 512, 6, 6, 32, 1024, True),
            "Llama 8x320": LlamaShape(8, 320, 896, 5, 5, 64, 1024, True),
        },
        batches=(1, 4),
        tasks=("inference", "training"),
        sequence=64,
        dtype="float32",
        device="cpu",
    ),
    # The table that is published in accelerate's repository: Llama 3.2 1B and 3B, Llama 3.1 8B and Llama 2 13B by their
    # published configurations. It was measured with gradients recorded and without a backward.
    "document": Preset(
        {
            "Llama 1B": LlamaShape(16, 2048, 8192, 32, 8, 64, 128256, True),
            "Llama 3B": LlamaShape(28, 3072, 8192, 24, 8, 128, 128256, True),
            "Llama 8B": LlamaShape(32, 4096, 14336, 32, 8, 128, 128256, False),
            "Llama 13B": LlamaShape(40, 5120, 13824, 40, 40, 128, 32000, False),
        },
        batches=(1, 4),
        tasks=("forward",),
        sequence=128,
        dtype="float16",
        device="cuda",
    ),
}


@dataclass(frozen=True)
class Cell:
    """One model at one batch size, doing one thing.

    Attributes:
        model: its name.
        task: one of :data:`TASKS`.
        facts: what makes it this model and input, as JSON: another one has other facts.
        source: how a process builds it, as JSON, see :func:`build`.
        weight_bytes: size of its parameters, in bytes.
        device: where it lies, as torch names it.
    """

    model: str
    batch: int
    task: str
    facts: Mapping[str, Any]
    source: Mapping[str, Any] = field(repr=False)
    weight_bytes: int
    device: str

    @property
    def title(self) -> str:
        return f"{self.model}, batch {self.batch}, {self.task}"

    @property
    def needed_bytes(self) -> int:
        """Memory that one process takes for it, in bytes, as a rough guess.

        The weights, in training gradients of the same size, a tenth for activations, and what torch takes for itself.
        """
        return round(self.weight_bytes * (2 if self.task == "training" else 1) * 1.1) + (1 << 30)


def preset_cells(preset: Preset) -> Iterator[Cell]:
    """The cells of a preset, those of a model together."""
    for name, shape in preset.models.items():
        how = {"sequence": preset.sequence, "dtype": preset.dtype, "device": preset.device}
        size = shape.parameters * getattr(torch, preset.dtype).itemsize
        for task in preset.tasks:
            for batch in preset.batches:
                facts = {**dataclasses.asdict(shape), **how}
                source = {"llama": dataclasses.asdict(shape), "batch": batch, **how}
                yield Cell(name, batch, task, facts, source, size, preset.device)


def given_cells(name: str, factory: Factory, batch: int, tasks: tuple[str, ...], folder: Path) -> list[Cell]:
    """The cells of a user's model at one batch size. It is built here, and kept in a file that processes read.

    Args:
        folder: where the file is put.

    Raises:
        UsageError: the factory gives something else than a model and its keyword arguments, or what cannot be pickled.
    """
    built = factory(batch)
    match built:
        case (nn.Module() as model, Mapping() as inputs):
            pass
        case _:
            raise UsageError(
                f"models[{name!r}] is to be a function that is called with a batch size and gives the model and the "
                f"keyword arguments of one call, as in lambda batch: (model, {{'x': torch.ones(batch, 8)}}); it gave "
                f"{type(built).__name__}"
            )
    homeless = next((type(part) for part in model.modules() if type(part).__module__ == "__main__"), None)
    if homeless is not None:
        raise UsageError(
            f"models[{name!r}] has a part of class {homeless.__name__}, which is defined in the notebook or script "
            "itself. Every cold start has a process of its own, which has to import it: put the class into a module "
            "(in a notebook: %%writefile my_model.py) and import it from there"
        )
    file = folder / f"{hashlib.sha256(f'{name} {batch}'.encode()).hexdigest()[:16]}.pt"
    try:
        torch.save((model, dict(inputs)), file)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(
            f"models[{name!r}] cannot be handed to a process of its own, which every cold start has: {error}. Take off "
            "what cannot be pickled, such as hooks and lambdas"
        ) from None
    device = describe.device_of(model)
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    facts, source = {"structure": _structure(model, inputs)}, {"file": str(file)}
    return [Cell(name, batch, task, facts, source, size, str(device or "cpu")) for task in tasks]


def _structure(model: nn.Module, inputs: Mapping[str, Any]) -> str:
    """A digest of a model's classes, sizes and dtypes and of its inputs' sizes; the values do not count."""
    lines = [f"{name} {type(part).__module__}.{type(part).__qualname__}" for name, part in model.named_modules()]
    lines += [f"{name} {tuple(t.shape)} {t.dtype} {t.device}" for name, t in model.state_dict().items()]
    for name, value in inputs.items():
        tensor = isinstance(value, torch.Tensor)
        lines.append(f"{name} {tuple(value.shape)} {value.dtype}" if tensor else f"{name} {type(value).__name__}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def build(source: Mapping[str, Any], task: str) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a cell and the keyword arguments of one call.

    Args:
        source: ``Cell.source``: a Llama's shape, or a file that :func:`given_cells` of this user has just written.
    """
    if "file" in source:
        model, inputs = torch.load(source["file"], weights_only=False)
    else:
        shape, how = LlamaShape(**source["llama"]), (source["sequence"], source["dtype"], source["device"])
        model, inputs = llama.build(shape, source["batch"], *how, labels=task == "training")
    return model.train(task == "training"), inputs


def step_of(model: nn.Module, inputs: Mapping[str, Any], task: str) -> Callable[[], Any]:
    """The step that is timed. A training step gives the loss and the gradients of all vectors among the parameters.

    The loss is the ``loss`` of what the model returns, if that has one, else the mean square of the floating point
    tensors that it returns.
    """
    if task != "training":
        return lambda: model(**inputs)

    def train() -> Any:
        model.zero_grad(set_to_none=True)
        loss = _loss(model(**inputs))
        loss.backward()
        # Norms have a weight that is a vector in every block, so a wrong gradient anywhere shows in these few numbers.
        return [loss.detach(), [p.grad for p in model.parameters() if p.dim() == 1 and p.grad is not None]]

    return train


def _loss(output: Any) -> torch.Tensor:
    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    squares = [value.float().square().mean() for value in _floats(output)]
    if not squares:
        raise UsageError("a training step needs a model that returns a loss or a floating point tensor")
    return torch.stack(squares).sum()


def _floats(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        yield from _floats(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _floats(item)


def machine(device: str) -> dict[str, Any]:
    """The machine and versions that a figure holds for."""
    facts = describe.environment()
    facts["device"] = device
    if device.startswith("cuda"):
        facts["device_name"], facts["cuda"] = torch.cuda.get_device_name(device), torch.version.cuda
    try:
        facts["transformers"] = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        facts["transformers"] = None
    return facts


def digest(identity: Mapping[str, Any]) -> str:
    """A short name for all that a cell's figures depend on."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]


def free_bytes(device: str) -> int | None:
    """Memory that is free on a device, in bytes; ``None`` where the system does not tell."""
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(device)[0]
    if device != "cpu":
        return None
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
