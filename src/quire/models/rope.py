"""The frequencies of rotary position embeddings, from config.json or GGUF."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.models.errors import UnsupportedModel
from quire.models.keys import WHOLE_HEADS, RopeRules
from quire.models.values import Values, brief

Array = NDArray[Any]

ALL = "all"  # the key of a rope that all layers share
FULL, SLIDING = "full_attention", "sliding_attention"  # layer types, the keys of other models' ropes
CHUNKED = "chunked_attention"  # a layer type of some architectures
_THETAS = {FULL: "rope_theta", SLIDING: "rope_local_base_freq"}  # the key of theta beside rope_parameters


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Everything that the frequencies depend on. A field that a kind does not use keeps its default."""

    theta: float
    rotary_dim: int  # how many numbers of a head are rotated, in pairs
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 0  # llama3, yarn, longrope: context length of the original training
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn
    scaling: float = 1.0  # yarn, longrope: factor of cosine and sine
    trained_context: int = 0  # dynamic: context length up to which the plain frequencies apply
    short_factors: tuple[float, ...] = ()  # longrope: divisors for contexts up to original_context
    long_factors: tuple[float, ...] = ()  # longrope: divisors for longer ones
    full_dim: int = 0  # proportional: the head size that exponents refer to; pairs beyond rotary_dim have frequency 0

    def frequencies(self, context: int = 0) -> Array:
        """Return the radians per position of every pair, float32 [rotary_dim / 2].

        `context` is the longest text that will be served: dynamic and longrope choose their factors by it, once.
        """
        return _KINDS[self.kind](self, _plain(self), context).astype(np.float32)

    def choice(self, context: int) -> str | None:
        """Say which factors a context of this length has. None: those of all lengths are the same."""
        if self.kind == "longrope":
            length = "long" if context > self.original_context else "short"
            return f"{length} factors, as max_context is {context:,} and the original context {self.original_context:,}"
        if self.kind == "dynamic":
            is_stretched = "stretched" if context > self.trained_context else "plain"
            return (
                f"{is_stretched} base, as max_context is {context:,} and the trained context {self.trained_context:,}"
            )
        return None


def ropes_from_config(
    c: Values, head_dim: int, max_context: int, rules: RopeRules = WHOLE_HEADS
) -> dict[str, RopeConfig]:
    """Read the ropes of config.json: one, or one for each layer type."""
    if not rules.by_layer_type:
        return {ALL: rope_from_config(c, head_dim, max_context, rules)}
    return {kind: rope_of_layer_type(c, kind, head_dim, max_context, rules) for kind in _THETAS}


def rope_of_layer_type(c: Values, kind: str, head_dim: int, max_context: int, rules: RopeRules) -> RopeConfig:
    """From `rope_parameters`, with an entry for each layer type. `rope_scaling` is about layers without a window."""
    tables = c.table("rope_parameters")
    if unknown := sorted(tables.names() - set(_THETAS)):
        raise UnsupportedModel(
            f"The model's configuration has {tables.shown(unknown[0])}; rope_parameters must have layer types as keys."
        )
    theta = {"rope_theta": c.number(_THETAS[kind], 10000.0, above=1.0)}
    scaling = c.mapping("rope_scaling") if kind == FULL else {}
    if "type" in scaling and "rope_type" not in scaling:  # transformers ignores it here
        raise UnsupportedModel("The model's configuration has rope_scaling.type: this architecture has rope_type.")
    given = {**theta, **tables.mapping(kind), **scaling}
    return _rope(Values(given, tables.shown(f"{kind}.")), c, head_dim, max_context, rules)


def rope_from_config(c: Values, head_dim: int, max_context: int, rules: RopeRules = WHOLE_HEADS) -> RopeConfig:
    """Read config.json: `rope_scaling`, or else `rope_parameters`; `rope_theta` beside it if it has none.

    So if both are there, the theta of `rope_parameters` counts for nothing, as in transformers.
    """
    key = "rope_scaling" if c.mapping("rope_scaling") else "rope_parameters"
    return _rope(c.table(key), c, head_dim, max_context, rules)


def _rope(r: Values, outer: Values, head_dim: int, max_context: int, rules: RopeRules) -> RopeConfig:
    known = _READ | rules.beside | ({"alpha"} if rules.has_alpha else set())
    if unknown := sorted(r.names() - known):
        raise UnsupportedModel(f"The model's configuration has {r.shown(unknown[0])}, which is not supported.")
    named = r.text("rope_type", r.text("type", "default"))
    kind = _known(rules.renamed.get(named, named))
    share = r.number("partial_rotary_factor", outer.number("partial_rotary_factor", 1.0))
    is_partial = rules.is_partial or kind == "proportional"
    base: dict[str, Any] = {
        "theta": r.number("rope_theta", outer.number("rope_theta", 10000.0, above=1.0), above=1.0),
        "rotary_dim": _rotary_dim(r if "partial_rotary_factor" in r else outer, share, head_dim, is_partial),
        "kind": kind,
    }
    if kind == "proportional":
        return RopeConfig(**base, full_dim=head_dim, factor=r.number("factor", 1.0))
    if kind in ("default", "linear"):
        return RopeConfig(**base, factor=r.number("factor") if kind == "linear" else 1.0)
    if kind == "dynamic" and rules.has_alpha and r.number_or_none("alpha"):
        stretch = r.number("alpha") ** (base["rotary_dim"] / (base["rotary_dim"] - 2))
        return RopeConfig(**{**base, "kind": "default", "theta": base["theta"] * stretch})
    if kind == "dynamic":
        return RopeConfig(**base, factor=r.number("factor"), trained_context=max_context)
    original = outer.size("original_max_position_embeddings", r.size("original_max_position_embeddings", max_context))
    if kind == "longrope":
        return _longrope(r, base, original, max_context)
    if kind == "llama3":
        low, high = r.number("low_freq_factor"), r.number("high_freq_factor")
        if high < low:
            raise r.refusal("high_freq_factor", f"not less than low_freq_factor, {low:g}")
        numbers: dict[str, Any] = {"factor": r.number("factor"), "low_freq_factor": low, "high_freq_factor": high}
        return RopeConfig(**base, original_context=original, **numbers)
    factor = r.number("factor", max_context / original if "factor" in r.names() else None)  # null: the ratio
    return RopeConfig(
        **base,
        factor=factor,
        original_context=original,
        beta_fast=r.number_unless_zero("beta_fast", 32.0),
        beta_slow=r.number_unless_zero("beta_slow", 1.0),
        truncate=r.flag("truncate", default="truncate" not in r.names()),  # null: false, as in transformers
        scaling=_yarn_scaling(r, factor),
    )


def _longrope(r: Values, base: dict[str, Any], original: int, max_context: int) -> RopeConfig:
    """Read the divisors for short and for long contexts."""
    factors: dict[str, Any] = {}
    for name in ("short", "long"):
        found = r.numbers(f"{name}_factor")
        if len(found) != base["rotary_dim"] // 2:
            raise r.refusal(f"{name}_factor", f"a list of {base['rotary_dim'] // 2} numbers, one for each pair")
        factors[f"{name}_factors"] = found
    factor = r.number("factor", max_context / original)
    plain = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    scaling = r.number("attention_factor", plain)
    return RopeConfig(**base, **factors, factor=factor, original_context=original, scaling=scaling)


def _rotary_dim(values: Values, share: float, head_dim: int, is_partial: bool) -> int:
    """Return the size of the rotated part. Architectures disagree on whether the key counts, so each declares it."""
    if not is_partial and share != 1.0:
        raise values.refusal("partial_rotary_factor", "1, as rope turns whole heads in this architecture")
    found = int(head_dim * share)
    if not 0 < found <= head_dim or found % 2:
        raise values.refusal("partial_rotary_factor", f"a share of the {head_dim} numbers of a head that is even")
    return found


def ropes_from_gguf(
    c: Values, head_dim: int, max_context: int, rules: RopeRules = WHOLE_HEADS
) -> dict[str, RopeConfig]:
    """The ropes of GGUF: one, or one for each layer type, where that of layers with a window is never scaled."""
    rope = rope_from_gguf(c, head_dim, max_context, rules)
    if not rules.by_layer_type:
        return {ALL: rope}
    theta = c.number("rope.freq_base_swa", rope.theta, above=1.0)
    return {FULL: rope, SLIDING: RopeConfig(theta=theta, rotary_dim=head_dim)}


def rope_from_gguf(c: Values, head_dim: int, max_context: int, rules: RopeRules = WHOLE_HEADS) -> RopeConfig:
    """Read GGUF metadata, keys without the architecture's name. The factors of llama3 are a tensor, not metadata.

    A factor without a type is linear. Zero is a factor that was left out.
    """
    key = "rope.scaling.factor" if "rope.scaling.factor" in c else "rope.scale_linear"  # the name in early files
    factor = c.number_unless_zero(key, 1.0)
    kind = c.text("rope.scaling.type", "linear" if factor != 1.0 else "none")
    rotary_dim = c.size("rope.dimension_count", head_dim)
    if rotary_dim != head_dim and not rules.is_partial:
        raise c.refusal("rope.dimension_count", f"{head_dim}, as rope turns whole heads in this architecture")
    if rotary_dim > head_dim or rotary_dim % 2:
        raise c.refusal("rope.dimension_count", f"an even number up to {head_dim}, the size of a head")
    scaling = 1.0
    if kind == "yarn":
        multiplier = c.number_unless_zero("rope.scaling.yarn_log_multiplier", 0.0)  # mscale_all_dim, if mscale is 1
        plain = magnitude(factor) / (magnitude(factor, multiplier) if multiplier else 1.0)
        scaling = c.number("rope.scaling.yarn_attn_factor", plain)
    scaling *= c.number("rope.scaling.attn_factor", 1.0)
    return RopeConfig(
        theta=c.number("rope.freq_base", 10000.0, above=1.0),
        rotary_dim=rotary_dim,
        kind=_known("default" if kind == "none" or (kind == "longrope" and rules.has_factors) else kind, is_gguf=True),
        factor=factor,
        original_context=c.size("rope.scaling.original_context_length", max_context),
        beta_fast=c.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=c.number("rope.scaling.yarn_beta_slow", 1.0),
        truncate=rules.truncates,
        scaling=scaling,
    )


def _known(kind: str, is_gguf: bool = False) -> str:
    if kind not in _KINDS or (is_gguf and kind == "longrope"):
        raise UnsupportedModel(
            f"Rope scaling of the type {brief(kind)} is not supported: only {', '.join(_KINDS)} are."
        )
    return kind


def _plain(rope: RopeConfig) -> Array:
    """Return theta ** -(2i / dim), float64; the exponent is rounded to float32 first, as in the training code."""
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float32) / np.float32(rope.full_dim or rope.rotary_dim)
    return 1.0 / rope.theta ** exponents.astype(np.float64)


def _llama3(rope: RopeConfig, plain: Array, context: int) -> Array:
    """Divide low frequencies by the factor, keep high ones, and interpolate between them."""
    turns = rope.original_context * plain / (2 * math.pi)  # of each pair over the original context
    if rope.high_freq_factor == rope.low_freq_factor:
        return np.where(turns < rope.low_freq_factor, plain / rope.factor, plain)
    keep: Array = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0)
    return keep * plain + (1 - keep) * plain / rope.factor


def _yarn(rope: RopeConfig, plain: Array, context: int) -> Array:
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
    both = magnitude(factor, mscale) / magnitude(factor, of_all)
    return r.number("attention_factor", both if mscale and of_all else magnitude(factor))


def magnitude(factor: float, mscale: float = 1.0) -> float:
    """YaRN's measure of how much larger scores are, for a context that is `factor` times the original one."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _dynamic(rope: RopeConfig, plain: Array, context: int) -> Array:
    """NTK: a larger base for contexts beyond the trained one."""
    if context <= rope.trained_context:
        return plain
    stretch = rope.factor * context / rope.trained_context - (rope.factor - 1)
    theta = rope.theta * stretch ** (rope.rotary_dim / (rope.rotary_dim - 2))
    return _plain(replace(rope, theta=theta))


def _long(rope: RopeConfig, plain: Array, context: int) -> Array:
    factors = rope.long_factors if context > rope.original_context else rope.short_factors
    return plain / np.asarray(factors, np.float64)


def _proportional(rope: RopeConfig, plain: Array, context: int) -> Array:
    """Gemma 4: the first pairs rotate with the frequencies of the whole head; the other pairs do not rotate."""
    still = np.zeros((rope.full_dim - rope.rotary_dim) // 2)
    return np.concatenate([plain, still]) / rope.factor


_KINDS: dict[str, Callable[[RopeConfig, Array, int], Array]] = {
    "default": lambda rope, plain, context: plain,
    "linear": lambda rope, plain, context: plain / rope.factor,
    "llama3": _llama3,
    "yarn": _yarn,
    "dynamic": _dynamic,
    "longrope": _long,
    "proportional": _proportional,
}

# Keys of `rope_scaling`; each kind reads those that it needs.
_READ = frozenset(
    {
        *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings"),
        *("low_freq_factor", "high_freq_factor"),
        *("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim"),
        *("short_factor", "long_factor"),
        "finetuned",  # has no effect
    }
)
