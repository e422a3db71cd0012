"""Changing the number of KV blocks in use while requests run."""

from __future__ import annotations

from quire.cache.blocks import BlockPool
from quire.cache.sessions import Sessions


class Resizing:
    """Grows the cache at once and shrinks it as blocks are released. Held blocks are never taken."""

    def __init__(self, pool: BlockPool, sessions: Sessions) -> None:
        self._pool = pool
        self._sessions = sessions

    def start(self, num_blocks: int, now: float) -> None:
        """Change how many blocks may be in use, up to the pool's size, and retire those that are not held."""
        self._pool.resize(min(num_blocks, self._pool.most_blocks))
        self.advance(now)

    def advance(self, now: float) -> bool:
        """Retire more blocks if a shrink is unfinished, closing idle sessions. Return whether any was retired."""
        if not self._pool.num_to_retire:
            return False
        self._sessions.reclaim(0, now)
        return bool(self._pool.retire(now))

    def retired_blocks(self) -> list[int]:
        """Return the blocks that stay unused until the cache grows, ascending: their memory can be given back."""
        return self._pool.retired
