"""The choice of an upstream: the balancer, with the fleet's loads and the index of cached prefixes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from quire.gateway.balancers.contract import EXPECTED_OUTPUT, BalancedRequest, Balancer, BalancerChoice, Replica
from quire.gateway.fleet import Fleet
from quire.gateway.health.outliers import Outliers
from quire.gateway.placement import Placement, RequestPlacer, count_ended, count_first_token, count_sent
from quire.gateway.prefix_sources import SourceChoice
from quire.gateway.relay.request import RelayedRequest
from quire.gateway.upstreams.registry import Upstreams
from quire.gateway.upstreams.upstream import Upstream
from quire.types.load import LoadReport
from quire.types.request import CacheKey
from quire.types.transfer import PrefixSource

BYTES_PER_TOKEN = 4  # of a body whose prompt is not encoded


class PrefixLookup(Protocol):
    """The index of what upstreams have cached."""

    def cached(self, model: str, key: CacheKey, tokens: tuple[int, ...]) -> Mapping[str, int]:
        """Upstream -> how many of these tokens it has cached."""

    def expect(self, upstream: Upstream, model: str, key: CacheKey, tokens: tuple[int, ...]) -> None:
        """A prompt is sent to an upstream: it will be cached there."""

    def observe(self, upstream: str, model: str, promised: int, found: int) -> None:
        """An upstream has said how much of a prompt it had cached."""


@dataclass(frozen=True, slots=True)
class ChosenUpstream:
    """An upstream for a request, and why it was chosen."""

    upstream: Upstream
    choice: BalancerChoice
    source: SourceChoice | None = None  # the replica that sends the prompt's blocks; None: it computes them itself
    address: PrefixSource | None = None  # address of that replica's engine

    @property
    def source_kind(self) -> str:
        """Return the source of the prompt's KV, for metrics."""
        return "alone" if self.source is None else "prefill" if self.source.computes else "cache"

    @property
    def first_token_seconds(self) -> float:
        """Return the estimated seconds to the first token."""
        return self.choice.first_token_seconds if self.source is None else self.source.first_token_seconds


class Balance:
    """Used in the event loop's thread."""

    def __init__(self, balancer: Balancer, upstreams: Upstreams, outliers: Outliers, lookup: PrefixLookup) -> None:
        self._balancer = balancer
        self._upstreams = upstreams
        self._outliers = outliers
        self._lookup = lookup
        self._fleets: dict[str, Fleet] = {}
        self._placer = RequestPlacer(balancer)
        self._known: dict[str, dict[str, tuple[float, bool]]] = {}  # model -> upstream -> what its fleet was told

    def choose(
        self, request: RelayedRequest, now: float, excluded: Collection[str] = (), only_quire: bool = False
    ) -> ChosenUpstream | None:
        """The upstream for this request; None if none is available."""
        seen, replicas = self._seen(request, excluded), self._fleet(request, now, only_quire).replicas()
        placement = self._placer.place(seen, replicas, now, has_source=bool(request.tokens))
        upstream = None if placement is None else self._upstreams.get(placement.choice.replica)
        if placement is None or upstream is None:
            return None
        source = placement.source
        address = None if source is None else self._address(source, replicas)
        return ChosenUpstream(upstream, placement.choice, None if address is None else source, address)

    def _address(self, source: SourceChoice, replicas: Sequence[Replica]) -> PrefixSource | None:
        """Return the address of the source's engine: the host of its URL, and the port that it reported."""
        upstream = self._upstreams.get(source.replica)
        host = None if upstream is None else urlsplit(upstream.spec.url).hostname
        port = next(each.load.transfer_port for each in replicas if each.name == source.replica)
        return PrefixSource(host, port, source.computes, source.num_tokens, source.seconds) if host else None

    def estimates(self, request: RelayedRequest, now: float) -> dict[str, BalancerChoice | None]:
        """What the balancer would say of each upstream alone; None: it is not available."""
        seen = self._seen(request, ())
        replicas = self._fleet(request, now, only_quire=False).replicas()
        return {replica.name: self._balancer.choose(seen, [replica], now) for replica in replicas}

    def report(self, upstream: Upstream, model: str, load: LoadReport, asked_at: float, came_at: float) -> None:
        """Take the load that an upstream has reported for a model."""
        fleet = self._fleets.setdefault(model, Fleet())
        if upstream.name not in self._known.setdefault(model, {}):
            self._tell(model, upstream, is_available=False)
        upstream.role = load.role
        fleet.report(upstream.name, load, asked_at, came_at)

    def loads(self, model: str) -> dict[str, LoadReport]:
        """The newest load of each upstream."""
        fleet = self._fleets.get(model)
        return {} if fleet is None else {each.name: each.load for each in fleet.replicas()}

    def sent(self, attempt: str, request: RelayedRequest, chosen: ChosenUpstream, now: float) -> None:
        """Count an attempt of a request that is sent."""
        placement = Placement(chosen.choice, chosen.source)
        count_sent(self._fleets[request.model], attempt, placement, request.num_tokens, now)
        if request.tokens:
            self._lookup.expect(chosen.upstream, request.model, request.cache_key, request.tokens)

    def began(self, attempt: str, request: RelayedRequest) -> None:
        """Count the first token of an attempt: its prompt is computed."""
        fleet = self._fleets.get(request.model)
        if fleet is not None:
            count_first_token(fleet, attempt)

    def answered(self, request: RelayedRequest, chosen: ChosenUpstream, num_cached: int) -> None:
        """An upstream has answered, and found so many tokens of the prompt in its cache."""
        if len(request.prompts) == 1:
            self._lookup.observe(chosen.upstream.name, request.model, chosen.choice.num_cached, num_cached)

    def ended(self, attempt: str, request: RelayedRequest) -> None:
        """An attempt has ended."""
        fleet = self._fleets.get(request.model)
        if fleet is not None:
            count_ended(fleet, attempt)

    def forget(self, upstream: Upstream) -> None:
        """An upstream is gone."""
        for model, fleet in self._fleets.items():
            if self._known[model].pop(upstream.name, None) is not None:
                fleet.remove(upstream.name)

    def _fleet(self, request: RelayedRequest, now: float, only_quire: bool) -> Fleet:
        """The fleet of the request's model, with what is available for this request now."""
        model = request.model
        fleet, known = self._fleets.setdefault(model, Fleet()), self._known.setdefault(model, {})
        for upstream in self._upstreams:
            can_serve = upstream.serves(model) and upstream.speaks(request.dialect) and upstream.may_serve(now)
            if can_serve and only_quire:
                can_serve = upstream.is_quire
            if can_serve and self._outliers.is_ejected(upstream.name, now):
                can_serve = False
            if can_serve or upstream.name in known:
                self._tell(model, upstream, can_serve)
        if not any(is_available for _, is_available in known.values()):  # an ejected one is better than none
            for name in self._outliers.ejected(now):
                upstream_or_none = self._upstreams.get(name)
                if upstream_or_none is not None and name in known and upstream_or_none.may_serve(now):
                    self._tell(model, upstream_or_none, is_available=not only_quire or upstream_or_none.is_quire)
        return fleet

    def _tell(self, model: str, upstream: Upstream, is_available: bool) -> None:
        fact = (upstream.spec.weight, is_available)
        if self._known[model].get(upstream.name) != fact:
            self._known[model][upstream.name] = fact
            self._fleets[model].add(upstream.name, *fact)

    def _seen(self, request: RelayedRequest, excluded: Collection[str]) -> BalancedRequest:
        tokens = request.tokens
        cached = self._lookup.cached(request.model, request.cache_key, tokens) if tokens else {}
        return BalancedRequest(
            request.num_tokens,
            cached,
            request.session,
            request.expected_output or EXPECTED_OUTPUT,
            frozenset(excluded),
        )
