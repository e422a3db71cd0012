"""The simulation, and what it shows of the balancers."""

from __future__ import annotations

import pytest

from quire.bench.fleet.command import in_one_server, policy_row, scenarios
from quire.bench.fleet.simulate import FleetScenario, Outage, hit_rate, simulate
from quire.bench.fleet.threshold import ThresholdBalancer
from quire.bench.fleet.traffic import Burst, Traffic, arrivals
from quire.gateway.balancers.contract import all_balancers

pytestmark = pytest.mark.pure


def make(name: str):
    return all_balancers()[name].make()


def test_traffic_is_repeatable_and_has_the_rate_and_the_bursts_that_it_says():
    traffic = Traffic(rate=50, seconds=20, bursts=(Burst(5, 10, share=0.8, prefix=150),))
    requests = list(arrivals(traffic))
    assert requests == list(arrivals(traffic))
    assert 800 < len(requests) < 1200
    hot = [each for each in requests if 5 <= each.arrival < 10]
    assert 0.7 < sum(each.prefix == 150 for each in hot) / len(hot) < 0.9


@pytest.mark.parametrize("name", sorted(all_balancers()))
def test_every_request_ends_once_whatever_fails(name):
    traffic = Traffic(rate=40, seconds=8, num_prefixes=20)
    outages = (Outage(0, 2, 4), Outage(1, 3, 3.5), Outage(2, 3, 5), Outage(3, 3, 4))
    result = simulate(FleetScenario(4, traffic, outages=outages), make(name))
    assert len(result.requests) == len(list(arrivals(traffic)))
    assert all(each.arrival < each.first_token <= each.end for each in result.requests)
    assert any(each.num_sent > 1 for each in result.requests)


def test_the_cache_balancer_reaches_95_percent_of_the_hits_of_one_server_with_the_summed_cache():
    for _, scenario in scenarios(8, seconds=20):
        whole = simulate(in_one_server(scenario), make("cache"))
        result = simulate(scenario, make("cache"))
        assert result.hit_rate >= 0.95 * whole.hit_rate
        assert result.hit_rate > simulate(scenario, make("round_robin")).hit_rate
        assert result.imbalance < 1.5 and len(policy_row(result)) == 6


def test_one_hot_replica_switches_affinity_off_with_a_global_threshold_and_not_here():
    """The published death spiral: one hot worker makes all requests go to the shortest queue.

    Then caches are mixed, every prefix is computed everywhere, queues grow, and the switch stays on.
    """
    burst = Burst(14, 18, share=0.5, prefix=3)
    scenario = FleetScenario(16, Traffic(rate=200, seconds=24, num_prefixes=190, bursts=(burst,)))

    def hits_of_others(balancer):
        """The hit rates of all other prefixes: before, during and after the burst."""
        others = [each for each in simulate(scenario, balancer).requests if each.prefix != burst.prefix]
        times = ((8, 14), (14, 18), (18, 24))
        return [hit_rate([each for each in others if start <= each.arrival < end]) for start, end in times]

    before, during, after = hits_of_others(ThresholdBalancer())
    assert before > 0.85 and during < 0.7 and after < 0.82
    assert min(hits_of_others(make("cache"))) > 0.85


def test_a_hot_prefix_is_copied_to_as_many_replicas_as_its_load_needs():
    traffic = Traffic(rate=200, seconds=10, num_prefixes=1, own_tokens=300, prefix_tokens=4000)
    result = simulate(FleetScenario(8, traffic), make("cache"))  # 60,000 tokens a second for replicas of 10,000
    assert result.imbalance < 1.5 and result.hit_rate > 0.85
    assert result.first_token(0.99) < 2.0
