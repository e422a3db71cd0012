"""Settings of embeddings."""

from __future__ import annotations

from dataclasses import dataclass

from quire.types.kinds import PoolKind
from quire.types.setting import setting


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """Embeddings."""

    pooling: str | None = setting(
        None,
        "How the vectors of a text's tokens become one: mean, cls (the first token's), last, or weighted (a mean in "
        "which later tokens count more). None: as the model's files say. With it, a model that generates text also "
        "embeds.",
        choices=tuple(PoolKind),
    )
