"""The gated delta rule with experts: its numbers, and the tensors of the experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from quire.models.delta import DeltaHeads, read_delta
from quire.models.moe import MoeConfig, with_experts, with_shared
from quire.models.names import Names
from quire.models.qwen2_moe import SWITCH
from quire.models.values import Values


def with_shared_experts(names: Names) -> Names:
    """Add experts, and one that all tokens use, weighted by a sigmoid."""
    return with_shared(with_experts(names), "mlp.shared_expert").but({"shared.router": SWITCH})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaMoeConfig(MoeConfig):
    """With the numbers of the delta rule."""

    is_tiled: ClassVar[bool] = False  # see read_delta
    delta: DeltaHeads

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        found = read_delta(base, values, is_gguf, is_tiled=cls.is_tiled)
        return super(DeltaMoeConfig, cls).read(base | found, values, is_gguf)

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        return {**MoeConfig.sizes(self, layer), **self.delta.sizes()}
