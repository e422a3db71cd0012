"""Where a replica gets a prompt's blocks from: by the estimates, and computed by itself if nothing is faster."""

from __future__ import annotations

from typing import Any

import pytest

from quire.gateway.balancers.contract import BalancedRequest, Replica
from quire.gateway.prefix_sources import LATENCY, PrefixSources
from quire.types.load import LoadReport

pytestmark = pytest.mark.pure


def replica(name: str, role: str = "both", is_available: bool = True, **load: Any) -> Replica:
    facts = {"prompt_rate": 1000.0, "transfer_port": 9, "token_bytes": 20_000, "receive_rate": 1e9, **load}
    return Replica(name, is_available, load=LoadReport(role=role, **facts), reported_at=0.0)


def choose(target: Replica, *others: Replica, num_tokens: int = 1601, **cached: int):
    return PrefixSources().choose(BalancedRequest(num_tokens, cached), target, [target, *others], 0.0)


def test_a_prefill_replica_computes_for_one_that_decodes():
    found = choose(replica("d", "decode"), replica("p", "prefill"))
    assert found is not None and found.replica == "p" and found.computes and found.num_tokens == 1600
    # 1.601 s to compute, 32 MB in 32 ms, and the last token.
    assert found.seconds == pytest.approx(1.601 + LATENCY + 0.032)
    assert found.first_token_seconds == pytest.approx(found.seconds + 0.001)
    assert found.alone_seconds == pytest.approx(1.601)


def test_a_prefill_replica_with_a_long_queue_is_not_waited_for():
    assert choose(replica("d", "decode"), replica("p", "prefill", waiting_tokens=20_000)) is None


def test_of_two_prefill_replicas_the_one_that_is_done_first():
    found = choose(replica("d", "decode"), replica("p", "prefill", waiting_tokens=500), replica("q", "prefill"))
    assert found is not None and found.replica == "q"


def test_a_replica_of_both_roles_fetches_only_if_that_is_faster():
    assert choose(replica("a"), replica("p", "prefill")) is None
    found = choose(replica("a"), replica("p", "prefill"), p=1600)
    assert found is not None and found.replica == "p" and found.seconds < 0.1


def test_a_long_prefix_is_fetched_from_another_cache():
    found = choose(replica("a"), replica("b"), b=1600)
    assert found is not None and not found.computes and found.num_tokens == 1600
    assert found.seconds == pytest.approx(LATENCY + 0.032)
    assert found.alone_seconds == pytest.approx(1.601)


def test_only_what_is_missing_counts_as_sent():
    found = choose(replica("a"), replica("b"), a=800, b=1600)
    assert found is not None and found.seconds == pytest.approx(LATENCY + 0.016)


def test_a_slow_network_makes_a_replica_compute():
    assert choose(replica("a", receive_rate=1e6), replica("b"), b=1600) is None


def test_short_prompts_are_computed_where_they_are_answered():
    assert choose(replica("d", "decode"), replica("p", "prefill"), num_tokens=20) is None


def test_streams_that_would_wait_count():
    busy = replica("a", num_running=8, num_decoding=8)
    found = choose(busy, replica("p", "prefill"))
    assert found is not None and found.computes


def test_replicas_without_transfers_neither_fetch_nor_send():
    assert choose(replica("d", "decode", transfer_port=0), replica("p", "prefill"), p=1600) is None
    assert choose(replica("d", "decode"), replica("p", "prefill", transfer_port=0), p=1600) is None


def test_a_replica_that_is_not_available_sends_nothing():
    assert choose(replica("d", "decode"), replica("p", "prefill", is_available=False), p=1600) is None
