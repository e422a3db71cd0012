"""Runs cache and scheduler with a fake device that computes no KV but records what every slot would hold.

The KV of a token is a fingerprint of all tokens up to it. The device reads it through the block table of the row, so a
wrong block, a block written twice, a copy too short or a stale table is detected at once. The token that it samples
depends only on that fingerprint, so a request's output must be the same alone and in any batch.

Window groups and states are checked against the row's own text. A query reads the fingerprints of its window in each
group; those behind it may be anything. A state is the number of tokens that it has seen and their fingerprint. A part
that reads something else is an error at once; if an earlier part has failed, its result is wrong, and must be ignored.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from quire.cache.checkpoints import CheckpointSpacing
from quire.cache.kv_cache import KVCache
from quire.config import SchedulerConfig
from quire.scheduler.scheduler import Scheduler
from quire.types.errors import QuireError
from quire.types.request import FinishReason, GenerateRequest, SamplingParams
from quire.types.step import Outcome, Part, PartResult, StepPlan, StepResult

VOCABULARY = 1000


def fingerprint(before: int, token: int) -> int:
    return hash((before, token))


def sampled(mark: int, sample: int, vocabulary: int = VOCABULARY) -> int:
    return hash((mark, sample, 7919)) % vocabulary


def expected_output(prompt: tuple[int, ...], num_tokens: int, sample: int = 0) -> list[int]:
    """Return the correct output for a prompt."""
    mark, output = 0, []
    for token in prompt:
        mark = fingerprint(mark, token)
    for _ in range(num_tokens):
        output.append(sampled(mark, sample))
        mark = fingerprint(mark, output[-1])
    return output


@dataclass
class Row:
    request_id: str
    sample: int
    table: list[int] = field(default_factory=list)
    last_sampled: int | None = None
    windows: list[dict[int, int]] = field(default_factory=list)  # of each window group: place -> block
    marks: list[int] = field(default_factory=list)  # the fingerprint at each position of its text
    source: int | None = None  # slot of its state
    target: int | None = None


@dataclass(frozen=True)
class Groups:
    """The cache groups of a model beside that of all tokens."""

    windows: tuple[tuple[int, int], ...] = ()  # window, blocks
    num_states: int = 0
    every: int = 4096
    grain: int = 1


NO_GROUPS = Groups()


@dataclass
class FakeDevice:
    """Runs plans in order. `fixed`, `each` and `context` determine how long a step takes."""

    block_tokens: int
    fixed: float = 0.01
    each: float = 1e-4
    context: float = 0.0  # seconds per token of context that a computed token attends to
    slots: dict[int, int] = field(default_factory=dict)  # slot -> fingerprint
    rows: dict[int, Row] = field(default_factory=dict)
    refuse: Callable[[Part], QuireError | None] = lambda part: None
    num_computed: int = 0
    num_copied: int = 0
    groups: Groups = NO_GROUPS
    window_slots: list[dict[int, int]] = field(default_factory=list)  # of each window group: slot -> fingerprint
    states: dict[int, tuple[int, int]] = field(default_factory=dict)  # slot -> tokens seen, their fingerprint
    misled: set[int] = field(default_factory=set)  # rows that have read what a failed part should have written
    has_refused: bool = False

    def __post_init__(self) -> None:
        self.window_slots = [{} for _ in self.groups.windows]

    def run(self, plan: StepPlan) -> StepResult:
        for row in plan.leaves:
            del self.rows[row]
        for join in plan.joins:
            assert join.row not in self.rows, "the row is taken"
            self.misled.discard(join.row)
            self.rows[join.row] = Row(join.request_id, join.sample, windows=[{} for _ in self.groups.windows])
            if self.groups != NO_GROUPS:
                self._extend_marks(self.rows[join.row], 0, join.tokens)
        assert plan.parts or not (plan.copies or plan.window_copies), "a step without parts copies nothing"
        self.num_copied += sum(copy.num_tokens for copy in plan.copies)
        for slots, copies in zip((self.slots, *self.window_slots), (plan.copies, *plan.window_copies), strict=False):
            for copy in copies:
                for slot in range(copy.num_tokens):
                    slots[copy.target * self.block_tokens + slot] = slots[copy.source * self.block_tokens + slot]
        assert len({part.row for part in plan.parts}) == len(plan.parts), "two parts for one row"
        results, attended = [], 0
        for part in plan.parts:
            self.rows[part.row].table += part.new_blocks
        for group in plan.groups:
            tables = [self.rows[part.row].table for part in plan.parts if part.row in group.rows]
            heads = {tuple(table[: group.num_blocks]) for table in tables}
            assert len(heads) <= 1 and all(len(head) == group.num_blocks for head in heads) and len(group.rows) > 1
        if self.groups != NO_GROUPS:
            self._run_groups(plan)
        for part in plan.parts:
            tokens = self._tokens(part)
            self.num_computed += len(tokens)
            attended += len(tokens) * part.start
            results.append(self._compute(part, tokens))
        assert plan.num_tokens == sum(len(self._tokens(part)) for part in plan.parts)
        for part, result in zip(plan.parts, results, strict=True):
            if result.tokens or result.error:
                self.rows[part.row].last_sampled = result.tokens[-1] if result.tokens else 0
        return StepResult(
            plan.number, tuple(results), self.fixed + self.each * plan.num_tokens + self.context * attended
        )

    def _run_groups(self, plan: StepPlan) -> None:
        """Write what the step writes in window groups and states, then check what it reads."""
        for group, number, first, blocks in plan.tables:
            assert blocks and min(blocks) >= 0
            self.rows[number].windows[group].update(enumerate(blocks, first))
        for part in plan.parts:
            self._extend_marks(self.rows[part.row], part.start, self._tokens(part))
        for group, slots in enumerate(self.window_slots):
            written = [(part, *each) for part in plan.parts for each in self._window(part, group, part.start)]
            assert len({slot for _, slot, _ in written}) == len(written), "two tokens are written to one slot"
            for part, slot, mark in written:
                slots[slot] = hash((slot, mark)) if self._is_garbage(part) else mark
            window, _ = self.groups.windows[group]
            for part in plan.parts:
                found = self._window(part, group, max(0, part.start + 1 - window))
                is_right = all(slots.get(slot) == mark for slot, mark in found)
                self._check_read(part, is_right, f"a wrong token of window group {group}")
        if self.groups.num_states:
            self._run_states(plan)

    def _is_garbage(self, part: Part) -> bool:
        """Is what this part writes not what it should be?"""
        has_failed = self.refuse(part) is not None
        self.has_refused |= has_failed
        return has_failed or part.row in self.misled

    def _check_read(self, part: Part, is_right: bool, what: str) -> None:
        if not is_right and not self._is_garbage(part):
            assert self.has_refused, f"{part.request_id} reads {what}"
            self.misled.add(part.row)

    def _window(self, part: Part, group: int, first: int) -> list[tuple[int, int]]:
        """Return the slot and the fingerprint of each token of the part's row from `first` on."""
        row, size = self.rows[part.row], self.block_tokens
        end = part.start + len(self._tokens(part))
        table = row.windows[group]
        return [(table[at // size] * size + at % size, row.marks[at]) for at in range(first, end)]

    def _run_states(self, plan: StepPlan) -> None:
        for number, source, target in plan.states:
            self.rows[number].source, self.rows[number].target = source, target
        parts = {part.row: part for part in plan.parts}
        assert {save.row for save in plan.saves} | {change.row for change in plan.states} <= parts.keys()
        written = [self.rows[number].target for number in parts] + [save.slot for save in plan.saves]
        assert None not in written and len(set(written)) == len(written), "a slot is written twice"
        for number, part in parts.items():
            row = self.rows[number]
            assert row.source == row.target or row.source not in written, "a row reads what another writes"
            assert (row.source == -1) == (part.start == 0)
            if part.start:
                is_right = self.states.get(row.source or 0) == (part.start, row.marks[part.start - 1])
                self._check_read(part, is_right, f"a wrong state in slot {row.source}")
        for number, position, slot in plan.saves:
            self._save(parts[number], position, slot)
        for number, part in parts.items():
            row = self.rows[number]
            assert row.target is not None
            self._save(part, part.start + len(self._tokens(part)), row.target)
            row.source = row.target

    def _save(self, part: Part, position: int, slot: int) -> None:
        assert 0 <= slot < self.groups.num_states
        assert part.start < position <= (end := part.start + len(self._tokens(part)))
        assert position % self.groups.grain == 0 or position == end, "the device cannot save inside its grain"
        mark = self.rows[part.row].marks[position - 1]
        self.states[slot] = (-1, 0) if self._is_garbage(part) else (position, mark)

    def _extend_marks(self, row: Row, start: int, tokens: tuple[int, ...]) -> None:
        del row.marks[start:]
        assert len(row.marks) == start, "a part begins behind the row's text"
        mark = row.marks[-1] if row.marks else 0
        for token in tokens:
            mark = fingerprint(mark, token)
            row.marks.append(mark)

    def _tokens(self, part: Part) -> tuple[int, ...]:
        if part.tokens is not None:
            return part.tokens
        last = self.rows[part.row].last_sampled
        assert last is not None, "the row has sampled nothing"
        return (last,)

    def _slot(self, row: Row, position: int) -> int:
        return row.table[position // self.block_tokens] * self.block_tokens + position % self.block_tokens

    def _compute(self, part: Part, tokens: tuple[int, ...]) -> PartResult:
        row = self.rows[part.row]
        assert row.request_id == part.request_id
        if (error := self.refuse(part)) is not None:  # its slots then hold garbage
            for position in range(part.start, part.start + len(tokens)):
                self.slots[self._slot(row, position)] = hash((part.request_id, position))
            return PartResult(error=error)
        mark = self.slots[self._slot(row, part.start - 1)] if part.start else 0
        if part.row in self.misled:
            mark = hash((part.request_id, part.start))
        marks = []
        for position, token in enumerate(tokens, part.start):
            mark = fingerprint(mark, token)
            self.slots[self._slot(row, position)] = mark
            marks.append(mark)
        if not part.num_logits:
            return PartResult()
        accepted: list[int] = []
        drafts = tokens[len(tokens) - part.num_logits + 1 :]
        for index, mark in enumerate(marks[-part.num_logits :]):
            accepted.append(sampled(mark, row.sample))
            if index < len(drafts) and drafts[index] != accepted[-1]:
                break
        return PartResult(tuple(accepted))


@dataclass
class SampleRecord:
    """Output and end of one sample."""

    arrived: float
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # of each output token
    finish: FinishReason | None = None
    error: QuireError | None = None
    num_endings: int = 0
    num_hit: int = 0

    @property
    def first_token_after(self) -> float:
        return self.times[0] - self.arrived

    @property
    def widest_gap(self) -> float:
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False)), default=0.0)


class Simulator:
    """The engine's loop over simulated time. With `depth` 2, a step is planned before the previous result is known."""

    def __init__(
        self,
        config: SchedulerConfig,
        num_blocks: int,
        block_tokens: int = 16,
        depth: int = 1,
        groups: Groups = NO_GROUPS,
        **device: float,
    ):
        spacing = CheckpointSpacing(groups.every, groups.grain)
        self.cache = KVCache(
            num_blocks, block_tokens, windows=groups.windows, num_states=groups.num_states, spacing=spacing
        )
        self.scheduler = Scheduler(self.cache, config)
        self.device = FakeDevice(block_tokens, groups=groups, **device)  # type: ignore[arg-type]
        self.depth = depth
        self.now = 0.0
        self.records: dict[tuple[str, int], SampleRecord] = {}
        self.refused: dict[str, QuireError] = {}
        self.plans: list[StepPlan] = []
        self.results: deque[StepResult] = deque()
        self.on_step: Callable[[Simulator], None] = lambda simulator: None
        self.checks = False

    def submit(self, request: GenerateRequest) -> bool:
        try:
            self.scheduler.add(request, self.now)
        except QuireError as error:
            self.refused[request.id] = error
            return False
        for sample in request.unfinished_samples:
            self.records[request.id, sample] = SampleRecord(self.now)
        return True

    def step(self) -> bool:
        """Run one turn of the loop. Return False if nothing is left to do."""
        self.cache.resizing.advance(self.now)
        plan = self.scheduler.plan(self.now)
        if plan.parts or plan.joins:
            self.plans.append(plan)
            self.results.append(self.device.run(plan))
        is_busy = bool(self.results)
        if self.results and (len(self.results) >= self.depth or not plan.parts):
            result = self.results.popleft()
            self.now += result.seconds
            self.scheduler.commit(result, self.now)
        self._take(self.scheduler.drain())
        if self.checks:
            self.scheduler.check()
        self.on_step(self)
        return is_busy

    def run(self, arrivals: Iterable[tuple[float, GenerateRequest]] = (), max_steps: int = 1_000_000) -> None:
        """Serve all arrivals until nothing is left."""
        queue = deque(sorted(arrivals, key=lambda each: each[0]))
        for _ in range(max_steps):
            while queue and queue[0][0] <= self.now:
                self.submit(queue.popleft()[1])
            if not self.step():
                if not queue:
                    break
                self.now = max(self.now, queue[0][0])
        else:
            raise AssertionError("the simulation does not end")
        assert not self.scheduler.stats().num_running and not self.scheduler.stats().num_waiting
        self.scheduler.check()

    def _take(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            record = self.records[outcome.request_id, outcome.sample]
            assert not record.num_endings, "an outcome after the last one"
            record.tokens += outcome.tokens
            record.times += [self.now] * len(outcome.tokens)
            record.num_hit = outcome.num_hit
            if outcome.finish is not None or outcome.error is not None:
                record.finish, record.error = outcome.finish, outcome.error
                record.num_endings += 1

    def tokens_by_key(self, requests: dict[str, str]) -> dict[str, int]:
        """Return the output tokens of each key; `requests` maps ids to keys."""
        totals: defaultdict[str, int] = defaultdict(int)
        for (request_id, _), record in self.records.items():
            totals[requests[request_id]] += len(record.tokens)
        return dict(totals)


def request(
    name: str, prompt: range | tuple[int, ...], max_tokens: int = 8, n: int = 1, **more: object
) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=max_tokens, n=n)
    return GenerateRequest(name, tuple(prompt), sampling, **more)  # type: ignore[arg-type]


def make(num_blocks: int = 64, depth: int = 1, **settings: object) -> Simulator:
    config = SchedulerConfig(**{"max_rows": 8, "max_step_tokens": 64, "max_context": 256, **settings})  # type: ignore[arg-type]
    simulator = Simulator(config, num_blocks, block_tokens=4, depth=depth)
    simulator.checks = True
    return simulator


def suggest(scheduler: Scheduler, request_id: str, sample: int, drafts: tuple[int, ...]) -> None:
    """Set the drafts of a sample's next step, as `Speculation` does."""
    scheduler._requests.idle_sample(request_id, sample).suggest(drafts)


def counts(plan: StepPlan) -> dict[str, int]:
    return {part.request_id: 1 if part.tokens is None else len(part.tokens) for part in plan.parts}
