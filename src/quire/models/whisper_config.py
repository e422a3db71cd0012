"""Whisper: names of tensors, keys and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from quire.graph.weight import Weight, computed_weight
from quire.models.config import ModelConfig
from quire.models.names import Names, Stored, TensorName
from quire.models.source import (
    HIDDEN,
    SOURCE_CONFIG,
)  # fmt: skip
from quire.models.values import Values

CROSS = "encoder_attn"
MASKS = (*(f"mask_{kind}_{word}" for kind in ("time", "feature") for word in ("prob", "length", "min_masks")),)


def _norm(name: str) -> TensorName:
    return TensorName(name, None, HIDDEN, True)


def _attention(word: str, block: str, words: str = "qkv") -> dict[str, TensorName]:
    """Keys have no bias."""
    entries = {
        f"{word}.{each}": TensorName(f"{block}.{each}_proj", None, ("q", "hidden"), each != "k") for each in words
    }
    return {**entries, f"{word}.out": TensorName(f"{block}.out_proj", None, ("hidden", "q"), True),
            f"{word}.norm": _norm(f"{block}_layer_norm")}  # fmt: skip


MLP = {"mlp.norm": _norm("final_layer_norm"), "mlp.up": TensorName("fc1", None, ("ffn", "hidden"), True),
       "mlp.down": TensorName("fc2", None, ("hidden", "ffn"), True)}  # fmt: skip
DECODER = Names({
    "embed": TensorName("model.decoder.embed_tokens", None, ("vocab", "hidden")),
    "positions": TensorName("model.decoder.embed_positions", None, ("positions", "hidden")),
    **_attention("attn", "self_attn"), **_attention("cross", CROSS, "q"), **MLP,
    "norm": _norm("model.decoder.layer_norm"), "head": TensorName("proj_out", None, ("vocab", "hidden")),
}, layers="model.decoder.layers").but(ignored=rf"^model\.encoder\.|{CROSS}\.[kv]_proj")  # fmt: skip
ENCODER = Names({
    "conv1": TensorName(Stored("model.encoder.conv1", shape=("hidden", "mels", "taps")), None, ("hidden", "conv1"),
                        True),
    "conv2": TensorName(Stored("model.encoder.conv2", shape=("hidden", "hidden", "taps")), None, ("hidden", "conv2"),
                        True),
    "positions": TensorName("model.encoder.embed_positions", None, ("positions", "hidden")),
    **_attention("attn", "self_attn"), **MLP, "norm": _norm("model.encoder.layer_norm"),
}, layers="model.encoder.layers").but(ignored=r"^model\.decoder\.|^proj_out")  # fmt: skip
KEYS = SOURCE_CONFIG.override(
    reads=["num_mel_bins", "max_source_positions", "alignment_heads"], fixed={"scale_embedding": (None, False)},
    ignores=["suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids", "median_filter_width",
             "use_weighted_layer_sum", "classifier_proj_size", "apply_spec_augment", *MASKS],
    spelling={"max_position_embeddings": "max_target_positions"},
    defaults={"max_position_embeddings": 448, "max_source_positions": 1500, "num_mel_bins": 80, "rms_norm_eps": 1e-5},
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperConfig(ModelConfig):
    """With the encoder's numbers."""

    mels: int
    source: tuple[int, int, int, int]  # layers, heads, ffn, positions
    alignment: tuple[tuple[int, int], ...] = ()  # layer and head: whose attention shows where in the sound a word is

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        keys = ("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "max_source_positions")
        layers, heads, ffn, positions = map(values.size, keys)
        aligned = alignment_heads(values, base["num_layers"], base["num_heads"])
        mels = values.size("num_mel_bins")
        return cls(**base, mels=mels, source=(layers, heads, ffn, positions), alignment=aligned)

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        sizes = {"mels": self.mels, "taps": 3, "conv1": 3 * self.mels, "conv2": 3 * self.hidden}
        return ModelConfig.sizes(self, layer) | sizes

    def complete(self, weights: dict[str, Weight]) -> Self:
        """Cut the taps of the convolutions apart: a token is two frames, of which each has three neighbours."""
        if "conv1" not in weights:
            return self
        first, second = (weights.pop(name).float32().reshape(self.hidden, -1, 3) for name in ("conv1", "conv2"))
        both = {"even": first[:, :, 1:], "odd": first[:, :, :2]}  # taps on the token's own frames
        made = {name: taps.transpose(0, 2, 1).reshape(self.hidden, -1) for name, taps in both.items()}
        made |= {"before": first[:, :, 0], "behind": first[:, :, 2]}
        made |= {f"stride{tap}": second[:, :, tap] for tap in range(3)}
        weights |= {name: computed_weight(name, np.ascontiguousarray(taps)) for name, taps in made.items()}
        bias = weights.pop("conv1.bias")
        weights |= {"even.bias": bias, "odd.bias": bias, "stride1.bias": weights.pop("conv2.bias")}
        return self


def alignment_heads(values: Values, num_layers: int, num_heads: int) -> tuple[tuple[int, int], ...]:
    """Pairs of layer and head, in order. Files without them have none."""
    given = values.pairs("alignment_heads")
    if not all(layer < num_layers and head < num_heads for layer, head in given):
        raise values.refusal("alignment_heads", f"pairs of a layer below {num_layers} and a head below {num_heads}")
    return tuple(sorted(set(given)))
