"""The numbers of MPNet, and those that its attention adds by distance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from quire.graph.weight import Weight, computed_weight
from quire.models.encoder import ENCODER_CONFIG, AfterPaddingConfig
from quire.models.values import Values

REACH = 128  # distances beyond it have one number
CONFIG = ENCODER_CONFIG.override(
    reads=["relative_attention_num_buckets"],
    lacks=["type_vocab_size"],
    defaults={"pad_token_id": 1, "relative_attention_num_buckets": 32, "type_vocab_size": None},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MPNetConfig(AfterPaddingConfig):
    """With the number of buckets of distances."""

    num_buckets: int = 32

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        first = values.integer("pad_token_id") + 1
        base["max_context"] -= first
        buckets = values.size("relative_attention_num_buckets")
        return cls(**base, num_types=0, first_position=first, num_buckets=buckets)

    def complete(self, weights: dict[str, Weight]) -> Self:
        """The numbers by distance, of each head: [heads, 2 * REACH + 1]."""
        table, half = weights.pop("buckets").float32(), self.num_buckets // 2
        offsets = np.arange(-REACH, REACH + 1)
        distance = np.maximum(np.abs(offsets), 1).astype(np.float32)
        exact = half // 2
        far = exact + (np.log(distance / exact) / np.log(REACH / exact) * (half - exact)).astype(np.int64)
        bucket = np.where(np.abs(offsets) < exact, np.abs(offsets), np.minimum(far, half - 1))
        numbers = table[bucket + half * (offsets > 0)].T
        weights["distances"] = computed_weight("distances", np.ascontiguousarray(numbers))
        return self

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        return AfterPaddingConfig.sizes(self, layer) | {"buckets": self.num_buckets}
