"""EmbeddingGemma: the text model of Gemma 3, in which every token reads those on both sides."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import gated_mlp, norm_heads, rotate
from quire.models.encoder import attend_all, pooled
from quire.models.gemma3 import CONFIG, GGUF, NAMES, Gemma3Config
from quire.models.keys import ConfigKeys
from quire.models.registry import architecture
from quire.models.rope import SLIDING
from quire.models.values import Values

# Windows are those of the file, in which half of the tokens are before the query and half behind it.
KEYS = ConfigKeys(
    CONFIG.override(fixed={"use_bidirectional_attention": (True,)}, ignores=["tie_word_embeddings"]),
    GGUF.override(
        ignores=["pooling_type", *(f"dense_{number}_feat_{end}" for number in (2, 3) for end in ("in", "out"))],
        fixed={"attention.causal": (False,)},
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingGemmaConfig(Gemma3Config):
    """With its window, which has two sides."""

    sliding_window: int | None

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        whole = Gemma3Config.read(dict(base), values, is_gguf)
        windows = [each for each in whole.windows if each is not None]
        kept = {each.name: getattr(whole, each.name) for each in fields(whole)} | {
            "windows": (None,) * whole.num_layers
        }
        return cls(**kept, sliding_window=windows[0] if windows else None)


@architecture("Gemma3TextModel", model_type="gemma3_text", gguf="gemma-embedding",
              names=NAMES.but({"head": None}, ignored=r"^dense_[23]\.weight$"),
              keys=KEYS, config=EmbeddingGemmaConfig)  # fmt: skip
def embedding_gemma(g: Graph, c: EmbeddingGemmaConfig) -> Value:
    """A vector of the text."""
    x = g.scale(g.embed("embed"), c.hidden**0.5)
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        q, k, v = (g.linear(h, layer[f"attn.{word}"]) for word in "qkv")
        q = norm_heads(g, q, layer["attn.q_norm"], "rms", eps=c.norm_eps, head_dim=c.head_dim)
        k = norm_heads(g, k, layer["attn.k_norm"], "rms", eps=c.norm_eps, head_dim=c.head_dim)
        q, k = rotate(g, c, layer, q), rotate(g, c, layer, k)
        window = c.sliding_window // 2 if c.layer_types[layer.index] == SLIDING and c.sliding_window else None
        mixed = attend_all(g, c, (q, k, v), scale=c.query_scale, softcap=c.attention_cap or 0.0, window=window)
        x = g.add(x, g.rms_norm(g.linear(mixed, layer["attn.out"]), layer["attn.post_norm"], eps=c.norm_eps))
        h = gated_mlp(g, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "gelu_tanh")
        x = g.add(x, g.rms_norm(h, layer["mlp.post_norm"], eps=c.norm_eps))
    return pooled(g, g.rms_norm(x, "norm", eps=c.norm_eps))
