"""The cache's figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Blocks by state, and prefix hits since the start."""

    num_blocks: int
    num_free: int
    num_held: int
    num_cached: int
    num_sessions: int
    queried_tokens: int
    hit_tokens: int
    sequence: int  # of the newest event
