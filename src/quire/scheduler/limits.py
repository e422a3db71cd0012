"""What a step may contain: how fast the device is, and whose turn it is."""

from __future__ import annotations

from collections import Counter, OrderedDict

from quire.config import SchedulerConfig

KEPT_COUNTERS = 4096  # of keys that have nothing to do


class Pace:
    """How long steps take, learned from those that ran: seconds = fixed + each × tokens, recent steps counting most."""

    DECAY = 0.9

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._service = 0.0
        self.tokens_per_second = 0.0

    def learn(self, num_tokens: int, seconds: float) -> None:
        """A step of `num_tokens` took `seconds`."""
        if seconds <= 0.0:
            return
        self._weight = self._weight * self.DECAY + 1.0
        self._x = self._x * self.DECAY + num_tokens
        self._y = self._y * self.DECAY + seconds
        self._xx = self._xx * self.DECAY + num_tokens * num_tokens
        self._xy = self._xy * self.DECAY + num_tokens * seconds
        self.tokens_per_second = self._x / self._y

    def learn_service(self, seconds: float) -> None:
        """A request ended `seconds` after it was admitted."""
        self._service = seconds if not self._service else self._service * self.DECAY + seconds * (1 - self.DECAY)

    @property
    def service_seconds(self) -> float:
        """How long a request usually runs."""
        return self._service

    def tokens_within(self, seconds: float) -> float:
        """How many tokens a step that may take `seconds` can have. Infinite until a step has been seen."""
        if not self._weight:
            return float("inf")
        x, y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - x * x
        slope = (self._xy / self._weight - x * y) / spread if spread > 1e-6 * x * x else 0.0
        if slope <= 0.0:  # all steps alike, or noise: then time is taken to grow with tokens
            slope = y / x
        return (seconds - max(y - slope * x, 0.0)) / slope

    def prompt_tokens(self, config: SchedulerConfig, num_streams: int, budget: int) -> int:
        """How many tokens of prompts a step can have beside streams that wait no longer than promised."""
        if not num_streams:
            return budget
        within = self.tokens_within(config.stream_gap) - num_streams
        return int(min(max(within, config.min_prompt_tokens), budget))


def stretched(allowed: int) -> int:
    """Prompt tokens beside streams where `allowed` would leave only a few more to do.

    The streams would wait for those anyway, and for the rest of the step that they are left to.
    """
    return allowed + allowed // 4


class FairShare:
    """Virtual token counters: each key is charged for what it was served, and the one that had least goes first.

    A key that comes back from idleness starts level with the least served active key: it has no claim on the past.
    """

    def __init__(self) -> None:
        self._served: dict[str, float] = {}  # of keys with requests waiting or running
        self._live: Counter[str] = Counter()
        self._idle: OrderedDict[str, float] = OrderedDict()  # of others; the longest idle are forgotten

    def enter(self, key: str) -> None:
        """A request of this key arrives."""
        if not self._live[key]:
            self._served[key] = max(self._idle.pop(key, 0.0), min(self._served.values(), default=0.0))
        self._live[key] += 1

    def leave(self, key: str) -> None:
        """A request of this key ends."""
        self._live[key] -= 1
        if not self._live[key]:
            del self._live[key]
            self._idle[key] = self._served.pop(key)
            if len(self._idle) > KEPT_COUNTERS:
                self._idle.popitem(last=False)

    def charge(self, key: str, cost: float) -> None:
        """The key was served."""
        self._served[key] += cost

    def served(self, key: str) -> float:
        """What the key was charged."""
        return self._served[key]

    def check(self, live: Counter[str]) -> None:
        """The keys that have requests are known, and no others count as live."""
        assert live == self._live and live.keys() == self._served.keys()
