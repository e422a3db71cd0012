"""Where a request is answered and where its prompt is computed, and what a fleet counts of both."""

from __future__ import annotations

import pytest

from quire.gateway.balancers.contract import BalancedRequest, all_balancers
from quire.gateway.fleet import Fleet
from quire.gateway.placement import RequestPlacer, count_ended, count_first_token, count_sent
from quire.types.load import LoadReport

pytestmark = pytest.mark.pure


def fleet_of(**roles: str) -> Fleet:
    fleet = Fleet()
    for port, (name, role) in enumerate(roles.items(), 1):
        fleet.add(name)
        load = LoadReport(prompt_rate=1000.0, decode_seconds=0.01, role=role, transfer_port=port, token_bytes=10)
        fleet.report(name, load, 0.0)
    return fleet


def open_requests(fleet: Fleet) -> dict[str, int]:
    return {each.name: each.num_open for each in fleet.replicas()}


def test_a_prefill_replica_computes_and_a_decode_replica_answers():
    fleet, placer = fleet_of(p="prefill", d="decode"), RequestPlacer(all_balancers()["cache"].make())
    placement = placer.place(BalancedRequest(500), fleet.replicas(), 0.0)
    assert placement is not None and placement.choice.replica == "d"
    assert placement.source is not None and placement.source.replica == "p" and placement.source.computes
    without = placer.place(BalancedRequest(500), fleet.replicas(), 0.0, has_source=False)
    assert without is not None and without.source is None


def test_a_prefill_replica_answers_if_no_other_is_left():
    fleet, placer = fleet_of(p="prefill", d="decode"), RequestPlacer(all_balancers()["cache"].make())
    placement = placer.place(BalancedRequest(500, excluded=frozenset({"d"})), fleet.replicas(), 0.0)
    assert placement is not None and placement.choice.replica == "p" and placement.source is None


def test_the_part_of_a_prefill_replica_ends_with_the_first_token():
    fleet, placer = fleet_of(p="prefill", d="decode"), RequestPlacer(all_balancers()["cache"].make())
    placement = placer.place(BalancedRequest(500), fleet.replicas(), 0.0)
    assert placement is not None
    count_sent(fleet, "1", placement, 500, 0.0)
    assert open_requests(fleet) == {"p": 1, "d": 1}
    assert [each.sent_tokens for each in fleet.replicas()] == [496, 4]  # whole blocks of 16 tokens
    count_first_token(fleet, "1")
    assert open_requests(fleet) == {"p": 0, "d": 1}
    count_ended(fleet, "1")
    assert open_requests(fleet) == {"p": 0, "d": 0}
    assert [each.sent_tokens for each in fleet.replicas()] == [0, 0]
