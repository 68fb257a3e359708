"""What the benchmark measures: models with a step for each task, and the ways of compiling them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: Ways of compiling, in the order in which they are told. ``eager`` is the model as it is; ``regional-entry`` is
#: ``regional`` without its direct call of compiled code, so that what is left of a difference is what watching costs.
WAYS = ("eager", "regional", "regional-entry", "full", "hierarchical", "accelerate", "diffusers", "blocks")
#: ``forward``: one forward, no gradient, no KV cache. ``train``: forward, loss and backward; no optimizer, whose work
#: is the same for all. ``generate``: tokens with the KV cache.
TASKS = ("forward", "train", "generate")
TOKENS = 32  # of the prompt of ``generate``, and of what it adds


@dataclass
class Subject:
    """A model, what to do with it or with what compiling makes of it, and the paths of its blocks.

    ``call`` takes what :func:`compiled` returned, and gives a tensor that can be compared with eager's.
    """

    model: Any
    call: Callable[[Any], Any]
    blocks: list[str]
    training: bool = False

    def block_modules(self, model: Any) -> list[Any]:
        return [block for path in self.blocks for block in model.get_submodule(path).children()]

    def twin(self) -> Any:
        """A model of its own modules but the same weights: none is favoured by where its weights lie in memory."""
        shared = {id(tensor): tensor for tensor in (*self.model.parameters(), *self.model.buffers())}
        return copy.deepcopy(self.model, shared)


def load(name: str, task: str, layers: int | None = None) -> Subject:
    """A model by name, ready for a task.

    ``smollm2`` and ``minilm`` are real ones, 1x128 tokens each. ``wide-llama`` has SmolLM2's width, random weights and
    as many layers as asked for. ``small-llama`` is 32 wide, with 8 tokens. ``tiny-llama``, ``tiny-bert`` and ``flux``
    are those of the tests.
    """
    model, inputs, blocks = MODELS[name](layers)
    if task == "generate":
        return Subject(model, _generation(inputs), blocks)
    if task == "train":
        return Subject(model.train(), _training_step(model, inputs), blocks, training=True)
    return Subject(model, lambda compiled: _output(compiled(**inputs)), blocks)


def compiled(way: str, model: Any, blocks: Sequence[Any], backend: str | None = None) -> Any:
    """The model, compiled in one way: what to call instead of it.

    Args:
        way: one of :data:`WAYS`, with a number behind ``#`` where one is measured more than once.
        blocks: the repeated blocks of the model, which ``block.compile()`` is to be called on.
        backend: the compiler's backend; ``None`` leaves the choice to each library, as its users do.
    """
    import torch

    settings: dict[str, Any] = {} if backend is None else {"backend": backend}
    match way.partition("#")[0]:
        case "eager":
            return model
        case "regional":
            import nbcompile

            return nbcompile.compile_regions(model, **settings)
        case "background":
            import nbcompile

            return nbcompile.compile_regions(model, background=True, **settings)
        case "regional-entry":
            import nbcompile

            return _by_the_entry(nbcompile.compile_regions(model, **settings))
        case "hierarchical":
            import nbcompile

            return nbcompile.compile_model(model, strategy="hierarchical", **settings)
        case "full":
            return torch.compile(model, **settings)
        case "accelerate":
            from accelerate.utils import compile_regions

            return compile_regions(model, **settings)  # a new object; the model itself stays as it is
        case "diffusers":
            model.compile_repeated_blocks(**settings)
            return model
        case "blocks":
            for block in blocks:
                block.compile(**settings)
            return model
        case _:
            raise ValueError(f"there is no way of compiling {way!r}; those that exist: {', '.join(WAYS)}")


def _by_the_entry(model: Any) -> Callable[..., Any]:
    """A regionally compiled model that goes through the compiler's own entry at each call of a block, as others do.

    Whether a variant has a direct way is settled when it is made, which is in a call.
    """
    from nbcompile import fastpath

    def call(*args: Any, **kwargs: Any) -> Any:
        usable, fastpath.usable = fastpath.usable, lambda mode, options: False
        try:
            return model(*args, **kwargs)
        finally:
            fastpath.usable = usable

    return call


# -- the models --------------------------------------------------------------------------------------------------------


def _ids(vocabulary: int, length: int, batch: int = 1) -> Any:
    import torch

    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(0))


def _smollm2(layers: int | None) -> tuple[Any, dict[str, Any], list[str]]:
    from tests import models

    model, _ = models.smollm2()
    return model, {"input_ids": _ids(49152, 128), "use_cache": False}, ["model.layers"]


def _minilm(layers: int | None) -> tuple[Any, dict[str, Any], list[str]]:
    import torch

    from tests import models

    model, _ = models.minilm()
    ids = _ids(30522, 128)
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, ["encoder.layer"]


def _wide_llama(layers: int | None) -> tuple[Any, dict[str, Any], list[str]]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers or 12,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    return model, {"input_ids": _ids(4096, 128), "use_cache": False}, ["model.layers"]


def _small_llama(layers: int | None) -> tuple[Any, dict[str, Any], list[str]]:
    from tests import models

    model, _ = models.llama(layers or 24)
    return model, {"input_ids": _ids(128, 8), "use_cache": False}, ["model.layers"]


def _tiny_llama(layers: int | None) -> tuple[Any, dict[str, Any], list[str]]:
    from tests import models

    model, inputs = models.llama(layers or 4)
    return model, {**inputs, "use_cache": False}, ["model.layers"]


def _tiny_bert(layers: int | None) -> tuple[Any, dict[str, Any], list[str]]:
    from tests import models

    return *models.bert(layers or 4), ["encoder.layer"]


def _flux(layers: int | None) -> tuple[Any, dict[str, Any], list[str]]:
    from tests import models

    return *models.flux(layers or 8), ["transformer_blocks", "single_transformer_blocks"]


MODELS: dict[str, Callable[[int | None], tuple[Any, dict[str, Any], list[str]]]] = {
    "smollm2": _smollm2,
    "minilm": _minilm,
    "wide-llama": _wide_llama,
    "small-llama": _small_llama,
    "tiny-llama": _tiny_llama,
    "tiny-bert": _tiny_bert,
    "flux": _flux,
}


# -- the steps ---------------------------------------------------------------------------------------------------------


def _output(result: Any) -> Any:
    """The tensor that a model's result is judged by."""
    for name in ("logits", "last_hidden_state", "sample"):
        if hasattr(result, name):
            return getattr(result, name)
    return result[0]


def _training_step(model: Any, inputs: dict[str, Any]) -> Callable[[Any], Any]:
    """Forward, loss and backward; the loss is the model's own where it has one, the output's mean square otherwise."""
    parameters = list(model.parameters())  # all ways share them
    own = {**inputs, "labels": inputs["input_ids"]} if hasattr(model, "lm_head") else inputs

    def step(compiled: Any) -> Any:
        for parameter in parameters:
            parameter.grad = None
        result = compiled(**own)
        loss = result.loss if hasattr(result, "loss") else _output(result).square().mean()
        loss.backward()
        return loss.detach()

    return step


def _generation(inputs: dict[str, Any]) -> Callable[[Any], Any]:
    ids = inputs["input_ids"][:1, :TOKENS]
    settings = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
    return lambda compiled: compiled.generate(ids, **settings)
