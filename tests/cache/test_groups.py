"""Any sequence of operations on a cache with window groups and states hands out no wrong block or state.

A simulated memory notices a block or state of another text; a naive search over the cache's events finds the position
where a prompt must resume; `check` notices leaks and wrong holds.
"""

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

from quire.cache.checkpoints import CheckpointSpacing
from quire.cache.kv_cache import Hit, KVCache, Lease, Promise
from quire.types.events import ROOT, BlockStored, CheckpointStored
from quire.types.request import CacheKey, Pin
from tests.cache.memory import Memory, Text

pytestmark = pytest.mark.pure

GROUPS = {
    "tokens": {},
    "tokens and window": {"windows": [(3, 9)]},
    "tokens and state": {"num_states": 5},
    "window and state": {"windows": [(3, 9)], "num_states": 4},
    "two windows and state": {"windows": [(2, 8), (7, 10)], "num_states": 6},
}
BASE = (1, 2, 1, 1, 2, 2, 1, 2, 2, 1, 1, 1)
prompts = st.builds(  # nearly all share a prefix
    lambda num_shared, rest: BASE[:num_shared] + tuple(rest),
    st.integers(0, len(BASE)),
    st.lists(st.integers(1, 2), min_size=1, max_size=4),
)
keys = st.sampled_from([CacheKey(salt="a")] * 3 + [CacheKey(salt="b")])
counts = st.sampled_from([1, 3, 8, 16])  # tokens of a step
sessions = st.none() | st.sampled_from(["s", "t"])
pins = st.builds(
    lambda at, size, rank, ttl: Pin(at, at + size, rank, ttl),
    st.integers(0, 6),
    st.integers(1, 8),
    st.integers(1, 3),
    st.sampled_from([None, 1.0, 5.0]),
)


class Request:
    def __init__(self, text: Text, lease: Lease) -> None:
        self.text, self.lease = text, lease
        self.computed = self.scheduled = lease.num_hit
        self.has_begun = self.has_ended = False
        self.promises: list[Promise] = []
        self.saved: list[int] = []  # positions of states that are saved by steps in flight

    def array(self) -> array[int]:
        return array("I", self.text)


class GroupsAgainstMemory(RuleBasedStateMachine):
    requests = Bundle("requests")

    @initialize(
        groups=st.sampled_from(sorted(GROUPS)),
        num_blocks=st.integers(4, 12),
        block_tokens=st.sampled_from([2, 4]),
        spacing=st.sampled_from([CheckpointSpacing(), CheckpointSpacing(4, 1), CheckpointSpacing(4, 2)]),
    )
    def start(self, groups: str, num_blocks: int, block_tokens: int, spacing: CheckpointSpacing) -> None:
        sizes = GROUPS[groups]
        self.cache = KVCache(num_blocks, block_tokens, spacing=spacing, **sizes)
        self.windows = tuple(window for window, _ in sizes.get("windows", ()))
        self.memory = Memory(block_tokens, self.windows)
        self.hits: dict[tuple[Text, CacheKey], Hit] = {}
        self.running: list[Request] = []
        self.now = 0.0

    # ── the naive search ──

    def stored(self) -> tuple[list[dict[tuple[CacheKey, Text], int]], dict[tuple[CacheKey, Text], int]]:
        """Return for each group the block of every text, and the node of every checkpointed text, from a snapshot."""
        nodes: dict[int, tuple[CacheKey, Text]] = {}
        blocks: list[dict[tuple[CacheKey, Text], int]] = [{} for _ in range(1 + len(self.windows))]
        states: dict[tuple[CacheKey, Text], int] = {}
        for event in self.cache.snapshot():
            if isinstance(event, BlockStored):
                before = nodes[event.parent][1] if event.parent != ROOT else ()
                nodes[event.node] = (event.key, before + event.tokens)
                blocks[event.group][nodes[event.node]] = event.block
            elif isinstance(event, CheckpointStored):
                key, text = nodes[event.node]
                states[key, text[: event.position]] = event.node
        return blocks, states

    def resume_point(self, prompt: Text, key: CacheKey) -> int:
        """Return the longest prefix that is in the tree and at which every group can resume."""
        size = self.cache.block_tokens
        blocks, states = self.stored()

        def has(group: int, end: int) -> bool:
            place = (end - 1) // size
            return any(
                owner == key and text[:end] == prompt[:end] and (len(text) - 1) // size == place
                for owner, text in blocks[group]
            )

        def can_resume(at: int) -> bool:
            ends = [min(at, end) for end in range(size, at + size, size)]
            for group, window in enumerate(self.windows, 1):
                if not all(has(group, end) for end in ends if end > max(0, at + 1 - window) or end == at):
                    return False
            return all(has(0, end) for end in ends) and (
                not at or not self.cache.has_states or (key, prompt[:at]) in states
            )

        return next(at for at in range(len(prompt), -1, -1) if can_resume(at))

    # ── requests ──

    @rule(target=requests, prompt=prompts, key=keys, pins=st.lists(pins, max_size=1).map(tuple), count=counts)
    def begin(self, prompt: Text, key: CacheKey, pins: tuple[Pin, ...], count: int) -> object:
        """Start a request and run its first step."""
        tokens = array("I", prompt)
        hit = self.cache.match(tokens, key, len(prompt) - 1, self.hits.get((prompt, key)))
        assert hit == self.cache.match(tokens, key, len(prompt) - 1), "an earlier hit changes the result"
        self.hits[prompt, key] = hit
        if not self.cache.pending:
            assert hit.num_tokens == self.resume_point(prompt[:-1], key)
        if not self.cache.can_start(hit, 0, self.now):
            return multiple()
        lease = self.cache.lease(hit, tokens, key, self.now, pins)
        assert lease.num_hit <= hit.num_tokens
        self.running.append(request := Request(prompt, lease))
        self.plan(request, count, [])
        return request

    @rule(request=requests, count=counts, more=st.lists(st.integers(1, 2), max_size=3))
    def plan(self, request: Request, count: int, more: list[int]) -> None:
        """Plan a step, which the memory runs at once; its result is committed later."""
        if request.has_ended:
            return
        request.text += tuple(more)
        start, end = request.scheduled, min(request.scheduled + count, len(request.text))
        if start == end or not self.cache.extend(request.lease, end, self.now, request.computed):
            return
        saves = self.cache.take_saves(request.lease, start, end, self.now)
        self.run(request, start, end)
        for position, slot in saves:
            assert start < position <= end
            self.memory.states[slot] = request.text[:position]
            request.saved.append(position)
        request.scheduled = end

    def run(self, request: Request, start: int, end: int) -> None:
        source = request.lease.state.target if request.lease.state is not None else 0
        if not request.has_begun:
            source, request.has_begun = self.memory.begin(request.lease, request.text), True
        self.memory.compute(request.lease, request.text, start, end)
        if request.lease.state is not None:
            self.memory.advance(source, request.lease.state.target, request.text, start, end)

    @rule(request=requests)
    def promise(self, request: Request) -> None:
        if not request.has_ended and request.scheduled > request.computed:
            promise = self.cache.promise(request.lease, request.array(), request.scheduled, self.now)
            assert not (promise and self.cache.has_states)
            request.promises.append(promise)

    @rule(request=requests)
    def commit(self, request: Request) -> None:
        if request.has_ended or not request.has_begun:
            return
        self.memory.commit(request.lease, request.computed, request.scheduled)
        request.computed = request.scheduled
        self.cache.seal(request.lease, request.array(), request.computed, self.now)
        self.cache.fulfil(request.promises)
        request.promises.clear()
        if not request.lease.is_private:
            states = self.stored()[1]
            assert all((request.lease.key, request.text[:position]) in states for position in request.saved)
        request.saved.clear()

    @rule(request=requests)
    def fail(self, request: Request) -> None:
        """Fail the steps in flight: the requests that depend on them are preempted."""
        if request.has_ended or request.scheduled == request.computed:
            return
        self.memory.lose(request.lease, request.computed, request.scheduled)
        for lease in self.cache.withdraw([block for promise in request.promises for block in promise], self.now):
            dependent = next(each for each in self.running if each.lease is lease)
            self.end(dependent, None, None)
        if not request.has_ended:
            self.end(request, None, None)

    @rule(request=requests, position=st.integers(1, 14))
    def want(self, request: Request, position: int) -> None:
        if not request.has_ended:
            is_made = self.cache.want(request.lease, position)
            assert not is_made or self.cache.has_states

    @rule(request=requests, drafts=st.lists(st.integers(1, 2), min_size=1, max_size=3), is_accepted=st.booleans())
    def draft(self, request: Request, drafts: list[int], is_accepted: bool) -> None:
        if request.has_ended or request.lease.state is None or request.scheduled != request.computed:
            return
        if not request.has_begun or request.computed < len(request.text):
            return
        text, start = request.text + tuple(drafts), request.computed
        if not self.cache.extend(request.lease, len(text), self.now, start):
            return
        slot = self.cache.branch_state(request.lease, self.now)
        if slot is None:
            return
        self.memory.compute(request.lease, text, start, len(text))
        self.memory.advance(request.lease.state.target, slot, text, start, len(text))
        self.memory.commit(request.lease, start, len(text))
        self.cache.settle_state(request.lease, is_accepted, self.now)
        if is_accepted:
            request.text, request.computed, request.scheduled = text, len(text), len(text)
            self.cache.seal(request.lease, request.array(), request.computed, self.now)

    @rule(target=requests, request=requests, share=st.floats(0, 1))
    def fork(self, request: Request, share: float) -> object:
        shared = int(request.computed * share)
        if request.has_ended or not request.has_begun or not self.cache.can_fork(request.lease, shared):
            return multiple()
        self.commit(request)
        if shared % self.cache.block_tokens and request.lease.blocks[shared // self.cache.block_tokens] in (
            self.cache.pending
        ):
            return multiple()
        lease = self.cache.fork(request.lease, shared, self.now)
        if lease is None:
            return multiple()
        self.running.append(Request(request.text[:shared], lease))
        return self.running[-1]

    @rule(request=consumes(requests), session=sessions, gives_state=st.booleans())
    def release(self, request: Request, session: str | None, gives_state: bool) -> None:
        if not request.has_ended:
            self.end(request, session, request.scheduled if gives_state and request.has_begun else None)

    def end(self, request: Request, session: str | None, state_at: int | None) -> None:
        if request.has_begun:
            self.memory.commit(request.lease, request.computed, request.scheduled)
        self.cache.fulfil(request.promises)
        self.cache.release(request.lease, request.array(), request.computed, self.now, session, state_at)
        request.has_ended = True
        self.running.remove(request)

    @rule(prompt=prompts, key=keys, session=sessions, count=counts)
    def serve(self, prompt: Text, key: CacheKey, session: str | None, count: int) -> None:
        """Run a whole request, so that the tree fills up."""
        request = self.begin(prompt, key, (), count)
        for _ in range(len(prompt) + 1):
            if isinstance(request, Request):
                self.commit(request)
                self.plan(request, count, [])
        if isinstance(request, Request):
            self.commit(request)
            self.release(request, session, gives_state=True)

    # ── the rest ──

    @rule(prompt=prompts, key=keys, pin=pins)
    def pin(self, prompt: Text, key: CacheKey, pin: Pin) -> None:
        self.cache.pins.add(array("I", prompt), key, pin, self.now)

    @rule(prompt=prompts, key=keys)
    def unpin(self, prompt: Text, key: CacheKey) -> None:
        self.cache.pins.remove(array("I", prompt), key, self.now)

    @rule(session=st.sampled_from(["s", "t"]))
    def close(self, session: str) -> None:
        self.cache.sessions.close(session, self.now)

    @rule(seconds=st.sampled_from([0.5, 2.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(num_blocks=st.integers(4, 12))
    def resize(self, num_blocks: int) -> None:
        self.cache.resizing.start(num_blocks, self.now)

    @precondition(lambda self: hasattr(self, "cache") and len(self.cache.snapshot()) > 8)  # else the tree stays small
    @rule()
    def clear(self) -> None:
        self.cache.clear(self.now)

    @invariant()
    def agree(self) -> None:
        """Everything in the tree has the content that its place says."""
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        size = self.cache.block_tokens
        blocks, states = self.stored()
        for group, stored in enumerate(blocks):
            for (_, text), block in stored.items():
                begin = (len(text) - 1) // size * size
                for end in range(begin + 1, len(text) + 1):
                    assert self.memory.tokens[group, block, end - 1 - begin] == text[:end]
        if self.cache._states is not None:
            for slot, place in self.cache._states._places.items():
                assert any(self.memory.states[slot] == text for _, text in states)
                assert len(self.memory.states[slot]) == place.position

    def teardown(self) -> None:
        """Without requests and sessions nothing is held."""
        if not hasattr(self, "cache"):
            return
        for request in list(self.running):
            self.end(request, None, None)
        self.cache.clear(self.now)
        self.cache.check()
        stats = self.cache.stats()
        assert (stats.num_held, stats.num_cached) == (0, 0)


TestGroups = GroupsAgainstMemory.TestCase
TestGroups.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestGroups.pytestmark = [pytest.mark.pure, pytest.mark.timeout(600)]


class LongerGroupsAgainstMemory(GroupsAgainstMemory):
    pass


TestGroupsAtLength = LongerGroupsAgainstMemory.TestCase
TestGroupsAtLength.settings = settings(max_examples=10_000, stateful_step_count=60, deadline=None)
TestGroupsAtLength.pytestmark = [pytest.mark.pure, pytest.mark.slow, pytest.mark.timeout(3600)]
