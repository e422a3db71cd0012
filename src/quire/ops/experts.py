"""Experts: many feed-forward blocks of one shape, of which every token uses the few that `route` chose.

Matrices of all experts are stacked: [experts, out, in]. A block is down(activate(gate(x)) * up(x)), or without a gate
down(activate(up(x))). A token's outputs are added in the order of its choice, so its answer does not depend on which
experts other tokens use (law 8).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from quire.ops.elementwise import ACTIVATIONS
from quire.ops.linear import TOLERANCE, product_of
from quire.ops.registry import Args, Array, ArrayMaker, Shape, expect, op

WEIGHTS = ("gate", "up", "down", "gate_bias", "up_bias", "down_bias")


@op(weights=WEIGHTS, tolerance=TOLERANCE)
def experts(
    x: Array, weights: Array, chosen: Array, gate: Array | None, up: Array, down: Array,
    gate_bias: Array | None, up_bias: Array | None, down_bias: Array | None,
    *, kind: str, limit: float = 0.0, alpha: float = 1.0, shift: float = 0.0, on_input: bool = False,
) -> Array:  # fmt: skip
    """The weighted sum of the chosen experts' answers to x [T, dim]: [T, dim].

    weights and chosen [T, top] are the outputs of `route`; chosen are whole numbers. gate and up are [experts, ffn,
    dim], down is [experts, dim, ffn], biases are [experts, out]. See `activated` for kind, limit, alpha and shift.
    With `on_input`, x is multiplied with the weight, and not the answer.
    """
    picked = chosen.astype(np.int64)
    out = np.zeros((*picked.shape, down.shape[1]), np.float32)  # [T, top, dim]
    for expert in np.unique(picked):
        tokens, ranks = np.nonzero(picked == expert)
        weight = weights[tokens, ranks][:, None]
        h = x[tokens] * weight if on_input else x[tokens]
        upper = product_of(h, up[expert], None if up_bias is None else up_bias[expert])
        gated = None if gate is None else product_of(h, gate[expert], None if gate_bias is None else gate_bias[expert])
        hidden = activated(gated, upper, kind=kind, limit=limit, alpha=alpha, shift=shift)
        answer = product_of(hidden, down[expert], None if down_bias is None else down_bias[expert])
        out[tokens, ranks] = answer if on_input else answer * weight
    total = out[:, 0]
    for rank in range(1, out.shape[1]):
        total = total + out[:, rank]
    return total


def activated(gate: Array | None, up: Array, *, kind: str, limit: float, alpha: float, shift: float) -> Array:
    """activation(alpha * gate) / alpha * (up + shift), or activation(up) without a gate.

    With a limit that is not 0, gate is clipped above to it, and up on both sides, before all else.
    """
    if gate is None:
        return ACTIVATIONS[kind](up)
    if limit:
        gate, up = np.minimum(gate, np.float32(limit)), np.clip(up, np.float32(-limit), np.float32(limit))
    if alpha != 1.0:
        return ACTIVATIONS[kind](np.float32(alpha) * gate) / np.float32(alpha) * (up + np.float32(shift))
    return ACTIVATIONS[kind](gate) * (up + np.float32(shift))


@experts.shape
def _(
    x: Shape, weights: Shape, chosen: Shape, gate: Shape | None, up: Shape, down: Shape,
    gate_bias: Shape | None, up_bias: Shape | None, down_bias: Shape | None,
    *, kind: str, limit: float = 0.0, alpha: float = 1.0, shift: float = 0.0, on_input: bool = False,
) -> Shape:  # fmt: skip
    expect("weights", weights, x[0], "*")
    expect("chosen", chosen, *weights)
    expect("up", up, "*", "*", x[1])
    num_experts, ffn, dim = up
    expect("down", down, num_experts, dim, ffn)
    if gate is not None:
        expect("gate", gate, *up)
    for name, shape, size in (("gate_bias", gate_bias, ffn), ("up_bias", up_bias, ffn), ("down_bias", down_bias, dim)):
        if shape is not None:
            expect(name, shape, num_experts, size)
    return x


@experts.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, (dim, ffn), biased in product((1, 2, 7, 70), ((64, 32), (96, 160)), (False, True)):
        yield _example(make, (num_tokens, dim, ffn), (8, 3), biased, kind="silu")
    clamped = {"limit": 1.0, "alpha": 1.702, "shift": 1.0}
    yield _example(make, (7, 64, 96), (8, 3), True, kind="silu", **clamped)
    for kind, on_input in product(("silu", "gelu_tanh", "relu2"), (False, True)):
        yield _example(make, (7, 64, 96), (5, 1), False, kind=kind, on_input=on_input)
    without_gate = _example(make, (7, 64, 96), (8, 2), True, kind="relu2")
    yield {**without_gate, "gate": None, "gate_bias": None}
    for chosen in (0, 7):  # one expert for all tokens: the first, the last
        args = _example(make, (9, 64, 96), (8, 1), False, kind="silu")
        yield {**args, "chosen": np.full((9, 1), chosen, np.float32)}


def _example(
    make: ArrayMaker, sizes: tuple[int, int, int], choice: tuple[int, int], biased: bool, **attrs: Any
) -> Args:
    (num_tokens, dim, ffn), (num_experts, top) = sizes, choice
    picked = [make.rng.permutation(num_experts)[:top] for _ in range(num_tokens)]
    return {
        "x": make(num_tokens, dim),
        "weights": make(num_tokens, top),
        "chosen": np.array(picked, np.float32),
        "gate": make(num_experts, ffn, dim),
        "up": make(num_experts, ffn, dim),
        "down": make(num_experts, dim, ffn),
        "gate_bias": make(num_experts, ffn) if biased else None,
        "up_bias": make(num_experts, ffn) if biased else None,
        "down_bias": make(num_experts, dim) if biased else None,
        **attrs,
    }
