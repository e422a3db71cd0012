"""Caches of latents on a torch device, and latent attention over them as a program launches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from quire.devices._triton.attention import AttentionWork
from quire.devices._triton.attention_work import Capacity, WorkCounts, WorkLimits, WorkViews, plan_work, work_size
from quire.devices._triton.expanded import ExpandedKeys, attend_expanded
from quire.devices._triton.head_products import multiply_heads
from quire.devices._triton.latent import LatentQueries, attend_latents, kind_of, latent_tiles, write_latent
from quire.ops.batch import Batch
from quire.ops.cache import Latent, LatentCache
from quire.ops.latent import attention_latent
from tests.devices._triton.paged import BLOCK, Answer, Text, batch_of, written_slots

SPEC = Latent(64, 16)


@dataclass(frozen=True)
class LatentStep:
    """The arguments of the op, in float32."""

    batch: Batch
    q: np.ndarray
    q_rope: np.ndarray
    latent: np.ndarray
    k_rope: np.ndarray
    cache: LatentCache
    keys: np.ndarray
    values: np.ndarray
    scale: float

    @classmethod
    def random(
        cls, spec: Latent, heads: tuple[int, int, int], texts: Sequence[Text], num_blocks: int, seed: int = 0
    ) -> LatentStep:
        """Make a random step of (heads, nope_dim, value_dim); slots that no row has written are NaN."""
        rng, batch, (num_heads, nope_dim, value_dim) = np.random.default_rng(seed), batch_of(texts, num_blocks), heads
        num_tokens = len(batch.positions)
        rows = rng.standard_normal((num_blocks, BLOCK, spec.values_per_token), np.float32)
        rows[~written_slots(batch, num_blocks)] = np.nan
        widths = (num_heads * nope_dim, num_heads * spec.rope_dim, spec.dim, spec.rope_dim)
        inputs = [rng.standard_normal((num_tokens, width), np.float32) for width in widths]
        weights = [rng.standard_normal((num_heads, size, spec.dim), np.float32) / 8 for size in (nope_dim, value_dim)]
        return cls(batch, *inputs, LatentCache(spec, rows), *weights, 0.2)

    def rounded(self, dtype: torch.dtype, cache_dtype: torch.dtype) -> LatentStep:
        """Return the step rounded to these number formats."""

        def cast(x: np.ndarray, *kinds: torch.dtype) -> np.ndarray:
            tensor = torch.from_numpy(x)
            for kind in kinds:
                tensor = tensor.to(kind)
            return tensor.float().numpy()

        activations = [cast(x, dtype) for x in (self.q, self.q_rope)]
        stored = [cast(x, dtype, cache_dtype) for x in (self.latent, self.k_rope)]
        cache = LatentCache(self.cache.spec, cast(self.cache.rows, cache_dtype))
        return LatentStep(
            self.batch, *activations, *stored, cache, cast(self.keys, dtype), cast(self.values, dtype), self.scale
        )

    def reference(self) -> np.ndarray:
        cache = LatentCache(self.cache.spec, self.cache.rows.copy())
        out: np.ndarray = attention_latent.reference(
            self.q, self.q_rope, self.latent, self.k_rope, cache, self.batch, self.keys, self.values, scale=self.scale
        )
        return out


def run_latent(
    step: LatentStep, place: str, dtype: torch.dtype = torch.float32, cache_dtype: torch.dtype | None = None,
    fixed_chunk: int | None = None, num_ctas: int = 16, expanded_tokens: int | None = None,
) -> Answer:  # fmt: skip
    """Write the cache, plan the work, and attend, with the grids of a captured launch."""
    cache_dtype, spec, batch = cache_dtype or dtype, step.cache.spec, step.batch
    num_heads, num_tokens = len(step.keys), len(batch.positions)
    kind = kind_of(num_heads, spec.dim, spec.rope_dim, dtype)
    configs = latent_tiles(kind.group, dtype, cache_dtype)
    limits = WorkLimits(
        max_tokens=num_tokens + 3, max_rows=len(batch.lengths) + 2, max_length=8192, kv_heads=kind.kv_heads,
        group=kind.group, num_ctas=num_ctas, wide_ctas=num_ctas, narrow_queries=configs.narrow.block_m,
        wide_queries=configs.wide.block_m, fixed_chunk=fixed_chunk, expanded_tokens=expanded_tokens,
    )  # fmt: skip
    work, counts = _planned(batch, limits, num_heads, spec.dim, place)

    def placed(x: np.ndarray, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.from_numpy(x).to(place, kind)

    is_fixed, heads = fixed_chunk is not None, (num_tokens, num_heads, -1)
    cache = placed(step.cache.rows, cache_dtype)
    tables, positions, slots = (
        torch.from_numpy(x).to(place) for x in (batch.block_tables, batch.positions, batch.slots)
    )
    write_latent(placed(step.latent), placed(step.k_rope), slots, cache)
    absorbed = multiply_heads(placed(step.q), placed(step.keys), sums_last=False, fixed=is_fixed)
    sums = torch.full_like(absorbed, torch.nan)
    queries = LatentQueries(absorbed.view(heads), placed(step.q_rope).view(heads))
    attend_latents(
        queries, cache, tables, positions, kind, work, sums.view(heads), scale=step.scale, fixed_chunk=fixed_chunk
    )
    out = multiply_heads(sums, placed(step.values), sums_last=True, fixed=is_fixed)
    if counts.has_expanded:
        matrices = (placed(each.reshape(-1, spec.dim)).t() for each in (step.keys, step.values))
        plain, values = (placed(step.latent) @ each for each in matrices)
        keys = ExpandedKeys(plain, placed(step.k_rope), values)
        q, q_rope = placed(step.q), placed(step.q_rope)
        attend_expanded(q, q_rope, keys, positions, work.num_parts, out, num_heads=num_heads, scale=step.scale)
    return Answer(out.float().cpu().numpy(), counts)


def _planned(
    batch: Batch, limits: WorkLimits, num_heads: int, dim: int, place: str
) -> tuple[AttentionWork, WorkCounts]:
    buffer = np.full(work_size(limits), -99, np.int32)
    counts = plan_work(batch, limits, WorkViews.of(buffer, limits))
    capacity = Capacity.of(limits, len(batch.positions), len(batch.lengths))
    partials = (
        torch.full((capacity.partials, num_heads, dim), torch.nan, device=place),
        torch.full((capacity.partials, num_heads), torch.nan, device=place),
    )
    views = WorkViews.of(torch.from_numpy(buffer).to(place), limits)
    return AttentionWork.of(views, capacity.narrow, capacity.wide, partials), counts
