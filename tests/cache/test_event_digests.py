"""Digests in the events of a cache: those of its tokens, whoever reads when."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.cache.history import MAX_EVENTS
from quire.types.digests import block_digest, root_digest
from quire.types.events import ROOT, BlockRemoved, BlockStored, CacheCleared, CacheEvent
from quire.types.request import CacheKey
from tests.cache.serving import make_cache, serve, tokens

pytestmark = pytest.mark.pure


ACTIONS = st.sampled_from(["serve", "read", "clear", "snapshot"])


class Mirror:
    """A reader that checks every digest against the tokens, and names nodes by digests alone."""

    def __init__(self) -> None:
        self.digests: dict[int, bytes] = {}
        self.seen = 0

    def apply(self, events: list[CacheEvent]) -> None:
        for event in events:
            match event:
                case BlockStored(group=0):
                    parent = root_digest(event.key) if event.parent == ROOT else self.digests[event.parent]
                    assert event.parent_digest == parent
                    assert event.digest == block_digest(parent, array("I", event.tokens).tobytes())
                    self.digests[event.node] = event.digest
                case BlockRemoved(group=0):
                    assert self.digests.pop(event.node) == event.digest
                case CacheCleared():
                    self.digests.clear()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), ACTIONS)))
def test_every_reader_sees_the_digests_of_the_present_tree(actions):
    cache = make_cache(num_blocks=6)
    often, rarely = Mirror(), Mirror()
    for first, second, action in actions:
        serve(cache, tokens(first, 1, 2, 3, second, 1, first))
        if action == "clear":
            cache.clear(0.0)
        for reader in (often, rarely) if action in ("read", "snapshot") else (often,):
            if action == "snapshot" and reader is rarely:
                fresh = Mirror()
                fresh.apply(cache.snapshot())
                reader.digests = fresh.digests
            else:
                reader.apply(cache.history.since(reader.seen) or [])
            reader.seen = cache.history.sequence
    whole = Mirror()
    whole.apply(cache.snapshot())
    often.apply(cache.history.since(often.seen) or [])
    assert often.digests == whole.digests


def test_after_events_were_dropped_unread_a_snapshot_computes_the_digests_again():
    cache = make_cache()
    for turn in range(MAX_EVENTS):
        serve(cache, tokens(turn, turn, turn, turn))
    assert cache.history.since(1) is None
    reader = Mirror()
    reader.apply(cache.snapshot())
    reader.seen = cache.history.sequence
    serve(cache, tokens(*range(12)))
    reader.apply(cache.history.since(reader.seen) or [])
    fresh = Mirror()
    fresh.apply(cache.snapshot())
    assert reader.digests == fresh.digests and fresh.digests


def test_equal_prompts_of_other_caches_and_keys_have_equal_and_other_digests():
    found = []
    for salt in ("", "", "tenant"):
        cache = make_cache()
        serve(cache, tokens(1, 2, 3, 4, 5, 6, 7, 8), key=CacheKey(salt=salt))
        found.append({event.digest for event in cache.snapshot() if isinstance(event, BlockStored)})
    assert found[0] == found[1] and not found[0] & found[2]
