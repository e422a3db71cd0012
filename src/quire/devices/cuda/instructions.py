"""The instructions of a lowered program. Each reads and writes values by id; few and many tokens may take different
kernels, so the kernel is chosen when the instruction runs.

The sum of the residual and a product is deferred: with many tokens, the norm that reads it adds them in the same pass
(`Run.pending`); with few, the kernel of the product adds. The sum of a normed product is always
deferred.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from quire.devices._triton.attend_few import BLOCK_M, MAX_ROWS, attend_few
from quire.devices._triton.attention import AttentionWork, ScoreTerms
from quire.devices._triton.attention_work import AttentionKind
from quire.devices._triton.bidirectional import RowBounds
from quire.devices._triton.elementwise import map_numbers
from quire.devices._triton.embed import embed
from quire.devices._triton.gate import activate_gate
from quire.devices._triton.norm import Norm, Product, Rounded, add_norm, add_product
from quire.devices._triton.rope import HeadNorm, Heads, RopeTables, TokenPlacement, norm_all_heads, rope_write
from quire.devices._triton.route import RoutingResult
from quire.devices._triton.state_work import StateRows
from quire.devices._triton.stream import Around

from .attention import AttendsWide, attend_cache
from .caches import ALL_TOKENS, Caches
from .linear import Multiplies

MAX_GROUP = BLOCK_M.value  # heads that share a key head, in the attention of few rows


@dataclass(slots=True, eq=False)
class Run:
    """One pass over the instructions."""

    ids: Tensor  # int32 [T]
    where: TokenPlacement  # with the slots of layers that keep all tokens
    tables: Tensor  # int32, flat, of all groups; an item holds the offset of its row's table
    work: dict[AttentionKind, AttentionWork]
    last_tokens: Tensor  # int32 [rows of the device's table]
    logits_at: Tensor | None  # int32 [L]; None: every token
    merges: bool = True  # a token's attention may be in several parts
    is_decode: bool = False  # every row has one token
    is_single: bool = False  # rows have drafts, and every token has items of its own
    expands: bool = False  # some rows are whole prompts, for which latent attention expands keys and values
    wide: AttendsWide | None = None  # a kernel for wide items
    states: StateRows | None = None  # of the rows; None: no layer has states
    windows: tuple[TokenPlacement, ...] = ()  # `where`, with the slots of each window group
    beyond: Tensor | None = None  # int32 [max tokens] positions with which a token reads all of its source
    pools: Tensor | None = None  # int32 [P, 3]; None: the step has none
    token_types: Tensor | None = None  # int32 [T], of an encoder
    bounds: RowBounds | None = None  # found by the first instruction that needs them
    values: dict[int, Any] = field(default_factory=dict)
    pending: dict[int, Product] = field(default_factory=dict)  # products still to be added to a value
    choices: dict[int, RoutingResult] = field(default_factory=dict)  # of experts, by the value that has their numbers

    @property
    def is_few(self) -> bool:
        """Whether the step has few rows, one token each, without shared prefixes."""
        return self.is_decode and len(self.ids) <= MAX_ROWS and not any(len(each.wide) for each in self.work.values())

    def row_bounds(self) -> RowBounds:
        """Return where the rows of a step of whole rows begin and end."""
        self.bounds = self.bounds or RowBounds.of(self.where.positions)
        return self.bounds

    def where_in(self, group: int) -> TokenPlacement:
        """Return where tokens are in the caches of a group."""
        return self.where if group == ALL_TOKENS else self.windows[group - 1]

    def whole(self, value: int) -> Tensor:
        """Return a value after adding what is pending."""
        tensor: Tensor = self.values[value]
        delta = self.pending.pop(value, None)
        if delta is not None:
            add_product(tensor, delta)
        return tensor

    def read(self, value: int) -> Tensor | Rounded:
        """Return what a product reads of a value."""
        x: Tensor | Rounded = self.values[value]
        return x if isinstance(x, Rounded) else self.whole(value)


class Instruction(Protocol):
    """One instruction of a program."""

    def __call__(self, run: Run) -> None: ...


def multiply(run: Run, value: int, norm: Norm | None, linear: Multiplies, dtype: torch.dtype | None = None) -> Product:
    """Multiply a value, after its norm if there is one. A streamed product is activated, if its matrix says so."""
    x: Tensor = run.values[value]
    kind = dtype or x.dtype
    if norm is None:
        x = run.whole(value)
        return Product(linear.few(x, kind)) if linear.streams(len(x)) else linear.many(x, dtype)
    delta = run.pending.pop(value, None)
    if linear.streams(len(x)) and delta is None and not linear.rounds:
        return Product(linear.few(x, kind, Around(norm.weight, norm.eps)))
    normed = add_norm(x, delta, norm, linear.rounds)
    return Product(linear.few(normed, kind)) if linear.streams(len(x)) else linear.many(normed, dtype)


def num_tokens(x: Tensor | Rounded) -> int:
    """Return the number of tokens of a value."""
    return len(x.values) if isinstance(x, Rounded) else len(x)


@dataclass(frozen=True, slots=True, eq=False)
class Embed:
    """Embedding lookup."""

    table: Tensor
    out: int
    factor: float = 1.0

    def __call__(self, run: Run) -> None:
        run.values[self.out] = embed(run.ids, run.last_tokens, self.table, self.factor)


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
    chunk: int | None = None
    softcap: float = 0.0
    sinks: Tensor | None = None
    slopes: Tensor | None = None
    distances: Tensor | None = None

    @property
    def kind(self) -> AttentionKind:
        num_heads, kv_heads, dim = self.heads
        return AttentionKind(kv_heads, num_heads // kv_heads, dim, dim, self.window, self.chunk)

    @property
    def terms(self) -> ScoreTerms:
        return ScoreTerms(self.softcap, self.sinks, self.slopes, self.distances)

    def __call__(self, run: Run) -> None:
        product = multiply(run, self.value, self.norm, self.linear)
        dtype, norm = run.values[self.value].dtype, self.head_norm
        if norm is not None and norm.is_wide:
            product, norm = norm_all_heads(product, self.heads, norm, dtype), None
        cache, where = self.caches.of(self.layer), run.where_in(self.caches.group_of(self.layer))
        out = torch.empty((len(run.ids), self.heads.num_heads * self.heads.dim), dtype=dtype, device=run.ids.device)
        run.values[self.out] = out
        if run.is_few and self.fixed_chunk is None and self.kind.group <= MAX_GROUP:
            attend_few(
                product, self.heads, self.turns, where, cache, run.tables.view(-1, 1), run.work[self.kind],
                self.linear.scratch.arrived, out, scale=self.scale, terms=self.terms, window=self.window,
                chunk=self.chunk, norm=norm,
            )  # fmt: skip
            return
        q = rope_write(product, self.heads, self.turns, where, cache, norm, dtype)
        attend_cache(run, self, q, out)


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    """The rows of a value that yield logits."""

    value: int
    out: int
    copies: bool = False  # the value is read again: a sum in place must not change it

    def __call__(self, run: Run) -> None:
        value, pending = run.values[self.value], run.pending.get(self.value)
        if run.logits_at is None:
            run.values[self.out] = value.clone() if self.copies else value
        else:
            run.values[self.out] = value.index_select(0, run.logits_at)
        if pending is None:
            return
        raw, token_scale = pending.raw, pending.token_scale
        if run.logits_at is not None:
            raw = raw.index_select(0, run.logits_at)
            token_scale = None if token_scale is None else token_scale.index_select(0, run.logits_at)
        run.pending[self.out] = pending._replace(raw=raw, token_scale=token_scale)


@dataclass(frozen=True, slots=True, eq=False)
class AddProduct:
    """Add a product, after its norm and times its factor, to the residual: in place, unless that is read again."""

    value: int
    linear: Multiplies
    residual: int
    out: int
    post_norm: Norm | None = None
    factor: float = 1.0
    copies: bool = False

    def __call__(self, run: Run) -> None:
        x, residual = run.read(self.value), run.whole(self.residual)
        run.values[self.out] = residual = residual.clone() if self.copies else residual
        if not self.linear.streams(num_tokens(x)) or isinstance(x, Rounded):
            product = self.linear.many(x)
        elif self.post_norm is None:
            self.linear.few(x, residual.dtype, Around(add_to=residual, factor=self.factor))
            return
        else:
            product = Product(self.linear.few(x, residual.dtype))
        run.pending[self.out] = product._replace(factor=self.factor, post_norm=self.post_norm)


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
            run.values[self.out] = activate_gate(product, self.kind, self.rounds, x.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """Logits, in float32."""

    value: int
    norm: Norm | None
    linear: Multiplies
    out: int
    factor: float = 1.0
    cap: float = 0.0  # 0: none

    def __call__(self, run: Run) -> None:
        product = multiply(run, self.value, self.norm, self.linear, torch.float32)
        if self.factor != 1.0 or self.cap:
            map_numbers(product, "softcap", product.raw, numbers=(self.factor, self.cap, 0.0, 0.0))
        run.values[self.out] = product.raw


@dataclass(frozen=True, slots=True)
class Forget:
    """Free values that are not read any more."""

    values: tuple[int, ...]

    def __call__(self, run: Run) -> None:
        for value in self.values:
            run.values.pop(value, None)
            run.choices.pop(value, None)
