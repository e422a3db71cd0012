"""A 4-bit matrix on the device, and the two ways to multiply with it.

Few tokens: the 4-bit values are streamed. Many: the matrix is dequantized, and the library multiplies; one buffer, for
one matrix at a time, serves all matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from quire.devices._triton.int4 import Int4Weight, arrange, dequantize, span_of, stream_int4
from quire.devices._triton.norm import Product, Rounded
from quire.devices._triton.stream import Around, Scratch
from quire.graph.weight import Weight
from quire.quant.int4 import BLOCKS, Int4
from quire.weights.quantized_tensors import INT4, as_grouped_int4

from .linear import ALONE, plain_product
from .tiles import Tile, Tiles


class MatrixBuffer:
    """The buffer for one dequantized matrix at a time. It grows while matrices are placed, never after."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.numbers = torch.empty(0, dtype=dtype, device=device)

    def reserve(self, size: int) -> None:
        """Grow to at least `size` numbers."""
        if size > self.numbers.numel():
            self.numbers = self.numbers.new_empty(0)  # free the old memory first
            self.numbers = self.numbers.new_empty(size)


@dataclass(slots=True, eq=False)
class Int4Linear:
    """A product with 4-bit weights and unquantized tokens. Several matrices may be concatenated."""

    weight: Int4Weight
    columns: Tensor | None  # int64 [K] the token's column for each of the weight's; None: the same order
    bias: Tensor | None  # [N]
    tiles: Tiles
    scratch: Scratch
    buffer: MatrixBuffer
    is_gate: bool = False  # gate rows, then up rows
    kind: str = ""  # the activation of a streamed product; empty: none
    ahead: Tensor | None = None  # the first weights of the next product, as bytes
    _norm: Tensor | None = field(default=None, init=False)  # weight of the preceding norm, in the order of `columns`

    @property
    def rounds(self) -> bool:
        """Whether tokens must be FP8."""
        return False

    @property
    def raw(self) -> Tensor:
        """The stored weights, as bytes."""
        return self.weight.words.view(-1).view(torch.uint8)

    def streams(self, num_tokens: int) -> bool:
        """Return whether a product of that many tokens is streamed instead of dequantized."""
        return self.buffer.numbers.dtype == torch.bfloat16 and self._tile(num_tokens) is not None

    def few(self, x: Tensor | Rounded, dtype: torch.dtype, around: Around = ALONE) -> Tensor:
        """Multiply few tokens, for which `streams` is true: [M, N], or for a gate [M, N / 2], activated."""
        assert isinstance(x, Tensor)
        tile = self._tile(len(x))
        assert tile is not None
        norm = None if around.norm is None else self._reordered(around.norm)
        around = around._replace(norm=norm, bias=self.bias, is_gate=self.is_gate, kind=self.kind, ahead=self.ahead)
        return stream_int4(self._gathered(x), self.weight, around, tile, self.scratch, dtype)

    def many(self, x: Tensor | Rounded, dtype: torch.dtype | None = None) -> Product:
        """Multiply any number of tokens."""
        assert isinstance(x, Tensor)
        whole = dequantize(self.weight, self.buffer.numbers)
        return Product(plain_product(self._gathered(x), whole, self.bias, dtype))

    def _tile(self, num_tokens: int) -> Tile | None:
        return self.tiles.find_int4(self.weight, num_tokens, self.is_gate)

    def _gathered(self, x: Tensor) -> Tensor:
        return x if self.columns is None else x.index_select(1, self.columns)

    def _reordered(self, norm: Tensor) -> Tensor:
        if self.columns is None:
            return norm
        if self._norm is None:
            self._norm = norm.index_select(0, self.columns)
        return self._norm


def join_int4(weights: Sequence[Weight]) -> Int4 | None:
    """Concatenate the rows of matrices that share an input, as Int4.

    None if one of them is in another format, if their groups or orders of columns differ (activation order is one per
    input, so matrices of one input normally agree), or if the kernels do not support the group size. Then all of them
    are dequantized: one product needs one format.
    """
    if any(weight.format != INT4 and weight.format not in BLOCKS for weight in weights):
        return None
    parts = [part for part in map(as_grouped_int4, weights) if part is not None]
    first = parts[0] if len(parts) == len(weights) else None
    if first is None or span_of(weights[0].shape[1], first.group) is None:
        return None
    if any(part.group != first.group or not _same(part.columns, first.columns) for part in parts):
        return None
    packed, scales, zeros = (np.concatenate(each) for each in zip(*(part[:3] for part in parts), strict=True))
    return Int4(packed, scales, zeros, first.columns)


def _same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)


def place_int4(parts: Int4, device: torch.device) -> tuple[Int4Weight, Tensor | None]:
    """Copy to the device in the layout of the kernels; return the order of columns too, if they were reordered."""
    weight = arrange(*(torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in parts[:3]))
    return weight, None if parts.columns is None else torch.from_numpy(parts.columns).to(device)
