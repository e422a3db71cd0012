"""The frequencies of rotary position embeddings: default, linear, llama3 and yarn, from config.json or GGUF."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.models.errors import UnsupportedModel
from quire.models.values import Values, brief

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Everything that the frequencies depend on. A field that a kind does not use keeps its default."""

    theta: float
    rotary_dim: int  # how many numbers of a head are rotated, in pairs
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 0  # llama3, yarn: context length of the original training
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn
    scaling: float = 1.0  # yarn: factor of cosine and sine

    def frequencies(self) -> Array:
        """Return the radians per position of every pair, float32 [rotary_dim / 2]."""
        return _KINDS[self.kind](self, _default_frequencies(self)).astype(np.float32)


def rope_from_config(c: Mapping[str, Any], head_dim: int, max_context: int) -> RopeConfig:
    """Read config.json: `rope_scaling`, or else `rope_parameters`; `rope_theta` beside it if it has none.

    If both are present, `rope_parameters` is ignored, its theta too, as in transformers.
    """
    outer = Values(c)
    key = "rope_scaling" if outer.mapping("rope_scaling") else "rope_parameters"
    r = outer.table(key)
    if unknown := sorted(set(outer.mapping(key)) - _READ):
        raise UnsupportedModel(f"The model's configuration has {key}.{unknown[0]}, which is not supported.")
    kind = _check_kind(r.text("rope_type", r.text("type", "default")))
    base: dict[str, Any] = {
        "theta": r.number("rope_theta", outer.number("rope_theta", 10000.0, above=1.0), above=1.0),
        "rotary_dim": _rotary_dim(r, outer, head_dim),
        "kind": kind,
    }
    if kind == "default":
        return RopeConfig(**base)
    if kind == "linear":
        return RopeConfig(**base, factor=r.number("factor"))
    original = outer.size("original_max_position_embeddings", r.size("original_max_position_embeddings", max_context))
    if kind == "llama3":
        low, high = r.number("low_freq_factor"), r.number("high_freq_factor")
        if high <= low:
            raise r.refusal("high_freq_factor", f"greater than low_freq_factor, {low:g}")
        numbers: dict[str, Any] = {"factor": r.number("factor"), "low_freq_factor": low, "high_freq_factor": high}
        return RopeConfig(**base, original_context=original, **numbers)
    factor = r.number("factor", max_context / original if "factor" in outer.mapping(key) else None)  # null: the ratio
    return RopeConfig(
        **base,
        factor=factor,
        original_context=original,
        beta_fast=r.number_unless_zero("beta_fast", 32.0),
        beta_slow=r.number_unless_zero("beta_slow", 1.0),
        truncate=r.flag("truncate", default="truncate" not in outer.mapping(key)),  # null: false, as in transformers
        scaling=_yarn_scaling(r, factor),
    )


def _rotary_dim(r: Values, outer: Values, head_dim: int) -> int:
    """Return the size of the rotated part: the whole head.

    Implementations disagree about `partial_rotary_factor`: transformers ignores it for these models, others do not. So
    another value than 1 is refused.
    """
    for values in (r, outer):
        if values.number("partial_rotary_factor", 1.0) != 1.0:
            raise values.refusal("partial_rotary_factor", "1, as rope rotates whole heads in this architecture")
    return head_dim


def rope_from_gguf(c: Mapping[str, Any], head_dim: int, max_context: int, prefix: str = "") -> RopeConfig:
    """Read GGUF metadata, keys without the architecture's name. The factors of llama3 are a tensor, not metadata.

    A factor without a type is linear. A factor of zero counts as left out.
    """
    r = Values(c, prefix)
    key = "rope.scaling.factor" if "rope.scaling.factor" in r else "rope.scale_linear"  # the name in early files
    factor = r.number_unless_zero(key, 1.0)
    kind = r.text("rope.scaling.type", "linear" if factor != 1.0 else "none")
    if (rotary_dim := r.size("rope.dimension_count", head_dim)) != head_dim:
        raise r.refusal("rope.dimension_count", f"{head_dim}, as rope rotates whole heads in this architecture")
    scaling = 1.0
    if kind == "yarn":
        scaling = r.number("rope.scaling.yarn_attn_factor", _yarn_mscale(factor))
        scaling *= r.number("rope.scaling.attn_factor", 1.0)
    return RopeConfig(
        theta=r.number("rope.freq_base", 10000.0, above=1.0),
        rotary_dim=rotary_dim,
        kind=_check_kind("default" if kind == "none" else kind),
        factor=factor,
        original_context=r.size("rope.scaling.original_context_length", max_context),
        beta_fast=r.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=r.number("rope.scaling.yarn_beta_slow", 1.0),
        scaling=scaling,
    )


def _check_kind(kind: str) -> str:
    if kind not in _KINDS:
        raise UnsupportedModel(
            f"Rope scaling of the type {brief(kind)} is not supported: only {', '.join(_KINDS)} are."
        )
    return kind


def _default_frequencies(rope: RopeConfig) -> Array:
    """Return theta ** -(2i / dim), float64; the exponent is rounded to float32 first, as in the training code."""
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float32) / np.float32(rope.rotary_dim)
    return 1.0 / rope.theta ** exponents.astype(np.float64)


def _llama3(rope: RopeConfig, plain: Array) -> Array:
    """Divide low frequencies by the factor, keep high ones, and interpolate between them."""
    turns = rope.original_context * plain / (2 * math.pi)  # of each pair over the original context
    keep: Array = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0)
    return keep * plain + (1 - keep) * plain / rope.factor


def _yarn(rope: RopeConfig, plain: Array) -> Array:
    """Like llama3, with a linear ramp over the index of the pair; its bounds are turns over the original context."""

    def pair_that_turns(times: float) -> float:
        span = rope.original_context / (times * 2 * math.pi)
        return rope.rotary_dim * math.log(span) / (2 * math.log(rope.theta))

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    high = high + 0.001 if low == high else high
    stretched: Array = np.clip((np.arange(len(plain)) - low) / (high - low), 0.0, 1.0)
    return (1 - stretched) * plain + stretched * plain / rope.factor


def _yarn_scaling(r: Values, factor: float) -> float:
    mscale, of_all = (r.number_unless_zero(key, 0.0) for key in ("mscale", "mscale_all_dim"))
    both = _yarn_mscale(factor, mscale) / _yarn_mscale(factor, of_all)
    return r.number("attention_factor", both if mscale and of_all else _yarn_mscale(factor))


def _yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


_KINDS: dict[str, Callable[[RopeConfig, Array], Array]] = {
    "default": lambda rope, plain: plain,
    "linear": lambda rope, plain: plain / rope.factor,
    "llama3": _llama3,
    "yarn": _yarn,
}

# Keys of `rope_scaling`; each kind reads those that it needs.
_READ = frozenset(
    {
        *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings"),
        *("low_freq_factor", "high_freq_factor"),
        *("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim"),
        "finetuned",  # has no effect
    }
)
