"""A simulated engine: a prompt queue, running streams, and a cache of limited size."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from quire.bench.fleet.traffic import SimulatedRequest
from quire.types.load import LoadReport


@dataclass(frozen=True, slots=True)
class ReplicaSpeed:
    """How fast a simulated engine is, and how much it caches. The defaults are about an 8B model on one GPU."""

    prompt_rate: float = 10_000.0  # tokens per second
    decode_seconds: float = 0.008
    decode_row_seconds: float = 0.0001
    cache_tokens: int = 100_000
    max_rows: int = 256


class SimulatedReplica:
    """Computes prompts one after the other; streams run beside them. Segments are cached, the oldest are evicted."""

    def __init__(self, name: str, speed: ReplicaSpeed) -> None:
        self.name = name
        self.speed = speed
        self.is_up = True
        self.num_lives = 0  # restarts
        self._cached: OrderedDict[int, int] = OrderedDict()  # segment -> tokens, least recently used first
        self._num_cached = 0
        self.queue: deque[SimulatedRequest] = deque()
        self.current: SimulatedRequest | None = None  # whose prompt is being computed
        self.running: dict[int, SimulatedRequest] = {}
        self._current_end = 0.0
        self.busy_seconds = 0.0
        self.computed_tokens = 0
        self.sequence = 0

    def hit(self, request: SimulatedRequest) -> int:
        """Return how many tokens of a prompt are cached, and count them as used."""
        num_hit = 0
        for segment, tokens in request.segments:
            if segment not in self._cached:
                break
            self._cached.move_to_end(segment)
            num_hit += tokens
        return min(num_hit, request.num_tokens - 1)

    def begin(self, now: float) -> tuple[SimulatedRequest, float] | None:
        """Begin to compute the next prompt: return its request and end. None: none waits, or one is being computed."""
        if self.current is not None or not self.queue:
            return None
        self.current = request = self.queue.popleft()
        request.num_hit = self.hit(request)
        num_uncached = request.num_tokens - request.num_hit
        seconds = num_uncached / self.speed.prompt_rate
        self.busy_seconds += seconds
        self.computed_tokens += num_uncached
        self._current_end = now + seconds
        return request, self._current_end

    def start(self, request: SimulatedRequest) -> tuple[float, list[int], list[int]]:
        """Make a stream of the computed prompt. Return its seconds, the stored and the evicted segments."""
        self.current = None
        self.running[request.number] = request
        stored, evicted = [], []
        for segment, tokens in request.segments:
            if segment not in self._cached:
                self._cached[segment] = tokens
                self._num_cached += tokens
                stored.append(segment)
        while self._num_cached > self.speed.cache_tokens:
            segment, tokens = self._cached.popitem(last=False)
            self._num_cached -= tokens
            evicted.append(segment)
        self.sequence += len(stored) + len(evicted)
        pace = self.speed.decode_seconds + (len(self.running) - 1) * self.speed.decode_row_seconds
        return request.num_output * pace, stored, evicted

    def fail(self) -> list[SimulatedRequest]:
        """Lose the cache and all requests; return these."""
        lost = [*self.queue, *self.running.values(), *([] if self.current is None else [self.current])]
        self.is_up, self.num_lives = False, self.num_lives + 1
        self._cached.clear()
        self._num_cached, self.current = 0, None
        self.queue, self.running = deque(), {}
        return lost

    def report(self, now: float) -> LoadReport:
        """Return its load, as an engine reports it."""
        speed = self.speed
        left = 0.0 if self.current is None else (self._current_end - now) * speed.prompt_rate
        seen: set[int] = set()  # a prefix that several of them have is computed once
        waiting = 0
        for request in self.queue:
            waiting += sum(tokens for each, tokens in request.segments if each not in self._cached and each not in seen)
            seen.update(segment for segment, _ in request.segments)
        return LoadReport(
            epoch=str(self.num_lives),
            sequence=self.sequence,
            num_waiting=len(self.queue),
            num_running=len(self.running) + (self.current is not None),
            max_rows=speed.max_rows,
            waiting_tokens=waiting,
            prompt_tokens=round(left),
            num_decoding=len(self.running),
            prompt_rate=speed.prompt_rate,
            decode_seconds=speed.decode_seconds,
            decode_row_seconds=speed.decode_row_seconds,
            service_seconds=1.0,
        )
