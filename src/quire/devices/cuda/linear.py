"""A matrix on the device, and the two ways to multiply with it: streamed for few tokens, the library's for many."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from quire.devices._triton.norm import FP8, Product, Rounded, to_fp8
from quire.devices._triton.stream import Around, Scratch, stream

from .tiles import Tiles


@dataclass(slots=True, eq=False)
class Linear:
    """weight [N, K] in the step's number format, or FP8 with a scale for each row. Several matrices may lie in one."""

    weight: Tensor
    scale: Tensor | None  # float32 [N]
    bias: Tensor | None  # [N]
    tiles: Tiles
    scratch: Scratch
    is_gate: bool = False  # gate rows, then up rows
    ahead: Tensor | None = None  # the first weights of the next product, as bytes

    @property
    def rounds(self) -> bool:
        """Are tokens to be FP8?"""
        return self.scale is not None

    def streams(self, num_tokens: int) -> bool:
        """Are these so few that the weights' way from memory is all that counts?"""
        return self.tiles.find(self.weight, num_tokens, self.is_gate) is not None

    def few(self, x: Tensor | Rounded, dtype: torch.dtype, around: Around = Around()) -> Tensor:
        """Of tokens that `streams` says yes to: [M, N], or [M, N / 2] of a gate, activated."""
        around = around._replace(bias=self.bias, is_gate=self.is_gate, ahead=self.ahead)
        if self.scale is not None and isinstance(x, Tensor):
            x = to_fp8(x)
        values, scales = (x, None) if isinstance(x, Tensor) else (x.values, (self.scale, x.scale))
        tile = self.tiles.find(self.weight, len(values), self.is_gate)
        assert tile is not None
        return stream(values, self.weight, scales, around, tile, self.scratch, dtype)  # type: ignore[arg-type]

    def many(self, x: Tensor | Rounded, dtype: torch.dtype | None = None) -> Product:
        """Of any number of tokens. Scales and bias of an FP8 product are left to whoever reads it."""
        if self.scale is None:
            assert isinstance(x, Tensor)
            return Product(_multiply(x, self.weight, self.bias, dtype))
        rounded = x if isinstance(x, Rounded) else to_fp8(x)
        raw = _multiply_fp8(rounded.values, self.weight)
        if self.bias is not None or dtype is not None:
            whole = raw.float() * rounded.scale[:, None] * self.scale
            whole = whole if self.bias is None else whole + self.bias
            return Product(whole.to(dtype or raw.dtype))
        return Product(raw, rounded.scale, self.scale)


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype | None) -> Tensor:
    if bias is not None:
        out = torch.addmm(bias, x, weight.t())
        return out if dtype is None else out.to(dtype)
    if dtype is None or dtype == x.dtype:
        return torch.mm(x, weight.t())
    if x.is_cuda:
        return torch.mm(x, weight.t(), out_dtype=dtype)
    return x.to(dtype) @ weight.to(dtype).t()


def _multiply_fp8(x: Tensor, weight: Tensor) -> Tensor:
    """Without any scale: whoever reads the product multiplies with those, and the library's fastest kernel has none."""
    if not x.is_cuda:
        return (x.float() @ weight.float().t()).bfloat16()
    one = _one(x.device)
    return torch._scaled_mm(x, weight.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


@cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((), device=device)


def to_fp8_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as FP8, each row with the scale that lets its largest number be the format's largest."""
    scale = weight.abs().amax(1).float().clamp(min=1e-12) / torch.finfo(FP8).max
    return (weight.float() / scale[:, None]).to(FP8), scale
