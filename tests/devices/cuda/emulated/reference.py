"""The instructions of a program in plain torch, for steps with one token in every row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from quire.devices._triton.norm import Norm
from quire.devices._triton.rope import RopeTables
from quire.devices.cuda.instructions import AddProduct, Attend, Embed, Gate, Head, Instruction, Select
from quire.ops.batch import Batch

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu2": lambda x: functional.relu(x).square(),
}


@dataclass
class Reference:
    """A step over a cache [layers, 2, blocks, heads, block tokens, dim], which it writes.

    With `rounds`, all values between instructions are bfloat16, as in a step of several kernels.
    """

    cache: Tensor
    batch: Batch
    rounds: bool = False
    values: dict[int, Tensor] = field(default_factory=dict)

    def run(self, instructions: list[Instruction]) -> np.ndarray:
        """Return the logits."""
        logits = None
        for each in instructions:
            match each:
                case Embed():
                    ids = torch.from_numpy(self.batch.token_ids).long()
                    self.values[each.out] = self._rounded(each.table[ids].float() * each.factor)
                case Attend():
                    self.values[each.out] = self._rounded(self._attention(each))
                case Select():
                    self.values[each.out] = self.values[each.value]
                case Gate():
                    gate, up = self._product(self._normed(each.value, each.norm), each.linear).chunk(2, -1)
                    self.values[each.out] = self._rounded(ACTIVATIONS[each.kind](gate) * up)
                case AddProduct():
                    product = self._product(self.values[each.value], each.linear)
                    product = product if each.post_norm is None else _norm(product, *each.post_norm[:2])
                    self.values[each.out] = self._rounded(self.values[each.residual] + product * each.factor)
                case Head():
                    logits = self._product(self._normed(each.value, each.norm), each.linear, is_head=True) * each.factor
                    logits = each.cap * torch.tanh(logits / each.cap) if each.cap else logits
        assert logits is not None
        return logits.numpy()

    def _rounded(self, x: Tensor) -> Tensor:
        return x.bfloat16().float() if self.rounds else x

    def _normed(self, value: int, norm: Norm | None) -> Tensor:
        x = self.values[value]
        return x if norm is None else self._rounded(_norm(x, *norm[:2]))

    def _product(self, x: Tensor, linear: Any, is_head: bool = False) -> Tensor:
        weight = linear.weight.float() if linear.scale is None else linear.weight.float() * linear.scale[:, None]
        product = x @ weight.t() + (0.0 if linear.bias is None else linear.bias.float())
        return product if is_head else self._rounded(product)

    def _attention(self, each: Attend) -> Tensor:
        heads, positions = each.heads, torch.from_numpy(self.batch.positions).long()
        counts = [heads.num_heads, heads.kv_heads, heads.kv_heads]
        product = self._product(self._normed(each.value, each.norm), each.linear)
        q, k, v = product.split([count * heads.dim for count in counts], -1)
        if each.head_norm is not None:
            q, k = (_norm(x, w, each.head_norm.eps) for x, w in zip((q, k), each.head_norm[:2], strict=True))
        q, k, v = (x.unflatten(-1, (count, heads.dim)) for x, count in zip((q, k, v), counts, strict=True))
        q, k = (_rotated(x, each.turns, positions) for x in (q, k))
        out = []
        for row, position in enumerate(positions.tolist()):
            first = 0 if each.window is None else max(0, position + 1 - each.window)
            keys, values = self._write(each.layer, row, position, (k[row], v[row]))
            scores = torch.einsum("kgd,nkd->kgn", q[row].unflatten(0, (heads.kv_heads, -1)), keys[first:]) * each.scale
            scores = each.softcap * torch.tanh(scores / each.softcap) if each.softcap else scores
            out.append(torch.einsum("kgn,nkd->kgd", scores.softmax(-1), values[first:]).flatten())
        return torch.stack(out)

    def _write(self, layer: int, row: int, position: int, newest: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Write the newest key and value; return all of the row [tokens, heads, dim]."""
        table, size = torch.from_numpy(self.batch.block_tables[row]).long(), self.cache.shape[4]
        for kind, number in enumerate(newest):
            self.cache[layer, kind, table[position // size], :, position % size] = number.to(self.cache.dtype)
        keys, values = self.cache[layer, :, table].float().permute(0, 1, 3, 2, 4).flatten(1, 2)[:, : position + 1]
        return keys, values


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm each group of x that is as wide as the weight."""
    groups = x.unflatten(-1, (-1, weight.numel()))
    return (groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps) * weight).flatten(-2)


def _rotated(x: Tensor, turns: RopeTables, positions: Tensor) -> Tensor:
    cos, sin, pairs = turns.cos[positions, None], turns.sin[positions, None], turns.cos.shape[-1]
    turned, rest = x.split([2 * pairs, x.shape[-1] - 2 * pairs], -1)
    first, second = (turned[..., ::2], turned[..., 1::2]) if turns.interleaved else turned.chunk(2, -1)
    both = first * cos - second * sin, second * cos + first * sin
    return torch.cat([torch.stack(both, -1).flatten(-2) if turns.interleaved else torch.cat(both, -1), rest], -1)
