"""BART and Marian: names of tensors, keys and numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from quire.graph.weight import Weight, computed_weight
from quire.models.config import ModelConfig
from quire.models.names import Names, TensorName
from quire.models.source import (
    HIDDEN,
    SOURCE_CONFIG,
    sinusoids,
)  # fmt: skip
from quire.models.values import Values

CROSS, FIRST_ROW = "encoder_attn", 2


def _attention(word: str, block: str, words: str = "qkv") -> dict[str, TensorName]:
    linears = {f"{word}.{each}": TensorName(f"{block}.{each}_proj", None, ("q", "hidden"), True) for each in words}
    return {**linears, f"{word}.out": TensorName(f"{block}.out_proj", None, ("hidden", "q"), True),
            f"{word}.norm": TensorName(f"{block}_layer_norm", None, HIDDEN, True)}  # fmt: skip


def _has_table(c: BartConfig, layer: int) -> bool:
    return c.has_table


def _names(side: str, more: dict[str, TensorName], ignored: str) -> Names:
    return Names({
        "embed": TensorName("model.shared", None, ("vocab", "hidden")),
        "positions": TensorName(f"model.{side}.embed_positions", None, ("positions", "hidden"), only=_has_table),
        "embed_norm": TensorName(f"model.{side}.layernorm_embedding", None, HIDDEN, True, _has_table),
        **_attention("attn", "self_attn"), **more, "mlp.up": TensorName("fc1", None, ("ffn", "hidden"), True),
        "mlp.down": TensorName("fc2", None, ("hidden", "ffn"), True),
        "mlp.norm": TensorName("final_layer_norm", None, HIDDEN, True),
    }, layers=f"model.{side}.layers").but(ignored=rf"\.embed_tokens\.weight$|{ignored}")  # fmt: skip


ENCODER = _names("encoder", {}, r"^model\.decoder\.|^lm_head|^final_logits_bias|embed_positions")
DECODER = _names("decoder", _attention("cross", CROSS, "q"), rf"^model\.encoder\.|{CROSS}\.[kv]_proj|embed_positions")
DECODER = DECODER.but({
    "head": TensorName("lm_head", None, ("vocab", "hidden")),
    "added": TensorName("final_logits_bias", None, ("one", "vocab"), kind=""),
})  # fmt: skip
KEYS = SOURCE_CONFIG.override(
    reads=["scale_embedding", "max_position_embeddings"],
    ignores=["normalize_embedding", "normalize_before", "add_final_layer_norm", "add_bias_logits", "num_hidden_layers",
             "static_position_embeddings", "decoder_vocab_size", "force_bos_token_to_be_generated", "summary_type"],
    fixed={"share_encoder_decoder_embeddings": (None, True)},
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 1024, "scale_embedding": False, "eos_token_id": 2},
)  # fmt: skip
KEYS = replace(KEYS, read=KEYS.read | {"num_hidden_layers"}, harmless=KEYS.harmless - {"num_hidden_layers"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BartConfig(ModelConfig):
    """With the encoder's numbers."""

    source: tuple[int, int, int, int]  # layers, heads, ffn, positions
    scale: float  # of embeddings
    has_table: bool = True  # of learned positions, whose sum with embeddings is normed

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        layers, heads, ffn = map(values.size, ("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"))
        scale = base["hidden"] ** 0.5 if values.flag("scale_embedding") else 1.0
        return cls(**base, source=(layers, heads, ffn, base["max_context"]), scale=scale)

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        return ModelConfig.sizes(self, layer) | {"positions": self.max_context + FIRST_ROW}

    def complete(self, weights: dict[str, Weight]) -> Self:
        """The bias of logits is a buffer of the model; sinusoids are computed."""
        if "added" in weights:
            weights["head.bias"] = computed_weight("head.bias", weights.pop("added").float32().reshape(-1))
        if not self.has_table:
            weights["positions"] = computed_weight("positions", sinusoids(self.max_context, self.hidden))
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class MarianConfig(BartConfig):
    """Sinusoidal positions, and no norm of embeddings."""

    has_table: bool = False
