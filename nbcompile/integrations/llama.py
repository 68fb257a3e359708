"""Llama models with random weights, of any size: what a sweep measures where it is given no models.

The shapes are plain data, so that planning a sweep needs no transformers; only :func:`build` does. Timings do not
depend on the values of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import UsageError

_SEED = 0


@dataclass(frozen=True)
class LlamaShape:
    """The sizes that make a Llama; the names are short for those of transformers' ``LlamaConfig``.

    Attributes:
        width: elements of a hidden state.
        inner: elements inside of the MLP.
        key_heads: heads of keys and values, of which several heads of queries may share one.
        head: elements of one head.
        tied: whether the embedding is the output layer too.
    """

    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    head: int
    vocabulary: int
    tied: bool

    @property
    def parameters(self) -> int:
        """How many parameters the model has."""
        attention = 2 * self.width * self.head * (self.heads + self.key_heads)
        block = attention + 3 * self.width * self.inner + 2 * self.width
        return self.layers * block + self.width + (1 if self.tied else 2) * self.vocabulary * self.width


def build(
    shape: LlamaShape, batch: int, sequence: int, dtype: str, device: str, *, labels: bool
) -> tuple[nn.Module, dict[str, Any]]:
    """The model, in eval mode, and the keyword arguments of one call: token ids [batch, sequence], no KV cache.

    Args:
        dtype: the name of a dtype of torch, such as ``"float16"``.
        labels: whether the call computes a loss: the labels are the token ids.

    Raises:
        UsageError: transformers is not installed.
    """
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise UsageError(
            f"the presets of a sweep are Llama models of transformers, which cannot be imported here ({error}): run "
            "`pip install transformers`, or give models of your own: sweep(models={name: factory}, batches=[1, 4])"
        ) from None
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=max(2048, sequence),
        bos_token_id=1,
        eos_token_id=2,
    )
    before = torch.get_default_dtype()
    torch.manual_seed(_SEED)
    try:
        torch.set_default_dtype(getattr(torch, dtype))
        with torch.device(device):
            model = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
    ids = torch.randint(0, min(1000, shape.vocabulary), (batch, sequence), device=device)
    inputs: dict[str, Any] = {"input_ids": ids, "use_cache": False}
    return model, {**inputs, "labels": ids} if labels else inputs
