"""vLLM's cache events in both published forms: arrays, and maps."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest

from quire.gateway.index.prefix_index import BadEvents, PrefixIndex
from quire.gateway.index.vllm import VllmEvents
from quire.types.request import CacheKey

pytestmark = pytest.mark.pure

SIZE = 4
PROMPT = array("I", range(100, 112))


def stored_array(hashes: list[Any], parent: Any, tokens: list[int], lora: int | None = None) -> list[Any]:
    return ["BlockStored", hashes, parent, tokens, SIZE, lora, "GPU"]


def stored_map(hashes: list[Any], parent: Any, tokens: list[int], **more: Any) -> dict[str, Any]:
    fields = {"block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens, "block_size": SIZE}
    return {"type": "BlockStored", **fields, "lora_id": None, "medium": "GPU", "lora_name": None, **more}


def batch(*events: Any, as_map: bool = False) -> bytes:
    return msgspec.msgpack.encode({"ts": 1.0, "events": events} if as_map else [1.0, events, 0])


def started(first: int = 0) -> tuple[PrefixIndex, VllmEvents]:
    index, events = PrefixIndex(), VllmEvents(SIZE)
    assert index.apply("v", events.begin(first))
    return index, events


@pytest.mark.parametrize("as_map", [False, True])
@pytest.mark.parametrize("kind", [int, lambda n: bytes([n] * 32)])
def test_stored_removed_and_cleared_blocks(as_map, kind):
    index, events = started()
    stored = stored_map if as_map else stored_array
    first = stored([kind(1), kind(2)], None, list(PROMPT[:8]))
    assert index.apply("v", events.convert(0, batch(first, as_map=as_map)))
    assert index.lookup(PROMPT, CacheKey()) == {"v": 8}
    assert index.apply("v", events.convert(1, batch(stored([kind(3)], kind(2), list(PROMPT[8:])), as_map=as_map)))
    assert index.lookup(PROMPT, CacheKey()) == {"v": 12}
    removed = {"type": "BlockRemoved", "block_hashes": [kind(3)]} if as_map else ["BlockRemoved", [kind(3)]]
    assert index.apply("v", events.convert(2, batch(removed, as_map=as_map)))
    assert index.lookup(PROMPT, CacheKey()) == {"v": 8}
    cleared = {"type": "AllBlocksCleared"} if as_map else ["AllBlocksCleared"]
    assert index.apply("v", events.convert(3, batch(cleared, as_map=as_map)))
    assert index.lookup(PROMPT, CacheKey()) == {}


def test_blocks_after_unknown_ones_are_not_counted():
    index, events = started(first=7)
    assert index.apply("v", events.convert(7, batch(stored_array([3], 2, list(PROMPT[8:])))))
    assert index.lookup(PROMPT, CacheKey()) == {} and index.num_blocks("v") == 0


def test_a_missing_message_is_a_gap_and_begins_again_with_nothing():
    index, events = started()
    assert index.apply("v", events.convert(0, batch(stored_array([1], None, list(PROMPT[:4])))))
    assert not index.apply("v", events.convert(2, batch()))
    assert index.apply("v", events.begin(2))
    assert index.lookup(PROMPT, CacheKey()) == {}
    assert index.apply("v", events.convert(2, batch(stored_array([1], None, list(PROMPT[:4])))))
    assert index.lookup(PROMPT, CacheKey()) == {"v": 4}


def test_adapters_and_salts_are_part_of_the_key_and_images_are_left_out():
    index, events = started()
    adapter = stored_map([1], None, list(PROMPT[:4]), lora_name="a", extra_keys=[["a"]])
    salted = stored_map([2], None, list(PROMPT[:4]), extra_keys=[["tenant"]])
    image = stored_map([3, 4], None, list(range(8)), extra_keys=[None, [["image", 3]]])
    offloaded = stored_map([5], None, list(PROMPT[:4]), medium="CPU")
    assert index.apply("v", events.convert(0, batch(adapter, salted, image, offloaded)))
    assert index.lookup(PROMPT, CacheKey()) == {}
    assert index.lookup(PROMPT, CacheKey(adapter="a")) == {"v": 4}
    assert index.lookup(PROMPT, CacheKey(salt="tenant")) == {"v": 4}
    assert index.lookup(array("I", range(8)), CacheKey()) == {"v": 4}


@pytest.mark.parametrize(
    "payload",
    [
        b"\xc1",
        msgspec.msgpack.encode(3),
        batch(["BlockStored", [1], None, [1, 2, 3, 4], 8, None]),
        batch(["BlockStored", [1, 2], None, [1, 2, 3, 4], SIZE, None]),
        batch(["BlockStored", [1], None, [1, 2, 3, -4], SIZE, None]),
        batch({"type": "BlockStored"}),
        batch(7),
    ],
)
def test_what_is_not_a_batch_is_refused(payload):
    _, events = started()
    with pytest.raises(BadEvents):
        events.convert(0, payload)
