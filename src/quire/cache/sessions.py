"""Sessions: the last context of a conversation stays held between turns, so that other traffic does not evict it.

The holds are not absolute: when nothing else is left to evict, the session idle for longest is closed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from quire.cache.blocks import BlockPool
from quire.cache.columns import Columns, Held


@dataclass(frozen=True, slots=True)
class SessionContext:
    """The blocks of a session's last turn, each held once, parents first."""

    blocks: tuple[int, ...]
    expires: float
    columns: Held | None = None  # the window blocks and the state at its end


class Sessions:
    """Holds blocks for conversations without a running request."""

    def __init__(self, pool: BlockPool, ttl: float, columns: Columns | None) -> None:
        self._pool = pool
        self._columns = columns
        self._ttl = ttl
        self._contexts: OrderedDict[str, SessionContext] = OrderedDict()  # idle for longest first

    def __len__(self) -> int:
        return len(self._contexts)

    def hold(self, session: str, blocks: tuple[int, ...], now: float, columns: Held | None = None) -> None:
        """Hold these blocks for a session, instead of those of its last turn."""
        self._pool.hold(blocks, now)
        if self._columns is not None and columns is not None:
            self._columns.hold(columns, now)
        before = self._contexts.pop(session, None)
        self._contexts[session] = SessionContext(blocks, now + self._ttl, columns)
        if before is not None:
            self._release(before, now)

    def close(self, session: str, now: float) -> int:
        """End a session; return how many blocks it held."""
        context = self._contexts.pop(session, None)
        if context is None:
            return 0
        self._release(context, now)
        return len(context.blocks)

    def close_all(self, now: float) -> None:
        """End all sessions."""
        while self._contexts:
            self._close_oldest(now)

    def expire(self, now: float) -> None:
        """End the sessions that were idle for longer than their time to live."""
        while self._contexts and next(iter(self._contexts.values())).expires <= now:
            self._close_oldest(now)

    def reclaim(self, count: int, now: float, pool: BlockPool | None = None) -> bool:
        """End the longest idle sessions until `count` blocks are available. Return whether they are.

        Blocks that are cached and not held count as available: the pool evicts them on demand. `pool`: of another group
        than that of all tokens.
        """
        pool = pool or self._pool
        while pool.num_available < count:
            if not self._contexts:
                return False
            self._close_oldest(now)
        return True

    def held_blocks(self) -> list[int]:
        """Return every hold of every session."""
        return [block for context in self._contexts.values() for block in context.blocks]

    def held_columns(self) -> list[Held]:
        """Return every hold of every session on window blocks and states."""
        return [context.columns for context in self._contexts.values() if context.columns is not None]

    def _close_oldest(self, now: float) -> None:
        self._release(self._contexts.popitem(last=False)[1], now)

    def _release(self, context: SessionContext, now: float) -> None:
        self._pool.release(reversed(context.blocks), now)
        if self._columns is not None and context.columns is not None:
            self._columns.release(context.columns, now)
