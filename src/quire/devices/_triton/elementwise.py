"""Ops on each number by itself. They compute in float32 and store in the format of the output."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch
from .norm import Product, scaled

BLOCK = 1024  # columns of a program
NO_NUMBERS = (0.0, 0.0, 0.0, 0.0)


@triton.jit
def tanh(x):
    """Hyperbolic tangent in float32: a series near 0, where the quotient would lose digits."""
    size = tl.abs(x)
    e = tl.exp(-2.0 * size)
    quotient = (1.0 - e) / (1.0 + e)
    square = x * x
    series = x * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0 - square * (17.0 / 315.0))))
    return tl.where(size < 0.25, series, tl.where(x < 0, -quotient, quotient))


@triton.jit
def activate(x, KIND: tl.constexpr):
    """The activation of this kind; see ops/elementwise.py."""
    if KIND == "silu":
        y = x * tl.sigmoid(x)
    elif KIND == "gelu":
        y = x * (0.5 + 0.5 * tl.erf(x * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        y = 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif KIND == "relu":
        y = tl.maximum(x, 0.0)
    elif KIND == "relu2":
        y = tl.maximum(x, 0.0)
        y = y * y
    elif KIND == "sigmoid":
        y = tl.sigmoid(x)
    else:
        tl.static_assert(KIND == "tanh", "the kernel lacks an activation")
        y = tanh(x)
    return y


@triton.jit
def _map(
    x, y, token_scale, column_scale, weight, out, a, b, c, d, KIND: tl.constexpr, DIM: tl.constexpr,
    STRIDE: tl.constexpr, START: tl.constexpr, BLOCK: tl.constexpr, IS_WIDE: tl.constexpr, TOKEN: tl.constexpr,
    COLUMN: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < DIM
    follow(CHAINED)
    v = tl.load(x + token * STRIDE + START + columns, mask=mask, other=0.0)
    v = scaled(v, token_scale, column_scale, token, START + columns, mask, TOKEN, COLUMN)
    if KIND == "add" or KIND == "multiply":
        w = tl.load(y + token * DIM + columns, mask=mask, other=0.0).to(tl.float32)
        v = v + w if KIND == "add" else v * w
    elif KIND == "scale_rows":
        v *= tl.load(y + token).to(tl.float32)
    elif KIND == "scale":
        v *= a
    elif KIND == "scale_by":
        v *= tl.load(weight + columns, mask=mask, other=0.0) if IS_WIDE else tl.load(weight)
    elif KIND == "softcap":  # of v * a, at b; b = 0: no cap
        v *= a
        v = tl.where(b > 0.0, b * tanh(v / tl.where(b > 0.0, b, 1.0)), v)
    elif KIND == "clamp":
        v = tl.minimum(tl.maximum(v, -a), a)
    elif KIND == "xielu":
        below = (tl.exp(tl.minimum(v, d)) - 1.0 - v) * b
        v = tl.where(v > 0.0, a * v * v, below) + c * v
    elif KIND != "copy":
        v = activate(v, KIND)
    tl.store(out + token * DIM + columns, v.to(out.dtype.element_ty), mask=mask)


def map_numbers(
    x: Product, kind: str, out: Tensor, *, y: Tensor | None = None, weight: Tensor | None = None,
    numbers: tuple[float, float, float, float] = NO_NUMBERS, start: int = 0,
) -> Tensor:  # fmt: skip
    """Write the op `kind` of columns start, start + 1, … of x [T, dim] to `out` [T, width], which may be x; return it.

    kind: an activation; add, multiply, scale_rows (with y); scale (a); scale_by (weight); softcap (factor a, cap b);
    clamp (a); xielu (positive a, negative b, beta c, eps d); copy.
    """
    tokens, dim = out.shape
    block = min(triton.next_power_of_2(dim), BLOCK)
    constants = {
        "KIND": kind,
        "DIM": dim,
        "STRIDE": x.raw.stride(0),
        "START": start,
        "BLOCK": block,
        "IS_WIDE": weight is not None and len(weight) > 1,
        "TOKEN": x.token_scale is not None,
        "COLUMN": x.column_scale is not None,
    }
    args = (x.raw, y, x.token_scale, x.column_scale, weight, out, *numbers)
    launch(_map, (tokens, triton.cdiv(dim, block)), args, constants, LaunchShape(4))
    return out


def whole_product(product: Product, dtype: torch.dtype) -> Tensor:
    """Return the numbers of a product, scales applied."""
    if product.token_scale is None and product.column_scale is None and product.raw.dtype == dtype:
        return product.raw
    return map_numbers(product, "copy", torch.empty_like(product.raw, dtype=dtype))
