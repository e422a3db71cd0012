"""The numbers of Llama 4: which of its layers have rope, experts, and attention within chunks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from quire.models.config import ATTENTION
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF
from quire.models.moe import CONFIG_KEYS, GGUF_KEYS, TRAINING_KEYS, MoeConfig
from quire.models.rope import CHUNKED, FULL
from quire.models.values import Values

INTERVAL, CHUNK, BETA = 4, 8192, 0.1  # GGUF has no keys for these
NUM_EXPERTS_WITHOUT_NORMS = 128  # of the model whose heads have no norms; GGUF has no key for it either
CONFIG = LLAMA_CONFIG.override(
    reads=[
        *(*CONFIG_KEYS, "intermediate_size_mlp", "moe_layers", "interleave_moe_layer_step", "use_qk_norm"),
        *("no_rope_layers", "no_rope_layer_interval", "attention_chunk_size", "layer_types"),
        *("attn_temperature_tuning", "floor_scale", "attn_scale"),
    ],
    ignores=["mlp_bias", *TRAINING_KEYS],
    spelling={"num_experts": "num_local_experts"},
    defaults={
        **{"intermediate_size_mlp": 16384, "head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-5},
        **{"num_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "use_qk_norm": True},
        **{"no_rope_layer_interval": INTERVAL, "attention_chunk_size": CHUNK, "attn_temperature_tuning": True},
        **{"floor_scale": CHUNK, "attn_scale": BETA, "rope_theta": 500000.0, "eos_token_id": 2},
    },
    biases={"attention_bias": ATTENTION},
)
GGUF = LLAMA_GGUF.override(
    reads=[*GGUF_KEYS, "interleave_moe_layer_step"],
    fixed={"attention.sliding_window": (CHUNK,), "attention.sliding_window_pattern": (INTERVAL,)},
)
KEYS = ConfigKeys(CONFIG, GGUF)


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama4Config(MoeConfig):
    """With what differs between layers."""

    rotates: tuple[bool, ...]  # per layer: whether it has rope; the others may scale queries by position
    chunks: tuple[int | None, ...]  # per layer: how many positions are a chunk; None: attention is not limited to one
    norms_heads: bool  # in layers with rope
    position_scale: tuple[float, int] | None  # how fast the factor of queries grows, and every how many tokens

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        own = _from_gguf(base, values) if is_gguf else _from_config(base, values)
        sparse, ffn = own.pop("sparse"), own.pop("ffn")
        own["layer_types"] = tuple(FULL if each is None else CHUNKED for each in own["chunks"])
        found = super(Llama4Config, cls).read(base | own, values, is_gguf)
        return replace(found, sparse=sparse, ffn=ffn, shared_ffn=found.expert_ffn)


def _every(step: int, count: int) -> tuple[bool, ...]:
    """Whether a layer is a `step`-th one."""
    return tuple((i + 1) % step == 0 for i in range(count))


def _from_config(base: dict[str, Any], c: Values) -> dict[str, Any]:
    count = base["num_layers"]
    listed = c.flags("no_rope_layers", count) if c.integers("no_rope_layers") else None  # 1: the layer has a rope
    rotates = listed or tuple(not each for each in _every(c.size("no_rope_layer_interval"), count))
    is_chunked = rotates
    if "layer_types" in c:
        is_chunked = tuple(kind == CHUNKED for kind in base["layer_types"])
    chunk = c.size("attention_chunk_size") if any(is_chunked) else None
    experts = c.integers("moe_layers")
    growth = (c.number("attn_scale"), c.size("floor_scale"))
    return {
        "rotates": rotates,
        "chunks": tuple(chunk if each else None for each in is_chunked),
        "norms_heads": c.flag("use_qk_norm"),
        "position_scale": growth if c.flag("attn_temperature_tuning") else None,
        "sparse": tuple(i in experts for i in range(count))
        if "moe_layers" in c
        else _every(c.size("interleave_moe_layer_step"), count),
        "ffn": c.size("intermediate_size_mlp"),
    }


def _from_gguf(base: dict[str, Any], c: Values) -> dict[str, Any]:
    count = base["num_layers"]
    rotates = tuple(not each for each in _every(INTERVAL, count))
    return {
        "rotates": rotates,
        "chunks": tuple(CHUNK if each else None for each in rotates),
        "norms_heads": c.size("expert_count") != NUM_EXPERTS_WITHOUT_NORMS,
        "position_scale": (BETA, CHUNK),
        "sparse": _every(c.size("interleave_moe_layer_step"), count),
        "ffn": base["ffn"],
    }
