"""The memory of attention's partial results, which layers of all kinds share."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from quire.devices._triton.attention_work import AttentionKind, Capacity, WorkLimits
from quire.devices.base import Limits

from .drafted import with_drafts


def allocate_partials(
    work: Mapping[AttentionKind, WorkLimits], limits: Limits, device: torch.device
) -> dict[AttentionKind, tuple[Tensor, Tensor]]:
    """Allocate values and weights for the largest step of every kind of attention."""
    most = {kind: max_partials(each, limits) * kind.num_heads for kind, each in work.items()}
    out_size = max((count * kind.value_dim for kind, count in most.items()), default=0)
    out = torch.empty(out_size, dtype=torch.float32, device=device)
    lse = torch.empty(max(most.values(), default=0), dtype=torch.float32, device=device)
    return {
        kind: (
            out[: count * kind.value_dim].view(-1, kind.num_heads, kind.value_dim),
            lse[:count].view(-1, kind.num_heads),
        )
        for kind, count in most.items()
    }


def max_partials(work: WorkLimits, limits: Limits) -> int:
    """Return the most partial results of a token that a step has, with or without drafts."""
    drafted = with_drafts(work, limits)
    sizes = ((work, limits.max_tokens, limits.max_rows), (drafted, drafted.max_tokens, drafted.max_rows))
    return max(Capacity.of(*each).partials for each in sizes)
