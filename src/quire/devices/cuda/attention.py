"""Attention over a layer's cache, plain or fused, and the instructions of the plain attention ops."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from quire.devices._triton.attention import ScoreTerms, attend, configs_for
from quire.devices._triton.attention_work import AttentionKind
from quire.devices._triton.bidirectional import attend_rows
from quire.devices._triton.kv_write import write_kv
from quire.graph.graph import Node
from quire.ops.cache import PagedKV

from .caches import Caches
from .weights import Placer

if TYPE_CHECKING:
    from .instructions import Run


class AttendsWide(Protocol):
    """A kernel for all wide items of a layer of one kind, without terms: q and out are [T, heads, dim]."""

    @property
    def kind(self) -> AttentionKind: ...

    def __call__(self, run: Run, layer: int, q: Tensor, out: Tensor, scale: float) -> None: ...


class ReadsCache(Protocol):
    """What attention over a cache must know of its layer."""

    @property
    def caches(self) -> Caches: ...

    @property
    def layer(self) -> int: ...  # of the caches

    @property
    def kind(self) -> AttentionKind: ...

    @property
    def scale(self) -> float: ...

    @property
    def terms(self) -> ScoreTerms: ...

    @property
    def fixed_chunk(self) -> int | None: ...


def attend_cache(run: Run, layer: ReadsCache, q: Tensor, out: Tensor) -> None:
    """Attend with q [T, heads * key_dim] over the layer's cache, into `out` [T, heads * value_dim]."""
    kind, terms, fixed_chunk = layer.kind, layer.terms, layer.fixed_chunk
    k_cache, v_cache = layer.caches.of(layer.layer)
    q = q.view(len(q), kind.num_heads, kind.key_dim)
    out = out.view(len(q), kind.num_heads, kind.value_dim)
    wide = run.wide if run.wide is not None and run.wide.kind == kind and terms.is_plain and not fixed_chunk else None
    positions = run.beyond if kind.is_source else run.where.positions
    assert positions is not None
    attend(
        q, k_cache, v_cache, run.tables.view(-1, 1), positions, run.work[kind], out,
        scale=layer.scale, terms=terms, window=kind.window, chunk=kind.chunk, fixed_chunk=fixed_chunk,
        configs=configs_for(
            kind.dim, k_cache.dtype, group=kind.group, fixed=bool(fixed_chunk), is_decode=run.is_decode
        ),
        merges=run.merges, wide=None if wide is None else partial(wide, run, layer.layer, q, out, layer.scale),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class AttendCache:
    """Attention over a cache. Without k and v, another layer writes it."""

    value: int  # q
    k: int | None
    v: int | None
    caches: Caches
    layer: int
    kind: AttentionKind
    scale: float
    terms: ScoreTerms
    fixed_chunk: int | None
    out: int

    @property
    def writes(self) -> bool:
        """Whether it writes the cache."""
        return self.k is not None

    def __call__(self, run: Run) -> None:
        q = run.whole(self.value)
        if self.k is not None and self.v is not None:
            slots = run.where_in(self.caches.group_of(self.layer)).slots
            write_kv(run.whole(self.k), run.whole(self.v), slots, *self.caches.of(self.layer))
        out = torch.empty((len(q), self.kind.num_heads * self.kind.value_dim), dtype=q.dtype, device=q.device)
        run.values[self.out] = out
        attend_cache(run, self, q, out)


@dataclass(frozen=True, slots=True, eq=False)
class AttendRows:
    """Attention of every token to all tokens of its row, without a cache. Tokens of q, k and v may have gaps."""

    value: int  # q
    k: int
    v: int
    kv_heads: int
    scale: float
    terms: ScoreTerms
    window: int | None
    out: int

    def __call__(self, run: Run) -> None:
        q, k, v = (run.whole(value) for value in (self.value, self.k, self.v))
        num_tokens = len(q)
        k, v = k.view(num_tokens, self.kv_heads, -1), v.view(num_tokens, self.kv_heads, -1)
        q = q.view(num_tokens, -1, k.shape[2])
        out = torch.empty((num_tokens, q.shape[1] * v.shape[2]), dtype=q.dtype, device=q.device)
        run.values[self.out] = out
        attend_rows(
            q, k, v, run.row_bounds(), out.view(num_tokens, q.shape[1], -1),
            scale=self.scale, terms=self.terms, window=self.window,
        )  # fmt: skip


def terms_of(node: Node, placer: Placer) -> ScoreTerms:
    """Place what the scores of an attention node have beyond their scale."""
    tensors = (
        None if name is None else placer.vector(str(name))
        for name in (node.weights[each] for each in ("sinks", "slopes", "distances"))
    )
    return ScoreTerms(node.attrs.get("softcap", 0.0), *tensors)


def lower_attention(node: Node, spec: PagedKV, placer: Placer, caches: Caches, fixed_chunk: int | None) -> AttendCache:
    """Lower `attention` or `attention_shared`."""
    q, *written = node.inputs
    k, v = (each.id for each in written) if written else (None, None)
    kind = AttentionKind.of(spec, q.dim)
    assert node.cache is not None
    return AttendCache(
        q.id, k, v, caches, node.cache, kind, node.attrs["scale"], terms_of(node, placer), fixed_chunk, node.output.id
    )


def lower_bidirectional(node: Node, placer: Placer) -> AttendRows:
    """Lower `attention_bidirectional`."""
    q, k, v = (each.id for each in node.inputs)
    attrs, terms = node.attrs, terms_of(node, placer)
    return AttendRows(q, k, v, attrs["num_heads"], attrs["scale"], terms, attrs.get("window"), node.output.id)
