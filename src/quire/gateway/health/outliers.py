"""Outlier ejection: an upstream that fails, or is slow, far more often than the others gets no requests for a while.

Pure. The circuit breaker sees failures in a row; this sees shares of failures and times to the first byte, compared
with the rest of the fleet. At most half of the fleet is ejected, so that a common cause cannot empty it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

WINDOW_SECONDS = 30.0
MIN_REQUESTS = 10  # in the window, for a verdict
MAX_FAILED = 0.5  # share of failures
SLOW_TIMES = 5.0  # times the median of the others
MIN_SLOW_SECONDS = 1.0
PAUSE_SECONDS, MAX_PAUSE = 10.0, 120.0
MAX_EJECTED = 0.5  # share of the fleet


@dataclass(slots=True)
class _History:
    """One upstream's requests in the window, and its ejections."""

    results: deque[tuple[float, bool, float]] = field(default_factory=deque)  # time, succeeded, first byte in seconds
    until: float = 0.0
    num_ejections: int = 0


class Outliers:
    """All upstreams."""

    def __init__(self) -> None:
        self._histories: dict[str, _History] = {}

    def add(self, name: str, now: float, succeeded: bool, seconds: float) -> None:
        """Record a request: whether it succeeded, and the time to its first byte. Eject what has become an outlier."""
        history = self._histories.setdefault(name, _History())
        history.results.append((now, succeeded, seconds))
        self._expire(now)
        if now >= history.until and self._is_outlier(name) and self._may_eject(now):
            history.num_ejections += 1
            history.until = now + min(PAUSE_SECONDS * 2 ** (history.num_ejections - 1), MAX_PAUSE)
            history.results.clear()

    def is_ejected(self, name: str, now: float) -> bool:
        """Is this upstream ejected now?"""
        history = self._histories.get(name)
        return history is not None and now < history.until

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget upstreams that are gone."""
        kept = set(names)
        self._histories = {name: each for name, each in self._histories.items() if name in kept}

    def ejected(self, now: float) -> Mapping[str, float]:
        """The ejected upstreams, with the seconds that are left."""
        return {name: each.until - now for name, each in self._histories.items() if now < each.until}

    def _expire(self, now: float) -> None:
        for history in self._histories.values():
            while history.results and history.results[0][0] < now - WINDOW_SECONDS:
                history.results.popleft()

    def _is_outlier(self, name: str) -> bool:
        own = self._histories[name].results
        others = [each.results for other, each in self._histories.items() if other != name and each.results]
        if len(own) < MIN_REQUESTS or not others:
            return False
        if not own[-1][1]:
            failed = _failed(own)
            return failed >= MAX_FAILED and failed > 2 * median(_failed(each) for each in others)
        usual = median(_seconds(each) for each in others)
        return _seconds(own) > max(MIN_SLOW_SECONDS, SLOW_TIMES * usual)

    def _may_eject(self, now: float) -> bool:
        return len(self.ejected(now)) + 1 <= MAX_EJECTED * len(self._histories)


def _failed(results: deque[tuple[float, bool, float]]) -> float:
    return sum(not succeeded for _, succeeded, _ in results) / len(results)


def _seconds(results: deque[tuple[float, bool, float]]) -> float:
    return median(seconds for _, _, seconds in results)
