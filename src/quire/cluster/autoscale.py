"""How many replicas a group should have, from its load. Pure: time is an argument.

    wanted = the most of   tokens / tokens that one replica should have
                           ready replicas × queue time / the queue time that is allowed, at most twice the ready ones
                           1 if there is any request for the model

Which tokens and which queue these are depends on the group's role (group_load.py).

More replicas are started when every observation of the last `up_seconds` wanted more; replicas are stopped when every
observation of the last `down_seconds` wanted fewer, counted with a margin. So one peak or one gap changes nothing, and
a load between the two limits keeps the number that there is. The first replica is started at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil

MOST_GROWTH = 2.0  # times the ready replicas, at once: a queue says that there are too few, not how many are needed
DOWN_SHARE = 0.7  # of the limits, which the load must fit into with fewer replicas


@dataclass(frozen=True, slots=True)
class AutoscaleRule:
    """The limits of a group's replicas. min = max: a fixed number."""

    min: int
    max: int
    queue_seconds: float = 2.0  # that a prompt may wait
    tokens: float = 16384.0  # in flight at one replica; of a prefill replica: of prompts that it has to compute
    up_seconds: float = 5.0
    down_seconds: float = 60.0
    idle_seconds: float = 300.0  # without a request for the model, before the last replica is stopped (min: 0)


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """The load of a group's replicas together."""

    num_ready: int = 0
    num_waiting: int = 0  # requests for the model that wait at the gateway because no replica is ready
    num_requests: int = 0  # at the replicas
    queue_seconds: float = 0.0  # of a prompt that arrives now, at the replica with the shortest queue
    tokens: int = 0
    counted: str = "tokens in flight"  # what `tokens` are
    num_elsewhere: int = 0  # requests at other replicas of the model

    @property
    def is_busy(self) -> bool:
        """Has the model any request?"""
        return self.num_requests > 0 or self.num_waiting > 0 or self.num_elsewhere > 0


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    """The number of replicas, and the sentence that says why."""

    count: int
    reason: str = ""


class Autoscaler:
    """Decides for one group. `decide` is called at intervals, with the number that was decided before."""

    def __init__(self, rule: AutoscaleRule) -> None:
        self.rule = rule
        self._history: deque[tuple[float, int, int]] = deque()  # (time, wanted, wanted with the margin)
        self._busy_at: float | None = None  # when a request was seen last, or the first observation

    def decide(self, load: FleetLoad, current: int, now: float) -> ScaleDecision:
        """Return the number of replicas that there should be now."""
        rule = self.rule
        if rule.min == rule.max:
            return ScaleDecision(rule.min)
        if load.is_busy or self._busy_at is None:
            self._busy_at = now
        wanted, with_margin = self._wanted(load, 1.0), self._wanted(load, DOWN_SHARE)
        self._history.append((now, wanted, with_margin))
        while now - self._history[1][0] >= max(rule.up_seconds, rule.down_seconds) if len(self._history) > 1 else False:
            self._history.popleft()
        if current < rule.min or current > rule.max:
            return ScaleDecision(min(max(current, rule.min), rule.max), "the limits of the file")
        if current == 0:
            facts = f"{load.num_waiting} requests wait, {load.num_elsewhere} are at other replicas"
            return ScaleDecision(1, facts) if load.is_busy else ScaleDecision(0)
        return self._changed(load, current, now)

    def _changed(self, load: FleetLoad, current: int, now: float) -> ScaleDecision:
        rule = self.rule
        up = self._within(rule.up_seconds, now, 1)
        if up is not None and min(up) > current and current < rule.max:
            facts = f"{load.tokens} {load.counted}, {load.queue_seconds:.1f} s of queue, {load.num_waiting} waiting"
            return ScaleDecision(min(*up, rule.max), f"more for {rule.up_seconds:g} s: {facts}")
        down = self._within(rule.down_seconds, now, 2)
        least = max(rule.min, 1)
        if down is not None and max(down) < current and current > least:
            facts = f"at most {max(down)} needed for {rule.down_seconds:g} s"
            return ScaleDecision(max(*down, least), facts)
        idle = now - (self._busy_at if self._busy_at is not None else now)
        if rule.min == 0 and current == 1 and idle >= rule.idle_seconds:
            return ScaleDecision(0, f"no request for {idle:.0f} s")
        return ScaleDecision(current)

    def _wanted(self, load: FleetLoad, share: float) -> int:
        rule = self.rule
        by_tokens = ceil(load.tokens / (rule.tokens * share))
        ratio = load.queue_seconds / (rule.queue_seconds * share)
        by_queue = ceil(load.num_ready * min(ratio, MOST_GROWTH)) if ratio > 1.0 else 0
        return min(max(by_tokens, by_queue, int(load.is_busy)), rule.max)

    def _within(self, seconds: float, now: float, place: int) -> list[int] | None:
        """The wishes of the last `seconds`; None if the observations are too few for that."""
        if now - self._history[0][0] < seconds:
            return None
        recent = [each for each in self._history if now - each[0] <= seconds]
        return [int(each[place]) for each in recent]
