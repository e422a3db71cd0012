"""The load of an engine, as gateways read it."""

from __future__ import annotations

from dataclasses import asdict

from quire.cache.kv_cache import KVCache
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.whole_texts import WholeTextScheduler
from quire.types.load import LoadReport


def load_report(
    epoch: str, scheduler: Scheduler | WholeTextScheduler, cache: KVCache, computed_tokens: int
) -> LoadReport:
    """Return the queue, the measured pace and the blocks of an engine."""
    blocks = cache.stats()
    return LoadReport(
        epoch=epoch,
        sequence=blocks.sequence,
        **asdict(scheduler.load()),
        block_tokens=cache.block_tokens,
        num_blocks=blocks.num_blocks,
        num_free_blocks=blocks.num_free,
        num_held_blocks=blocks.num_held,
        computed_tokens=computed_tokens,
        hit_tokens=blocks.hit_tokens,
        queried_tokens=blocks.queried_tokens,
    )
