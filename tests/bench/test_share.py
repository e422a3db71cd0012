"""The same prompts are asked offline and over HTTP, and every token is counted."""

import asyncio

import pytest

from quire.bench import share
from quire.bench.child import run_part
from quire.bench.front import front
from quire.bench.load import Scenario, closed_loop

pytestmark = pytest.mark.e2e


def test_both_ways_answer_all_of_it(model_file):
    prompts = ((1000, 1001, 1002), (2000, 2001))
    assert run_part(share.offline, float, str(model_file), prompts)[0] > 0
    with front(str(model_file), None, **share.SETTINGS) as (_, url):
        load = asyncio.run(closed_loop(share.OverHttp(url), Scenario(prompts, 2, 20)))
    assert load.num_tokens == 40 and load.tokens_per_second > 0
