"""The instructions of plain ops, one for each, apart from attention (attention.py) and from what fused ops share with
plain ones (instructions.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from quire.devices._triton.elementwise import NO_NUMBERS, map_numbers, whole_product
from quire.devices._triton.embed import embed_positions
from quire.devices._triton.norm import Norm, Product, add_norm, norm_groups
from quire.devices._triton.positions import rotate_heads, scale_by_position
from quire.devices._triton.rope import RopeTables

from .instructions import Run, multiply
from .linear import Multiplies


@dataclass(frozen=True, slots=True, eq=False)
class EmbedPositions:
    """Learned vectors of positions."""

    table: Tensor
    offset: int
    out: int

    def __call__(self, run: Run) -> None:
        run.values[self.out] = embed_positions(run.where.positions, self.table, self.offset)


@dataclass(frozen=True, slots=True, eq=False)
class Normalize:
    """A norm that no product computes. What is pending of the value is added in the same pass."""

    value: int
    norm: Norm
    group: int  # numbers that are normed together; 0: all
    out: int
    keeps: bool = True  # the value is read again

    def __call__(self, run: Run) -> None:
        x = run.values[self.value]
        if self.group in (0, x.shape[1]):
            run.values[self.out] = add_norm(x, run.pending.pop(self.value, None), self.norm, keeps=self.keeps)
        else:
            run.values[self.out] = norm_groups(run.whole(self.value), self.norm, self.group)


@dataclass(frozen=True, slots=True, eq=False)
class Multiply:
    """A product, after a norm and before an activation if it has them."""

    value: int
    norm: Norm | None
    linear: Multiplies
    out: int
    kind: str = ""  # the activation; empty: none
    dtype: torch.dtype | None = None  # None: that of the value

    def __call__(self, run: Run) -> None:
        product = multiply(run, self.value, self.norm, self.linear, self.dtype)
        x = run.values[self.value]
        dtype = self.dtype or x.dtype
        if self.kind and not self.linear.streams(len(x)):
            run.values[self.out] = map_numbers(product, self.kind, torch.empty_like(product.raw, dtype=dtype))
        else:
            run.values[self.out] = whole_product(product, dtype)


class ProductColumns(NamedTuple):
    """Some columns of a product, as a value."""

    out: int
    start: int
    width: int
    copies: bool  # a reader needs tokens without gaps between them


@dataclass(frozen=True, slots=True, eq=False)
class SplitProduct:
    """The values that one product has side by side."""

    value: int
    parts: tuple[ProductColumns, ...]

    def __call__(self, run: Run) -> None:
        whole: Tensor = run.values.pop(self.value)
        for out, start, width, copies in self.parts:
            view = whole[:, start : start + width]
            run.values[out] = view.contiguous() if copies else view


@dataclass(frozen=True, slots=True, eq=False)
class SelectColumns:
    """Some columns of a value that does not change, without a copy."""

    value: int
    start: int
    width: int
    out: int

    def __call__(self, run: Run) -> None:
        run.values[self.out] = run.whole(self.value)[:, self.start : self.start + self.width]


@dataclass(frozen=True, slots=True, eq=False)
class Rotate:
    """Rope."""

    value: int
    turns: RopeTables
    head_dim: int
    out: int

    def __call__(self, run: Run) -> None:
        x = run.whole(self.value)
        run.values[self.out] = rotate_heads(x, self.turns, run.where.positions, self.head_dim)


@dataclass(frozen=True, slots=True, eq=False)
class ScaleByPosition:
    """A factor for each position."""

    value: int
    factors: Tensor  # float32 [positions]
    out: int

    def __call__(self, run: Run) -> None:
        run.values[self.out] = scale_by_position(run.whole(self.value), self.factors, run.where.positions)


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """An op on each number of a value, or on pairs of numbers of two values."""

    kind: str  # see `map_numbers`
    value: int
    other: int | None
    out: int
    width: int  # columns of the result
    numbers: tuple[float, float, float, float] = NO_NUMBERS
    weight: Tensor | None = None  # float32 [1] or [width]
    start: int = 0  # the first column that is read

    def __call__(self, run: Run) -> None:
        x = run.whole(self.value)
        y = None if self.other is None else run.whole(self.other)
        out = torch.empty((len(x), self.width), dtype=x.dtype, device=x.device)
        given = {"y": y, "weight": self.weight, "numbers": self.numbers, "start": self.start}
        run.values[self.out] = map_numbers(Product(x), self.kind, out, **given)  # type: ignore[arg-type]
