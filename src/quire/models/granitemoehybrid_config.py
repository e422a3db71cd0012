"""The numbers of Granite 4: layers with attention and layers with mixers, with experts or without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.models.config import ATTENTION
from quire.models.granite import GGUF_FACTORS, factors
from quire.models.granitemoe import CONFIG as MOE_CONFIG
from quire.models.granitemoe import GGUF as MOE_GGUF
from quire.models.granitemoe import GraniteMoeConfig
from quire.models.hybrid import KV_HEADS, LINEAR, types_by_heads
from quire.models.keys import ConfigKeys, RopeRules
from quire.models.mamba_blocks import (
    MAMBA2_GGUF,
    MAMBA2_KEYS,
    ONE_GROUP,
    PROJECTIONS2,
    UNUSED_KEYS,
    ScanSizes,
    read_mamba2,
)
from quire.models.values import Values

POSITIONS, SHARED, HAS_ROPE = "position_embedding_type", "shared_expert_intermediate_size", "rope.scaling.finetuned"
CONFIG = MOE_CONFIG.override(
    reads=[*MAMBA2_KEYS, SHARED, POSITIONS, "layer_types"],
    ignores=UNUSED_KEYS,
    fixed={"normalization_function": (None, "rmsnorm"), "layers_block_type": (None,)},
    spelling={SHARED: "shared_intermediate_size"},
    defaults={
        **{"mamba_n_heads": 128, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True},
        SHARED: 1024,
    },
    biases={"attention_bias": ATTENTION, **PROJECTIONS2},
    layer_types=["mamba", LINEAR],
).override(fixed=ONE_GROUP)
SCALE = GGUF_FACTORS["attention_multiplier"]
GGUF = MOE_GGUF.override(lacks=[SCALE]).override(  # its default is removed: Bamba has that of Llama
    reads=[*MAMBA2_GGUF, SCALE, HAS_ROPE],
    defaults={HAS_ROPE: True},
    by_layer=[KV_HEADS],
    rope=RopeRules(is_partial=True),
)
KEYS = ConfigKeys(CONFIG, GGUF)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraniteHybridConfig(GraniteMoeConfig):
    """With mixers, and whether attention rotates. Without experts, `ffn` is the width of the feed-forward block."""

    scan: ScanSizes
    rotates: bool

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        found = base | {"scan": read_mamba2(base, values, is_gguf)}
        if is_gguf:
            found |= {"layer_types": types_by_heads(base, values), "rotates": values.flag(HAS_ROPE)}
        else:
            listed = base["layer_types"] if "layer_types" in values else (LINEAR,) * base["num_layers"]
            found |= {"layer_types": listed, "rotates": values.text(POSITIONS, "nope") == "rope"}
        if values.integer_or_none("expert_count" if is_gguf else "num_experts"):
            return super(GraniteHybridConfig, cls).read(found, values, is_gguf)
        shared = "expert_shared_feed_forward_length" if is_gguf else SHARED
        found["ffn"] = values.integer_or_none(shared) or base["ffn"]
        none = {"num_experts": 0, "top": 0, "expert_ffn": 0, "sparse": (False,) * base["num_layers"]}
        multipliers = factors(values, is_gguf, base["head_dim"] ** -0.5 if is_gguf else None)
        return cls(**found, **multipliers, **none, renormalize=False)

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        return {**super(GraniteHybridConfig, self).sizes(layer), **self.scan.words}
