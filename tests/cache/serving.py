"""Requests driven through the cache, as the scheduler does it."""

from __future__ import annotations

from array import array

from quire.cache.kv_cache import KVCache, Lease
from quire.types.request import CacheKey, Pin

KEY = CacheKey()


def make_cache(num_blocks: int = 8) -> KVCache:
    return KVCache(num_blocks, block_tokens=4)


def tokens(*ids: int) -> array[int]:
    return array("I", ids)


def begin(
    cache: KVCache, prompt: array[int], now: float = 0.0, key: CacheKey = KEY, pins: tuple[Pin, ...] = ()
) -> Lease:
    """Lease a prompt's cached prefix and extend it to the whole prompt."""
    lease = cache.lease(cache.match(prompt, key, len(prompt) - 1), prompt, key, now, pins)
    assert cache.extend(lease, len(prompt), now)
    return lease


def serve(
    cache: KVCache,
    prompt: array[int],
    now: float = 0.0,
    key: CacheKey = KEY,
    pins: tuple[Pin, ...] = (),
    session: str | None = None,
) -> Lease:
    """Run a whole request: compute its prompt and release it."""
    lease = begin(cache, prompt, now, key, pins)
    cache.release(lease, prompt, len(prompt), now, session)
    cache.check()
    return lease


def cached(cache: KVCache, prompt: array[int], key: CacheKey = KEY) -> int:
    return cache.match(prompt, key).num_tokens
