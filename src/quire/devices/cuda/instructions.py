"""The instructions of a lowered program. Each reads and writes values by id; few and many tokens may take different
kernels, so the kernel is chosen when the instruction runs.

The sum of the residual and a product is deferred: with many tokens, the norm that reads it adds them in the same pass
(`Run.pending`); with few, the kernel of the product adds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from quire.devices._triton.attend_few import MAX_ROWS, attend_few
from quire.devices._triton.attention import AttentionWork, attend, configs_for
from quire.devices._triton.embed import embed
from quire.devices._triton.gate import silu_gate
from quire.devices._triton.norm import Product, Rounded, add_norm
from quire.devices._triton.rope import HeadNorm, Heads, RopeTables, TokenPlacement, rope_write
from quire.devices._triton.stream import Around

from .linear import Multiplies


class AttendsWide(Protocol):
    """A kernel for all wide items of a layer: q and out are [T, heads, dim]."""

    def __call__(self, run: Run, layer: int, q: Tensor, out: Tensor, scale: float) -> None: ...


@dataclass(slots=True, eq=False)
class Run:
    """One pass over the instructions."""

    ids: Tensor  # int32 [T]
    where: TokenPlacement
    tables: Tensor  # int32, flat; an item holds the offset of its row's table
    work: dict[int | None, AttentionWork]  # by the window of the layers
    last_tokens: Tensor  # int32 [rows of the device's table]
    logits_at: Tensor | None  # int32 [L]; None: every token
    merges: bool = True  # a token's attention may be in several parts
    is_decode: bool = False  # every row has one token
    wide: AttendsWide | None = None  # a kernel for wide items, of layers without a window
    values: dict[int, Any] = field(default_factory=dict)
    pending: dict[int, Product] = field(default_factory=dict)  # products still to be added to a value

    @property
    def is_few(self) -> bool:
        """Whether the step has few rows, one token each, without shared prefixes."""
        return self.is_decode and len(self.ids) <= MAX_ROWS and not any(len(each.wide) for each in self.work.values())

    def whole(self, value: int) -> Tensor:
        """Return a value after adding what is pending."""
        tensor: Tensor = self.values[value]
        delta = self.pending.pop(value, None)
        if delta is not None:
            tensor += _plain(delta, tensor.dtype)
        return tensor


@dataclass(slots=True, eq=False)
class Caches:
    """K and V of every layer: [layers, 2, blocks, kv_heads, block_tokens, dim]. The last block is for padding."""

    whole: Tensor

    @property
    def num_blocks(self) -> int:
        """Blocks that requests may use."""
        return int(self.whole.shape[2]) - 1

    def of(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return K and V of one layer."""
        return self.whole[layer, 0], self.whole[layer, 1]

    def resize(self, num_blocks: int) -> None:
        """Allocate another number of blocks, all empty. The old ones are freed first: memory does not hold both."""
        layers, kinds, _, *rest = self.whole.shape
        dtype, device = self.whole.dtype, self.whole.device
        self.whole = torch.empty(0, dtype=dtype, device=device)
        self.whole = torch.zeros((layers, kinds, num_blocks + 1, *rest), dtype=dtype, device=device)


class Instruction(Protocol):
    """One instruction of a program."""

    def __call__(self, run: Run) -> None: ...


class Norm(NamedTuple):
    """The RMS norm before a product."""

    weight: Tensor  # float32 [dim]
    eps: float


def _plain(product: Product, dtype: torch.dtype) -> Tensor:
    """Return the numbers of a product, scales applied."""
    if product.token_scale is None and product.column_scale is None:
        return product.raw
    whole = product.raw.float()
    whole = whole if product.token_scale is None else whole * product.token_scale[:, None]
    return (whole if product.column_scale is None else whole * product.column_scale).to(dtype)


def multiply(run: Run, value: int, norm: Norm | None, linear: Multiplies, dtype: torch.dtype | None = None) -> Product:
    """Multiply a value, after its norm if there is one. For a streamed gate, return the activated half."""
    x: Tensor = run.values[value]
    kind = dtype or x.dtype
    if norm is None:
        x = run.whole(value)
        return Product(linear.few(x, kind)) if linear.streams(len(x)) else linear.many(x, dtype)
    delta = run.pending.pop(value, None)
    if linear.streams(len(x)) and delta is None and not linear.rounds:
        return Product(linear.few(x, kind, Around(norm.weight, norm.eps)))
    normed = add_norm(x, delta, norm.weight, norm.eps, linear.rounds)
    return Product(linear.few(normed, kind)) if linear.streams(len(x)) else linear.many(normed, dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Embed:
    """Embedding lookup."""

    table: Tensor
    out: int
    factor: float = 1.0

    def __call__(self, run: Run) -> None:
        run.values[self.out] = embed(run.ids, run.last_tokens, self.table, self.table.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Attend:
    """q, k and v from one product, rope, the KV write, and attention."""

    value: int
    norm: Norm | None
    linear: Multiplies
    heads: Heads
    head_norm: HeadNorm | None
    turns: RopeTables
    caches: Caches
    layer: int
    scale: float
    window: int | None
    fixed_chunk: int | None
    out: int
    softcap: float = 0.0

    def __call__(self, run: Run) -> None:
        product = multiply(run, self.value, self.norm, self.linear)
        dtype = run.values[self.value].dtype
        cache = self.caches.of(self.layer)
        tables = run.tables.view(-1, 1)  # an item's row is the offset of its table
        out = torch.empty((len(run.ids), self.heads.num_heads * self.heads.dim), dtype=dtype, device=run.ids.device)
        run.values[self.out] = out
        if run.is_few and self.fixed_chunk is None:
            attend_few(
                product, self.heads, self.turns, run.where, cache, tables, run.work[self.window],
                self.linear.scratch.arrived, out, scale=self.scale, window=self.window, norm=self.head_norm,
            )  # fmt: skip
            return
        q = rope_write(product, self.heads, self.turns, run.where, cache, self.head_norm, dtype)
        shape = (len(q), self.heads.num_heads, self.heads.dim)
        q, out = q.view(shape), out.view(shape)
        wide = run.wide if self.window is None and self.fixed_chunk is None else None
        attend(
            q, *cache, tables, run.where.positions, run.work[self.window], out,
            scale=self.scale, window=self.window, fixed_chunk=self.fixed_chunk, merges=run.merges,
            configs=configs_for(self.heads.dim, cache[0].dtype, fixed=bool(self.fixed_chunk), is_decode=run.is_decode),
            wide=None if wide is None else partial(wide, run, self.layer, q, out, self.scale),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    """The rows of a value that yield logits."""

    value: int
    out: int

    def __call__(self, run: Run) -> None:
        value, pending = run.values[self.value], run.pending.get(self.value)
        if run.logits_at is None:
            run.values[self.out] = value
        else:
            run.values[self.out] = value.index_select(0, run.logits_at)
        if pending is None:
            return
        raw, token_scale, column_scale = pending
        if run.logits_at is not None:
            raw = raw.index_select(0, run.logits_at)
            token_scale = None if token_scale is None else token_scale.index_select(0, run.logits_at)
        run.pending[self.out] = Product(raw, token_scale, column_scale)


@dataclass(frozen=True, slots=True, eq=False)
class AddProduct:
    """Add a product to the residual."""

    value: int
    linear: Multiplies
    residual: int
    out: int
    post_norm: Norm | None = None  # of the product, before it is added

    def __call__(self, run: Run) -> None:
        x = run.values[self.value]
        count = len(x.values) if isinstance(x, Rounded) else len(x)
        residual = run.values.pop(self.residual)
        run.values[self.out] = residual
        if self.linear.streams(count) and isinstance(x, Tensor) and self.residual not in run.pending:
            self.linear.few(x, residual.dtype, Around(add_to=residual))
            return
        if self.residual in run.pending:
            residual += _plain(run.pending.pop(self.residual), residual.dtype)
        run.pending[self.out] = self.linear.many(x)


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """The gated first half of a feed-forward block."""

    value: int
    norm: Norm | None
    linear: Multiplies
    out: int
    rounds: bool  # an FP8 product reads it
    kind: str = "silu"

    def __call__(self, run: Run) -> None:
        x = run.values[self.value]
        product = multiply(run, self.value, self.norm, self.linear)
        if self.linear.streams(len(x)):
            run.values[self.out] = product.raw
        else:
            run.values[self.out] = silu_gate(product, self.rounds, x.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """Logits, in float32."""

    value: int
    norm: Norm | None
    linear: Multiplies
    out: int
    factor: float = 1.0
    cap: float = 0.0

    def __call__(self, run: Run) -> None:
        run.values[self.out] = multiply(run, self.value, self.norm, self.linear, torch.float32).raw


@dataclass(frozen=True, slots=True)
class Forget:
    """Free values that are not read any more."""

    values: tuple[int, ...]

    def __call__(self, run: Run) -> None:
        for value in self.values:
            run.values.pop(value, None)
