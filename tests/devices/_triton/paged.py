"""Paged caches on a torch device, and attention over them as a program launches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from quire.devices._triton import attention_work
from quire.devices._triton.attention import AttentionConfigs, AttentionWork, ScoreTerms, attend, configs_for
from quire.devices._triton.attention_work import Capacity, WorkCounts, WorkLimits, WorkViews
from quire.ops.attention import attention
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import PagedCache, PagedKV

BLOCK = 16
NO_EXTRAS: dict[str, Any] = {"sinks": None, "slopes": None, "distances": None}


@dataclass(frozen=True)
class Text:
    """One row: tokens already in the cache, tokens of this step, and how many blocks it shares with row 0."""

    computed: int
    new: int = 1
    shared_blocks: int = 0


def batch_of(texts: Sequence[Text], num_blocks: int, seed: int = 0) -> Batch:
    """Build a batch with scattered blocks. Rows with shared blocks form one group with row 0."""
    free = iter(np.random.default_rng(seed).permutation(num_blocks).tolist())
    tables: list[list[int]] = []
    for text in texts:
        shared = tables[0][: text.shared_blocks] if tables else []
        needed = -(-(text.computed + text.new) // BLOCK)
        tables.append(shared + [next(free) for _ in range(needed - len(shared))])
    batch = Batch.of([RowPart([0] * t.new, t.computed, table) for t, table in zip(texts, tables, strict=True)], BLOCK)
    depths = [text.shared_blocks for text in texts if text.shared_blocks]
    if depths:
        rows = [0, *(row for row, text in enumerate(texts) if text.shared_blocks)]
        batch = replace(batch, groups=np.array([(0, row, min(depths)) for row in rows], np.int32))
    return batch


def written_slots(batch: Batch, num_blocks: int) -> np.ndarray:
    """bool [num_blocks, BLOCK]"""
    written = np.zeros((num_blocks, BLOCK), bool)
    for table, length in zip(batch.block_tables, batch.lengths, strict=True):
        written[table[: length // BLOCK]] = True
        if length % BLOCK:
            written[table[length // BLOCK], : length % BLOCK] = True
    return written


@dataclass(frozen=True)
class Step:
    """Everything that attention reads, in float32 and in the order of the reference's cache."""

    spec: PagedKV
    batch: Batch
    q: np.ndarray  # [T, heads * dim]
    keys: np.ndarray  # [num_blocks, BLOCK, kv_heads, key_dim]
    values: np.ndarray
    extras: dict[str, Any] = field(default_factory=dict)  # softcap, sinks, slopes, distances

    @classmethod
    def random(
        cls, spec: PagedKV, group: int, texts: Sequence[Text], num_blocks: int, seed: int = 0,
        extras: Sequence[str] = (),
    ) -> Step:  # fmt: skip
        """Make a random step; slots that no row has written are NaN."""
        rng = np.random.default_rng(seed)
        batch = batch_of(texts, num_blocks, seed)
        batch.check(num_blocks, BLOCK)
        slots = (num_blocks, BLOCK, spec.num_heads)
        keys, values = (rng.standard_normal((*slots, dim), np.float32) for dim in (spec.key_dim, spec.value_dim))
        keys[~written_slots(batch, num_blocks)] = values[~written_slots(batch, num_blocks)] = np.nan
        q = rng.standard_normal((len(batch.positions), spec.num_heads * group * spec.key_dim), np.float32)
        return cls(spec, batch, q, keys, values, random_extras(rng, spec.num_heads * group, extras))

    @property
    def group(self) -> int:
        return self.q.shape[1] // (self.spec.num_heads * self.spec.key_dim)

    @property
    def scale(self) -> float:
        return float(self.spec.key_dim**-0.5)

    def rounded(self, dtype: torch.dtype, cache_dtype: torch.dtype) -> Step:
        """Return the step rounded to these number formats."""
        q = torch.from_numpy(self.q).to(dtype).float().numpy()
        keys, values = (torch.from_numpy(x).to(cache_dtype).float().numpy() for x in (self.keys, self.values))
        return replace(self, q=q, keys=keys, values=values)

    def reference(self) -> np.ndarray:
        """Return the op's output over the cache."""
        spec = self.spec
        sizes = [(self.keys, spec.num_heads * spec.key_dim), (self.values, spec.num_heads * spec.value_dim)]
        written = [x.reshape(-1, size)[self.batch.slots] for x, size in sizes]
        cache = PagedCache(spec, self.keys.copy(), self.values.copy())
        out: np.ndarray = attention.reference(
            self.q, *written, cache, self.batch, scale=self.scale, **NO_EXTRAS | self.extras
        )
        return out

    def terms(self, place: str) -> ScoreTerms:
        """Return the extras on the device."""
        tensors = {name: torch.from_numpy(x).to(place) for name, x in self.extras.items() if name != "softcap"}
        return ScoreTerms(self.extras.get("softcap", 0.0), **tensors)

    def limits(self, configs: AttentionConfigs, fixed_chunk: int | None = None, num_ctas: int = 16) -> WorkLimits:
        return WorkLimits(
            max_tokens=len(self.batch.positions) + 3,
            max_rows=len(self.batch.lengths) + 2,
            max_length=max(512, int(self.batch.lengths.max())) if fixed_chunk else 8192,
            kv_heads=self.spec.num_heads,
            group=self.group,
            num_ctas=num_ctas,
            wide_ctas=num_ctas,
            wide_queries=configs.wide.block_m,
            narrow_queries=configs.narrow.block_m,
            window=self.spec.window,
            chunk=self.spec.chunk,
            fixed_chunk=fixed_chunk,
        )


def random_extras(rng: np.random.Generator, heads: int, names: Sequence[str]) -> dict[str, Any]:
    """Make extras of these names, as attributes and arrays of the op."""
    made: dict[str, Any] = {
        "softcap": 1.5,
        "sinks": rng.standard_normal(heads, np.float32) * 4,
        "slopes": rng.random(heads, np.float32) / 8,
        "distances": rng.standard_normal((heads, 41), np.float32),
    }
    return {name: made[name] for name in names}


@dataclass(frozen=True)
class Answer:
    out: np.ndarray  # float32 [T, heads * dim]
    counts: WorkCounts


def planned(step: Step, place: str, limits: WorkLimits) -> tuple[AttentionWork, WorkCounts]:
    """Plan the step's work on the device, with the grids of a captured launch."""
    buffer = np.full(attention_work.work_size(limits), -99, np.int32)
    counts = attention_work.plan_work(step.batch, limits, WorkViews.of(buffer, limits))
    capacity = Capacity.of(limits, len(step.batch.positions), len(step.batch.lengths))
    assert all(count <= most for count, most in zip(counts[:3], capacity, strict=True)), (counts, capacity)
    heads = step.spec.num_heads * step.group
    partials = (
        torch.full((capacity.partials, heads, step.spec.value_dim), torch.nan, device=place),
        torch.full((capacity.partials, heads), torch.nan, device=place),
    )
    views = WorkViews.of(torch.from_numpy(buffer).to(place), limits)
    return AttentionWork.of(views, capacity.narrow, capacity.wide, partials), counts


def run(
    step: Step,
    place: str,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    fixed_chunk: int | None = None,
    num_ctas: int = 16,
) -> Answer:
    """Plan the work and attend."""
    spec, cache_dtype = step.spec, cache_dtype or dtype
    dim = max(spec.key_dim, spec.value_dim)
    configs = configs_for(dim, cache_dtype, group=step.group, fixed=fixed_chunk is not None)
    work, counts = planned(step, place, step.limits(configs, fixed_chunk, num_ctas))
    heads = spec.num_heads * step.group
    q = torch.from_numpy(step.q).to(place, dtype).view(-1, heads, spec.key_dim)
    k, v = (torch.from_numpy(x.transpose(0, 2, 1, 3).copy()).to(place, cache_dtype) for x in (step.keys, step.values))
    tables, positions = (torch.from_numpy(x).to(place) for x in (step.batch.block_tables, step.batch.positions))
    out = torch.full((len(q), heads, spec.value_dim), torch.nan, device=place, dtype=dtype)
    attend(
        q, k, v, tables, positions, work, out, scale=step.scale, terms=step.terms(place), window=spec.window,
        chunk=spec.chunk, fixed_chunk=fixed_chunk,
    )  # fmt: skip
    return Answer(out.float().cpu().numpy().reshape(len(q), -1), counts)
