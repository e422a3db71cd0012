"""What an architecture does with the keys of a configuration.

A key that changes what the model computes, and that we do not read, is refused by its name. An architecture's file
declares which keys it reads, which have no effect, and which must have a certain value. Other keys of config.json are
accepted, because the architecture's class in transformers does not read them either. The exceptions are keys by which
other architectures change the maths (`FOREIGN`). In GGUF every key under the architecture's name describes the model:
one that is not declared must be zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, Unpack

from quire.models.errors import UnsupportedModel
from quire.models.values import Values, brief

Neutral = tuple[Any, ...]  # values with which a key changes nothing

_OFF: Neutral = (None, False, 0, "", [], (), {})
_ONE: Neutral = (None, 1)

# Fields of every configuration class that have no part in the maths of a language model.
BASE_HARMLESS = frozenset(
    {
        *("architectures", "model_type", "auto_map", "transformers_version", "dtype", "torch_dtype"),  # see registry.py
        *("output_hidden_states", "output_attentions", "return_dict", "use_cache", "chunk_size_feed_forward"),
        *("id2label", "label2id", "num_labels", "problem_type", "bos_token_id", "pad_token_id"),
    }
)

# Keys by which other architectures, or other engines, change the maths.
FOREIGN: Mapping[str, Neutral] = {
    # the attention mask
    **dict.fromkeys(("is_causal", "causal"), (None, True)),
    **dict.fromkeys(
        ("use_bidirectional_attention", "bidirectional", "add_cross_attention", "is_encoder_decoder"), _OFF
    ),
    **dict.fromkeys(("attention_chunk_size", "num_kv_shared_layers", "cross_attention_layers"), _OFF),
    "dual_chunk_attention_config": _OFF,  # Qwen2.5 for a million tokens
    "index_topk": _OFF,  # DeepSeek-V3.2, GLM-5
    **dict.fromkeys(("attention_sinks", "use_sinks", "sinks", "attn_temperature_tuning", "use_logn_attn"), _OFF),
    # positions
    **dict.fromkeys(("alibi", "use_alibi", "use_mrope", "mrope_section", "use_dynamic_ntk"), _OFF),
    **dict.fromkeys(("rope_interleaved", "rope_interleave", "rotary_interleaved", "no_rope_layers"), _OFF),
    **dict.fromkeys(("no_rope_layer_interval", "nope_layer_interval", "rope_local_base_freq"), _OFF),
    **dict.fromkeys(("rotary_pct", "rotary_percent", "rope_pct", "rope_ratio"), _ONE),
    "position_embedding_type": (None, "rope", "rotary"),
    # scales and caps
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "attn_logit_softcap"), _OFF),
    **dict.fromkeys(("final_logit_softcap", "logit_softcap", "logits_soft_cap", "router_logit_softcapping"), _OFF),
    **dict.fromkeys(("logit_scale", "logits_scaling", "logits_scale", "embedding_multiplier"), _ONE),
    **dict.fromkeys(("residual_multiplier", "scale_emb", "embedding_scale", "residual_scale"), _ONE),
    **dict.fromkeys(("lm_head_multiplier", "key_multiplier", "output_multiplier_scale"), _ONE),
    **dict.fromkeys(("attention_multiplier", "query_pre_attn_scalar", "attn_scale", "attention_scale"), _OFF),
    **dict.fromkeys(("scale_depth", "dim_model_base", "scale_embeddings", "normalize_embedding"), _OFF),
    **dict.fromkeys(("scale_attn_by_inverse_layer_idx", "clip_qkv", "mup_width_multiplier"), _OFF),
    # norms and the order of blocks
    **dict.fromkeys(("use_qk_norm", "qk_norm", "qk_layernorm", "use_qk_layernorm", "attn_output_gate"), _OFF),
    **dict.fromkeys(("use_parallel_residual", "parallel_attn", "use_post_norm", "rms_norm_add_unit_offset"), _OFF),
    # feed-forward
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts"), _OFF),
    **dict.fromkeys(("mlp_layer_types", "swiglu_limit", "block_configs"), _OFF),
    **dict.fromkeys(("hidden_activation", "activation_function"), (None, "silu", "swish")),
    # models inside models, and layers that differ
    **dict.fromkeys(("text_config", "vision_config", "audio_config", "per_layer_config", "pruned_heads"), _OFF),
}


@dataclass(frozen=True, slots=True)
class RopeRules:
    """What an architecture's rope may be, beyond one that turns whole heads alike in all layers."""

    is_partial: bool = False  # it may turn a part of each head
    by_layer_type: bool = False  # rope_parameters may have an entry for each layer type
    has_factors: bool = False  # GGUF files may have short and long factors as tensors
    has_alpha: bool = False  # a dynamic rope may have a fixed alpha, by which the base is stretched
    truncates: bool = True  # yarn of GGUF files, which have no key for it, has whole pairs as bounds
    beside: frozenset[str] = frozenset()  # keys in rope_parameters that are not the rope's
    renamed: Mapping[str, str] = field(default_factory=dict)  # kinds that mean another one in this architecture


WHOLE_HEADS = RopeRules()


class KeyChanges(TypedDict, total=False):
    """How an architecture's keys differ from another's."""

    reads: Iterable[str]
    ignores: Iterable[str]
    lacks: Iterable[str]
    fixed: Mapping[str, Neutral | None]  # None: not fixed any more
    defaults: Mapping[str, Any]
    spelling: Mapping[str, str]  # the file's names of keys that are read
    synonyms: Mapping[str, str]  # other names of them -> ours
    rope: RopeRules
    biases: Mapping[str, tuple[str, ...]]
    tensors: Mapping[str, str]
    by_layer: Iterable[str]
    layer_types: Iterable[str]
    layer_lists: tuple[str, ...]
    head_dim: str


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys of one container, as one architecture understands them."""

    read: frozenset[str] = frozenset()
    harmless: frozenset[str] = frozenset()  # known, and without effect on logits
    fixed: Mapping[str, Neutral] = field(default_factory=dict)  # of the architecture; supported with these values alone
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of keys that may be left out
    foreign: Mapping[str, Neutral] = field(default_factory=dict)  # of others; accepted with these values alone
    spelling: Mapping[str, str] = field(default_factory=dict)  # our key -> the file's, where they differ
    synonyms: Mapping[str, str] = field(default_factory=dict)  # another key of files -> ours
    rope: RopeRules = WHOLE_HEADS
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # flag -> words of the linears with a bias
    tensors: Mapping[str, str] = field(default_factory=dict)  # flag -> the tensor whose presence in GGUF sets it
    is_closed: bool = False  # a key that is not declared must be zero
    by_layer: frozenset[str] = frozenset()  # keys that may have a number for each layer; 0: the layer has none of these
    layer_types: frozenset[str] = frozenset()  # those of layers without attention
    layer_lists: tuple[str, ...] = ()  # keys with an entry for each layer, if num_hidden_layers may be left out
    head_dim: str = "head_dim"  # the key of the size of a head, or of the part of it that rope turns

    def override(self, **changes: Unpack[KeyChanges]) -> KeySet:
        """Return the keys of an architecture that reads more of them, ignores some of these, or does not have some.

        Flags of biases and tensors are read. A key that becomes fixed is read no more.
        """
        flags = (*changes.get("biases", ()), *changes.get("tensors", ()))
        reads, ignores = frozenset((*changes.get("reads", ()), *flags)), frozenset(changes.get("ignores", ()))
        lacks = frozenset(changes.get("lacks", ()))
        fixed: dict[str, Neutral | None] = {**self.fixed, **changes.get("fixed", {})}
        now_fixed = {key for key, each in changes.get("fixed", {}).items() if each is not None}
        return replace(
            self,
            read=self.read.difference(now_fixed).union(reads).difference(ignores, lacks),
            harmless=self.harmless.difference(reads).union(ignores).difference(lacks),
            fixed={key: each for key, each in fixed.items() if each is not None and key not in reads | lacks},
            defaults={
                **{key: self.defaults[key] for key in self.defaults.keys() - lacks},
                **changes.get("defaults", {}),
            },
            spelling={**self.spelling, **changes.get("spelling", {})},
            synonyms={**self.synonyms, **changes.get("synonyms", {})},
            rope=changes.get("rope", self.rope),
            biases=changes.get("biases", self.biases),
            tensors=changes.get("tensors", self.tensors),
            by_layer=self.by_layer.union(changes.get("by_layer", ())),
            layer_types=self.layer_types.union(changes.get("layer_types", ())),
            layer_lists=changes.get("layer_lists", self.layer_lists),
            head_dim=changes.get("head_dim", self.head_dim),
        )

    def values(self, given: Mapping[str, Any], architecture: str, prefix: str = "") -> Values:
        """What `given` says under the keys that are read. A key that may change the maths unread is an error."""
        standard = {**self.synonyms, **{file: ours for ours, file in self.spelling.items()}}
        known = {key: standard.get(key, key) for key in given if key in standard or key not in self.spelling}
        found = {ours: given[key] for key, ours in known.items() if ours in self.read}
        self._check_synonyms(given, architecture)
        for key in given:
            is_read = key in standard or (key in self.read and key not in self.spelling)
            if not is_read and key not in self.harmless:
                self._check_unread(key, given[key], architecture, prefix)
        return Values({**self.defaults, **found}, prefix, self.spelling, self.by_layer)

    def undeclared(self, given: Mapping[str, Any]) -> set[str]:
        """Return the keys of which this set says nothing. Those that begin with an underscore are tools' own."""
        known = {
            *self.spelling.values(),
            *self.synonyms,
            *(self.read - self.spelling.keys()),
            *self.harmless,
            *self.fixed,
            *self.foreign,
        }
        return {key for key in given if key not in known and not key.startswith("_")}

    def _check_synonyms(self, given: Mapping[str, Any], architecture: str) -> None:
        """Two names of one key must have one value."""
        for other, ours in self.synonyms.items():
            key = self.spelling.get(ours, ours)
            if given.get(key, given.get(other)) != given.get(other, given.get(key)):
                raise UnsupportedModel(
                    f"The model's configuration has {key} = {brief(given[key])} and {other} = {brief(given[other])}, "
                    f"which are one number of {architecture}. Remove the one that is wrong."
                )

    def _check_unread(self, key: str, value: Any, architecture: str, prefix: str) -> None:
        if key in self.fixed:
            if value not in self.fixed[key]:
                known = " or ".join(brief(each) for each in self.fixed[key])
                raise UnsupportedModel(
                    f"The model's configuration has {prefix}{key} = {brief(value)}, and {architecture} is supported "
                    f"with {known} only."
                )
        elif (key in self.foreign or self.is_closed) and value not in self.foreign.get(key, _OFF):
            raise UnsupportedModel(
                f"The model's configuration has {prefix}{key} = {brief(value)}, which may change what the model "
                f"computes and is not supported for {architecture}. If the model does not need this key, remove it."
            )


@dataclass(frozen=True, slots=True)
class ConfigKeys:
    """An architecture's keys in either container."""

    config: KeySet  # config.json
    gguf: KeySet = field(default_factory=lambda: KeySet(is_closed=True))  # without the architecture's name in front
