"""Clients in a closed loop: every prompt is asked once, never more at once than there are streams."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from quire.bench.load import Scenario, ShortAnswer, Spread, TokenIds, closed_loop
from quire.bench.one_stream import our_stream
from quire.bench.streams import InProcess, Scale, put_under_load
from quire.engine.async_llm import AsyncLLM
from quire.types.request import SamplingParams
from tests.devices.cpu.programs import HAS_NATIVE

GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)

needs_native = pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")


class Slow:
    """Serves at a known pace: the first token after 20 ms, the others two at a time, 5 ms apart."""

    def __init__(self, num_missing: int = 0) -> None:
        self.asked: list[TokenIds] = []
        self.num_missing = num_missing
        self.num_open = self.most_open = 0

    async def stream(self, prompt: TokenIds, max_tokens: int) -> AsyncIterator[TokenIds]:
        self.asked.append(prompt)
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        await asyncio.sleep(0.02)
        yield [7]
        for _ in range((max_tokens - 1 - self.num_missing) // 2):
            await asyncio.sleep(0.005)
            yield []
            yield [8, 9]
        self.num_open -= 1


@pytest.mark.pure
def test_every_prompt_is_asked_once_and_streams_are_never_more_than_asked_for():
    server, prompts = Slow(), tuple([index] for index in range(10))
    load = asyncio.run(closed_loop(server, Scenario(prompts, 3, 5)))
    assert sorted(server.asked) == sorted(prompts) and server.most_open == 3
    assert load.num_tokens == 50 and load.tokens_per_second == pytest.approx(50 / load.seconds)


@pytest.mark.pure
def test_clients_see_the_first_token_and_the_gaps_apart():
    load = asyncio.run(closed_loop(Slow(), Scenario(([1], [2]), 2, 7)))
    assert load.first_token.p50 >= 0.02 and load.gap.p50 >= 0.005
    assert load.seconds >= 0.02 + 3 * 0.005


@pytest.mark.pure
def test_an_answer_that_is_too_short_is_no_answer():
    with pytest.raises(ShortAnswer, match="3 tokens instead of 5"):
        asyncio.run(closed_loop(Slow(num_missing=2), Scenario(([1],), 1, 5)))


@pytest.mark.pure
def test_percentiles_lie_between_what_was_measured():
    spread = Spread.of([float(second) for second in range(101)])
    assert (spread.p50, spread.p99) == (50.0, 99.0)
    assert Spread.of([]) == Spread(0.0, 0.0)


@needs_native
@pytest.mark.e2e
def test_our_engine_serves_a_closed_loop(model_file):
    chance = random.Random(1)
    prompts = tuple([chance.randrange(256, 49152) for _ in range(8)] for _ in range(5))

    async def run():
        async with await AsyncLLM.open(model_file, in_process=True, num_blocks=32, max_context=64, max_rows=4) as llm:
            server = InProcess(llm)
            load = await closed_loop(server, Scenario(prompts, 2, 6))
            async with aclosing(server.stream(prompts[0], 6)) as tokens:
                again = [token async for batch in tokens for token in batch]
            (expected,) = await llm.generate([prompts[0]], GREEDY)
            return load, again, expected

    load, again, expected = asyncio.run(run())
    assert load.num_tokens == 30 and 0 < load.first_token.p50 <= load.seconds
    assert tuple(again) == expected.tokens


@needs_native
@pytest.mark.e2e
@pytest.mark.slow
def test_all_loads_can_be_run(model_file):
    async def run():
        async with await AsyncLLM.open(model_file, in_process=True, num_blocks=400, max_context=1024) as llm:
            return await put_under_load(
                InProcess(llm), range(300, 3000), Scale(num_streams=2, num_requests=2, num_cold=1)
            )

    seen = asyncio.run(run())
    assert seen.unique.num_tokens == seen.shared.num_tokens == 128
    assert len(seen.cold_seconds) == len(seen.alone_seconds) == 1 and seen.cold_ratio > 0


@needs_native
@pytest.mark.e2e
def test_one_stream_is_measured_with_the_share_that_is_not_the_model(model_file):
    found = our_stream(str(model_file), 49152, 1)
    assert len(found.prompt_rates) == len(found.decode_rates) == len(found.overheads) == 1
    assert found.prompt_rates[0] > 0 and found.decode_rates[0] > 0
    assert abs(found.overheads[0]) < 1, "a first token that is heard of late makes it less than nothing"
