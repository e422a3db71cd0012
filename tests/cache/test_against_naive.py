"""Any sequence of operations leaves the cache and the naive cache with the same blocks, hits and failures."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from quire.cache.kv_cache import Hit, KVCache, Lease
from quire.cache.radix import NO_BLOCK, root_of
from quire.types.events import ROOT
from quire.types.request import CacheKey, Pin
from tests.cache.naive import NaiveCache, NaiveLease, Path

pytestmark = pytest.mark.pure

# Two tokens and two keys: nearly all prompts share prefixes.
prompts = st.lists(st.integers(1, 2), min_size=1, max_size=14).map(tuple)
keys = st.sampled_from([CacheKey(salt="a"), CacheKey(salt="b")])
ttls = st.none() | st.sampled_from([1.0, 5.0])
pins = st.builds(
    lambda at, size, rank, ttl: Pin(at, at + size, rank, ttl),
    st.integers(0, 6),
    st.integers(1, 8),
    st.integers(1, 3),
    ttls,
)
sessions = st.none() | st.sampled_from(["s", "t"])


class Request:
    def __init__(self, tokens: tuple[int, ...], lease: Lease, naive: NaiveLease, computed: int) -> None:
        self.tokens, self.lease, self.naive, self.computed = tokens, lease, naive, computed

    def array(self) -> array[int]:
        return array("I", self.tokens)


class CacheAgainstNaive(RuleBasedStateMachine):
    requests = Bundle("requests")

    @initialize(num_blocks=st.integers(2, 12), block_tokens=st.sampled_from([1, 2, 4]))
    def start(self, num_blocks: int, block_tokens: int) -> None:
        self.cache = KVCache(num_blocks, block_tokens)
        self.naive = NaiveCache(num_blocks, block_tokens, most_blocks=num_blocks)
        self.hits: dict[tuple[tuple[int, ...], CacheKey], Hit] = {}  # the last hit of each prompt
        self.now = 0.0

    def paths(self) -> dict[int, Path]:
        """Return block -> all tokens up to its end, rebuilt from a snapshot as a router does."""
        by_node: dict[int, Path] = {}
        by_block: dict[int, Path] = {}
        for event in self.cache.snapshot():
            before = by_node[event.parent][1] if event.parent != ROOT else ()
            by_node[event.node] = by_block[event.block] = (event.key, before + event.tokens)
        return by_block

    @rule(target=requests, prompt=prompts, key=keys, pins=st.lists(pins, max_size=2).map(tuple))
    def begin(self, prompt: tuple[int, ...], key: CacheKey, pins: tuple[Pin, ...]) -> Request:
        hit = self.cache.match(array("I", prompt), key, len(prompt) - 1, self.hits.get((prompt, key)))
        self.hits[prompt, key] = hit
        assert hit.num_tokens == self.naive.longest(prompt[:-1], key)
        paths = self.paths()
        source = paths[hit.source] if hit.source != NO_BLOCK else None
        assert source is None or source[1][: hit.num_tokens] == prompt[: hit.num_tokens]
        lease = self.cache.lease(hit, array("I", prompt), key, self.now, pins)
        naive = self.naive.lease([paths[block] for block in hit.blocks], source, key, pins, self.now)
        assert (lease.copy is None) == (naive.source is None)
        request = Request(prompt, lease, naive, lease.num_hit)
        self.grow(request, [])
        return request

    @rule(prompt=prompts, key=keys, session=sessions, pins=st.lists(pins, max_size=1).map(tuple))
    def serve(self, prompt: tuple[int, ...], key: CacheKey, session: str | None, pins: tuple[Pin, ...]) -> None:
        """Run a whole request at once, so that the tree fills up."""
        request = self.begin(prompt, key, pins)
        self.compute(request, len(prompt))
        self.release(request, session)

    @rule(request=requests, more=st.lists(st.integers(1, 2), max_size=6))
    def grow(self, request: Request, more: list[int]) -> None:
        tokens = request.tokens + tuple(more)
        fits = self.cache.extend(request.lease, len(tokens), self.now)
        assert fits == self.naive.extend(request.naive, len(tokens), self.now)
        if fits:
            request.tokens = tokens

    @rule(request=requests, count=st.integers(0, 9))
    def compute(self, request: Request, count: int) -> None:
        room = len(request.lease.blocks) * self.cache.block_tokens
        request.computed = max(request.computed, min(request.computed + count, len(request.tokens), room))
        self.cache.seal(request.lease, request.array(), request.computed, self.now)
        self.naive.seal(request.naive, request.tokens, request.computed, self.now)

    @rule(target=requests, request=requests, share=st.floats(0, 1))
    def fork(self, request: Request, share: float) -> object:
        self.compute(request, 0)
        shared = int(request.computed * share)
        lease = self.cache.fork(request.lease, shared, self.now)
        naive = self.naive.fork(request.naive, shared, self.now)
        assert (lease is None) == (naive is None)
        if lease is None or naive is None:
            return multiple()
        return Request(request.tokens[:shared], lease, naive, shared)

    @rule(request=consumes(requests), session=sessions)
    def release(self, request: Request, session: str | None) -> None:
        self.cache.release(request.lease, request.array(), request.computed, self.now, session)
        self.naive.finish(request.naive, request.tokens, request.computed, self.now, session)

    @rule(prompt=prompts, key=keys, pin=pins)
    def pin(self, prompt: tuple[int, ...], key: CacheKey, pin: Pin) -> None:
        match = self.cache._tree.match(array("I", prompt).tobytes(), root_of(key))
        paths = self.paths()
        blocks = [self.naive.nodes[paths[b]] for b in match.all_blocks]
        num_pinned = self.cache.pins.add(array("I", prompt), key, pin, self.now)
        assert num_pinned == max(0, min(pin.end, self.naive.longest(prompt, key)) - pin.start)
        self.naive.pin_range((pin,), blocks, self.now)

    @rule(prompt=prompts, key=keys)
    def unpin(self, prompt: tuple[int, ...], key: CacheKey) -> None:
        match = self.cache._tree.match(array("I", prompt).tobytes(), root_of(key))
        paths = self.paths()
        blocks = [self.naive.nodes[paths[b]] for b in match.all_blocks]
        pinned = [block for block in blocks if block.rank > 1]
        assert self.cache.pins.remove(array("I", prompt), key, self.now) == len(pinned)
        for block in pinned:
            self.naive.pin(block, 0, None, self.now)

    @rule(session=st.sampled_from(["s", "t"]))
    def close(self, session: str) -> None:
        held = self.naive.sessions.pop(session, [])
        assert self.cache.sessions.close(session, self.now) == len(held)
        self.naive.release(held, self.now)

    @rule(seconds=st.sampled_from([0.5, 2.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(num_blocks=st.integers(1, 12))
    def resize(self, num_blocks: int) -> None:
        num_blocks = min(num_blocks, self.cache.most_blocks)
        self.cache.resizing.start(num_blocks, self.now)
        self.naive.resize(num_blocks, self.now)
        self.check_retired()

    @rule()
    def advance_resizing(self) -> None:
        """Continue a shrink, as an engine does before every step."""
        self.cache.resizing.advance(self.now)
        self.naive.retire(self.now)
        self.check_retired()

    def check_retired(self) -> None:
        """All due blocks are retired, or all that are not held."""
        assert len(self.cache.resizing.retired_blocks()) == self.naive.num_retired
        stats, num_to_retire = (
            self.cache.stats(),
            self.cache.most_blocks - self.cache.num_blocks - self.naive.num_retired,
        )
        assert not num_to_retire or (stats.num_free, stats.num_cached, stats.num_sessions) == (0, 0, 0)

    @precondition(
        lambda self: len(getattr(self, "naive", NaiveCache(0, 1)).nodes) > 4
    )  # else clearing would keep the tree small
    @rule()
    def clear(self) -> None:
        self.cache.clear(self.now)
        self.naive.clear(self.now)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        assert set(self.paths().values()) == set(self.naive.nodes)
        assert self.cache.stats().num_free == self.naive.num_free()


TestCacheAgainstNaive = CacheAgainstNaive.TestCase
TestCacheAgainstNaive.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
TestCacheAgainstNaive.pytestmark = [pytest.mark.pure, pytest.mark.timeout(600)]


class LongerCacheAgainstNaive(CacheAgainstNaive):
    pass


TestCacheAgainstNaiveAtLength = LongerCacheAgainstNaive.TestCase
TestCacheAgainstNaiveAtLength.settings = settings(max_examples=20_000, stateful_step_count=60, deadline=None)
TestCacheAgainstNaiveAtLength.pytestmark = [pytest.mark.pure, pytest.mark.slow, pytest.mark.timeout(3600)]
