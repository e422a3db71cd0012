"""Fused ops. Models never draw these: passes put them in where a device has a kernel (graph/passes).

The reference of each is the composition of the plain ops that it replaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, product

import numpy as np

from quire.ops import attention
from quire.ops.batch import Batch
from quire.ops.cache import PagedCache, PagedKV
from quire.ops.elementwise import ACTIVATIONS
from quire.ops.linear import TOLERANCE, product_of, product_shape
from quire.ops.norm import rms_norm
from quire.ops.registry import Args, Array, ArrayMaker, Shape, ShapeError, expect, op
from quire.ops.rope import rope

HEADS = ("weights", "biases", "q_norm", "k_norm", "frequencies")  # weights of qkv_attention: of q, k and v


@op(weights=("weights", "biases"), tolerance=TOLERANCE)
def linear_split(x: Array, weights: tuple[Array, ...], biases: tuple[Array | None, ...]) -> tuple[Array, ...]:
    """Several linears of one x [T, in], whose weights a device may pack into one matrix: [T, out_i] each."""
    return tuple(product_of(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))


@op(weights=("gate", "up", "gate_bias", "up_bias"), tolerance=TOLERANCE)
def gated_linear(
    x: Array, gate: Array, up: Array, gate_bias: Array | None, up_bias: Array | None, *, kind: str
) -> Array:
    """activation(linear(x, gate)) * linear(x, up): x [T, dim], weights [hidden, dim]: [T, hidden]."""
    return ACTIVATIONS[kind](product_of(x, gate, gate_bias)) * product_of(x, up, up_bias)


@op(weights=("weight", "bias"), tolerance=TOLERANCE)
def linear_add(x: Array, residual: Array, weight: Array, bias: Array | None) -> Array:
    """residual [T, out] + linear(x)."""
    return residual + product_of(x, weight, bias)


@op(weights=("weight", "bias"), tolerance=TOLERANCE)
def head(x: Array, weight: Array, bias: Array | None, *, factor: float = 1.0, cap: float = 0.0) -> Array:
    """linear(x), times factor, softcapped by cap if that is not 0: the logits [L, vocab] of x [L, dim]."""
    logits = product_of(x, weight, bias)
    logits = logits if factor == 1.0 else logits * np.float32(factor)
    return logits if not cap else np.float32(cap) * np.tanh(logits / np.float32(cap))


@op(weights=("weight", "bias"), tolerance=TOLERANCE)
def scaled_linear_add(x: Array, residual: Array, weight: Array, bias: Array | None, *, factor: float) -> Array:
    """residual [T, out] + factor * linear(x)."""
    return residual + product_of(x, weight, bias) * np.float32(factor)


@op(weights=("weight", "bias", "norm"), tolerance=TOLERANCE)
def normed_linear_add(
    x: Array, residual: Array, weight: Array, bias: Array | None, norm: Array, *, eps: float
) -> Array:
    """residual [T, out] + rms_norm(linear(x), norm)."""
    added: Array = residual + rms_norm(product_of(x, weight, bias), norm, eps=eps)
    return added


@op(weights=("weight", "bias"), tolerance=TOLERANCE)
def activated_linear(x: Array, weight: Array, bias: Array | None, *, kind: str) -> Array:
    """activation(linear(x))."""
    return ACTIVATIONS[kind](product_of(x, weight, bias))


@op(weights=("norm", "weight", "bias"), tolerance=TOLERANCE)
def normed_linear(x: Array, norm: Array, weight: Array, bias: Array | None, *, eps: float, kind: str = "") -> Array:
    """linear(rms_norm(x)), activated if `kind` is not empty."""
    product = product_of(rms_norm(x, norm, eps=eps), weight, bias)
    return ACTIVATIONS[kind](product) if kind else product


@op(weights=("norm", "gate", "up", "gate_bias", "up_bias"), tolerance=TOLERANCE)
def normed_gated_linear(
    x: Array, norm: Array, gate: Array, up: Array, gate_bias: Array | None, up_bias: Array | None,
    *, eps: float, kind: str,
) -> Array:  # fmt: skip
    """gated_linear(rms_norm(x))."""
    out: Array = gated_linear(rms_norm(x, norm, eps=eps), gate, up, gate_bias, up_bias, kind=kind)
    return out


@op(weights=("norm", "weight", "bias"), tolerance=TOLERANCE)
def normed_head(
    x: Array, norm: Array, weight: Array, bias: Array | None, *, eps: float, factor: float = 1.0, cap: float = 0.0
) -> Array:
    """head(rms_norm(x))."""
    logits: Array = head(rms_norm(x, norm, eps=eps), weight, bias, factor=factor, cap=cap)
    return logits


@op(weights=("table",), tolerance={"f32": 0.0, "f16": 1e-3, "bf16": 8e-3})
def scaled_embed(token_ids: Array, table: Array, *, factor: float) -> Array:
    """embed, times a number."""
    scaled: Array = table[token_ids].astype(np.float32) * np.float32(factor)
    return scaled


@op(weights=("norm", *HEADS, *attention.EXTRAS), tolerance=attention.TOLERANCE)
def qkv_attention(
    x: Array, norm: Array | None, weights: tuple[Array, Array, Array], biases: tuple[Array | None, ...],
    q_norm: Array | None, k_norm: Array | None, frequencies: Array | None, positions: Array, cache: PagedCache,
    batch: Batch, sinks: Array | None, slopes: Array | None, distances: Array | None,
    *, eps: float, head_eps: float, head_group: int, head_dim: int, scaling: float, interleaved: bool, scale: float,
    softcap: float,
) -> Array:  # fmt: skip
    """q, k and v of x [T, dim], or of its RMS norm; RMS norms of heads and rope of q and k; attention.

    Without q_norm and k_norm, heads are not normed; with a head_group of 0, all heads of q, and all of k, are normed
    together. Without frequencies, heads are not rotated.
    """
    h = x if norm is None else rms_norm(x, norm, eps=eps)
    q, k, v = (product_of(h, weight, bias) for weight, bias in zip(weights, biases, strict=True))
    if q_norm is not None and k_norm is not None:
        q, k = (rms_norm(y, w, eps=head_eps, group=head_group) for y, w in ((q, q_norm), (k, k_norm)))
    if frequencies is not None:
        how = {"head_dim": head_dim, "scaling": scaling, "interleaved": interleaved}
        q, k = (rope(y, frequencies, positions, **how) for y in (q, k))
    seen: Array = attention.attention(q, k, v, cache, batch, sinks, slopes, distances, scale=scale, softcap=softcap)
    return seen


@linear_split.shape
def _(x: Shape, weights: tuple[Shape, ...], biases: tuple[Shape | None, ...]) -> list[Shape]:
    if len(weights) < 2:
        raise ValueError(f"linear_split has at least two weights, not {len(weights)}")
    pairs = enumerate(zip(weights, biases, strict=True))
    return [product_shape(x, weight, bias, (f"weights[{i}]", f"biases[{i}]")) for i, (weight, bias) in pairs]


@gated_linear.shape
def _(x: Shape, gate: Shape, up: Shape, gate_bias: Shape | None, up_bias: Shape | None, *, kind: str) -> Shape:
    expect("up", up, *gate)
    product_shape(x, up, up_bias, ("up", "up_bias"))
    return product_shape(x, gate, gate_bias, ("gate", "gate_bias"))


@linear_add.shape
def _(x: Shape, residual: Shape, weight: Shape, bias: Shape | None) -> Shape:
    out = product_shape(x, weight, bias)
    expect("residual", residual, *out)
    return out


@head.shape
def _(x: Shape, weight: Shape, bias: Shape | None, *, factor: float = 1.0, cap: float = 0.0) -> Shape:
    return product_shape(x, weight, bias)


@scaled_linear_add.shape
def _(x: Shape, residual: Shape, weight: Shape, bias: Shape | None, *, factor: float) -> Shape:
    return linear_add.infer(x=x, residual=residual, weight=weight, bias=bias)[0]


@normed_linear_add.shape
def _(x: Shape, residual: Shape, weight: Shape, bias: Shape | None, norm: Shape, *, eps: float) -> Shape:
    expect("norm", norm, weight[0])
    return linear_add.infer(x=x, residual=residual, weight=weight, bias=bias)[0]


@activated_linear.shape
def _(x: Shape, weight: Shape, bias: Shape | None, *, kind: str) -> Shape:
    return product_shape(x, weight, bias)


@normed_linear.shape
def _(x: Shape, norm: Shape, weight: Shape, bias: Shape | None, *, eps: float, kind: str = "") -> Shape:
    expect("norm", norm, x[1])
    return product_shape(x, weight, bias)


@normed_gated_linear.shape
def _(
    x: Shape, norm: Shape, gate: Shape, up: Shape, gate_bias: Shape | None, up_bias: Shape | None,
    *, eps: float, kind: str,
) -> Shape:  # fmt: skip
    expect("norm", norm, x[1])
    return gated_linear.infer(x=x, gate=gate, up=up, gate_bias=gate_bias, up_bias=up_bias, kind=kind)[0]


@normed_head.shape
def _(
    x: Shape, norm: Shape, weight: Shape, bias: Shape | None, *, eps: float, factor: float = 1.0, cap: float = 0.0
) -> Shape:
    expect("norm", norm, x[1])
    return product_shape(x, weight, bias)


@scaled_embed.shape
def _(token_ids: Shape, table: Shape, *, factor: float) -> Shape:
    expect("table", table, "*", "*")
    return (token_ids[0], table[1])


@qkv_attention.shape
def _(
    x: Shape, norm: Shape | None, weights: tuple[Shape, Shape, Shape], biases: tuple[Shape | None, ...],
    q_norm: Shape | None, k_norm: Shape | None, frequencies: Shape | None, positions: Shape, cache: PagedKV,
    sinks: Shape | None, slopes: Shape | None, distances: Shape | None,
    *, eps: float, head_eps: float, head_group: int, head_dim: int, scaling: float, interleaved: bool, scale: float,
    softcap: float,
) -> Shape:  # fmt: skip
    if norm is not None:
        expect("norm", norm, x[1])
    for name, shape, weight in (("q_norm", q_norm, weights[0]), ("k_norm", k_norm, weights[1])):
        if shape is not None:
            expect(name, shape, head_group or weight[0])
    if frequencies is not None and 2 * int(frequencies[0]) > head_dim:
        raise ShapeError("frequencies", (f"at most {head_dim // 2}",), frequencies)
    q, k, v = linear_split.infer(x=x, weights=weights, biases=biases)
    extras = {"sinks": sinks, "slopes": slopes, "distances": distances}
    return attention.attention.infer(q=q, k=k, v=v, cache=cache, **extras, scale=scale, softcap=softcap)[0]


@linear_split.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, outs, biased in product((1, 7, 65), ((96, 32, 32), (40, 8)), (False, True)):
        biases = tuple(make(out) if biased else None for out in outs)
        yield {"x": make(num_tokens, 96), "weights": tuple(make(out, 96) for out in outs), "biases": biases}


@gated_linear.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    sizes = ((64, 160), (96, 40))
    for num_tokens, (dim, hidden), biased in product((1, 7, 65), sizes, (False, True)):
        weights = {"gate": make(hidden, dim), "up": make(hidden, dim)}
        biases = {name: make(hidden) if biased else None for name in ("gate_bias", "up_bias")}
        yield {"x": make(num_tokens, dim), **weights, **biases, "kind": "silu"}
    for kind, num_tokens in product(ACTIVATIONS, (1, 7)):
        weights = {"gate": make(160, 64), "up": make(160, 64)}
        yield {"x": make(num_tokens, 64), **weights, "gate_bias": None, "up_bias": None, "kind": kind}


@linear_add.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, (dim_in, dim_out), biased in product((1, 7, 65), ((64, 32), (96, 200)), (False, True)):
        bias = make(dim_out) if biased else None
        arrays = {"x": make(num_tokens, dim_in), "residual": make(num_tokens, dim_out)}
        yield {**arrays, "weight": make(dim_out, dim_in), "bias": bias}


@head.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_logits, biased, factor, cap in product((1, 5), (False, True), (1.0, 0.25), (0.0, 4.0)):
        arrays = {"x": make(num_logits, 64), "weight": make(130, 64), "bias": make(130) if biased else None}
        yield {**arrays, "factor": factor, "cap": cap}


@scaled_linear_add.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for args in linear_add.example_args(make.dtype, seed=1):
        yield {**args, "factor": 0.25}


@normed_linear_add.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for args in linear_add.example_args(make.dtype, seed=2):
        yield {**args, "norm": make(len(args["weight"])), "eps": 1e-5}


@activated_linear.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, (dim_in, dim_out), biased in product((1, 7, 65), ((64, 160), (96, 40)), (False, True)):
        bias = make(dim_out) if biased else None
        yield {"x": make(num_tokens, dim_in), "weight": make(dim_out, dim_in), "bias": bias, "kind": "relu2"}
    for kind in ACTIVATIONS:
        yield {"x": make(7, 64), "weight": make(160, 64), "bias": make(160), "kind": kind}


@normed_linear.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, biased, kind in product((1, 7), (False, True), ("", "gelu")):
        arrays = {"x": make(num_tokens, 64), "norm": make(64), "weight": make(96, 64)}
        yield {**arrays, "bias": make(96) if biased else None, "eps": 1e-2, "kind": kind}


@normed_gated_linear.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for args in gated_linear.example_args(make.dtype, seed=3):
        yield {**args, "norm": make(args["x"].shape[1]), "eps": 1e-2}


@normed_head.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for args in head.example_args(make.dtype, seed=4):
        yield {**args, "norm": make(64), "eps": 1e-2}


@scaled_embed.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, dim in product((1, 9), (64, 96)):
        ids = make.rng.integers(0, 50, num_tokens, dtype=np.int32)
        yield {"token_ids": ids, "table": make(50, dim), "factor": 6.5}


@qkv_attention.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    kinds = product((False, True), (False, True), (0, 8, 16), (None, 9))
    for (normed, biased, pairs, window), rows in zip(kinds, cycle(attention.STEPS), strict=False):
        args = attention.example(make, PagedKV(2, 32, 32, window), 2, rows, {"softcap": 2.0} if biased else {})
        num_tokens, is_wide = len(args["q"]), normed and biased
        sizes = [args.pop(name).shape[1] for name in "qkv"]
        frequencies = (10000.0 ** -(np.arange(pairs) / max(pairs, 1))).astype(np.float32)
        yield {
            **args,
            "x": make(num_tokens, 48),
            "norm": make(48) if normed else None,
            "weights": tuple(make(size, 48) * np.float32(0.25) for size in sizes),
            "biases": tuple(make(size) if biased else None for size in sizes),
            "q_norm": make(sizes[0] if is_wide else 32) if normed else None,
            "k_norm": make(sizes[1] if is_wide else 32) if normed else None,
            "frequencies": frequencies if pairs else None,
            "positions": args["batch"].positions,
            "eps": 1e-2,
            "head_eps": 1e-3,
            "head_group": 0 if is_wide else 32,
            "head_dim": 32,
            "scaling": 1.25,
            "interleaved": biased,
        }
