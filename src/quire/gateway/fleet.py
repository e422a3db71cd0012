"""The replicas of one model as a gateway sees them: reported loads, and what it has sent since."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.gateway.balancers.contract import NO_REPORT, BalancerChoice, Replica
from quire.types.load import LoadReport

GRACE_SECONDS = 0.05  # a request sent so shortly before a report was asked for may not be in it


@dataclass(slots=True)
class _Member:
    """A replica, and the requests that its newest report does not count."""

    name: str
    weight: float = 1.0
    is_available: bool = True
    load: LoadReport = NO_REPORT
    reported_at: float | None = None
    unreported: dict[str, tuple[float, int]] = field(default_factory=dict)  # request -> (sent at, uncached tokens)
    sent_tokens: int = 0
    num_open: int = 0
    view: Replica | None = None  # while nothing has changed

    def replica(self) -> Replica:
        if self.view is None:
            self.view = Replica(
                self.name,
                self.is_available,
                self.weight,
                self.load,
                self.reported_at,
                sent_requests=len(self.unreported),
                sent_tokens=self.sent_tokens,
                num_open=self.num_open,
            )
        return self.view

    def count_reported(self, request_id: str) -> None:
        self.sent_tokens -= self.unreported.pop(request_id, (0.0, 0))[1]
        self.view = None


class Fleet:
    """Keeps the replicas of one model. Pure: time is an argument.

    A report counts the requests that were sent before it; those that are sent while it is on its way are counted here
    until the next one. A replica that reports nothing is judged by the requests that this gateway has sent to it.
    """

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._open: dict[str, _Member] = {}  # by request

    def add(self, name: str, weight: float = 1.0, is_available: bool = True) -> None:
        """Add a replica, or change the weight and availability of one that is known."""
        member = self._members.setdefault(name, _Member(name))
        member.weight, member.is_available, member.view = weight, is_available, None

    def remove(self, name: str) -> None:
        """Forget a replica."""
        self._members.pop(name, None)

    def report(self, name: str, load: LoadReport, asked_at: float) -> None:
        """Take a load report that was asked for at `asked_at`: it counts what was sent before."""
        member = self._members[name]
        old = [each for each, (sent_at, _) in member.unreported.items() if sent_at < asked_at - GRACE_SECONDS]
        for request_id in old:
            member.count_reported(request_id)
        member.load, member.reported_at, member.view = load, asked_at, None

    def sent(self, request_id: str, choice: BalancerChoice, num_tokens: int, now: float) -> None:
        """Count a request of `num_tokens` prompt tokens that is sent to the chosen replica."""
        member = self._members.get(choice.replica)
        if member is not None:
            num_uncached = max(num_tokens - choice.num_cached, 0)
            self._open[request_id] = member
            member.unreported[request_id] = (now, num_uncached)
            member.sent_tokens += num_uncached
            member.num_open += 1
            member.view = None

    def answered(self, request_id: str) -> None:
        """Count the first token of a request: its prompt is computed, whether a report says so or not."""
        member = self._open.get(request_id)
        if member is not None and request_id in member.unreported:
            sent_at, num_tokens = member.unreported[request_id]
            member.unreported[request_id] = (sent_at, 0)
            member.sent_tokens -= num_tokens
            member.view = None

    def ended(self, request_id: str) -> None:
        """Count the end of a request, whatever its result. Unknown requests are ignored."""
        member = self._open.pop(request_id, None)
        if member is not None:
            member.count_reported(request_id)
            member.num_open -= 1

    def replicas(self) -> list[Replica]:
        """Return all replicas, in the order in which they were added."""
        return [member.replica() for member in self._members.values()]
