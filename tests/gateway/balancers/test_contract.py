"""What every balancer promises, and what each of them promises beyond that."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.gateway.balancers.contract import (
    DEFAULT_BALANCER,
    BalancedRequest,
    Replica,
    all_balancers,
)
from quire.types.load import LoadReport

pytestmark = pytest.mark.pure

BUSY = LoadReport(
    num_running=8, max_rows=16, waiting_tokens=40_000, prompt_rate=10_000.0, decode_seconds=0.01, service_seconds=2.0
)
IDLE = LoadReport(max_rows=16, prompt_rate=10_000.0, decode_seconds=0.01)
LOADS = st.builds(
    LoadReport,
    num_waiting=st.integers(0, 50),
    num_running=st.integers(0, 16),
    max_rows=st.sampled_from([0, 16]),
    waiting_tokens=st.integers(0, 10**6),
    prompt_tokens=st.integers(0, 10**4),
    prompt_rate=st.floats(0, 1e5),
    decode_seconds=st.floats(0, 0.1),
    decode_row_seconds=st.floats(0, 0.01),
    service_seconds=st.floats(0, 100),
)
REPLICAS = st.lists(
    st.builds(
        Replica,
        name=st.sampled_from("abcdef"),
        is_available=st.booleans(),
        weight=st.floats(0, 10),
        load=LOADS,
        reported_at=st.none() | st.floats(0, 100),
        sent_requests=st.integers(0, 5),
        sent_tokens=st.integers(0, 10**5),
        num_open=st.integers(0, 100),
        answered_tokens=st.integers(0, 10**6),
        ended_requests=st.integers(0, 60),
    ),
    max_size=6,
    unique_by=lambda each: each.name,
)
REQUESTS = st.builds(
    BalancedRequest,
    num_tokens=st.integers(1, 10**5),
    cached=st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 2 * 10**5)),
    session=st.sampled_from(["", "s", "t"]),
    expected_output=st.integers(1, 4096),
    excluded=st.frozensets(st.sampled_from("abcdef"), max_size=3),
)


def test_the_balancers_of_the_issue_are_there():
    assert {"cache", "least_time", "round_robin", "session", "weighted"} <= all_balancers().keys()
    assert DEFAULT_BALANCER in all_balancers()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(REQUESTS, REPLICAS), max_size=4))
def test_a_choice_is_available_and_not_excluded_and_says_why(turns):
    for name, module in all_balancers().items():
        balancer = module.make()
        for request, replicas in turns:
            choice = balancer.choose(request, replicas, 100.0)
            allowed = {each.name for each in replicas if each.is_available} - request.excluded
            if not allowed:
                assert choice is None, name
                continue
            assert choice is not None and choice.replica in allowed, name
            assert choice.reason.endswith("."), name
            assert 0.0 <= choice.first_token_seconds <= choice.end_seconds < float("inf"), name
            assert 0 <= choice.num_cached <= request.num_tokens, name
            if choice.replicate is not None:
                assert choice.replicate.target == choice.replica != choice.replicate.source, name


def fleet(**loads: LoadReport) -> list[Replica]:
    return [Replica(name, load=load, reported_at=0.0) for name, load in loads.items()]


def choose(name: str, request: BalancedRequest, replicas: list[Replica]):
    choice = all_balancers()[name].make().choose(request, replicas, 0.0)
    assert choice is not None
    return choice


def test_cache_goes_where_the_prefix_is():
    request = BalancedRequest(4000, {"b": 3900})
    assert choose("cache", request, fleet(a=IDLE, b=IDLE, c=IDLE)).replica == "b"


def test_cache_computes_a_prefix_again_when_its_queue_costs_more_and_says_so():
    request = BalancedRequest(4000, {"b": 3900})
    choice = choose("cache", request, fleet(a=IDLE, b=BUSY))  # 4 s of queue against 0.4 s of computing
    assert choice.replica == "a" and choice.replicate is not None
    assert (choice.replicate.source, choice.replicate.num_tokens) == ("b", 3900)
    assert "b has 3900 more cached, but its queue takes 4.000 s" in choice.reason


def test_cache_stays_when_computing_again_costs_more_than_the_queue():
    request = BalancedRequest(60_000, {"b": 59_000})  # 6 s of computing against 4 s of queue
    assert choose("cache", request, fleet(a=IDLE, b=BUSY)).replica == "b"


def test_cache_copies_a_prefix_when_the_time_lost_in_its_queue_covers_the_cost():
    """b has 0.3 s of queue; computing the prefix at a takes 0.2 s from each of 4 others: 0.8 s for 0.1 s."""
    b = LoadReport(num_running=4, max_rows=16, waiting_tokens=3000, prompt_rate=10_000.0, decode_seconds=0.01)
    a = LoadReport(num_running=4, max_rows=16, prompt_rate=10_000.0, decode_seconds=0.01)
    request, replicas = BalancedRequest(2000, {"b": 2000}), fleet(a=a, b=b)
    balancer = all_balancers()["cache"].make()
    chosen = [balancer.choose(request, replicas, 0.0).replica for _ in range(9)]
    assert chosen == [*"bbbbbbb", "a", "b"]  # seven times 0.1 s pay for the copy; then it counts again
    rare = all_balancers()["cache"].make()
    later = [[Replica(each.name, load=each.load, reported_at=30.0 * n) for each in replicas] for n in range(30)]
    assert {rare.choose(request, each, 30.0 * n).replica for n, each in enumerate(later)} == {"b"}  # it is forgotten


def test_cache_expects_others_on_an_idle_replica_of_a_busy_fleet():
    busy = LoadReport(num_running=6, max_rows=16, waiting_tokens=3000, prompt_rate=10_000.0, decode_seconds=0.01)
    request = BalancedRequest(2000, {"b": 2000})
    assert choose("cache", request, fleet(idle=IDLE, b=busy, c=busy)).replica == "b"
    alone = LoadReport(num_running=0, max_rows=16, waiting_tokens=3000, prompt_rate=10_000.0, decode_seconds=0.01)
    assert choose("cache", request, fleet(idle=IDLE, b=alone)).replica == "idle"


def test_one_hot_replica_does_not_switch_affinity_off_for_others():
    replicas = fleet(hot=BUSY, a=IDLE, b=IDLE)
    for name in ("a", "b"):
        assert choose("cache", BalancedRequest(4000, {name: 3900}), replicas).replica == name


def test_what_was_sent_since_the_report_counts():
    busy = Replica("a", load=IDLE, reported_at=0.0, sent_requests=3, sent_tokens=9000)
    request = BalancedRequest(1000, {"a": 500})
    assert choose("cache", request, [busy, *fleet(b=IDLE)]).replica == "b"
    assert choose("least_time", request, [busy, *fleet(b=IDLE)]).replica == "b"


def test_a_reported_queue_drains_with_time():
    module = all_balancers()["cache"]
    request, replicas = BalancedRequest(4000, {"b": 3900}), fleet(a=IDLE, b=BUSY)
    assert module.make().choose(request, replicas, 0.0).replica == "a"
    assert module.make().choose(request, replicas, 3.9).replica == "b"


def test_new_prefixes_are_spread_over_idle_replicas():
    balancer, found = all_balancers()["cache"].make(), Counter()
    for _ in range(40):
        found[balancer.choose(BalancedRequest(1000), fleet(a=IDLE, b=IDLE, c=IDLE, d=IDLE), 0.0).replica] += 1
    assert set(found.values()) == {10}


def test_slower_replicas_get_what_they_can_serve_sooner():
    slow = LoadReport(max_rows=16, prompt_rate=1000.0, decode_seconds=0.05)
    assert choose("least_time", BalancedRequest(1000), fleet(slow=slow, fast=IDLE)).replica == "fast"
    assert choose("least_time", BalancedRequest(1000), fleet(slow=slow, fast=BUSY)).replica == "fast"
    busier = LoadReport(waiting_tokens=400_000, prompt_rate=10_000.0, decode_seconds=0.01)
    assert choose("least_time", BalancedRequest(1000), fleet(slow=slow, fast=busier)).replica == "slow"


def test_round_robin_takes_turns_and_skips_the_unavailable():
    balancer = all_balancers()["round_robin"].make()
    replicas = [Replica("a"), Replica("b", is_available=False), Replica("c")]
    assert [balancer.choose(BalancedRequest(1), replicas, 0.0).replica for _ in range(4)] == ["a", "c", "a", "c"]


def test_weighted_follows_the_weights_evenly():
    balancer = all_balancers()["weighted"].make()
    replicas = [Replica("a", weight=3.0), Replica("b", weight=1.0), Replica("c", weight=0.0)]
    chosen = [balancer.choose(BalancedRequest(1), replicas, 0.0).replica for _ in range(8)]
    assert Counter(chosen) == {"a": 6, "b": 2} and "bb" not in "".join(chosen)


def test_a_session_stays_and_only_sessions_of_a_lost_replica_move():
    replicas = [Replica(name) for name in "abcd"]
    sessions = [BalancedRequest(1, session=f"s{n}") for n in range(200)]
    before = [choose("session", each, replicas).replica for each in sessions]
    after = [choose("session", each, replicas[1:]).replica for each in sessions]
    assert len(set(before)) == 4
    assert all(was == now for was, now in zip(before, after, strict=True) if was != "a")
    assert choose("session", BalancedRequest(1000), fleet(a=BUSY, b=IDLE)).replica == "b"
