"""Steps in which every row continues its text by one token or a few: drafts, forced tokens, or tokens that are computed
again after a state went back. They are captured like those that decode.

Attention of a row's tokens is planned TOGETHER, so that a key is read once for several of them; or SINGLY, an item for
each token, as the kernel for few rows computes them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quire.devices._triton.attention_work import MIN_SHARED, WorkLimits
from quire.devices.base import Limits
from quire.ops.batch import Batch

TOGETHER, SINGLY = "together", "singly"
MAX_TOKENS = 256  # of a step
ROW_TOKENS = 8  # of a row


def max_tokens(limits: Limits) -> int:
    """Return the most tokens of a step with drafts."""
    return min(MAX_TOKENS, limits.max_tokens, limits.max_logits)


def with_drafts(work: WorkLimits, limits: Limits) -> WorkLimits:
    """Return how attention of the largest step with drafts is split."""
    most = max_tokens(limits)
    return replace(work, max_tokens=most, max_rows=min(most, limits.max_rows), split_tokens=ROW_TOKENS)


def continues_all(batch: Batch, most: int) -> bool:
    """Return whether every row continues its text by a few tokens, one of them by more than one; in all at most `most`,
    for which the buffers have room. No text begins."""
    num_tokens, num_rows = len(batch.token_ids), len(batch.lengths)
    if not num_rows < num_tokens <= most or not len(batch.logits_at):
        return False
    counts = batch.starts[1:] - batch.starts[:-1]
    return int(counts.max()) <= ROW_TOKENS and int(batch.positions[batch.starts[:-1]].min()) > 0


def are_separate(batch: Batch, block_tokens: int) -> bool:
    """Return whether no row reads what another one writes in this step, and sharing their keys would save little."""
    num_rows, num_blocks = batch.block_tables.shape
    if num_rows == 1:
        return True
    if len(batch.groups) and len(batch.groups) * int(batch.groups[:, 2].max()) * block_tokens >= MIN_SHARED:
        return False
    is_read = np.arange(num_blocks) * block_tokens < batch.lengths[:, None]
    written = (batch.slots // block_tokens)[:, None, None]
    found = ((batch.block_tables == written) & is_read).any(-1)  # [T, R]
    return int(found.sum()) == len(batch.slots)  # each in the table of its own row alone
