"""A matrix on the device, and the two ways to multiply with it: streamed for few tokens, by the library for many."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from quire.devices._triton.norm import FP8, Product, Rounded, to_fp8
from quire.devices._triton.stream import Around, Scratch, stream

from .tiles import Tiles

ALONE = Around()  # a plain product, nothing fused


class Prefetches(Protocol):
    """Weights, whose first ones an earlier product may prefetch, and which prefetch those of a later one."""

    ahead: Tensor | None  # the first weights of the next product, as bytes

    @property
    def raw(self) -> Tensor: ...


class Multiplies(Prefetches, Protocol):
    """The interface of a matrix for instructions, in any format."""

    scratch: Scratch

    @property
    def rounds(self) -> bool: ...
    def streams(self, num_tokens: int) -> bool: ...
    def few(self, x: Tensor | Rounded, dtype: torch.dtype, around: Around = ALONE) -> Tensor: ...
    def many(self, x: Tensor | Rounded, dtype: torch.dtype | None = None) -> Product: ...


@dataclass(slots=True, eq=False)
class Linear:
    """weight [N, K] in the activations' format, or FP8 with a scale per row. Several matrices may be concatenated."""

    weight: Tensor
    scale: Tensor | None  # float32 [N]
    bias: Tensor | None  # [N]
    tiles: Tiles
    scratch: Scratch
    is_gate: bool = False  # gate rows, then up rows
    kind: str = ""  # the activation of a streamed product; empty: none
    ahead: Tensor | None = None  # the first weights of the next product, as bytes

    @property
    def rounds(self) -> bool:
        """Whether tokens must be FP8."""
        return self.scale is not None

    @property
    def raw(self) -> Tensor:
        """The stored weights, as bytes."""
        return self.weight.view(-1).view(torch.uint8)

    def streams(self, num_tokens: int) -> bool:
        """Return whether a product of that many tokens is streamed: its time is the time to read the weights."""
        return self.tiles.find(self.weight, num_tokens, self.is_gate) is not None

    def few(self, x: Tensor | Rounded, dtype: torch.dtype, around: Around = ALONE) -> Tensor:
        """Multiply few tokens, for which `streams` is true: [M, N], or for a gate [M, N / 2], activated."""
        around = around._replace(bias=self.bias, is_gate=self.is_gate, kind=self.kind, ahead=self.ahead)
        if self.scale is not None and isinstance(x, Tensor):
            x = to_fp8(x)
        values, scales = (x, None) if isinstance(x, Tensor) else (x.values, (self.scale, x.scale))
        tile = self.tiles.find(self.weight, len(values), self.is_gate)
        assert tile is not None
        return stream(values, self.weight, scales, around, tile, self.scratch, dtype)  # type: ignore[arg-type]

    def many(self, x: Tensor | Rounded, dtype: torch.dtype | None = None) -> Product:
        """Multiply any number of tokens. The reader of an FP8 product applies its scales."""
        if self.scale is None:
            assert isinstance(x, Tensor)
            return Product(plain_product(x, self.weight, self.bias, dtype))
        rounded = x if isinstance(x, Rounded) else to_fp8(x)
        raw = _multiply_fp8(rounded.values, self.weight)
        if self.bias is not None or dtype is not None:
            whole = raw.float() * rounded.scale[:, None] * self.scale
            whole = whole if self.bias is None else whole + self.bias
            return Product(whole.to(dtype or raw.dtype))
        return Product(raw, rounded.scale, self.scale)


def plain_product(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype | None) -> Tensor:
    """Multiply x [M, K] with the transpose of weight [N, K], by the library; the result has `dtype`, or x's."""
    if bias is not None:
        out = torch.addmm(bias, x, weight.t())
        return out if dtype is None else out.to(dtype)
    if dtype is None or dtype == x.dtype:
        return torch.mm(x, weight.t())
    if x.is_cuda:
        return torch.mm(x, weight.t(), out_dtype=dtype)
    return x.to(dtype) @ weight.to(dtype).t()


def _multiply_fp8(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply without scales: the reader applies them, and the library's fastest kernel takes none."""
    if not x.is_cuda:
        return (x.float() @ weight.float().t()).bfloat16()
    one = _one(x.device)
    return torch._scaled_mm(x, weight.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


@cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((), device=device)


def to_fp8_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Convert a matrix to FP8; each row's scale maps its largest number to the format's largest."""
    scale = weight.abs().amax(1).float().clamp(min=1e-12) / torch.finfo(FP8).max
    return (weight.float() / scale[:, None]).to(FP8), scale
