"""The instruction of latent attention: the cache write, absorbed queries, attention over latents, and values.

Whole prompts take the expanded form, unless numbers must not depend on chunks (deterministic mode).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quire.devices._triton.attention_work import AttentionKind
from quire.devices._triton.expanded import ExpandedKeys, attend_expanded
from quire.devices._triton.head_products import multiply_heads
from quire.devices._triton.latent import LatentQueries, attend_latents, kind_of, write_latent
from quire.graph.graph import Node
from quire.ops.cache import Latent

from .caches import Caches
from .weights import Placer

if TYPE_CHECKING:
    from .instructions import Run


EXPANDED_TOKENS = 256  # of a whole prompt: with fewer, expanding keys and values costs more than it saves


@dataclass(frozen=True, slots=True, eq=False)
class AttendLatent:
    """Latent attention over a cache that it writes."""

    value: int  # q
    q_rope: int
    latent: int
    k_rope: int
    keys: Tensor  # [heads, nope_dim, dim]
    values: Tensor  # [heads, value_dim, dim]
    caches: Caches
    layer: int
    kind: AttentionKind
    scale: float
    fixed_chunk: int | None
    out: int

    def __call__(self, run: Run) -> None:
        q, q_rope, latent, k_rope = map(run.whole, (self.value, self.q_rope, self.latent, self.k_rope))
        work = run.work[self.kind]
        write_latent(latent, k_rope, run.where.slots, self.caches.latents_of(self.layer))
        if len(work.narrow) or len(work.wide):
            out = self._absorbed(run, q, q_rope)
        else:
            out = torch.empty((len(q), self.values.shape[0] * self.values.shape[1]), dtype=q.dtype, device=q.device)
        if run.expands:
            plain, values = (torch.mm(latent, each.flatten(0, 1).t()) for each in (self.keys, self.values))
            attend_expanded(
                q, q_rope, ExpandedKeys(plain, k_rope, values), run.where.positions, work.num_parts, out,
                num_heads=self.kind.num_heads, scale=self.scale,
            )  # fmt: skip
        run.values[self.out] = out

    def _absorbed(self, run: Run, q: Tensor, q_rope: Tensor) -> Tensor:
        """Return the values of all tokens that have items. Those of others are 0, if the expanded form follows."""
        cache, kind, is_fixed = self.caches.latents_of(self.layer), self.kind, self.fixed_chunk is not None
        absorbed = multiply_heads(q, self.keys, sums_last=False, fixed=is_fixed)
        sums = torch.zeros_like(absorbed) if run.expands else torch.empty_like(absorbed)
        heads = (len(q), kind.num_heads, -1)
        attend_latents(
            LatentQueries(absorbed.view(heads), q_rope.view(heads)), cache, run.tables.view(-1, 1), run.where.positions,
            kind, run.work[kind], sums.view(heads), scale=self.scale, fixed_chunk=self.fixed_chunk, merges=run.merges,
        )  # fmt: skip
        return multiply_heads(sums, self.values, sums_last=True, fixed=is_fixed)


def lower_latent(node: Node, spec: Latent, placer: Placer, caches: Caches, fixed_chunk: int | None) -> AttendLatent:
    """Lower `attention_latent`. The matrices of heads are in the format of activations."""
    keys, values = (placer.table(str(node.weights[name])) for name in ("keys", "values"))
    kind = kind_of(len(keys), spec.dim, spec.rope_dim, placer.dtype)
    assert node.cache is not None
    q, q_rope, latent, k_rope = (each.id for each in node.inputs)
    return AttendLatent(
        q, q_rope, latent, k_rope, keys, values, caches, node.cache, kind, node.attrs["scale"], fixed_chunk,
        node.output.id,
    )  # fmt: skip
