"""The frequencies of rotary positions: default, linear, llama3 and yarn, as either container states them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.models.errors import UnsupportedModel

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Everything the frequencies depend on. A field that a kind does not use keeps its default."""

    theta: float
    rotary_dim: int  # how many numbers of a head turn, two by two
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 0  # llama3, yarn: how long the texts of the first training were
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn
    scaling: float = 1.0  # yarn: what cosine and sine are multiplied by

    def frequencies(self) -> Array:
        """Radians per position of every pair, float32 [rotary_dim / 2]."""
        return _KINDS[self.kind](self, _plain(self)).astype(np.float32)


def rope_from_config(c: Mapping[str, Any], head_dim: int, max_context: int) -> RopeConfig:
    """From config.json: `rope_parameters`, or in older files `rope_scaling` and `rope_theta` beside it."""
    said = dict(c.get("rope_parameters") or c.get("rope_scaling") or {})
    kind = said.get("rope_type") or said.get("type") or "default"
    theta = float(said.get("rope_theta") or c.get("rope_theta") or 10000.0)
    share = float(said.get("partial_rotary_factor") or c.get("partial_rotary_factor") or 1.0)
    base: dict[str, Any] = {"theta": theta, "rotary_dim": int(head_dim * share), "kind": _known(kind)}
    if kind == "default":
        return RopeConfig(**base)
    key = "original_max_position_embeddings"
    original = int(said.get(key) or c.get(key) or max_context)
    factor = float(said.get("factor") or max_context / original)
    optional = ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "truncate")
    numbers = {name: said[name] for name in optional if said.get(name) is not None}
    scaling = _yarn_scaling(said, factor) if kind == "yarn" else 1.0
    return RopeConfig(**base, factor=factor, original_context=original, scaling=scaling, **numbers)


def rope_from_gguf(c: Mapping[str, Any], head_dim: int, max_context: int) -> RopeConfig:
    """From GGUF, keys without the architecture's name. The factors of llama3 are a tensor there, not metadata."""
    kind = {"none": "default"}.get(str(c.get("rope.scaling.type", "none")), str(c.get("rope.scaling.type")))
    factor = float(c.get("rope.scaling.factor", 0.0))
    if not factor and "rope.scale_linear" in c:  # how the first files said it
        kind, factor = "linear", float(c["rope.scale_linear"])
    factor = factor or 1.0
    scaling = 1.0
    if kind == "yarn":
        scaling = float(c.get("rope.scaling.yarn_attn_factor", _magnitude(factor)))
        scaling *= float(c.get("rope.scaling.attn_factor", 1.0))
    return RopeConfig(
        theta=float(c.get("rope.freq_base", 10000.0)),
        rotary_dim=int(c.get("rope.dimension_count", head_dim)),
        kind=_known(kind),
        factor=factor,
        original_context=int(c.get("rope.scaling.original_context_length", max_context)),
        beta_fast=float(c.get("rope.scaling.yarn_beta_fast", 32.0)),
        beta_slow=float(c.get("rope.scaling.yarn_beta_slow", 1.0)),
        scaling=scaling,
    )


def _known(kind: str) -> str:
    if kind not in _KINDS:
        raise UnsupportedModel(f"Rope scaling of the type {kind!r} is not supported: only {', '.join(_KINDS)} are.")
    return kind


def _plain(rope: RopeConfig) -> Array:
    """theta ** -(2i / dim), float64; the exponent is rounded to float32 first, as in the training code."""
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float32) / np.float32(rope.rotary_dim)
    return 1.0 / rope.theta ** exponents.astype(np.float64)


def _llama3(rope: RopeConfig, plain: Array) -> Array:
    """Long waves are stretched by the factor, short ones stay, those between move from one to the other."""
    turns = rope.original_context * plain / (2 * math.pi)  # of each pair over the original context
    keep: Array = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0)
    return keep * plain + (1 - keep) * plain / rope.factor


def _yarn(rope: RopeConfig, plain: Array) -> Array:
    """As llama3, with a ramp over the index of the pair; the bounds are given as turns over the original context."""

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


def _yarn_scaling(said: Mapping[str, Any], factor: float) -> float:
    if said.get("attention_factor") is not None:
        return float(said["attention_factor"])
    mscale, of_all = said.get("mscale"), said.get("mscale_all_dim")
    return _magnitude(factor, mscale) / _magnitude(factor, of_all) if mscale and of_all else _magnitude(factor)


def _magnitude(factor: float, mscale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


_KINDS: dict[str, Callable[[RopeConfig, Array], Array]] = {
    "default": lambda rope, plain: plain,
    "linear": lambda rope, plain: plain / rope.factor,
    "llama3": _llama3,
    "yarn": _yarn,
}
