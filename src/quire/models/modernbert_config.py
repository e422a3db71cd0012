"""The numbers of ModernBERT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.models.config import ATTENTION, MLP
from quire.models.encoder import ENCODER_CONFIG, ENCODER_GGUF, EncoderConfig
from quire.models.keys import RopeRules
from quire.models.rope import FULL, SLIDING
from quire.models.values import Values
from quire.types.kinds import PoolKind

ROPES = RopeRules(by_layer_type=True)
CONFIG = ENCODER_CONFIG.override(
    reads=["layer_types", "global_attn_every_n_layers", "sliding_window", "norm_bias", "classifier_pooling",
           "classifier_activation", "attention_bias", "mlp_bias", "classifier_bias", "rope_parameters", "rope_scaling",
           "rope_theta", "rope_local_base_freq"],
    ignores=["initializer_cutoff_factor", "attention_dropout", "embedding_dropout", "mlp_dropout", "decoder_bias",
             "deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index", "reference_compile",
             "repad_logits_with_grad", "position_embedding_type", "bos_token_id", "layer_norm_eps"],
    lacks=["type_vocab_size"],
    fixed={"norm_bias": (None, False), "classifier_bias": (None, False)},
    biases={"attention_bias": ATTENTION, "mlp_bias": MLP},
    spelling={"sliding_window": "local_attention", "rms_norm_eps": "norm_eps", "hidden_act": "hidden_activation",
              "rope_theta": "global_rope_theta",
              "rope_local_base_freq": "local_rope_theta"},
    defaults={"rms_norm_eps": 1e-5, "type_vocab_size": None, "sliding_window": 128, "global_attn_every_n_layers": 3,
              "classifier_pooling": "cls", "classifier_activation": "gelu", "rope_theta": 160000.0,
              "rope_local_base_freq": 10000.0},
    rope=ROPES,
)  # fmt: skip
GGUF = ENCODER_GGUF.override(
    reads=["rope.freq_base", "rope.freq_base_swa", "attention.sliding_window", "attention.sliding_window_pattern"],
    ignores=["rope.dimension_count", "rope.scaling.type"],
    defaults={"attention.sliding_window_pattern": 3, "rope.freq_base_swa": 10000.0, "attention.sliding_window": 128},
    rope=ROPES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernBertConfig(EncoderConfig):
    """With the window of local layers, and how its classifier pools."""

    half_window: int  # a token of a local layer reads this many to each side
    pools_mean: bool = False
    classifier_activation: str = "gelu"

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        count = base["num_layers"]
        every = values.integer("attention.sliding_window_pattern" if is_gguf else "global_attn_every_n_layers")
        listed = None if is_gguf else values.texts("layer_types")
        base["layer_types"] = listed or tuple(SLIDING if i % every else FULL for i in range(count))
        base["windows"] = (None,) * count  # its windows have two sides
        window = values.size("attention.sliding_window" if is_gguf else "sliding_window")
        base |= {"num_types": 0, "half_window": window // 2}
        if is_gguf:
            return cls(**base)
        pooling = values.text("classifier_pooling", "cls")
        if pooling not in ("cls", "mean"):
            raise values.refusal("classifier_pooling", "cls or mean")
        kind = values.text("classifier_activation", "gelu")
        return cls(**base, pools_mean=pooling == "mean", classifier_activation=kind)

    @property
    def classifier_pool(self) -> PoolKind:
        """As the configuration says."""
        return PoolKind.MEAN if self.pools_mean else PoolKind.CLS
