"""Sessions: a conversation holds its last context between turns, so that other traffic does not evict it.

The holds are real but not absolute: when nothing else is left to evict, the session idle for longest lets go.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Context:
    """The blocks of a session's last turn, each held once, in the order of the tree."""

    blocks: tuple[int, ...]
    expires: float


class Sessions:
    """Which blocks are held by no request, only by a conversation. Only `KVCache` calls it."""

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._contexts: OrderedDict[str, Context] = OrderedDict()  # idle for longest first

    def __len__(self) -> int:
        return len(self._contexts)

    def put(self, session: str, blocks: tuple[int, ...], now: float) -> tuple[int, ...]:
        """The session holds these blocks from now on; answers those it held before, to be released."""
        before = self._contexts.pop(session, None)
        self._contexts[session] = Context(blocks, now + self._ttl)
        return before.blocks if before else ()

    def drop(self, session: str) -> tuple[int, ...]:
        """End a session; answers what it held."""
        context = self._contexts.pop(session, None)
        return context.blocks if context else ()

    def drop_oldest(self) -> tuple[int, ...] | None:
        """End the session idle for longest; None if there is none."""
        return self._contexts.popitem(last=False)[1].blocks if self._contexts else None

    def drop_expired(self, now: float) -> list[tuple[int, ...]]:
        """End the sessions idle for too long; answers what they held."""
        dropped = []
        while self._contexts and next(iter(self._contexts.values())).expires <= now:
            dropped.append(self._contexts.popitem(last=False)[1].blocks)
        return dropped

    def held(self) -> list[int]:
        """Every hold of every session."""
        return [block for context in self._contexts.values() for block in context.blocks]
