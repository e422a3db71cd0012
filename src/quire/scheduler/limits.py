"""Limits on a step: the measured step time, and each API key's fair share."""

from __future__ import annotations

from collections import Counter, OrderedDict

from quire.config import SchedulerConfig
from quire.scheduler.pace import Pace

MAX_IDLE_KEYS = 4096  # whose counters are remembered


class StepTimeModel:
    """Predicts step time from measured steps: seconds = fixed + slope × tokens, weighted towards recent steps."""

    DECAY = 0.9

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0  # sums; x: tokens, y: seconds
        self._service_seconds = 0.0
        self.tokens_per_second = 0.0
        self.pace = Pace()

    def record_step(self, num_tokens: int, seconds: float) -> None:
        """Learn from a step of `num_tokens` that took `seconds`."""
        if seconds <= 0.0:
            return
        self._weight = self._weight * self.DECAY + 1.0
        self._x = self._x * self.DECAY + num_tokens
        self._y = self._y * self.DECAY + seconds
        self._xx = self._xx * self.DECAY + num_tokens * num_tokens
        self._xy = self._xy * self.DECAY + num_tokens * seconds
        self.tokens_per_second = self._x / self._y

    def record_service(self, seconds: float) -> None:
        """Learn from a request that ended `seconds` after its admission."""
        before = self._service_seconds
        self._service_seconds = before * self.DECAY + seconds * (1 - self.DECAY) if before else seconds

    @property
    def service_seconds(self) -> float:
        """Average time from a request's admission to its end."""
        return self._service_seconds

    def tokens_within(self, seconds: float) -> float:
        """Return how many tokens a step of at most `seconds` can compute. Infinite before the first step."""
        if not self._weight:
            return float("inf")
        x, y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - x * x
        slope = (self._xy / self._weight - x * y) / variance if variance > 1e-6 * x * x else 0.0
        if slope <= 0.0:  # all steps had the same size, or the fit is noise: assume time proportional to tokens
            slope = y / x
        return (seconds - max(y - slope * x, 0.0)) / slope

    def prompt_tokens(self, config: SchedulerConfig, num_streams: int, budget: int) -> int:
        """Return how many prompt tokens fit into a step without exceeding the streams' promised gap.

        Prompts for other engines have short steps too: their blocks are sent, and new ones begin, between two steps.
        """
        if not num_streams and not config.hands_over:
            return budget
        fitting = self.tokens_within(config.stream_gap) - num_streams
        return int(min(max(fitting, config.min_prompt_tokens), budget))


def with_remainder(prompt_tokens: int) -> int:
    """Return the larger limit for a step that finishes all prompts: a quarter more.

    A short remainder in a step of its own would delay the streams by more than that.
    """
    return prompt_tokens + prompt_tokens // 4


class FairShare:
    """Virtual token counters: each key is charged for what it receives, and the least charged key is served first.

    A key that returns from idleness starts level with the least charged active key: idle time earns no credit.
    """

    def __init__(self) -> None:
        self._charged: dict[str, float] = {}  # keys with waiting or running requests
        self._num_requests: Counter[str] = Counter()
        self._idle: OrderedDict[str, float] = OrderedDict()  # counters of other keys; the longest idle are dropped

    def add_request(self, key: str) -> None:
        """Count an arriving request of this key."""
        if not self._num_requests[key]:
            self._charged[key] = max(self._idle.pop(key, 0.0), min(self._charged.values(), default=0.0))
        self._num_requests[key] += 1

    def remove_request(self, key: str) -> None:
        """Count a finished request of this key."""
        self._num_requests[key] -= 1
        if not self._num_requests[key]:
            del self._num_requests[key]
            self._idle[key] = self._charged.pop(key)
            if len(self._idle) > MAX_IDLE_KEYS:
                self._idle.popitem(last=False)

    def charge(self, key: str, cost: float) -> None:
        """Add to what the key has received."""
        self._charged[key] += cost

    def charged(self, key: str) -> float:
        """Return what the key has been charged."""
        return self._charged[key]

    def check(self, num_requests: Counter[str]) -> None:
        """Assert that exactly the keys with requests have counters."""
        assert num_requests == self._num_requests and num_requests.keys() == self._charged.keys()
