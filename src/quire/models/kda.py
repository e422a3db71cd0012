"""Kimi Delta Attention (KDA), the delta rule with a decay for each channel: its numbers, its tensors, its drawing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.graph.graph import Graph, Layer, Value
from quire.models.delta import UNIT_EPS, DeltaHeads, convolved
from quire.models.hybrid import has_recurrence, types_by_heads, types_where
from quire.models.names import Stored, TensorName
from quire.models.values import Values
from quire.ops.cache import State

TABLE = "linear_attn_config"
CONFIG_KEYS = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim", TABLE)
GGUF_KEYS = ("kda.head_dim", "ssm.conv_kernel")
_NUMBERS = ("num_heads", "head_dim", "short_conv_kernel_size")  # of TABLE, like the first of CONFIG_KEYS
_LISTS = ("full_attn_layers", "kda_layers")  # of TABLE, counted from 1


def read_kda(base: dict[str, Any], values: Values, is_gguf: bool) -> dict[str, Any]:
    """The types of the layers, and the numbers of KDA."""
    if is_gguf:
        heads, (dim, taps) = base["num_heads"], (values.size(key) for key in GGUF_KEYS)
        return {"layer_types": types_by_heads(base, values), "delta": DeltaHeads(heads, heads, dim, dim, taps)}
    table = values.table(TABLE)
    if unknown := sorted(table.names() - {*_NUMBERS, *_LISTS}):
        raise table.refusal(unknown[0], "left out, as it is not supported")
    sizes = (table.size(key, values.size(other)) for key, other in zip(_NUMBERS, CONFIG_KEYS[:3], strict=True))
    heads, dim, taps = sizes
    types = base["layer_types"] if "layer_types" in values else _listed(base, table)
    return {"layer_types": types, "delta": DeltaHeads(heads, heads, dim, dim, taps)}


def _listed(base: dict[str, Any], table: Values) -> tuple[str, ...]:
    """The types of layers by two lists; without them every fourth layer but the first has attention."""
    count = base["num_layers"]
    if not all(key in table for key in _LISTS):
        return types_where((layer % 4 != 0 or layer == 0 for layer in range(count)), base)
    full, linear = (table.integers(key) for key in _LISTS)
    if sorted((*full, *linear)) != list(range(1, count + 1)):
        raise table.refusal(_LISTS[1], f"all layers from 1 to {count} that are not in {_LISTS[0]}")
    return types_where((layer in linear for layer in range(1, count + 1)), base)


def _kda(safetensors: str | Stored, gguf: str | Stored, *shape: str, kind: str = "weight") -> TensorName:
    return TensorName(safetensors, gguf, shape, only=has_recurrence, kind=kind)


def _kernel(word: str) -> TensorName:
    shape = ("delta_keys", "one", "taps")
    stored = Stored(f"self_attn.{word}_conv1d", shape=shape), Stored(f"ssm_conv1d_{word}", shape=shape)
    return _kda(*stored, "delta_keys", "taps")


KDA_NAMES: Mapping[str, TensorName] = {
    **{f"kda.{word}": _kda(f"self_attn.{word}_proj", f"attn_{word}", "delta_keys", "hidden") for word in "qkv"},
    **{f"kda.{word}_kernel": _kernel(word) for word in "qkv"},
    "kda.decay_a": _kda("self_attn.f_a_proj", "ssm_f_a", "delta_value", "hidden"),
    "kda.decay_b": _kda("self_attn.f_b_proj", "ssm_f_b", "delta_keys", "delta_value"),
    "kda.rate": _kda(
        Stored("self_attn.A_log", negated_exp=True, shape=("one", "one", "delta_heads", "one")),
        Stored("ssm_a", shape=("delta_heads", "one")),
        "delta_heads",
        kind="",
    ),
    "kda.shift": _kda("self_attn.dt_bias", Stored("ssm_dt", kind="bias"), "delta_keys", kind=""),
    "kda.beta": _kda("self_attn.b_proj", "ssm_beta", "delta_heads", "hidden"),
    "kda.gate_a": _kda("self_attn.g_a_proj", "ssm_g_a", "delta_value", "hidden"),
    "kda.gate_b": _kda("self_attn.g_b_proj", "ssm_g_b", "delta_keys", "delta_value"),
    "kda.norm": _kda("self_attn.o_norm", "ssm_norm", "delta_value"),
    "kda.out": _kda("self_attn.o_proj", "attn_output", "hidden", "delta_values"),
}


def kda_block(g: Graph, layer: Layer, h: Value, delta: DeltaHeads, eps: float) -> Value:
    """Convolutions of q, k and v, the delta rule, a norm of each head, its gate, and the product with `kda.out`."""
    decay = g.linear(g.linear(h, layer["kda.decay_a"]), layer["kda.decay_b"])
    decay = g.log_decay(decay, layer["kda.rate"], layer["kda.shift"])
    beta = g.activation(g.linear(h, layer["kda.beta"]), "sigmoid")
    state = State((delta.heads, delta.key_dim, delta.value_dim))
    attrs = {"num_heads": delta.heads, "scale": delta.key_dim**-0.5, "eps": UNIT_EPS}
    out = g.delta_rule(convolved(g, layer, h, "kda"), decay, beta, state, **attrs)
    gate = g.activation(g.linear(g.linear(h, layer["kda.gate_a"]), layer["kda.gate_b"]), "sigmoid")
    out = g.multiply(g.rms_norm(out, layer["kda.norm"], eps=eps, group=delta.value_dim), gate)
    return g.linear(out, layer["kda.out"])
