"""The numbers of Nemotron-H: every layer is one block of its kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from quire.models.config import FULL
from quire.models.errors import UnsupportedModel
from quire.models.grouped_moe import CONFIG_KEYS, GROUPED_GGUF, SIGMOID, UNUSED_KEYS, GroupedMoeConfig
from quire.models.hybrid import KV_HEADS, LINEAR
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, ROPE_KEYS
from quire.models.mamba_blocks import MAMBA2_GGUF, MAMBA2_KEYS, PROJECTIONS2, ScanSizes, read_mamba2
from quire.models.mamba_blocks import UNUSED_KEYS as UNUSED_MIXER_KEYS
from quire.models.values import Values

MLP, MOE = "mlp", "moe"  # layer types
TYPES_BY_LETTER = {"M": LINEAR, "*": FULL, "-": MLP, "E": MOE}
TYPES = {**{each: each for each in TYPES_BY_LETTER.values()}, "mamba": LINEAR, "attention": FULL}
PATTERN, LISTED, FFN = "hybrid_override_pattern", "layers_block_type", "feed_forward_length"
HEAD_PATTERN, HEAD_LISTED = f"mtp_{PATTERN}", f"mtp_{LISTED}"  # of the head that predicts one more token
DEFAULT_HEAD = (FULL, MOE)
SHARED, LATENT = "shared_expert_intermediate_size", "moe_latent_size"
CONFIG = LLAMA_CONFIG.override(
    reads=[*MAMBA2_KEYS, *CONFIG_KEYS, "norm_topk_prob", SHARED, LATENT, PATTERN, LISTED, HEAD_PATTERN, HEAD_LISTED],
    lacks=["mamba_expand", "first_k_dense_replace", "n_shared_experts", "hidden_act", *ROPE_KEYS],
).override(
    ignores=[
        *(*UNUSED_KEYS, *UNUSED_MIXER_KEYS, *ROPE_KEYS, "attention_bias", "expand", "mamba_expand", "hidden_dropout"),
        *(
            "num_nextn_predict_layers",
            "moe_shared_expert_overlap",
            "mamba_dt_min",
            "mamba_dt_max",
            "mamba_dt_init_floor",
        ),
    ],
    fixed={
        **{"mlp_hidden_act": (None, "relu2"), "mamba_hidden_act": (None, "silu", "swish")},
        **{"n_shared_experts": (None, 1), "topk_method": (None, "noaux_tc"), "scoring_func": (None, SIGMOID)},
    },
    spelling={
        **{"mamba_n_heads": "mamba_num_heads", "mamba_d_head": "mamba_head_dim", "mamba_d_state": "ssm_state_size"},
        **{"mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel", "mamba_conv_bias": "use_conv_bias"},
        **{"mamba_proj_bias": "use_bias", "rms_norm_eps": "layer_norm_epsilon", "num_experts": "n_routed_experts"},
        SHARED: "moe_shared_expert_intermediate_size",
    },
    synonyms={
        **{key: key for key in ("mamba_n_groups", "mamba_d_conv", "mamba_conv_bias")},
        **{"mamba_dt_limit": "time_step_limit", "attention_head_dim": "head_dim"},
    },
    defaults={
        **{"mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 8, "mamba_d_conv": 4},
        **{"mamba_conv_bias": True, "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 128},
        **{"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 7688, SHARED: 7688},
        **{"n_group": 1, "topk_group": 1, "norm_topk_prob": True, "eos_token_id": 2},
    },
    biases={**PROJECTIONS2, "mlp_bias": ("mlp.up", "mlp.down", "shared.up", "shared.down", "latent.in", "latent.out")},
    layer_lists=(LISTED, PATTERN),
)
GGUF = GROUPED_GGUF.override(
    reads=[*MAMBA2_GGUF, LATENT, "expert_shared_feed_forward_length"], by_layer=[KV_HEADS, FFN]
)
KEYS = ConfigKeys(CONFIG, GGUF)


@dataclass(frozen=True, slots=True, kw_only=True)
class NemotronHConfig(GroupedMoeConfig):
    """With mixers, and the width of what experts read and write, where it is not that of the model."""

    scan: ScanSizes
    latent: int  # 0: it is
    head_types: tuple[str, ...]  # of the layers of the head that predicts one more token, if there is one

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        types = _gguf_types(base, values) if is_gguf else _types(base, values)
        head_types = DEFAULT_HEAD if is_gguf else _listed_types(values, HEAD_LISTED, HEAD_PATTERN) or DEFAULT_HEAD
        scan = read_mamba2(base, values, is_gguf)
        found = base | {"layer_types": types, "scan": scan, "head_types": head_types}
        sparse = tuple(each == MOE for each in types)
        if any(sparse):
            found["latent"] = values.integer_or_none(LATENT) or 0
            return replace(super(NemotronHConfig, cls).read(found, values, is_gguf), sparse=sparse)
        none: dict[str, Any] = dict.fromkeys(("num_experts", "top", "expert_ffn", "latent"), 0)
        return cls(**found, **none, sparse=sparse, renormalize=False, scoring=SIGMOID, groups=1, top_groups=1)

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        widths = {"latent": self.latent, "expert_dim": self.latent or self.hidden}
        return {**super(NemotronHConfig, self).sizes(layer), **self.scan.words, **widths}


def _types(base: dict[str, Any], c: Values) -> tuple[str, ...]:
    """The types of the layers."""
    found = _listed_types(c, LISTED, PATTERN)
    if len(found) != base["num_layers"]:
        key = LISTED if LISTED in c else PATTERN
        raise UnsupportedModel(f"{key} must have a word or a letter for each of the {base['num_layers']} layers.")
    return found


def _listed_types(c: Values, listed: str, pattern: str) -> tuple[str, ...]:
    """The types of layers by a list of words, or by a text of letters; none of them: no types."""
    key, known = (listed, TYPES) if listed in c else (pattern, TYPES_BY_LETTER)
    given = c.texts(listed) or tuple(c.text(pattern, ""))
    if not set(given) <= set(known):
        raise c.refusal(key, f"made of {', '.join(known)}")
    return tuple(known[each] for each in given)


def _gguf_types(base: dict[str, Any], c: Values) -> tuple[str, ...]:
    """A layer has key heads, or a feed-forward block, or a mixer."""
    counts = [c.integers(key)[: base["num_layers"]] for key in (KV_HEADS, FFN)]
    if any(len(each) != base["num_layers"] for each in counts):
        raise c.refusal(KV_HEADS, f"a list of {base['num_layers']} numbers, as {FFN}")
    wide = MOE if c.integer_or_none("expert_count") else MLP
    return tuple(FULL if heads else wide if ffn else LINEAR for heads, ffn in zip(*counts, strict=True))
