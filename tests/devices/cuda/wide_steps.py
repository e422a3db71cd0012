"""Steps of paged attention for the kernel of wide items: a cache of several layers, the work, and a Run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.devices._triton.attention import AttentionConfigs, attend, configs_for
from quire.devices._triton.attention_work import ROW, AttentionKind, WorkCounts
from quire.devices._triton.rope import Heads, TokenPlacement
from quire.devices.cuda.attention import AttendsWide
from quire.devices.cuda.caches import Caches
from quire.devices.cuda.instructions import Run
from tests.devices._triton.paged import Step, planned
from tests.devices.cuda.models import kv_tensor

LAYERS, LAYER = 3, 1  # other layers are NaN


@dataclass(frozen=True, eq=False)
class WideStep:
    """A step's tensors on a device, as in a program."""

    step: Step
    caches: Caches
    run: Run
    counts: WorkCounts
    q: Tensor  # [T, heads, dim]

    @classmethod
    def of(cls, step: Step, place: str, num_ctas: int) -> WideStep:
        configs = configs_for(step.spec.key_dim, torch.bfloat16)
        work, counts = planned(step, place, step.limits(configs, None, num_ctas))
        tables = torch.from_numpy(step.batch.block_tables).to(place)
        for items in (work.narrow, work.wide):
            items[:, ROW] *= tables.shape[1]
        num_blocks, block_tokens, _, dim = step.keys.shape
        caches = Caches([step.spec] * LAYERS, block_tokens, torch.bfloat16, torch.device(place), num_blocks)
        kv_tensor(caches).fill_(torch.nan)
        for cache, numbers in zip(caches.of(LAYER), (step.keys, step.values), strict=True):
            cache[:-1] = torch.from_numpy(numbers.transpose(0, 2, 1, 3).copy()).to(place, torch.bfloat16)
        where = TokenPlacement(torch.from_numpy(step.batch.positions).to(place), torch.zeros(0, device=place))
        nothing = torch.zeros(0, dtype=torch.int32, device=place)
        run = Run(
            nothing, where, tables.reshape(-1), {AttentionKind.of(step.spec, step.q.shape[1]): work}, nothing, None
        )
        q = torch.from_numpy(step.q).to(place, torch.bfloat16).view(len(step.q), -1, dim)
        return cls(step, caches, run, counts, q)

    @property
    def heads(self) -> Heads:
        return Heads(self.q.shape[1], self.step.spec.num_heads, self.q.shape[2])

    def attend(self, wide: AttendsWide | None, configs: AttentionConfigs | None = None) -> np.ndarray:
        """Attend: narrow items by Triton, wide ones by `wide` if given. Return float32 [T, heads * dim]."""
        out, run, scale = torch.full_like(self.q, torch.nan), self.run, self.step.scale

        (work,) = run.work.values()

        def by_kernel() -> None:
            assert wide is not None
            wide(run, LAYER, self.q, out, scale)

        attend(
            self.q, *self.caches.of(LAYER), run.tables.view(-1, 1), run.where.positions, work, out,
            scale=scale, configs=configs, wide=None if wide is None else by_kernel,
        )  # fmt: skip
        return out.float().cpu().numpy().reshape(self.step.q.shape)
