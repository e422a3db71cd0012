"""The numbers of Jamba: which layers have attention, and which have experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from quire.graph.weight import Weight
from quire.models.errors import UnsupportedModel
from quire.models.hybrid import KV_HEADS, types_by_heads, types_where
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, ROPE_KEYS
from quire.models.mamba_blocks import MAMBA_GGUF, MAMBA_KEYS, PROJECTIONS, UNUSED_KEYS, ScanSizes, read_mamba
from quire.models.moe import CONFIG_KEYS, TRAINING_KEYS, MoeConfig
from quire.models.moe import GGUF_KEYS as EXPERT_KEYS
from quire.models.values import Values

CONFIG = LLAMA_CONFIG.override(
    reads=[
        *(*CONFIG_KEYS, *MAMBA_KEYS),
        *("attn_layer_period", "attn_layer_offset", "expert_layer_period", "expert_layer_offset"),
    ],
    lacks=ROPE_KEYS,
    fixed={"mamba_inner_layernorms": (None, True)},
    synonyms={"num_local_experts": "num_experts"},
    defaults={
        **{"num_experts": 16, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1},
        **{"attn_layer_period": 8, "attn_layer_offset": 4, "num_key_value_heads": 8, "eos_token_id": 2},
        **{"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True},
    },
    biases=PROJECTIONS,
).override(
    ignores=[*UNUSED_KEYS, *TRAINING_KEYS, "attention_bias", "mlp_bias", "calc_logits_for_entire_prompt", "n_ctx"],
)
GGUF = LLAMA_GGUF.override(
    reads=[*MAMBA_GGUF, *EXPERT_KEYS],
    lacks=[key for key in LLAMA_GGUF.read if key.startswith("rope.")],
    by_layer=[KV_HEADS],
)
KEYS = ConfigKeys(CONFIG, GGUF)


@dataclass(frozen=True, slots=True, kw_only=True)
class JambaConfig(MoeConfig):
    """With mixers. GGUF files do not say which layers have experts: their tensors tell."""

    scan: ScanSizes
    says_sparse: bool  # the file says which layers have experts

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        if is_gguf:
            types = types_by_heads(base, values)
        else:
            types = types_where((not each for each in _every(values, "attn", base["num_layers"])), base)
        mixers = {"scan": read_mamba(base, values, is_gguf), "says_sparse": not is_gguf}
        found = super(JambaConfig, cls).read(base | {"layer_types": types, **mixers}, values, is_gguf)
        if is_gguf:
            return found
        listed = _every(values, "expert", found.num_layers)
        return replace(found, sparse=tuple(each and found.num_experts > 1 for each in listed))

    def complete(self, weights: dict[str, Weight]) -> Self:
        """A layer has experts if it has a router."""
        routed = tuple(f"layers.{i}.mlp.router" in weights for i in range(self.num_layers))
        return self if self.says_sparse else replace(self, sparse=routed)

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        return {**super(JambaConfig, self).sizes(layer), **self.scan.words}


def _every(c: Values, word: str, num_layers: int) -> list[bool]:
    """Whether each layer is one of those that come once in a period."""
    period, offset = c.size(f"{word}_layer_period"), c.integer(f"{word}_layer_offset")
    if offset >= period:
        raise UnsupportedModel(f"{word}_layer_offset, {offset}, is not less than {word}_layer_period, {period}.")
    return [layer % period == offset for layer in range(num_layers)]


def may_be_sparse(c: JambaConfig, layer: int) -> bool:
    """Whether a layer may have experts."""
    return c.sparse[layer] or not c.says_sparse


def may_be_dense(c: JambaConfig, layer: int) -> bool:
    """Whether a layer may have a feed-forward block without experts."""
    return not c.sparse[layer] or not c.says_sparse
