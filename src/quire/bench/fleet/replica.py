"""A simulated engine: a prompt queue, running streams, and a cache of limited size.

A step computes one token of every stream, and as many tokens of the first prompts as fit into `stream_gap`. A prefill
replica, which has no streams, divides prompts in the same way.

    seconds of a step = prompt tokens / prompt rate + seconds of a token with all streams

Steps without a prompt are equal as long as the same streams run, so a run of them is one event.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import ceil

from quire.bench.fleet.handover import Handover, KVLink
from quire.bench.fleet.prompt_queue import PromptJob, PromptQueue
from quire.bench.fleet.segment_cache import SegmentCache
from quire.bench.fleet.traffic import SimulatedRequest
from quire.config import SchedulerConfig
from quire.scheduler.limits import with_remainder
from quire.types.load import LoadReport
from quire.types.transfer import Role

SETTINGS = SchedulerConfig()
EPSILON = 1e-9  # seconds: an event at the end of a step does not begin another step


@dataclass(frozen=True, slots=True)
class ReplicaSpeed:
    """Speed and cache size of a simulated engine. The defaults are about those of an 8B model on one GPU."""

    prompt_rate: float = 10_000.0  # tokens per second
    decode_seconds: float = 0.008
    decode_row_seconds: float = 0.0001
    cache_tokens: int = 100_000
    max_rows: int = 256
    step_tokens: int = SETTINGS.max_step_tokens
    stream_gap: float = SETTINGS.stream_gap
    min_prompt_tokens: int = SETTINGS.min_prompt_tokens

    def prompt_budget(self, is_short: bool) -> int:
        """Return the most prompt tokens of one step, by the rule of the engine's scheduler."""
        if not is_short:
            return self.step_tokens
        return min(max(int(self.stream_gap * self.prompt_rate), self.min_prompt_tokens), self.step_tokens)

    def decode_step(self, num_rows: int) -> float:
        """Return the seconds of a decode step with `num_rows` streams."""
        return self.decode_seconds + (num_rows - 1) * self.decode_row_seconds if num_rows else 0.0


@dataclass(frozen=True, slots=True)
class _Steps:
    """A run of equal steps."""

    start: float
    seconds: float  # of each
    count: int
    num_prompt: int = 0  # tokens of prompts in each
    parts: tuple[tuple[PromptJob, int], ...] = ()  # of prompts, with their tokens


@dataclass(frozen=True, slots=True)
class StepsEnd:
    """The results of a run of steps."""

    jobs: tuple[PromptJob, ...]  # prompts of which a part was computed
    ended: tuple[SimulatedRequest, ...]  # requests whose last token was computed


class SimulatedReplica:
    """Computes prompts in order, in chunks; every step adds one token to each stream."""

    def __init__(self, name: str, speed: ReplicaSpeed, role: str = Role.BOTH, link: KVLink | None = None) -> None:
        self.name = name
        self.speed = speed
        self.role = role
        self.link = link
        self.is_up = True
        self.num_lives = 0  # restarts
        self.turn = 0  # changes with every step that begins or is cut short: an event of an earlier turn is void
        self.cache = SegmentCache(speed.cache_tokens)
        self.queue = PromptQueue(self.cache)
        self.computing: list[PromptJob] = []
        self.expected: dict[int, Handover] = {}  # requests that wait for blocks
        self.running: dict[int, SimulatedRequest] = {}
        self.gaps: list[tuple[float, int]] = []  # seconds between two tokens, and how often
        self.busy_seconds = 0.0
        self.computed_tokens = 0
        self.sequence = 0
        self.sends_until = self.receives_until = 0.0
        self._ends: list[tuple[int, int]] = []  # heap: number of the last step of a stream, stream
        self._num_steps = 0
        self._steps: _Steps | None = None
        self._has_received = False
        self._begun: dict[int, float] = {}  # stream -> when its prompt was begun
        self._num_served, self._served_seconds = 0, 0.0

    def computes(self, segment: int) -> bool:
        """Return whether this segment is in a prompt that is being computed."""
        return any(segment == each for job in self.computing for each, _ in job.request.segments)

    def admit(self, now: float) -> list[PromptJob]:
        """Take as many prompts from the queue as the next step can compute; return them.

        A prompt whose next segment is being computed waits for it.
        """
        admitted: list[PromptJob] = []
        if self._steps is not None:
            return admitted
        budget = self.speed.prompt_budget(self._is_short) - sum(each.num_left for each in self.computing)
        while self.queue and budget > 0 and len(self.running) + len(self.computing) < self.speed.max_rows:
            job = self.queue.first
            if job.is_void:
                self.queue.popleft()
                continue
            missing = next((each for each, _ in job.segments if each not in self.cache), None)
            if missing is not None and self.computes(missing):
                break
            self.queue.popleft()
            num_hit = self.cache.count(job.request.segments)
            self.cache.use(job.request.segments)
            job.begun, job.num_done = now, min(max(num_hit, job.num_received), job.num_tokens - 1)
            self.computing.append(job)
            admitted.append(job)
            budget -= job.num_left
        return admitted

    def begin(self, now: float) -> float | None:
        """Begin the next steps; return the time of their end. None: steps are running, or there is nothing to do."""
        if self._steps is not None or not (self.computing or self.running):
            return None
        seconds = self.speed.decode_step(len(self.running))
        if self.computing:
            parts = self._parts()
            num_prompt = sum(count for _, count in parts)
            self.busy_seconds += num_prompt / self.speed.prompt_rate
            self._steps = _Steps(now, seconds + num_prompt / self.speed.prompt_rate, 1, num_prompt, parts)
        else:
            self._steps = _Steps(now, seconds, self._ends[0][0] - self._num_steps)
        self.turn += 1
        return now + self._steps.seconds * self._steps.count

    @property
    def _is_short(self) -> bool:
        """Is the next step a short one? Streams wait for it, or other replicas for its blocks."""
        return bool(self.running) or self.role == Role.PREFILL

    def _parts(self) -> tuple[tuple[PromptJob, int], ...]:
        """Divide a step's tokens between prompts. A quarter more is computed if that finishes all of them."""
        budget = self.speed.prompt_budget(self._is_short)
        num_left = sum(each.num_left for each in self.computing)
        if self._is_short and num_left <= with_remainder(budget):
            budget = num_left
        parts = []
        for job in self.computing:
            count = min(job.num_left, budget)
            if count:
                parts.append((job, count))
            budget -= count
        return tuple(parts)

    def cut(self, now: float) -> float | None:
        """End a run of steps after the current one, for a new prompt; return that time. None: nothing changes."""
        steps = self._steps
        if steps is None or steps.count == 1 or len(self.running) >= self.speed.max_rows:
            return None
        count = max(1, ceil((now - steps.start - EPSILON) / steps.seconds))
        if count >= steps.count:
            return None
        self._steps = _Steps(steps.start, steps.seconds, count)
        self.turn += 1
        return steps.start + steps.seconds * count

    def end_steps(self, now: float) -> StepsEnd:
        """End the steps: count the tokens of streams, and return the results."""
        steps = self._steps
        assert steps is not None
        self._steps = None
        self._num_steps += steps.count
        if self.running:
            self.gaps.append((steps.seconds, steps.count * len(self.running)))
        ended = []
        while self._ends and self._ends[0][0] <= self._num_steps:
            ended.append(self._end(heapq.heappop(self._ends)[1], now))
        self.computed_tokens += steps.num_prompt
        for job, count in steps.parts:
            job.num_done += count
        self.computing = [each for each in self.computing if each.num_left and not each.is_void]
        return StepsEnd(tuple(job for job, _ in steps.parts), tuple(ended))

    def start(self, job: PromptJob, now: float) -> bool:
        """Start the stream of an answer at its first token. Return False if that is also its last."""
        request = job.request
        self.running[request.number], self._begun[request.number] = request, job.begun
        if request.num_output > 1:
            heapq.heappush(self._ends, (self._num_steps + request.num_output - 1, request.number))
            return True
        self._end(request.number, now)
        return False

    def _end(self, number: int, now: float) -> SimulatedRequest:
        self._num_served += 1
        self._served_seconds += now - self._begun.pop(number)
        return self.running.pop(number)

    def receive(self, handover: Handover) -> PromptJob:
        """End a transfer whose blocks have arrived; return the rest of the prompt, to be queued."""
        del self.expected[handover.request.number]
        self._has_received = self._has_received or handover.num_sent > 0
        request = handover.request
        return PromptJob(request, request.num_tokens, None, handover.num_there, handover.num_computed)

    def store(self, request: SimulatedRequest, num_tokens: int) -> tuple[list[int], list[int]]:
        """Cache the whole segments of a prompt's first tokens; return the stored and the evicted segments."""
        whole, num_before = [], 0
        for segment, tokens in request.segments:
            num_before += tokens
            if num_before <= num_tokens:
                whole.append((segment, tokens))
        stored, evicted = self.cache.store(whole)
        self.queue.count_cached(stored, evicted)
        self.sequence += len(stored) + len(evicted)
        return stored, evicted

    def fail(self) -> tuple[list[SimulatedRequest], list[Handover]]:
        """Drop the cache and all requests; return the requests to send again, and the transfers to other replicas."""
        jobs = [*self.queue, *self.computing]
        lost = [each.request for each in jobs if each.handover is None]
        lost += [*self.running.values(), *(each.request for each in self.expected.values())]
        for each in self.expected.values():
            each.is_over = True
        self.is_up, self.num_lives, self.turn = False, self.num_lives + 1, self.turn + 1
        self.queue.clear()
        self.cache.clear()
        for mapping in (self.running, self._begun, self.expected, self._ends):
            mapping.clear()
        self.computing, self._steps = [], None
        return lost, [each.handover for each in jobs if each.handover is not None and not each.handover.is_over]

    def report(self, now: float) -> LoadReport:
        """Return its load, as an engine reports it."""
        speed, link, left = self.speed, self.link, float(sum(each.num_left for each in self.computing))
        if self._steps is not None:
            left -= self._steps.num_prompt * min((now - self._steps.start) / self._steps.seconds, 1.0)
        return LoadReport(
            epoch=str(self.num_lives),
            sequence=self.sequence,
            num_waiting=len(self.queue),
            num_running=len(self.running) + len(self.computing),
            max_rows=speed.max_rows,
            waiting_tokens=self.queue.num_uncached,
            prompt_tokens=round(left),
            num_decoding=len(self.running),
            prompt_rate=speed.prompt_rate,
            decode_seconds=speed.decode_seconds,
            decode_row_seconds=speed.decode_row_seconds,
            service_seconds=self._served_seconds / self._num_served if self._num_served else 1.0,
            block_tokens=1,
            num_blocks=speed.cache_tokens,
            num_free_blocks=max(speed.cache_tokens - self.cache.num_tokens, 0),
            role=self.role,
            transfer_port=0 if link is None else 1,
            token_bytes=0 if link is None else link.token_bytes,
            receive_rate=link.rate if link is not None and self._has_received else 0.0,
        )
