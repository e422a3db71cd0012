"""The cache's figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowStats:
    """Blocks of one window group by state."""

    window: int
    num_free: int
    num_held: int
    num_cached: int

    @property
    def num_blocks(self) -> int:
        """All of them."""
        return self.num_free + self.num_held + self.num_cached


@dataclass(frozen=True, slots=True)
class StateStats:
    """State slots: free, of running requests, or in the tree."""

    num_states: int = 0
    num_free: int = 0
    num_held: int = 0
    num_checkpoints: int = 0


NO_STATES = StateStats()


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
    windows: tuple[WindowStats, ...] = ()
    states: StateStats = NO_STATES
