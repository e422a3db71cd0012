"""What the cache tells of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Blocks by state, and what was asked of the tree since the start."""

    num_blocks: int
    num_free: int
    num_held: int
    num_cached: int
    num_sessions: int
    queried_tokens: int
    hit_tokens: int
    sequence: int  # of the newest event
