"""The contract of a balancer: what it gets about a request and the replicas, and what it returns.

A file of this folder is a balancer; its name is the value of `--balance`. It defines

    make() -> Balancer      a balancer with its own state, if it has any

A balancer is pure: it does no I/O, and time is an argument. The gateway calls `choose` for each request, with the
replicas as `gateway/fleet.py:Fleet.replicas` returns them: the load that each engine reported last, and the requests
that this gateway has sent there, or that were answered there, since. Several gateways agree because the engines
themselves report their load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol

from quire.types.load import LoadReport

CONTRACT = "contract"
DEFAULT_BALANCER = "cache"
NO_REPORT = LoadReport()
EXPECTED_OUTPUT = 128  # tokens, if neither the request nor earlier answers of its model give a better estimate


@dataclass(frozen=True, slots=True)
class BalancedRequest:
    """What a balancer sees of a request."""

    num_tokens: int  # of the prompt; an estimate where the gateway has no tokenizer for the model
    cached: Mapping[str, int] = field(default_factory=dict)  # replica -> prompt tokens cached there; absent: none
    session: str = ""  # requests with the same session belong together; empty: none
    expected_output: int = EXPECTED_OUTPUT  # tokens
    excluded: frozenset[str] = frozenset()  # replicas that this request has failed on


@dataclass(frozen=True, slots=True)
class Replica:
    """What a balancer sees of one engine that serves the request's model."""

    name: str
    is_available: bool = True  # healthy, not draining, its circuit closed
    weight: float = 1.0  # share of requests, for `weighted`; 0: none unless there is no other
    load: LoadReport = NO_REPORT  # the newest report; empty for upstreams that report none
    reported_at: float | None = None  # clock of `choose`; None: it has never reported
    sent_requests: int = 0  # requests of this gateway that the report does not count yet
    sent_tokens: int = 0  # uncached prompt tokens of these requests
    num_open: int = 0  # requests of this gateway that have not ended
    answered_tokens: int = 0  # prompt tokens that the report counts, of requests that were answered since
    ended_requests: int = 0  # requests that the report counts and that have ended since

    def age(self, now: float) -> float:
        """Seconds since its load was reported; infinite if it never was."""
        return float("inf") if self.reported_at is None else now - self.reported_at


@dataclass(frozen=True, slots=True)
class ReplicateHint:
    """A prefix that should be cached on a second replica, because the queue of the first costs more than a copy.

    The chosen replica computes the prefix with this request; the gateway need not do anything else.
    """

    source: str  # the replica that has the prefix and is too busy
    target: str  # the replica that computes it again
    num_tokens: int  # that are computed again


@dataclass(frozen=True, slots=True)
class BalancerChoice:
    """The replica of a request, with the estimates that led to it."""

    replica: str
    first_token_seconds: float = 0.0  # estimated, from now on
    end_seconds: float = 0.0  # estimated, from now on, with the expected output
    num_cached: int = 0  # prompt tokens that the replica has cached
    reason: str = ""  # one sentence, for `explain` and logs
    replicate: ReplicateHint | None = None


class Balancer(Protocol):
    """Chooses a replica for each request."""

    def choose(self, request: BalancedRequest, replicas: Sequence[Replica], now: float) -> BalancerChoice | None:
        """Return the choice among the replicas that are available and not excluded; None if there is none."""
        ...


class BalancerModule(Protocol):
    """A file of this folder."""

    def make(self) -> Balancer:
        """Return a new balancer."""
        ...


def usable(request: BalancedRequest, replicas: Sequence[Replica]) -> list[Replica]:
    """Return the replicas that may serve this request."""
    if not request.excluded:
        return [each for each in replicas if each.is_available]
    return [each for each in replicas if each.is_available and each.name not in request.excluded]


@cache
def all_balancers() -> Mapping[str, BalancerModule]:
    """The modules of this folder, by name."""
    folder = import_module("quire.gateway.balancers")
    names = [each.name for each in iter_modules(folder.__path__) if each.name != CONTRACT]
    return {name: import_module(f"{folder.__name__}.{name}") for name in names}
