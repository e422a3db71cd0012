"""Which replica answers a request, where the KV of its prompt comes from, and how a fleet counts both. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire.gateway.balancers.contract import BalancedRequest, Balancer, BalancerChoice, Replica
from quire.gateway.fleet import Fleet
from quire.gateway.prefix_sources import PrefixSources, SourceChoice
from quire.types.transfer import Role

PREFILL = " prefill"  # suffix of an attempt's id for its part at a prefill replica


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request is answered, and where the KV of its prompt comes from."""

    choice: BalancerChoice
    source: SourceChoice | None = None  # None: the replica that answers computes the prompt


class RequestPlacer:
    """Chooses the replica that answers, by the balancer, and the source of its prompt's KV."""

    def __init__(self, balancer: Balancer) -> None:
        self._balancer = balancer
        self._sources = PrefixSources()

    def place(
        self, request: BalancedRequest, replicas: Sequence[Replica], now: float, has_source: bool = True
    ) -> Placement | None:
        """Place a request; None: no replica is available. A prefill replica answers only if no other one can."""
        answering = [each for each in replicas if each.load.role != Role.PREFILL]
        choice = self._balancer.choose(request, answering, now) or self._balancer.choose(request, replicas, now)
        if choice is None:
            return None
        target = next(each for each in replicas if each.name == choice.replica)
        return Placement(choice, self._sources.choose(request, target, replicas, now) if has_source else None)


def count_sent(fleet: Fleet, attempt: str, placement: Placement, num_tokens: int, now: float) -> None:
    """Count an attempt where it is answered, and the prompt where it is computed."""
    choice, source = placement.choice, placement.source
    if source is not None:
        choice = replace(choice, num_cached=source.num_tokens)
    fleet.sent(attempt, choice, num_tokens, now)
    if source is not None and source.computes:
        prefill = BalancerChoice(source.replica, num_cached=source.num_cached)
        fleet.sent(attempt + PREFILL, prefill, source.num_tokens, now)


def count_first_token(fleet: Fleet, attempt: str) -> None:
    """Count the first token of an attempt: its prompt is computed, and a prefill replica has done its part."""
    fleet.answered(attempt)
    fleet.ended(attempt + PREFILL)


def count_ended(fleet: Fleet, attempt: str) -> None:
    """Count the end of an attempt."""
    fleet.ended(attempt)
    fleet.ended(attempt + PREFILL)
