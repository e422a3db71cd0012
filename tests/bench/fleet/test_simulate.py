"""The simulation, and what it shows of the balancers."""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import pairwise
from statistics import mean

import pytest

from quire.bench.fleet.command import (
    DOCUMENTS_HEAD,
    ROLES_HEAD,
    documents,
    documents_row,
    in_one_server,
    policy_row,
    roles_row,
    scenarios,
)
from quire.bench.fleet.command import main as fleet_main
from quire.bench.fleet.handover import KVLink
from quire.bench.fleet.replica import ReplicaSpeed
from quire.bench.fleet.simulate import FleetResult, FleetScenario, Outage, hit_rate, simulate
from quire.bench.fleet.threshold import ThresholdBalancer
from quire.bench.fleet.traffic import Burst, SimulatedRequest, Traffic, arrivals
from quire.gateway import prefix_sources
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
    scenario = FleetScenario(16, Traffic(rate=200, seconds=24, num_prefixes=190, zipf=0.8, bursts=(burst,)))

    def hits_of_others(balancer):
        """The hit rates of all other prefixes: before, during and after the burst."""
        others = [each for each in simulate(scenario, balancer).requests if each.prefix != burst.prefix]
        times = ((8, 14), (14, 18), (18, 24))
        return [hit_rate([each for each in others if start <= each.arrival < end]) for start, end in times]

    before, during, after = hits_of_others(ThresholdBalancer())
    assert before > 0.85 and during < 0.7 and after < 0.8
    assert min(hits_of_others(make("cache"))) > 0.88


def test_a_hot_prefix_is_copied_to_as_many_replicas_as_its_load_needs():
    traffic = Traffic(rate=200, seconds=10, num_prefixes=1, own_tokens=300, prefix_tokens=4000)
    result = simulate(FleetScenario(8, traffic), make("cache"))  # 60,000 tokens a second for replicas of 10,000
    assert result.imbalance < 1.5 and result.hit_rate > 0.85
    assert result.first_token(0.99) < 2.0


def test_clients_send_their_next_request_when_their_last_one_has_ended():
    result = simulate(documents(4, num_clients=6, cache_tokens=6144), make("cache"))
    times = sorted([(each.arrival, 1) for each in result.requests] + [(each.end, -1) for each in result.requests])
    open_requests, most = 0, 0
    for _, change in times:
        open_requests += change
        most = max(most, open_requests)
    assert len(result.requests) == 128 and most == 6


def test_tokens_computed_again_are_counted_by_their_reason():
    one = Traffic(num_prefixes=1, prefix_tokens=1000, own_tokens=10, num_clients=1, num_requests=40)
    copied = simulate(FleetScenario(4, one), make("round_robin"))
    assert (copied.copied_tokens, copied.evicted_tokens) == (3000, 0)
    two = Traffic(num_prefixes=2, zipf=0.0, prefix_tokens=1000, own_tokens=10, num_clients=1, num_requests=40)
    evicted = simulate(FleetScenario(1, two, ReplicaSpeed(cache_tokens=1500)), make("cache"))
    turns = [each.prefix for each in evicted.requests]
    num_changes = sum(was != now for was, now in pairwise(turns))
    assert evicted.copied_tokens == 0 and evicted.evicted_tokens == 1000 * (num_changes - 1)


def test_a_stream_stands_still_while_prompts_are_computed():
    alone = simulate(FleetScenario(1, Traffic(num_clients=1, num_requests=8)), make("cache"))
    both = simulate(FleetScenario(1, Traffic(num_clients=8, num_requests=8)), make("cache"))
    assert both.mean_seconds > alone.mean_seconds


@pytest.mark.parametrize("num_clients", [4, 8, 16, 32])
@pytest.mark.parametrize("cache_tokens", [6144, 3072])
def test_documents_are_copied_rarely_whatever_the_clients(num_clients, cache_tokens):
    runs = []
    for seed in range(3):
        scenario = documents(4, num_clients, cache_tokens, seed)
        runs.append((simulate(in_one_server(scenario), make("cache")), simulate(scenario, make("cache"))))
    assert all(result.hit_rate >= 0.95 * whole.hit_rate for whole, result in runs)
    assert len(documents_row(runs)) == len(DOCUMENTS_HEAD) - 2
    spread = [simulate(documents(4, num_clients, cache_tokens, seed), make("least_time")) for seed in range(3)]
    assert mean(each.mean_seconds for _, each in runs) < mean(each.mean_seconds for each in spread)


# One request: 1,000 tokens of prompt and 5 of output; 1,000 tokens/s, steps of at most 400 tokens, 10 ms a token.
TINY = ReplicaSpeed(prompt_rate=1000.0, decode_seconds=0.01, decode_row_seconds=0.0, step_tokens=400)


def tiny(number: int, arrival: float, num_tokens: int = 1000, num_output: int = 5) -> SimulatedRequest:
    return SimulatedRequest(number, arrival, number, ((number, num_tokens),), num_output)


def test_one_request_takes_the_time_of_its_steps():
    result = simulate(FleetScenario(1, Traffic(), TINY, requests=(tiny(1, 0.0),)), make("cache"))
    (request,) = result.requests
    assert request.first_token == pytest.approx(1.0)  # 400 + 400 + 200 tokens
    assert request.end == pytest.approx(1.0 + 4 * 0.01)  # the first token comes with the prompt
    assert result.gaps == [(pytest.approx(0.01), 4)] and result.busy_seconds == [pytest.approx(1.0)]


def test_a_handover_takes_the_prompt_then_the_blocks_of_the_last_step_then_one_token():
    """1,000 bytes a token: 0.1 s at 10 kB/s, 0.1 ms at 10 MB/s."""
    slow, fast = KVLink(1000, 10e3, latency=0.5), KVLink(1000, 10e6, latency=0.5)
    for link, first_token in (
        (slow, 0.2 + 999 * 0.1 + 0.5 + 0.001),  # the link is busy from the end of the first step on: 200 tokens
        (fast, 0.999 + 199 * 1e-4 + 0.5 + 0.001),  # only the blocks of the last step are not overlapped
    ):
        scenario = FleetScenario(2, Traffic(), TINY, requests=(tiny(1, 0.0),), num_prefill=1, link=link)
        result = simulate(scenario, make("cache"))
        (request,) = result.requests
        assert request.replica == "r1" and request.first_token == pytest.approx(first_token)
        assert request.end == pytest.approx(first_token + 0.04)
        assert (result.sent_tokens, result.computed_tokens) == (999, 1000)
        assert result.busy_seconds == [pytest.approx(0.999), pytest.approx(0.001)]


def test_streams_advance_by_a_token_with_each_part_of_a_prompt():
    """A stream of 50 tokens from 0.1 s on; at 0.2 s a prompt of 1,000 comes, whose parts delay it by 0.2 s each."""
    requests = (tiny(1, 0.0, 100, 50), tiny(2, 0.205))
    result = simulate(FleetScenario(1, Traffic(), TINY, requests=requests), make("cache"))
    first, second = result.requests
    assert second.first_token == pytest.approx(0.21 + 1.0 + 5 * 0.01)  # after the step that runs; 5 parts of 200
    assert first.end == pytest.approx(0.1 + 49 * 0.01 + 1.0)  # the two streams together are as fast as one
    assert result.token_gap(0.5) == pytest.approx(0.01) and result.gaps[-1][0] == pytest.approx(0.21)
    assert result.num_gaps == 49 + 4


@pytest.mark.parametrize("num_prefill", [0, 1, 2, 3])
def test_each_request_is_answered_once_and_no_token_is_lost_with_any_roles(num_prefill):
    traffic = Traffic(rate=12, seconds=15, num_prefixes=20, own_tokens=900)
    link = KVLink(1000, 1e9) if num_prefill else None
    scenario = FleetScenario(4, traffic, ReplicaSpeed(cache_tokens=30_000), num_prefill=num_prefill, link=link)
    result = simulate(scenario, make("cache"))
    assert [each.number for each in result.requests] == [each.number for each in arrivals(traffic)]
    assert all(each.num_sent == 1 and each.arrival < each.first_token <= each.end for each in result.requests)
    assert result.num_gaps == sum(each.num_output - 1 for each in result.requests)
    assert result.computed_tokens == sum(each.num_tokens - each.num_hit for each in result.requests)
    answering = {each.replica for each in result.requests}
    assert answering == {f"r{n}" for n in range(num_prefill, 4)} and (result.sent_tokens > 0) == (num_prefill > 0)


def test_roles_keep_the_prompts_of_others_out_of_the_gaps_between_tokens():
    traffic = Traffic(rate=4, seconds=30, num_prefixes=20, own_tokens=1500)
    both = simulate(FleetScenario(4, traffic), make("cache"))
    split = simulate(FleetScenario(4, traffic, num_prefill=2, link=KVLink(131_072, 10e9)), make("cache"))
    assert split.token_gap(0.99) < 0.02 < 0.1 < both.token_gap(0.99)
    assert both.token_gap(0.5) < 0.02 and len(roles_row(split)) == len(ROLES_HEAD) - 2


def test_decode_replicas_take_prompts_over_from_a_prefill_replica_that_has_too_many(monkeypatch):
    """Prompts of about 1,000 tokens, none of them cached: one replica computes ten a second."""
    traffic = Traffic(seconds=20, num_prefixes=1, prefix_tokens=1, own_tokens=1000, output_tokens=10)

    def run(rate: float) -> FleetResult:
        scenario = FleetScenario(3, replace(traffic, rate=rate), num_prefill=1, link=KVLink(1000, 1e9))
        return simulate(scenario, make("cache"))

    light, heavy = run(3), run(18)
    monkeypatch.setattr(prefix_sources, "DECODE_PATIENCE", float("inf"))  # they wait, however long it takes
    waiting = run(18)
    shares = [sum(each.busy_seconds[1:]) / sum(each.busy_seconds) for each in (light, heavy, waiting)]
    assert shares[0] < 0.1 and 0.3 < shares[1] < 0.7 and shares[2] < 0.01  # 8 of 18 are more than it computes
    assert len(heavy.requests) == len(waiting.requests) and all(each.num_sent == 1 for each in heavy.requests)
    for quantile in (0.5, 0.95):
        assert heavy.first_token(quantile) < 0.5 * waiting.first_token(quantile)


@pytest.mark.parametrize("failing", [0, 1, 3])
def test_every_request_ends_once_if_a_replica_with_a_role_fails(failing):
    traffic = Traffic(rate=12, seconds=10, num_prefixes=20, own_tokens=900)
    outages = (Outage(failing, 2, 4), Outage(failing, 5, 7))
    scenario = FleetScenario(4, traffic, outages=outages, num_prefill=1, link=KVLink(1000, 1e6))
    result = simulate(scenario, make("cache"))
    assert len(result.requests) == len(list(arrivals(traffic)))
    assert all(each.arrival < each.first_token <= each.end for each in result.requests)


def test_no_more_prompts_than_rows_run_at_once():
    requests = tuple(tiny(number, 0.0, 100, 11) for number in range(1, 4))
    speed = replace(TINY, max_rows=1)
    result = simulate(FleetScenario(1, Traffic(), speed, requests=requests), make("cache"))
    assert [each.end for each in result.requests] == [pytest.approx(0.2 * number) for number in (1, 2, 3)]


@pytest.mark.parametrize("text", ["3", "1:0", "0:2", "1:2:3", "a:b", "1:"])
def test_roles_that_are_not_two_numbers_are_refused(text, capsys):
    with pytest.raises(SystemExit):
        fleet_main(argparse.Namespace(quick=True, rest=["--roles", text]))
    assert f"--roles {text}: give prefill and decode replicas" in capsys.readouterr().err


def test_the_command_simulates_roles_beside_replicas_that_do_both(capsys):
    fleet_main(argparse.Namespace(quick=True, rest=["--roles", "1:2", "--balance", "cache"]))
    rows = [line for line in capsys.readouterr().out.splitlines() if "| cache |" in line]
    assert [row.split(" | ")[0] for row in rows] == ["| 3 both", "| 1 prefill + 2 decode"]


def test_a_fleet_of_prefill_replicas_alone_is_refused():
    with pytest.raises(ValueError, match="2 of 2 replicas cannot compute prompts for the others"):
        FleetScenario(2, Traffic(), num_prefill=2, link=KVLink(1000))
