"""The numbers of OLMo-Hybrid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.models.config import ModelConfig
from quire.models.delta import DeltaHeads, checked_heads
from quire.models.hybrid import LINEAR, types_where
from quire.models.llama import LLAMA_CONFIG
from quire.models.values import Values

CONFIG = LLAMA_CONFIG.override(
    reads=["linear_num_value_heads", "linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim",
           "linear_conv_kernel_dim", "linear_allow_neg_eigval", "layer_types"],
    ignores=["mlp_bias", "linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max",
             "linear_dt_init_floor"],
    fixed={"linear_use_gate": (None, True)},
    defaults={"linear_conv_kernel_dim": 4, "linear_allow_neg_eigval": True, "eos_token_id": 100257},
    layer_types=[LINEAR],
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OlmoHybridConfig(ModelConfig):
    """With the numbers of the delta rule; without ropes if a file has null for theta."""

    delta: DeltaHeads

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        return cls(**{**base, "layer_types": _types(base, values), "delta": _delta(base, values),
                      "ropes": {} if _has_no_theta(values) else base["ropes"]})  # fmt: skip

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        return {**ModelConfig.sizes(self, layer), **self.delta.sizes()}


def _types(base: dict[str, Any], values: Values) -> tuple[str, ...]:
    """Every fourth layer has attention, or the last one of fewer."""
    count = base["num_layers"]
    if "layer_types" in values:
        found: tuple[str, ...] = base["layer_types"]
        return found
    return types_where((layer % 4 != 3 and not (count < 4 and layer == count - 1) for layer in range(count)), base)


def _delta(base: dict[str, Any], values: Values) -> DeltaHeads:
    heads, key_heads = (values.size(f"linear_num_{word}_heads", base["num_heads"]) for word in ("value", "key"))
    key_dim = values.size("linear_key_head_dim", int(0.75 * base["hidden"] / key_heads))
    value_dim, taps = values.size("linear_value_head_dim", 2 * key_dim), values.size("linear_conv_kernel_dim")
    factor = 2.0 if values.flag("linear_allow_neg_eigval") else 1.0  # eigenvalues of a step down to -1
    return checked_heads(
        DeltaHeads(heads, key_heads, key_dim, value_dim, taps, factor),
        ("linear_num_value_heads", "linear_num_key_heads"),
    )


def _has_no_theta(values: Values) -> bool:
    """Is theta null, and not left out?"""
    table = values.table("rope_scaling" if values.mapping("rope_scaling") else "rope_parameters")
    where = table if "rope_theta" in table.names() else values
    return "rope_theta" in where.names() and "rope_theta" not in where
