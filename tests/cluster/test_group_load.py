"""The load by which a group of replicas is scaled, for each role."""

from __future__ import annotations

import pytest

from quire.cluster.group_load import counted_tokens, group_load
from quire.types.load import LoadReport

pytestmark = pytest.mark.pure


def test_the_load_is_that_of_all_replicas_and_of_the_queue_in_front():
    one = LoadReport(num_running=4, max_rows=8, num_held_blocks=10, prompt_tokens=3000, prompt_rate=1000)
    two = LoadReport(num_running=8, num_waiting=7, max_rows=8, service_seconds=4, waiting_tokens=50, prompt_rate=50)
    load = group_load([one, two], [], 2, 1.5)
    assert (load.num_ready, load.num_waiting, load.num_requests, load.tokens) == (2, 2, 19, 210)
    assert load.queue_seconds == 3.0  # at `one`; `two` takes 5 s
    assert load.counted == "tokens in flight" and load.num_elsewhere == 0
    assert group_load([], [], 1, 7.0).queue_seconds == 7.0


PREFILL = LoadReport(
    role="prefill", num_running=2, waiting_tokens=1000, prompt_tokens=500, num_held_blocks=900, prompt_rate=1000
)
DECODE = LoadReport(role="decode", num_running=3, num_held_blocks=100, prompt_rate=10, max_rows=8)


def test_a_prefill_group_counts_prompts_and_not_what_its_blocks_hold():
    load = group_load([PREFILL], [DECODE], 0, 0.0)
    assert (load.tokens, load.queue_seconds, load.counted) == (1500, 1.5, "prompt tokens to compute")
    assert (load.num_requests, load.num_elsewhere) == (2, 3) and counted_tokens(PREFILL) == 1500


def test_a_prefill_group_counts_prompts_that_decode_replicas_had_to_take():
    busy = LoadReport(role="decode", num_running=3, prompt_tokens=4000)
    load = group_load([PREFILL, PREFILL], [busy], 0, 0.0)
    assert load.tokens == 2 * 1500 + 4000 and load.queue_seconds == 1.5 + 4000 / 2000
    assert group_load([PREFILL], [LoadReport(prompt_tokens=4000)], 0, 0.0).tokens == 1500  # `both` keeps its own


def test_a_decode_group_counts_tokens_in_flight_and_waits_for_a_row_alone():
    slow = LoadReport(role="decode", num_running=3, num_held_blocks=100, prompt_tokens=50, prompt_rate=10, max_rows=8)
    load = group_load([slow], [PREFILL], 0, 0.0)
    assert (load.tokens, load.queue_seconds, load.counted) == (1600, 0.0, "tokens in flight")
    full = LoadReport(role="decode", num_running=8, num_waiting=3, max_rows=8, service_seconds=4)
    assert group_load([full], [PREFILL], 0, 0.0).queue_seconds == 2.0


def test_a_decode_group_without_a_prefill_replica_has_the_queue_of_its_own_prompts():
    busy = LoadReport(role="decode", prompt_tokens=50, prompt_rate=10)
    assert group_load([busy], [LoadReport()], 0, 0.0).queue_seconds == 5.0


def test_a_replica_of_a_prefill_group_that_sends_no_blocks_counts_as_both():
    alone = LoadReport(role="both", num_running=1, num_held_blocks=10)
    load = group_load([alone], [DECODE], 0, 0.0)
    assert load.tokens == 160 and load.counted == "tokens in flight"
