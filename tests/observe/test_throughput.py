"""The throughput log: a line while an engine is busy, and none when it is idle."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from quire.engine.messages import Counters
from quire.observe.throughput import Throughput

pytestmark = pytest.mark.pure

START = Counters(computed_tokens=100, output_tokens=40, queried_tokens=60, hit_tokens=0, num_blocks=200)
BUSY = replace(
    START,
    computed_tokens=1600,
    output_tokens=540,
    queried_tokens=2060,
    hit_tokens=1000,
    num_running=3,
    num_waiting=2,
    num_held_blocks=50,
)


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO)
    logger = logging.getLogger("throughput-test")
    return Throughput("toy", logger), caplog


def test_the_rates_of_a_busy_engine_are_logged(lines):
    throughput, caplog = lines
    throughput.log(START, 10.0)
    throughput.log(BUSY, 10.0)
    (record,) = caplog.records
    assert record.getMessage() == (
        "toy: prompt 100.0 tokens/s, output 50.0 tokens/s, 3 running, 2 waiting, 50.0% of prompt tokens cached, "
        "KV cache 25.0% in use"
    )
    assert (record.output_tokens_per_second, record.cache_hit_rate, record.cache_usage) == (50.0, 0.5, 0.25)


def test_nothing_is_logged_for_an_idle_engine(lines):
    throughput, caplog = lines
    for _ in range(3):
        throughput.log(START, 10.0)
    assert not caplog.records


def test_waiting_requests_are_logged_too(lines):
    throughput, caplog = lines
    throughput.log(START, 10.0)
    throughput.log(replace(START, num_waiting=1), 10.0)
    assert "1 waiting, no new prompts" in caplog.text


def test_counts_start_again_with_a_restarted_engine(lines):
    throughput, caplog = lines
    throughput.log(BUSY, 10.0)
    throughput.log(replace(START, num_running=1), 10.0)
    assert not caplog.records
