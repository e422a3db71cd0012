"""A matrix of 4 bits on the device, and the two ways to multiply with it.

Few tokens: it is streamed as it is. Many: it is written out as plain numbers, and the library multiplies; there is room
for one matrix at a time, for all of them together.
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


class Room:
    """Where one matrix at a time is written out. It grows while matrices are placed, never after."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.numbers = torch.empty(0, dtype=dtype, device=device)

    def reserve(self, size: int) -> None:
        """Have room for so many numbers."""
        if size > self.numbers.numel():
            self.numbers = self.numbers.new_empty(0)  # the old room goes first
            self.numbers = self.numbers.new_empty(size)


@dataclass(slots=True, eq=False)
class Int4Linear:
    """Tokens stay plain numbers: only weights are of 4 bits. Several matrices may lie in one."""

    weight: Int4Weight
    columns: Tensor | None  # int64 [K] which column of a token each of the weight's is to meet; None: the same
    bias: Tensor | None  # [N]
    tiles: Tiles
    scratch: Scratch
    room: Room
    is_gate: bool = False  # gate rows, then up rows
    ahead: Tensor | None = None  # the first weights of the next product, as bytes
    _norm: Tensor | None = field(default=None, init=False)  # the weight of the norm before it, in the order of columns

    @property
    def rounds(self) -> bool:
        """Are tokens to be FP8?"""
        return False

    @property
    def raw(self) -> Tensor:
        """The weights as they lie in memory, as bytes."""
        return self.weight.words.view(-1).view(torch.uint8)

    def streams(self, num_tokens: int) -> bool:
        """Are these so few that the matrix need not be written out?"""
        return self.room.numbers.dtype == torch.bfloat16 and self._tile(num_tokens) is not None

    def few(self, x: Tensor | Rounded, dtype: torch.dtype, around: Around = ALONE) -> Tensor:
        """Of tokens that `streams` says yes to: [M, N], or [M, N / 2] of a gate, activated."""
        assert isinstance(x, Tensor)
        tile = self._tile(len(x))
        assert tile is not None
        norm = None if around.norm is None else self._in_order(around.norm)
        around = around._replace(norm=norm, bias=self.bias, is_gate=self.is_gate, ahead=self.ahead)
        return stream_int4(self._gathered(x), self.weight, around, tile, self.scratch, dtype)

    def many(self, x: Tensor | Rounded, dtype: torch.dtype | None = None) -> Product:
        """Of any number of tokens."""
        assert isinstance(x, Tensor)
        whole = dequantize(self.weight, self.room.numbers)
        return Product(plain_product(self._gathered(x), whole, self.bias, dtype))

    def _tile(self, num_tokens: int) -> Tile | None:
        return self.tiles.find_int4(self.weight, num_tokens, self.is_gate)

    def _gathered(self, x: Tensor) -> Tensor:
        return x if self.columns is None else x.index_select(1, self.columns)

    def _in_order(self, norm: Tensor) -> Tensor:
        if self.columns is None:
            return norm
        if self._norm is None:
            self._norm = norm.index_select(0, self.columns)
        return self._norm


def joined_int4(weights: Sequence[Weight]) -> Int4 | None:
    """Matrices of one input, one below the other, in the one form of 4 bits.

    None if one of them is in another format, if their groups or orders of columns differ (who quantizes by the order of
    a layer's inputs has one order for all that read them), or if the kernels cannot take such groups. Then all of them
    are better off as plain numbers: in one product they are read in one way.
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
    """On the device, as kernels read it; and its order of columns, if that is not the matrix's own."""
    weight = arrange(*(torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in parts[:3]))
    return weight, None if parts.columns is None else torch.from_numpy(parts.columns).to(device)
