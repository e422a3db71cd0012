"""The index against naive models: under gaps, duplicates, reordering, restarts and clears."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.cache.kv_cache import KVCache
from quire.engine.event_pages import EventPages
from quire.engine.messages import ReadEvents
from quire.gateway.index.lines import ClearedEvent, EventLine, RemovedEvent, StoredEvent, decode_line
from quire.gateway.index.prefix_index import BadEvents, Position, PrefixIndex
from quire.serve.admin.fleet import event_line
from quire.types.digests import block_digest, root_digest
from quire.types.request import CacheKey
from tests.cache.serving import KEY, serve, tokens

pytestmark = pytest.mark.pure

BLOCK = 4
Event = StoredEvent | RemovedEvent | ClearedEvent


class Engine:
    """A real cache and its stream of events, over a channel that loses, repeats and swaps lines."""

    def __init__(self, index: PrefixIndex, name: str) -> None:
        self.index, self.name = index, name
        self.channel: list[EventLine] = []
        self.restart()

    def restart(self) -> None:
        self.cache = KVCache(8, block_tokens=BLOCK)
        self.pages = EventPages(self.cache)
        self.sent = (self.pages.epoch, 0)
        self.channel.clear()

    def read(self, question: ReadEvents) -> EventLine:
        return decode_line(event_line(self.pages.read(question), BLOCK))

    def publish(self) -> None:
        """Put the events since the last time on the channel."""
        line = self.read(ReadEvents(*self.sent))
        self.sent = (line.epoch, line.last)
        self.channel.append(line)

    def deliver(self) -> None:
        """Apply what is on the channel; at a gap read from the engine, as a gateway does."""
        lines, self.channel = self.channel, []
        for line in lines:
            if not self.index.apply(self.name, line):
                self.catch_up()

    def catch_up(self) -> None:
        position = self.index.position(self.name) or Position("", 0)
        line = self.read(ReadEvents(*position))
        while not self.index.apply(self.name, line):
            line = self.read(ReadEvents())
        while line.part is not None and line.part[0] < line.part[1]:
            line = self.read(ReadEvents(line.epoch, line.last, line.part[0]))
            assert self.index.apply(self.name, line)


ACTIONS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["serve"] * 5 + ["deliver"] * 3 + ["drop", "repeat", "swap", "restart", "clear", "remove"]),
        st.lists(st.integers(0, 2), min_size=1, max_size=14),
    ),
    max_size=40,
)


@settings(max_examples=120, deadline=None)
@given(ACTIONS, st.lists(st.integers(0, 2), min_size=1, max_size=16))
def test_the_index_equals_the_engines_trees_whatever_happens_to_the_events(actions, asked):
    index = PrefixIndex()
    engines = [Engine(index, f"r{n}") for n in range(3)]
    for number, action, prompt in actions:
        engine = engines[number]
        match action:
            case "serve":
                serve(engine.cache, tokens(*prompt))
                engine.publish()
            case "deliver":
                engine.deliver()
            case "drop":
                engine.channel = engine.channel[1:]
            case "repeat":
                engine.channel += engine.channel[-2:]
            case "swap":
                engine.channel.reverse()
            case "restart":
                engine.restart()
            case "clear":
                engine.cache.clear(0.0)
                engine.publish()
            case "remove":
                index.remove(engine.name)
    for engine in engines:
        engine.deliver()
        engine.catch_up()
    for prompt in (asked, *(prompt for _, _, prompt in actions)):
        expected = {each.name: each.cache.match(tokens(*prompt), KEY).num_tokens for each in engines}
        assert index.lookup(tokens(*prompt), KEY) == {name: hit for name, hit in expected.items() if hit}
    while not index.sweep(3):
        pass
    digests = {event.digest for engine in engines for event in engine.cache.snapshot()}
    assert index.num_entries == len(digests)
    assert [index.num_blocks(each.name) for each in engines] == [len(each.cache.snapshot()) for each in engines]


def stored(path: list[int], key: CacheKey = KEY) -> list[Event]:
    """The events that store a path."""
    parent, events = root_digest(key), []
    for start in range(0, len(path), BLOCK):
        chunk = path[start : start + BLOCK]
        digest = block_digest(parent, array("I", chunk).tobytes())
        events.append(StoredEvent(digest.hex(), parent.hex(), tuple(chunk)))
        parent = digest
    return list(events)


def snapshot(events: list[Event], part: tuple[int, int] = (1, 1), last: int = 5) -> EventLine:
    return EventLine(epoch="e", after=last, last=last, block_tokens=BLOCK, part=part, events=events)


def line(after: int, last: int, events: list[Event], epoch: str = "e") -> EventLine:
    return EventLine(epoch=epoch, after=after, last=last, block_tokens=BLOCK, events=events)


PATH = list(range(10))  # two blocks and a half


def test_a_prefix_on_many_replicas_is_one_entry_for_each_block():
    index = PrefixIndex()
    for number in range(100):
        assert index.apply(f"r{number}", snapshot(stored(PATH)))
    assert index.num_entries == 3
    assert index.lookup(array("I", [*PATH, 77]), KEY) == {f"r{n}": 10 for n in range(100)}


def test_hits_are_exact_to_the_token():
    index = PrefixIndex()
    index.apply("long", snapshot(stored(PATH)))
    index.apply("short", snapshot(stored(PATH[:9])))
    index.apply("other", snapshot(stored([*PATH[:6], 99, 99])))
    assert index.lookup(array("I", [*PATH, 7, 7]), KEY) == {"long": 10, "short": 9, "other": 6}
    assert index.lookup(array("I", [*PATH[:9], 7]), KEY) == {"long": 9, "short": 9, "other": 6}
    assert index.lookup(array("I", [*PATH[:7], 77]), KEY) == {"long": 7, "short": 7, "other": 6}
    assert index.lookup(array("I", PATH[:2]), KEY) == {"long": 2, "short": 2, "other": 2}


def test_keys_do_not_see_each_other():
    index = PrefixIndex()
    index.apply("r", snapshot(stored(PATH, CacheKey(salt="a"))))
    assert index.lookup(array("I", PATH), KEY) == {}
    assert index.lookup(array("I", PATH), CacheKey(salt="a")) == {"r": 10}


def test_a_gap_another_epoch_and_an_unfinished_snapshot_ask_for_a_snapshot():
    index = PrefixIndex()
    assert not index.apply("r", line(0, 1, []))
    assert index.apply("r", snapshot(stored(PATH)))
    assert index.position("r") == Position("e", 5)
    assert not index.apply("r", line(6, 7, []))
    assert not index.apply("r", line(5, 6, [], epoch="f"))
    assert index.apply("r", line(3, 4, [ClearedEvent()]))  # seen before
    assert index.lookup(array("I", PATH), KEY) == {"r": 10}
    assert index.apply("r", snapshot(stored(PATH[:4]), part=(1, 2), last=9))
    assert index.position("r") is None
    assert not index.apply("r", line(9, 10, []))
    assert not index.apply("r", snapshot([], part=(3, 3), last=9))
    assert index.apply("r", snapshot(stored(PATH)[1:], part=(2, 2), last=9))
    assert index.position("r") == Position("e", 9)
    assert index.lookup(array("I", PATH), KEY) == {"r": 10}


def test_a_replica_whose_digests_are_not_those_of_its_tokens_is_forgotten():
    index = PrefixIndex()
    index.apply("honest", snapshot(stored(PATH)))
    index.apply("liar", snapshot(stored(PATH)))
    true = stored(list(range(20, 24)))[0]
    assert isinstance(true, StoredEvent)
    with pytest.raises(BadEvents, match="is not the one of its tokens"):
        index.apply("liar", line(5, 6, [StoredEvent(true.digest, true.parent, (1, 2, 3, 4))]))
    assert index.lookup(array("I", PATH), KEY) == {"honest": 10}
    assert index.position("liar") is None


@pytest.mark.parametrize(
    "bad",
    [
        StoredEvent("zz", "00" * 16, (1,)),
        StoredEvent("00" * 16, "00" * 16, ()),
        StoredEvent("00" * 16, "00" * 16, (1, 2, 3, 4, 5)),
        StoredEvent("00" * 16, "00" * 16, (2**32,)),
        StoredEvent("00" * 16, "00", (1,)),
        RemovedEvent("not hexadecimal"),
    ],
)
def test_malformed_events_are_refused_and_leave_no_blocks(bad):
    index = PrefixIndex()
    with pytest.raises(BadEvents):
        index.apply("r", snapshot([*stored(PATH), bad]))
    assert index.lookup(array("I", PATH), KEY) == {} and index.num_blocks("r") == 0


def test_a_replica_cannot_claim_more_blocks_than_the_limit():
    index = PrefixIndex(max_blocks=2)
    with pytest.raises(BadEvents, match="3 blocks; 2 is the limit"):
        index.apply("r", snapshot(stored(PATH)))


def test_a_replica_that_does_not_keep_its_promises_loses_its_claims():
    index = PrefixIndex()
    path = list(range(400))
    for name in ("honest", "liar"):
        index.apply(name, snapshot(stored(path)))
    for _ in range(20):
        index.observe("honest", 400, 390)
        index.observe("liar", 400, 0)
    assert index.lookup(array("I", path), KEY) == {"honest": 400}
    assert index.trust("honest") == 1.0 and index.trust("liar") == 0.0
    index.apply("liar", snapshot(stored(path)))  # a snapshot does not restore the trust
    assert index.lookup(array("I", path), KEY) == {"honest": 400}


def test_a_prompt_on_its_way_counts_for_a_while():
    index = PrefixIndex()
    index.apply("r", snapshot([]))
    prompt = array("I", range(10))
    index.expect("r", prompt, KEY, now=100.0)
    assert index.lookup(prompt, KEY, now=100.0) == {"r": 8}
    assert index.lookup(prompt, KEY, now=109.0) == {"r": 8}
    assert index.lookup(prompt, KEY, now=130.0) == {}


def test_removed_replicas_are_swept_up_and_their_bits_used_again():
    index = PrefixIndex()
    for turn in range(50):
        index.apply("r", snapshot(stored([turn, *PATH[1:]])))
        index.apply("s", snapshot(stored(PATH)))
    index.remove("r")
    while not index.sweep(2):
        pass
    assert index.num_entries == 3
    assert index.lookup(array("I", PATH), KEY) == {"s": 10}
    assert max(index._masks.values()).bit_length() < 16


def test_replicas_with_other_block_sizes_are_found_together():
    index = PrefixIndex()
    index.apply("four", snapshot(stored(list(range(16)))))
    root = root_digest(KEY)
    digest = block_digest(root, array("I", range(8)).tobytes())
    event = StoredEvent(digest.hex(), root.hex(), tuple(range(8)))
    index.apply("eight", EventLine(epoch="x", after=1, last=1, block_tokens=8, part=(1, 1), events=[event]))
    assert index.lookup(array("I", range(16)), KEY) == {"four": 16, "eight": 8}
    index.remove("eight")
    assert index.block_sizes == {4: 1}
