"""Write models of which some layers have attention and the others a state, with random weights.

Their layers have the shapes of LFM2-350M (short convolutions) and of Qwen3.5-0.8B (the gated delta rule). They have the
tokenizer of another model, and their heads are their tables of embeddings. Kernels of convolutions are f32, as
converters write them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.bench.engines.random_gguf import Q4_0, Q8_0, RandomFormat, Shape, write_random_gguf
from quire.weights.checkpoint import open_checkpoint

FORMATS: Mapping[str, tuple[RandomFormat, int]] = {"q4_0": (Q4_0, 2), "q8_0": (Q8_0, 7)}  # with general.file_type


@dataclass(frozen=True, slots=True)
class HybridShape:
    """A model without its vocabulary. Names of tensors are those of a layer."""

    arch: str  # GGUF's name
    keys: Mapping[str, Any]
    has_attention: tuple[bool, ...]  # of each layer
    dim: int
    attention: Mapping[str, Shape]
    recurrence: Mapping[str, Shape]
    other: Mapping[str, Shape]  # of every layer
    norm: str  # the tensor of the last norm

    def shapes(self, vocab_size: int) -> dict[str, Shape]:
        """All tensors."""
        shapes: dict[str, Shape] = {"token_embd.weight": (vocab_size, self.dim), self.norm: (self.dim,)}
        for layer, attends in enumerate(self.has_attention):
            names = {**(self.attention if attends else self.recurrence), **self.other}
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in names.items()}
        return shapes


def lfm2_shape(
    dim: int = 1024, ffn: int = 4608, heads: tuple[int, int] = (16, 8), attention: str = "..*..*..*.*.*.*."
) -> HybridShape:
    """LFM2-350M, or one of its kind. `attention`: a star for each layer that has it."""
    num_heads, num_kv_heads = heads
    has_attention, head_dim = tuple(each == "*" for each in attention), dim // num_heads
    return HybridShape(
        arch="lfm2",
        keys={
            "block_count": len(has_attention),
            "context_length": 8192,
            "embedding_length": dim,
            "feed_forward_length": ffn,
            "attention.head_count": num_heads,
            "attention.head_count_kv": [num_kv_heads if each else 0 for each in has_attention],
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 1000000.0,
            "shortconv.l_cache": 3,
        },
        has_attention=has_attention,
        dim=dim,
        attention={
            "attn_q.weight": (dim, dim),
            "attn_k.weight": (num_kv_heads * head_dim, dim),
            "attn_v.weight": (num_kv_heads * head_dim, dim),
            "attn_q_norm.weight": (head_dim,),
            "attn_k_norm.weight": (head_dim,),
            "attn_output.weight": (dim, dim),
        },
        recurrence={
            "shortconv.in_proj.weight": (3 * dim, dim),
            "shortconv.conv.weight": (dim, 3),
            "shortconv.out_proj.weight": (dim, dim),
        },
        other={"attn_norm.weight": (dim,), "ffn_norm.weight": (dim,), **_feed_forward(dim, ffn)},
        norm="token_embd_norm.weight",
    )


def qwen35_shape(
    dim: int = 1024,
    ffn: int = 3584,
    num_layers: int = 24,
    heads: tuple[int, int, int] = (8, 2, 256),
    delta: tuple[int, int] = (16, 128),
) -> HybridShape:
    """Qwen3.5-0.8B, or one of its kind: every fourth layer has attention.

    `heads`: of queries, of keys, and their size; `delta`: heads of the delta rule, and their size.
    """
    (num_heads, num_kv_heads, head_dim), (delta_heads, delta_dim) = heads, delta
    inner, taps = delta_heads * delta_dim, 4
    return HybridShape(
        arch="qwen35",
        keys={
            "block_count": num_layers,
            "context_length": 8192,
            "embedding_length": dim,
            "feed_forward_length": ffn,
            "attention.head_count": num_heads,
            "attention.head_count_kv": num_kv_heads,
            "attention.key_length": head_dim,
            "attention.value_length": head_dim,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 10000000.0,
            "rope.dimension_count": head_dim // 4,
            "rope.dimension_sections": [11, 11, 10, 0],
            "full_attention_interval": 4,
            "ssm.conv_kernel": taps,
            "ssm.state_size": delta_dim,
            "ssm.group_count": delta_heads,
            "ssm.time_step_rank": delta_heads,
            "ssm.inner_size": inner,
        },
        has_attention=tuple((layer + 1) % 4 == 0 for layer in range(num_layers)),
        dim=dim,
        attention={
            "attn_q.weight": (2 * num_heads * head_dim, dim),
            "attn_k.weight": (num_kv_heads * head_dim, dim),
            "attn_v.weight": (num_kv_heads * head_dim, dim),
            "attn_q_norm.weight": (head_dim,),
            "attn_k_norm.weight": (head_dim,),
            "attn_output.weight": (dim, num_heads * head_dim),
        },
        recurrence={
            "attn_qkv.weight": (3 * inner, dim),
            "attn_gate.weight": (inner, dim),
            "ssm_conv1d.weight": (3 * inner, taps),
            "ssm_dt.bias": (delta_heads,),
            "ssm_a": (delta_heads,),
            "ssm_beta.weight": (delta_heads, dim),
            "ssm_alpha.weight": (delta_heads, dim),
            "ssm_norm.weight": (delta_dim,),
            "ssm_out.weight": (dim, inner),
        },
        other={"attn_norm.weight": (dim,), "post_attention_norm.weight": (dim,), **_feed_forward(dim, ffn)},
        norm="output_norm.weight",
    )


SHAPES: Mapping[str, Callable[[], HybridShape]] = {"lfm2": lfm2_shape, "qwen35": qwen35_shape}


def write_hybrid_model(shape: HybridShape, format: str, tokenizer_model: Path, into: Path) -> Path:
    """Write the model in a format of FORMATS, with the tokenizer of another one, unless the file exists."""
    source = open_checkpoint(tokenizer_model).metadata
    tokenizer = {key: value for key, value in source.items() if key.startswith("tokenizer.")}
    kind, file_type = FORMATS[format]
    vocab_size = len(tokenizer["tokenizer.ggml.tokens"])
    sizes = {f"{shape.arch}.{name}": value for name, value in {**shape.keys, "vocab_size": vocab_size}.items()}
    metadata = {"general.architecture": shape.arch, "general.file_type": file_type, **sizes, **tokenizer}
    return write_random_gguf(into, metadata, shape.shapes(vocab_size), kind)


def _feed_forward(dim: int, ffn: int) -> dict[str, Shape]:
    return {"ffn_gate.weight": (ffn, dim), "ffn_up.weight": (ffn, dim), "ffn_down.weight": (dim, ffn)}
