"""The cache's figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """Blocks of all window groups by state, and state slots: all zero for a model without them."""

    num_window_blocks: int = 0
    num_held_window_blocks: int = 0
    num_cached_window_blocks: int = 0
    num_states: int = 0
    num_held_states: int = 0
    num_checkpoints: int = 0  # states in the tree


NO_COLUMNS = ColumnStats()


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
    columns: ColumnStats = NO_COLUMNS
