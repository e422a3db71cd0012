"""The replicas of one model as a gateway sees them: reported loads, and what it has sent since."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.gateway.balancers.contract import NO_REPORT, BalancerChoice, Replica
from quire.types.load import LoadReport

GRACE_SECONDS = 0.05  # a request sent so shortly before a report was asked for may not be in it


@dataclass(slots=True)
class _Sent:
    """A request in progress."""

    member: _Member
    sent_at: float
    num_tokens: int  # of its prompt, still to be computed
    is_reported: bool = False  # the newest report counts it


@dataclass(slots=True)
class _Member:
    """A replica, the requests that its newest report does not count, and changes to those that it counts."""

    name: str
    weight: float = 1.0
    is_available: bool = True
    load: LoadReport = NO_REPORT
    reported_at: float | None = None
    unreported: dict[str, _Sent] = field(default_factory=dict)
    sent_tokens: int = 0  # of the unreported ones
    reported_tokens: int = 0  # of the reported ones that are not computed yet
    answered_tokens: int = 0  # of the reported ones that were computed since
    ended_requests: int = 0  # reported ones that have ended since
    num_open: int = 0
    view: Replica | None = None  # while nothing has changed

    def replica(self) -> Replica:
        if self.view is None:
            # The backlog counts the uncomputed rest of prompts, `answered_tokens` whole prompts: subtracting may take
            # off too much, so at least the prompts that are still open are kept.
            left = max(self.load.backlog_tokens - self.answered_tokens, self.reported_tokens)
            self.view = Replica(
                self.name,
                self.is_available,
                self.weight,
                self.load,
                self.reported_at,
                sent_requests=len(self.unreported),
                sent_tokens=self.sent_tokens,
                num_open=self.num_open,
                answered_tokens=max(self.load.backlog_tokens - left, 0),
                ended_requests=self.ended_requests,
            )
        return self.view

    def count_reported(self, request_id: str) -> None:
        """Record that the newest report counts this request."""
        sent = self.unreported.pop(request_id)
        sent.is_reported = True
        self.sent_tokens -= sent.num_tokens
        self.reported_tokens += sent.num_tokens

    def count_answered(self, sent: _Sent) -> None:
        """Record that the prompt of this request is computed."""
        if sent.is_reported:
            self.reported_tokens -= sent.num_tokens
            self.answered_tokens += sent.num_tokens
        else:
            self.sent_tokens -= sent.num_tokens
        sent.num_tokens, self.view = 0, None


class Fleet:
    """Keeps the replicas of one model. Pure: time is an argument.

    A report counts the requests that were sent before it; those that are sent while it is on its way are counted here
    until the next one. First tokens and ends are counted here too: a report may be half a second old, and its queue may
    be gone by then. For a replica that reports nothing, only the requests that this gateway has sent count.
    """

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._open: dict[str, _Sent] = {}  # by request

    def add(self, name: str, weight: float = 1.0, is_available: bool = True) -> None:
        """Add a replica, or change the weight and availability of one that is known."""
        member = self._members.setdefault(name, _Member(name))
        member.weight, member.is_available, member.view = weight, is_available, None

    def remove(self, name: str) -> None:
        """Forget a replica."""
        self._members.pop(name, None)

    def report(self, name: str, load: LoadReport, asked_at: float, came_at: float | None = None) -> None:
        """Store a load report that was requested at `asked_at`: it counts what was sent before.

        An engine answers between two steps, which may be long: the queue is that of `came_at`, not of the request.
        """
        member = self._members[name]
        old = [each for each, sent in member.unreported.items() if sent.sent_at < asked_at - GRACE_SECONDS]
        for request_id in old:
            member.count_reported(request_id)
        member.answered_tokens = member.ended_requests = 0
        member.load, member.reported_at, member.view = load, asked_at if came_at is None else came_at, None

    def sent(self, request_id: str, choice: BalancerChoice, num_tokens: int, now: float) -> None:
        """Count a request of `num_tokens` prompt tokens that is sent to the chosen replica."""
        member = self._members.get(choice.replica)
        if member is not None:
            sent = _Sent(member, now, max(num_tokens - choice.num_cached, 0))
            self._open[request_id] = member.unreported[request_id] = sent
            member.sent_tokens += sent.num_tokens
            member.num_open += 1
            member.view = None

    def answered(self, request_id: str) -> None:
        """Count the first token of a request: its prompt is computed, whether a report says so or not."""
        sent = self._open.get(request_id)
        if sent is not None and sent.num_tokens:
            sent.member.count_answered(sent)

    def ended(self, request_id: str) -> None:
        """Count the end of a request, whatever its result. Unknown requests are ignored."""
        sent = self._open.pop(request_id, None)
        if sent is not None:
            member = sent.member
            member.count_answered(sent)
            member.unreported.pop(request_id, None)
            member.ended_requests += sent.is_reported
            member.num_open -= 1

    def replicas(self) -> list[Replica]:
        """Return all replicas, in the order in which they were added."""
        return [member.replica() for member in self._members.values()]
