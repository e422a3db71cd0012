"""Linear attention by the gated delta rule as Qwen3-Next and Qwen3.5 have it: its numbers, its tensors, its drawing.

Layers with attention beside it have a gate: its rows are beside those of the queries in every head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.graph.graph import Graph, Layer, Value
from quire.models.blocks import attend
from quire.models.config import ATTENTION, ModelConfig
from quire.models.errors import UnsupportedModel
from quire.models.gemma import gemma_norm
from quire.models.hybrid import LINEAR, attention_in_some, has_attention, has_recurrence, types_where
from quire.models.keys import KeySet, RopeRules
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES
from quire.models.names import Array, Names, RowRule, Sizes, Stored, TensorName, part_of_groups
from quire.models.values import Values
from quire.ops.cache import State

UNIT_EPS = 1e-6  # of the lengths of q and k, whatever the configuration says of norms
INTERVAL = "full_attention_interval"  # every so many-th layer has attention
CONFIG_KEYS = ("linear_num_value_heads", "linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim",
               "linear_conv_kernel_dim")  # fmt: skip
GGUF_KEYS = ("ssm.time_step_rank", "ssm.group_count", "ssm.state_size", "ssm.inner_size", "ssm.conv_kernel")
ROPE = RopeRules(is_partial=True, beside=frozenset({"mrope_section", "mrope_interleaved"}))  # of images
DELTA_CONFIG: KeySet = LLAMA_CONFIG.override(
    reads=[*CONFIG_KEYS, "layer_types", INTERVAL],
    ignores=["mlp_bias", "mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"],
    fixed={"attn_output_gate": (None, True)},
    defaults={**dict(zip(CONFIG_KEYS, (32, 16, 128, 128, 4), strict=True)), INTERVAL: 4, "partial_rotary_factor": 0.25,
              "head_dim": 256},
    biases={"attention_bias": (*ATTENTION, "attn.gate")},
    rope=ROPE,
    layer_types=[LINEAR],
)  # fmt: skip
DELTA_GGUF: KeySet = LLAMA_GGUF.override(
    reads=[*GGUF_KEYS, INTERVAL, "attention.recurrent_layers", "nextn_predict_layers"],
    ignores=["rope.dimension_sections"],
    defaults={INTERVAL: 4},
    rope=ROPE,
)


@dataclass(frozen=True, slots=True)
class DeltaHeads:
    """The numbers of the delta rule."""

    heads: int  # of values, each with a state
    key_heads: int
    key_dim: int
    value_dim: int
    taps: int  # tokens that its convolution reads
    beta_factor: float = 1.0
    repeated: int = 1  # each key head is drawn so many times, as heads of values are in an order that needs it

    @property
    def keys(self) -> int:
        """Numbers of all queries, or of all keys."""
        return self.repeated * self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Numbers of all values."""
        return self.heads * self.value_dim

    def sizes(self) -> dict[str, int]:
        """The words of the shapes of DELTA_NAMES."""
        return {
            "taps": self.taps,
            "key_heads": self.key_heads,
            "delta_heads": self.heads,
            "delta_value": self.value_dim,
            "delta_keys": self.keys,
            "delta_values": self.values,
            "delta_qkv": 2 * self.keys + self.values,
            "repeated": self.repeated,
        }


def read_delta(base: dict[str, Any], values: Values, is_gguf: bool, *, is_tiled: bool) -> dict[str, Any]:
    """The types of the layers and the numbers of the delta rule. `is_tiled`: GGUF files have the order of `tiled`."""
    keys = GGUF_KEYS if is_gguf else CONFIG_KEYS
    heads, key_heads, key_dim, value_dim, taps = (values.size(key) for key in keys)
    if is_gguf and value_dim % heads:
        raise values.refusal(keys[3], f"a multiple of {heads}, the {keys[0]}")
    repeated = heads // key_heads if is_gguf and is_tiled else 1
    dim = value_dim // heads if is_gguf else value_dim
    delta = checked_heads(DeltaHeads(heads, key_heads, key_dim, dim, taps, repeated=repeated), keys)
    if "layer_types" in values:
        return {"layer_types": base["layer_types"], "delta": delta}
    count, interval = base["num_layers"], values.size(INTERVAL)
    listed = values.flags("attention.recurrent_layers", count)
    return {
        "layer_types": types_where(listed or [(layer + 1) % interval != 0 for layer in range(count)], base),
        "delta": delta,
    }


def checked_heads(delta: DeltaHeads, keys: Sequence[str]) -> DeltaHeads:
    """The same, or raise if heads cannot share key heads. `keys`: of both numbers."""
    if delta.heads % delta.key_heads:
        raise UnsupportedModel(f"{delta.heads} heads ({keys[0]}) cannot share {delta.key_heads} key heads ({keys[1]}).")
    return delta


def tiled(sizes: Sizes) -> Array:
    """Rows of q, k and v of GGUF files where the heads 0, n, 2n, … of values, of n key heads, have the key head 0."""
    keys = sizes["delta_keys"] // sizes["repeated"]
    once = np.tile(np.arange(keys), sizes["repeated"])
    return np.concatenate([once, keys + once, 2 * keys + np.arange(sizes["delta_values"])])


def _delta(safetensors: str | Stored, gguf: str | Stored, *shape: str, kind: str = "weight") -> TensorName:
    return TensorName(safetensors, gguf, shape, only=has_recurrence, kind=kind)


def delta_entries(prefix: str, rows: RowRule | None = None) -> Mapping[str, TensorName]:
    """The tensors of the delta rule. `rows`: those of q, k and v in GGUF files."""
    return {
        "delta.qkv": _delta(f"{prefix}.in_proj_qkv", Stored("attn_qkv", rows), "delta_qkv", "hidden"),
        "delta.gate": _delta(f"{prefix}.in_proj_z", "attn_gate", "delta_values", "hidden"),
        "delta.beta": _delta(f"{prefix}.in_proj_b", "ssm_beta", "delta_heads", "hidden"),
        "delta.decay": _delta(f"{prefix}.in_proj_a", "ssm_alpha", "delta_heads", "hidden"),
        "delta.kernel": _delta(
            Stored(f"{prefix}.conv1d", shape=("delta_qkv", "one", "taps")),
            Stored("ssm_conv1d", rows),
            "delta_qkv",
            "taps",
        ),
        "delta.rate": _delta(Stored(f"{prefix}.A_log", negated_exp=True), "ssm_a", "delta_heads", kind=""),
        "delta.shift": _delta(f"{prefix}.dt_bias", Stored("ssm_dt", kind="bias"), "delta_heads", kind=""),
        "delta.norm": _delta(f"{prefix}.norm", "ssm_norm", "delta_value"),
        "delta.out": _delta(f"{prefix}.out_proj", "ssm_out", "hidden", "delta_values"),
    }


def _query(index: int) -> TensorName:
    rows = part_of_groups(index, "heads", "q", "q")
    return TensorName(Stored("self_attn.q_proj", rows), Stored("attn_q", rows), ("q", "hidden"))


DELTA_NAMES: Names = attention_in_some(
    LLAMA_NAMES.but(
        {
            "attn.norm": gemma_norm("input_layernorm", "attn_norm"),
            "attn.q": _query(0),
            "attn.gate": _query(1),
            "attn.q_norm": gemma_norm("self_attn.q_norm", "attn_q_norm", "head_dim"),
            "attn.k_norm": gemma_norm("self_attn.k_norm", "attn_k_norm", "head_dim"),
            "mlp.norm": gemma_norm("post_attention_layernorm", "post_attention_norm"),
            "norm": gemma_norm("model.norm", "output_norm"),
        },
        ignored=r"^mtp\.",  # layers for drafting
    )
).but({**delta_entries("linear_attn", tiled)})


def attend_or_recur(g: Graph, c: Any, layer: Layer, h: Value) -> Value:
    """Gated attention of h in the layers that have it, the delta rule in the others."""
    if has_attention(c, layer.index):
        return attend(g, c, layer, h, head_norm="rms", gated=True)
    return delta_block(g, c, layer, h, c.delta)


def delta_block(g: Graph, c: ModelConfig, layer: Layer, h: Value, delta: DeltaHeads) -> Value:
    """Convolution of q, k and v in one matrix, then the delta rule."""
    mixed = g.activation(g.short_conv(g.linear(h, layer["delta.qkv"]), layer["delta.kernel"]), "silu")
    q, k = (g.columns(mixed, start, delta.keys) for start in (0, delta.keys))
    v = g.columns(mixed, 2 * delta.keys, delta.values)
    return delta_heads_of(g, layer, h, (q, k, v), delta, eps=c.norm_eps)


def convolved(g: Graph, layer: Layer, h: Value, block: str) -> tuple[Value, Value, Value]:
    """q, k and v of h, each with a matrix and a convolution of its own."""
    q, k, v = (
        g.activation(g.short_conv(g.linear(h, layer[f"{block}.{word}"]), layer[f"{block}.{word}_kernel"]), "silu")
        for word in "qkv"
    )
    return q, k, v


def delta_heads_of(
    g: Graph, layer: Layer, h: Value, qkv: tuple[Value, Value, Value], delta: DeltaHeads, *, eps: float
) -> Value:
    """The delta rule of h, a norm of each head, its gate, and the product with `delta.out`."""
    decay = g.log_decay(g.linear(h, layer["delta.decay"]), layer["delta.rate"], layer["delta.shift"])
    beta = g.scale(g.activation(g.linear(h, layer["delta.beta"]), "sigmoid"), delta.beta_factor)
    state = State((delta.heads, delta.key_dim, delta.value_dim))
    attrs = {"num_heads": delta.repeated * delta.key_heads, "scale": delta.key_dim**-0.5, "eps": UNIT_EPS}
    out = g.delta_rule(qkv, decay, beta, state, **attrs)
    out = g.rms_norm(out, layer["delta.norm"], eps=eps, group=delta.value_dim)
    gate = g.activation(g.linear(h, layer["delta.gate"]), "silu")
    return g.linear(g.multiply(out, gate), layer["delta.out"])
