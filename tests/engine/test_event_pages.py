"""Pages of cache events."""

from __future__ import annotations

import pytest

from quire.cache.kv_cache import KVCache
from quire.engine import event_pages
from quire.engine.event_pages import MAX_SNAPSHOTS, EventPages
from quire.engine.messages import CacheEvents, ReadEvents
from quire.engine.wire import decode, encode
from tests.cache.serving import serve, tokens

pytestmark = pytest.mark.pure


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> EventPages:
    monkeypatch.setattr(event_pages, "PAGE_EVENTS", 3)
    return EventPages(KVCache(64, block_tokens=4))


def fill(pages: EventPages, num_prompts: int, first: int = 0) -> None:
    for turn in range(first, first + num_prompts):
        serve(pages._cache, tokens(turn, 1, 2, 3, 4, 5))


def rest_of(pages: EventPages, page: CacheEvents) -> list[CacheEvents]:
    found = [page]
    while page.part is not None and page.part[0] < page.part[1]:
        page = pages.read(ReadEvents(page.epoch, page.last, page.part[0]))
        found.append(page)
    return found


def test_a_snapshot_comes_in_parts_and_stays_the_same_while_the_cache_changes(pages):
    fill(pages, 4)
    page = pages.read(ReadEvents())
    assert page.part == (1, 3)
    fill(pages, 3, first=50)
    found = rest_of(pages, page)
    assert [each.part for each in found] == [(1, 3), (2, 3), (3, 3)]
    assert sum(len(each.events) for each in found) == 8 and {each.last for each in found} == {page.last}
    after = pages.read(ReadEvents(page.epoch, page.last))
    assert after.part is None and after.after == page.last and len(after.events) == 3


def test_events_come_in_pages_too(pages):
    fill(pages, 5)
    position, kinds = 0, []
    while (page := pages.read(ReadEvents(pages.epoch, position))).events:
        assert (page.after, page.last - page.after) == (position, len(page.events))
        kinds += [event[0] for event in page.events]
        position = page.last
    assert kinds == ["stored"] * 10


def test_another_epoch_and_a_forgotten_snapshot_begin_with_a_snapshot(pages):
    fill(pages, 4)
    assert pages.read(ReadEvents("another", 2)).part == (1, 3)
    first = pages.read(ReadEvents())
    for turn in range(MAX_SNAPSHOTS):
        fill(pages, 1, first=100 + turn)
        pages.read(ReadEvents())
    again = pages.read(ReadEvents(first.epoch, first.last, 1))
    assert again.part is not None and again.part[0] == 1 and again.last > first.last


def test_pages_survive_the_socket(pages):
    fill(pages, 2)
    page = pages.read(ReadEvents())
    assert decode(encode([page, ReadEvents("e", 3, 1)])) == [page, ReadEvents("e", 3, 1)]
