"""Latent attention (MLA) as DeepSeek-V2 and its relatives have it: its numbers, its tensors, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from quire.graph.graph import Graph, Layer, Value
from quire.models.blocks import rotate
from quire.models.grouped_moe import GroupedMoeConfig
from quire.models.names import Stored, TensorName, part_of_groups, parts_of
from quire.models.rope import ALL, RopeConfig, magnitude
from quire.models.values import Values
from quire.ops.cache import Latent

Entries = Mapping[str, TensorName]
NORM_EPS = 1e-6  # of latents, whatever the configuration says of other norms
BIASED = ("attn.q_a", "attn.latent", "attn.k_rope", "attn.out")
CONFIG_KEYS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
GGUF_KEYS = ("attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla",
             "attention.value_length_mla", "rope.scaling.yarn_log_multiplier")  # fmt: skip
LOG_MULTIPLIER = 0.1  # files of `deepseek2` store mscale_all_dim times this


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """The numbers of latent attention."""

    dim: int  # of the latent that the cache stores
    query_dim: int | None  # of the latent that queries are computed from; None: from the normed residual
    plain_dim: int  # of the part of a query that rope does not turn
    rope_dim: int
    value_dim: int
    scale: float  # of scores
    interleaved: bool  # rope rotates neighbours, not halves

    def sizes(self, num_heads: int) -> dict[str, int]:
        """The words of the shapes of NAMES."""
        return {
            "latent": self.dim,
            "q_latent": self.query_dim or 0,
            "plain": self.plain_dim,
            "plains": num_heads * self.plain_dim,
            "rope": self.rope_dim,
            "ropes": num_heads * self.rope_dim,
            "value": self.value_dim,
            "values": num_heads * self.value_dim,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig(GroupedMoeConfig):
    """A model with latent attention in all layers."""

    heads: LatentHeads

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        heads = _read_heads(base, values, is_gguf)
        return super(LatentConfig, cls).read(base | {"heads": heads}, values, is_gguf)

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        return {**GroupedMoeConfig.sizes(self, layer), **self.heads.sizes(self.num_heads)}

    def has_query_latent(self, layer: int) -> bool:
        """Does the layer compute queries from a latent?"""
        return self.heads.query_dim is not None

    def has_whole_query(self, layer: int) -> bool:
        """Does the layer compute queries without a latent?"""
        return self.heads.query_dim is None


def _read_heads(base: dict[str, Any], values: Values, is_gguf: bool) -> LatentHeads:
    """Read the numbers of latent attention. Replaces the rope in `base` where GGUF stores its scaling another way."""
    rope: RopeConfig | None = base["ropes"].get(ALL)
    if is_gguf:
        keys = [f"attention.{kind}_length" for kind in ("key", "value")]  # in old files; newer ones have both for MLA
        keys = [each if f"{each}_mla" not in values else f"{each}_mla" for each in keys]
        of_all = values.number_unless_zero("rope.scaling.yarn_log_multiplier", 0.0) / LOG_MULTIPLIER
        if rope is not None and of_all:
            base["ropes"] = {ALL: replace(rope, scaling=1.0)}  # mscale is mscale_all_dim
        key_dim, value_dim = (values.size(key) for key in keys)
        plain_dim = key_dim - base["head_dim"]
        if plain_dim < 1:
            raise values.refusal(keys[0], f"more than {base['head_dim']}, the part of a head that rope turns")
        ranks = values.size("attention.kv_lora_rank"), values.size_or_none("attention.q_lora_rank")
    else:
        table = values.table("rope_scaling" if values.mapping("rope_scaling") else "rope_parameters")
        of_all = table.number_unless_zero("mscale_all_dim", 0.0)
        plain_dim, value_dim = values.size("qk_nope_head_dim"), values.size("v_head_dim")
        ranks = values.size("kv_lora_rank"), values.size_or_none("q_lora_rank")
    stretch = magnitude(rope.factor, of_all) if rope is not None and of_all and rope.kind != "default" else 1.0
    return LatentHeads(
        dim=ranks[0],
        query_dim=ranks[1],
        plain_dim=plain_dim,
        rope_dim=base["head_dim"],
        value_dim=value_dim,
        scale=stretch**2 * (plain_dim + base["head_dim"]) ** -0.5,
        interleaved=values.flag("rope_interleave", default=True),
    )


def _queries(word: str, safetensors: str, gguf: str, source: str, only: Callable[[Any, int], bool]) -> Entries:
    """Both parts of the queries, which files have side by side in every head."""
    parts = {word: "plains", f"{word}_rope": "ropes"}
    rows = [part_of_groups(i, "heads", *parts.values()) for i in range(2)]
    return {
        name: TensorName(Stored(safetensors, each), Stored(gguf, each), (size, source), only=only)
        for (name, size), each in zip(parts.items(), rows, strict=True)
    }


def _keys_and_values(name: str) -> dict[str, Stored]:
    """Where a file stores both in one matrix, side by side in every head."""
    return {
        word: Stored(name, part_of_groups(i, "heads", "plains", "values"), shape=(size, "latent"))
        for i, (word, size) in enumerate({"attn.keys": "plains", "attn.values": "values"}.items())
    }


_WHOLE = _keys_and_values("self_attn.kv_b_proj")
LATENT_NAMES: Entries = {
    **_queries("attn.q", "self_attn.q_proj", "attn_q", "hidden", LatentConfig.has_whole_query),
    **_queries("attn.q_b", "self_attn.q_b_proj", "attn_q_b", "q_latent", LatentConfig.has_query_latent),
    "attn.q_a": TensorName(
        "self_attn.q_a_proj", "attn_q_a", ("q_latent", "hidden"), only=LatentConfig.has_query_latent
    ),
    "attn.q_a_norm": TensorName(
        "self_attn.q_a_layernorm", "attn_q_a_norm", ("q_latent",), only=LatentConfig.has_query_latent
    ),
    **parts_of("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", {"attn.latent": "latent", "attn.k_rope": "rope"}),
    "attn.latent_norm": TensorName("self_attn.kv_a_layernorm", "attn_kv_a_norm", ("latent",)),
    "attn.keys": TensorName(_WHOLE["attn.keys"], Stored("attn_k_b", transposed=True), ("heads", "plain", "latent")),
    "attn.values": TensorName(_WHOLE["attn.values"], "attn_v_b", ("heads", "value", "latent")),
    "attn.out": TensorName("self_attn.o_proj", "attn_output", ("hidden", "values")),
}
LAYOUTS = {"attn_kv_b.weight": _keys_and_values("attn_kv_b")}  # of old GGUF files
IGNORED = r"^blk\.\d+\.attn_[kv]_b\.weight$"  # some old GGUF files have these too


def attend_latent(g: Graph, c: LatentConfig, layer: Layer, h: Value) -> Value:
    """Compute queries, latents and the shared rotated key of h, attention, and the product with `attn.out`."""
    word, source = "attn.q", h
    if c.heads.query_dim is not None:
        word, source = "attn.q_b", g.rms_norm(g.linear(h, layer["attn.q_a"]), layer["attn.q_a_norm"], eps=NORM_EPS)
    q, q_rope = g.linear(source, layer[word]), g.linear(source, layer[f"{word}_rope"])
    latent = g.rms_norm(g.linear(h, layer["attn.latent"]), layer["attn.latent_norm"], eps=NORM_EPS)
    k_rope = g.linear(h, layer["attn.k_rope"])
    if c.ropes:  # Kimi-Linear has the same parts, and rotates none
        q_rope, k_rope = (rotate(g, c, layer, x, interleaved=c.heads.interleaved) for x in (q_rope, k_rope))
    cache = g.cache(Latent(c.heads.dim, c.heads.rope_dim))
    names = (layer["attn.keys"], layer["attn.values"])
    return g.linear(g.attention_latent((q, q_rope), (latent, k_rope), cache, names, c.heads.scale), layer["attn.out"])
