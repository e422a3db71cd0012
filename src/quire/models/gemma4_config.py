"""The numbers of Gemma 4: its layers with a window and those without differ in their heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from quire.models.config import ModelConfig
from quire.models.errors import UnsupportedModel
from quire.models.gemma2 import GEMMA2_CONFIG
from quire.models.keys import ConfigKeys, RopeRules
from quire.models.llama import LLAMA_GGUF
from quire.models.rope import FULL, SLIDING, rope_of_layer_type
from quire.models.values import Values

ROPES = RopeRules(by_layer_type=True)
PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}
EXPERTS = ("num_experts", "top_k_experts", "moe_intermediate_size")
GGUF_EXPERTS = ("expert_count", "expert_used_count", "expert_feed_forward_length")
CONFIG = GEMMA2_CONFIG.override(
    reads=[
        *("num_kv_shared_layers", "attention_k_eq_v", "global_head_dim", "num_global_key_value_heads"),
        *("hidden_size_per_layer_input", "vocab_size_per_layer_input", "use_double_wide_mlp", "per_layer_config"),
        *("enable_moe_block", *EXPERTS),
    ],
    lacks=["query_pre_attn_scalar", "partial_rotary_factor", "original_max_position_embeddings"],
    fixed={
        "use_bidirectional_attention": (None, "vision"),
        **dict.fromkeys(("rope_theta", "rope_scaling"), (None,)),
    },
    defaults={
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "global_head_dim": 512,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
    },
)
GGUF = LLAMA_GGUF.override(
    reads=[
        *("attention.shared_kv_layers", "embedding_length_per_layer_input", "final_logit_softcapping"),
        *("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa", "rope.freq_base_swa"),
        *GGUF_EXPERTS,
    ],
    defaults={"rope.freq_base_swa": 10000.0},
    rope=ROPES,
    by_layer=frozenset({"feed_forward_length", "attention.head_count_kv"}),
)
KEYS = ConfigKeys(CONFIG, GGUF)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Config(ModelConfig):
    """With what differs between layers, and the size of its embeddings for each layer."""

    head_dims: Mapping[str, int]  # by layer type
    kv_heads: Mapping[str, int]  # by layer type
    ffns: tuple[int, ...]  # per layer
    first_shared: int  # this layer and later ones read the keys and values of an earlier layer of their type
    is_v_from_k: bool  # layers without a window have no matrix for v
    input_dim: int  # of a layer's embedding of a token; 0: layers have none
    final_cap: float | None
    num_experts: int  # beside the feed-forward block of every layer; 0: there are none
    top: int  # experts of a token
    expert_ffn: int

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        base["layer_types"] = (*base["layer_types"][:-1], FULL)  # whatever the file says, as in transformers
        base["windows"] = (*base["windows"][:-1], None)
        shared = values.integer_or_none("attention.shared_kv_layers" if is_gguf else "num_kv_shared_layers") or 0
        base["first_shared"] = base["num_layers"] - shared
        if not set(base["layer_types"]) <= set(base["layer_types"][: max(base["first_shared"], 0)]):
            raise UnsupportedModel(f"The last {shared} layers share keys with none: no earlier layer is of their type.")
        base["final_cap"] = values.number_or_none("final_logit_softcapping")
        has_experts = bool(values.integer_or_none("expert_count")) or values.flag("enable_moe_block")
        base |= _experts(values, GGUF_EXPERTS if is_gguf else EXPERTS, has_experts)
        found = cls(**{**base, **(_from_gguf if is_gguf else _from_config)(base, values)})
        if wrong := [heads for heads in found.kv_heads.values() if found.num_heads % heads]:
            raise UnsupportedModel(f"{found.num_heads} query heads cannot share {wrong[0]} key heads.")
        if odd := [dim for dim in found.head_dims.values() if dim % 2]:
            raise UnsupportedModel(f"Heads of {odd[0]} numbers are not supported: rope needs an even number.")
        return found

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        """Those of a layer are those of its type."""
        kind = SLIDING if layer is None else self.layer_types[layer]
        dim, kv_heads = self.head_dims[kind], self.kv_heads[kind]
        heads = {"head_dim": dim, "q": self.num_heads * dim, "kv_heads": kv_heads, "kv": kv_heads * dim}
        inputs = {"input": self.input_dim, "inputs": self.num_layers * self.input_dim}
        experts = {"experts": self.num_experts, "expert_ffn": self.expert_ffn}
        return {**ModelConfig.sizes(self), **heads, **inputs, **experts, "ffn": self.ffns[layer or 0]}

    def has_keys(self, layer: int) -> bool:
        """Is the layer one that stores keys and values?"""
        return layer < self.first_shared

    def has_values(self, layer: int) -> bool:
        """Is the layer one with a matrix for v?"""
        return self.has_keys(layer) and not (self.is_v_from_k and self.layer_types[layer] == FULL)

    def has_experts(self, layer: int) -> bool:
        """Has the layer, as all have or none, experts?"""
        return self.num_experts > 0

    def has_inputs(self, layer: int) -> bool:
        """Has the layer, as all have or none, an embedding of each token?"""
        return self.input_dim > 0


def _experts(values: Values, keys: tuple[str, str, str], has_experts: bool) -> dict[str, int]:
    """The numbers of experts, by keys of their count, of those of a token, and of their width."""
    if not has_experts:
        return dict.fromkeys(("num_experts", "top", "expert_ffn"), 0)
    count, top, width = (values.size(key) for key in keys)
    if top > count:
        raise values.refusal(keys[1], f"at most {count}, the number of experts")
    return {"num_experts": count, "top": top, "expert_ffn": width}


def _from_config(base: dict[str, Any], values: Values) -> dict[str, Any]:
    count, ffn, first_shared = base["num_layers"], base["ffn"], base["first_shared"]
    is_v_from_k, input_dim = values.flag("attention_k_eq_v"), values.integer_or_none("hidden_size_per_layer_input")
    if input_dim and values.size("vocab_size_per_layer_input") != base["vocab_size"]:
        raise values.refusal("vocab_size_per_layer_input", f"{base['vocab_size']}, the size of the vocabulary")
    dim, kv_heads = _global_heads(base, values, is_v_from_k)
    ropes = {SLIDING: {"rope_type": "default"}, FULL: PROPORTIONAL}
    given = values.mapping("rope_parameters")
    if given and not all(given.get(kind) for kind in base["layer_types"]):
        raise values.refusal("rope_parameters", "an object with an entry for each layer type")
    tables = values if given else Values({"rope_parameters": ropes})
    head_dims = {SLIDING: base["head_dim"], FULL: dim}
    return {
        "head_dims": head_dims,
        "kv_heads": {SLIDING: base["num_kv_heads"], FULL: kv_heads},
        "ffns": (ffn,) * first_shared + (ffn * (1 + values.flag("use_double_wide_mlp")),) * (count - first_shared),
        "is_v_from_k": is_v_from_k,
        "input_dim": input_dim or 0,
        "ropes": {k: rope_of_layer_type(tables, k, head_dims[k], base["max_context"], ROPES) for k in head_dims},
    }


def _global_heads(base: dict[str, Any], values: Values, is_v_from_k: bool) -> tuple[int, int]:
    """The size and the number of key heads of layers without a window: keys of their own, or `per_layer_config`."""
    local = base["head_dim"], base["num_kv_heads"]
    if "per_layer_config" not in values:
        heads = values.size("num_global_key_value_heads", local[1]) if is_v_from_k else local[1]
        return values.size("global_head_dim"), heads
    table = values.mapping("per_layer_config")
    names = {int(name): name for name in table if name.isdecimal()}  # transformers pads them with zeros
    full = [names.get(index, str(index)) for index, kind in enumerate(base["layer_types"]) if kind == FULL]
    if not table:
        return local
    layers = [values.table("per_layer_config").table(each) for each in full]
    sizes = {(layer.size("head_dim", local[0]), layer.size("num_key_value_heads", local[1])) for layer in layers}
    unknown = {key for layer in layers for key in layer.names()} - {"head_dim", "num_key_value_heads"}
    if set(table) - set(full) or unknown or len(sizes) > 1:
        raise values.refusal(
            "per_layer_config", "the same head_dim and num_key_value_heads for layers without a window"
        )
    return sizes.pop()


def _from_gguf(base: dict[str, Any], values: Values) -> dict[str, Any]:
    """Keys for layers with a window end in `_swa`."""
    count, types = base["num_layers"], base["layer_types"]
    local = values.size("attention.key_length_swa")
    for key in ("attention.value_length_swa", "rope.dimension_count_swa"):
        if values.size(key, local) != local:
            raise values.refusal(key, f"{local}, the attention.key_length_swa")
    heads = values.sizes_of_layers("attention.head_count_kv", count)
    by_type = dict(zip(types, heads, strict=True))
    if tuple(by_type[kind] for kind in types) != heads:
        raise values.refusal("attention.head_count_kv", "one number for layers with a window and one for the others")
    return {
        "head_dims": {FULL: base["head_dim"], SLIDING: local},
        "kv_heads": dict.fromkeys((FULL, SLIDING), heads[0]) | by_type,
        "ffns": values.sizes_of_layers("feed_forward_length", count),
        "is_v_from_k": False,  # the file says it by not having the matrix
        "input_dim": values.integer_or_none("embedding_length_per_layer_input") or 0,
        "ropes": base["ropes"] | {SLIDING: replace(base["ropes"][SLIDING], rotary_dim=local)},
    }
