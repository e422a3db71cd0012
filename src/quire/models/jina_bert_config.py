"""The keys of Jina v2, and the slopes of its heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.weight import Weight, computed_weight
from quire.models.alibi import exact_slopes
from quire.models.config import SLOPES
from quire.models.encoder import ENCODER_CONFIG, ENCODER_GGUF, EncoderConfig, num_types
from quire.models.keys import ConfigKeys
from quire.models.values import Values

NEEDED = {"position_embedding_type": "alibi", "feed_forward_type": "geglu"}  # the class has other defaults
KEYS = ConfigKeys(ENCODER_CONFIG.override(reads=NEEDED, ignores=["hidden_act"]), ENCODER_GGUF)


@dataclass(frozen=True, slots=True, kw_only=True)
class JinaBertConfig(EncoderConfig):
    """The activation is that of the gate, whatever `hidden_act` says."""

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        for key, kind in () if is_gguf else NEEDED.items():
            if values.text(key, "") != kind:
                raise values.refusal(key, kind)
        return cls(**{**base, "activation": "gelu"}, num_types=num_types(values, is_gguf))

    def complete(self, weights: dict[str, Weight]) -> Self:
        """By these factors scores fall with the distance."""
        weights[SLOPES] = computed_weight(SLOPES, exact_slopes(self.num_heads))
        return self
