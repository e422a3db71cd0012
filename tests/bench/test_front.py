"""`quire bench front`: every token is streamed, offline and over HTTP."""

from __future__ import annotations

import asyncio

import pytest

from quire.bench import front
from quire.bench.engines.child_process import run_in_child
from quire.bench.engines.quire_server import one_model_server
from quire.bench.load.stream_loads import OUTPUT_TOKENS

pytestmark = pytest.mark.e2e


def test_every_token_of_every_stream_arrives(model_file, monkeypatch):
    monkeypatch.setattr(front, "NUM_FRONT_STREAMS", 3)
    rates = front.measure_front(str(model_file), "300", 20)
    assert 0.5 < rates.events_per_token < 1.2 and rates.tokens_per_second > 0


@pytest.mark.slow
def test_offline_and_over_http_answer_all_prompts(model_file):
    prompts = ((1000, 1001, 1002), (2000, 2001))
    assert run_in_child(front.offline_rate, float, str(model_file), prompts)[0] > 0
    with one_model_server(str(model_file), None, **front.SETTINGS) as (_, url):
        summary = asyncio.run(front.measure_over_http(url, prompts))
    assert summary.output_tokens == 2 * OUTPUT_TOKENS and summary.output_per_second > 0
