"""Events from which a router rebuilds the tree."""

from __future__ import annotations

import pytest

from quire.cache.history import MAX_EVENTS
from quire.types.events import ROOT, BlockRemoved, BlockStored, CacheCleared, CacheEvent
from tests.cache.serving import make_cache, serve, tokens

pytestmark = pytest.mark.pure


def rebuild(tree: dict[int, tuple[int, tuple[int, ...]]], events: list[CacheEvent]) -> None:
    """Apply events to a copy of the tree, as a router does."""
    for event in events:
        match event:
            case BlockStored(node=node, parent=parent, tokens=stored):
                assert parent == ROOT or parent in tree
                tree[node] = (parent, stored)
            case BlockRemoved(node=node):
                del tree[node]
            case CacheCleared():
                tree.clear()


def test_events_and_snapshots_both_rebuild_the_tree():
    cache = make_cache(num_blocks=4)
    tree: dict[int, tuple[int, tuple[int, ...]]] = {}
    seen = 0
    for turn in range(40):
        serve(cache, tokens(turn % 3, 1, 2, 3, turn % 5, 1))
        events = cache.history.since(seen)
        assert events is not None and [event.sequence for event in events] == list(
            range(seen + 1, cache.history.sequence + 1)
        )
        rebuild(tree, events)
        seen = cache.history.sequence
        snapshot: dict[int, tuple[int, tuple[int, ...]]] = {}
        rebuild(snapshot, list(cache.snapshot()))
        assert tree == snapshot
    cache.clear(0.0)
    rebuild(tree, cache.history.since(seen) or [])
    assert tree == {} and cache.snapshot() == []


def test_events_beyond_the_history_are_reported_as_dropped():
    cache = make_cache()
    for turn in range(MAX_EVENTS):
        serve(cache, tokens(turn, turn, turn, turn))
    assert cache.history.since(0) is None
    assert cache.history.since(cache.history.sequence) == []
    assert cache.history.since(cache.history.sequence + 1) is None
