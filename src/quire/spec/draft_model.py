"""Drafts by a model with the vocabulary of the target: small, with KV blocks and a prefix tree of its own.

It reads what is new in a text, then samples one token after the other, for all texts in each step: with the text's
seed and positions, so that sampled texts agree with the target's more often. Drafts that became text stay read. Under
pressure it forgets texts that it was not asked for lately: it reads them again if they come back.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from quire.spec.drafter import NO_DRAFT, Draft, StepTime, Text
from quire.types.request import CacheKey, GenerateRequest, SamplingParams
from quire.types.step import CopyBlock, Join, Part, StepPlan, StepResult

MAX_MODEL_DRAFTS = 8  # tokens of a draft by a model: each takes a step of it


class SampledText(Text, Protocol):
    """What a model reads of a running text: how it is sampled, and what may share its KV."""

    @property
    def request(self) -> GenerateRequest: ...
    @property
    def sample(self) -> int: ...


class DraftLease(Protocol):
    """The KV blocks of a text: see quire.cache."""

    blocks: list[int]
    path: list[int]
    num_hit: int
    copy: CopyBlock | None


class DraftCache(Protocol):
    """A KV cache for the drafter's model: see quire.cache."""

    @property
    def block_tokens(self) -> int: ...
    def match(self, tokens: array[int], key: CacheKey, limit: int | None = None) -> Any: ...
    def lease(self, hit: Any, tokens: array[int], key: CacheKey, now: float) -> Any: ...
    def extend(self, lease: Any, num_tokens: int, now: float) -> bool: ...
    def detach(self, lease: Any, now: float) -> None: ...
    def seal(self, lease: Any, tokens: array[int], computed: int, now: float) -> None: ...
    def release(self, lease: Any, tokens: array[int], computed: int, now: float) -> None: ...


class RunsPlans(Protocol):
    """Runs the steps of the drafter's model: see quire.runner."""

    def launch(self, plan: StepPlan) -> Any: ...
    def collect(self, flight: Any) -> StepResult: ...


class DraftRoom(NamedTuple):
    """The most that the drafter's model can hold."""

    max_rows: int  # texts
    max_tokens: int  # of one step
    max_context: int  # of one text


@dataclass(slots=True, eq=False)
class FollowedText:
    """A text that the model has begun to read."""

    sample_id: str
    row: int
    lease: DraftLease
    tokens: array[int]  # as far as they were known at the last call
    num_read: int  # tokens of the text whose KV exists, or that come before `begin`
    begin: int = 0  # the first token of the text that it has read
    drafted: list[int] = field(default_factory=list)  # tokens after them whose KV exists, too
    num_sent: int = 0  # blocks that the runner has
    used_at: int = 0


class Reading(NamedTuple):
    """Tokens that the next step reads of a text."""

    text: FollowedText
    start: int
    tokens: tuple[int, ...]


class DraftModel:
    """A model that drafts. Owns its cache and its rows; used by one thread."""

    name = "model"
    priors: tuple[float, ...] = (0.7,)
    max_drafts = MAX_MODEL_DRAFTS

    def __init__(self, runner: RunsPlans, cache: DraftCache, room: DraftRoom) -> None:
        self._runner, self._cache, self._room = runner, cache, room
        self._followed: dict[str, FollowedText] = {}
        self._free_rows = list(range(room.max_rows))
        self._joins: list[Join] = []
        self._leaves: list[int] = []
        self._copies: list[CopyBlock] = []
        self._clock = 0  # calls of `read` and `propose`
        self._num_steps = 0
        self._times: list[StepTime] = []

    # ── the contract ──

    def backlogs(self, texts: Sequence[SampledText]) -> list[int | None]:
        """Return how many tokens of each text it has yet to read; None: the text is too long for the model."""
        return [self._backlog(text) for text in texts]

    def read(self, texts: Sequence[SampledText], num_tokens: int) -> None:
        """Read up to so many tokens of the backlogs, but the newest one of each text."""
        self._clock += 1
        for text in texts:
            followed = self._follow(text, len(text.tokens))
            if num_tokens > 0 and followed is not None:
                num_tokens -= self._read_until(followed, min(len(text.tokens) - 1, followed.num_read + num_tokens))

    def propose(self, texts: Sequence[SampledText], limit: int) -> list[Draft]:
        """Read the backlogs and return a draft of at most `limit` tokens for each text that there is room for."""
        self._clock += 1
        limit = min(limit, self.max_drafts)
        followed = [self._follow(text, len(text.tokens) + limit) for text in texts[: self._room.max_rows]]
        drafts: dict[str, list[int]] = {each.sample_id: [] for each in followed if each is not None}
        self._shorten_backlogs([each for each in followed if each is not None])
        active = [each for each in followed if each is not None and each.sample_id in self._followed]
        for _ in range(limit):
            readings = [self._next_reading(each, drafts[each.sample_id]) for each in active]
            sampled = self._run(readings, 1) if readings else []
            active = [each for each, token in zip(active, sampled, strict=True) if token is not None]
            for each, token in zip(active, (token for token in sampled if token is not None), strict=True):
                drafts[each.sample_id].append(token)
        found = (drafts.get(text.sample_id) for text in texts)
        return [Draft(tuple(tokens)) if tokens else NO_DRAFT for tokens in found]

    def forget(self, sample_id: str) -> None:
        """Release a text's row and blocks. What it has read stays cached until others need the memory."""
        followed = self._followed.pop(sample_id, None)
        if followed is not None:
            computed = followed.num_read - followed.begin
            self._cache.release(followed.lease, followed.tokens[followed.begin :], computed, self._clock)
            self._joins = [each for each in self._joins if each.row != followed.row]
            self._copies = [each for each in self._copies if each.target not in followed.lease.blocks]
            self._free_rows.append(followed.row)
            self._leaves.append(followed.row)

    def take_times(self) -> list[StepTime]:
        """Return how long its steps took since the last call."""
        times, self._times = self._times, []
        return times

    # ── texts ──

    def _backlog(self, text: SampledText) -> int | None:
        if len(text.tokens) + 1 > self._room.max_context:
            return None
        followed = self._followed.get(text.sample_id)
        return len(text.tokens) if followed is None else len(text.tokens) - self._num_known(followed, text)

    def _num_known(self, followed: FollowedText, text: Text) -> int:
        """Return how many tokens of a text were read, drafts that became text included; never its newest one."""
        last = len(text.tokens) - 1
        count = min(followed.num_read, last)
        for token in followed.drafted:
            if count >= last or text.tokens[count] != token:
                break
            count += 1
        return count

    def _follow(self, text: SampledText, num_tokens: int) -> FollowedText | None:
        """Return what is kept of a text, with blocks for so many tokens. None: it is too long, or there is no room."""
        if min(num_tokens, len(text.tokens) + 1) > self._room.max_context:
            return None
        followed = self._followed.get(text.sample_id)
        if followed is None:
            followed = self._begin(text)
        if followed is None:
            return None
        followed.num_read, followed.used_at = self._num_known(followed, text), self._clock
        followed.drafted.clear()
        followed.tokens = text.tokens[:]
        needed = min(num_tokens, self._room.max_context) - followed.begin
        while not self._cache.extend(followed.lease, needed, self._clock):
            if not self._forget_oldest():
                return None
        return followed

    def _begin(self, text: SampledText) -> FollowedText | None:
        if not self._free_rows and not self._forget_oldest():
            return None
        key = text.request.cache
        hit = self._cache.match(text.tokens, key, len(text.tokens) - 1)
        lease = self._cache.lease(hit, text.tokens, key, self._clock)
        followed = FollowedText(text.sample_id, self._free_rows.pop(), lease, text.tokens[:], lease.num_hit)
        self._announce(followed, text)
        return followed

    def _announce(self, followed: FollowedText, text: SampledText) -> None:
        """Tell the runner of a new row, in the next step."""
        self._followed[text.sample_id] = followed
        if followed.lease.copy is not None:
            self._copies.append(followed.lease.copy)
        sampling = draft_sampling(text.request.sampling)
        join = Join(text.sample_id, followed.row, sampling, text.sample, (), 0, offset=followed.begin)
        self._joins.append(join)

    def _forget_oldest(self) -> bool:
        """Forget the text that was not asked for the longest. False: all were asked for now."""
        idle = [each for each in self._followed.values() if each.used_at < self._clock]
        if idle:
            self.forget(min(idle, key=lambda each: each.used_at).sample_id)
        return bool(idle)

    # ── steps ──

    def _shorten_backlogs(self, texts: list[FollowedText]) -> None:
        """Read until what is left of all backlogs fits into one step."""
        longest = max(1, self._room.max_tokens // max(1, len(texts)))
        for each in texts:
            self._read_until(each, len(each.tokens) - longest)

    def _read_until(self, followed: FollowedText, end: int) -> int:
        """Read a text up to `end`, in steps that yield no logits. Return the number of tokens."""
        begin = followed.num_read
        while followed.num_read < end:
            stop = min(end, followed.num_read + self._room.max_tokens)
            reading = Reading(followed, followed.num_read, tuple(followed.tokens[followed.num_read : stop]))
            if self._run([reading], 0) == [None]:
                break
        return followed.num_read - begin

    def _next_reading(self, followed: FollowedText, drafts: list[int]) -> Reading:
        if drafts:
            return Reading(followed, len(followed.tokens) + len(drafts) - 1, (drafts[-1],))
        return Reading(followed, followed.num_read, tuple(followed.tokens[followed.num_read :]))

    def _run(self, readings: list[Reading], num_logits: int) -> list[int | None]:
        """Run a step. Return the sampled token of each text; 0 without logits; None: it failed, and is forgotten."""
        self._num_steps += 1
        parts = tuple(self._part(each, num_logits) for each in readings)
        num_tokens = sum(part.num_tokens for part in parts)
        plan = StepPlan(
            self._num_steps, parts, tuple(self._joins), tuple(self._leaves), tuple(self._copies), num_tokens=num_tokens
        )
        self._joins, self._leaves, self._copies = [], [], []
        result = self._runner.collect(self._runner.launch(plan))
        if result.is_typical:
            self._times.append(StepTime(num_tokens, result.seconds))
        sampled: list[int | None] = []
        for reading, found in zip(readings, result.parts, strict=True):
            if found.error is not None:
                self.forget(reading.text.sample_id)
                sampled.append(None)
                continue
            self._mark_read(reading)
            sampled.append(self._token_of(found.tokens[-1]) if num_logits else 0)
        return sampled

    def _token_of(self, sampled: int) -> int:
        """Return the token of the target that the model means."""
        return sampled

    def _part(self, reading: Reading, num_logits: int) -> Part:
        followed = reading.text
        new_blocks = tuple(followed.lease.blocks[followed.num_sent :])
        followed.num_sent += len(new_blocks)
        start = reading.start - followed.begin
        return Part(followed.sample_id, followed.row, start, reading.tokens, num_logits, new_blocks)

    def _mark_read(self, reading: Reading) -> None:
        followed, end = reading.text, reading.start + len(reading.tokens)
        if end > len(followed.tokens):
            followed.drafted += reading.tokens
            return
        followed.num_read = end
        lease, computed = followed.lease, end - followed.begin
        if lease.copy is not None or computed >= (len(lease.path) + 1) * self._cache.block_tokens:
            self._cache.seal(lease, followed.tokens[followed.begin :], computed, self._clock)


def draft_sampling(sampling: SamplingParams) -> SamplingParams:
    """Return how drafts are sampled: with the text's temperature, filters and seed. The rest depends on history."""
    if sampling.is_greedy:
        return SamplingParams(temperature=0.0)
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        typical_p=sampling.typical_p,
        seed=sampling.seed,
    )
