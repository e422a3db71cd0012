"""Closed loops over fixed prompts: every prompt is sent once, with never more in flight than there are clients."""

from __future__ import annotations

import asyncio
import random

import pytest

from quire.bench.engines.in_process import InProcessClient
from quire.bench.load.closed_loop import IncompleteAnswer, PromptSet, closed_loop
from quire.bench.load.request_result import RequestResult
from quire.bench.load.session import LoadRequest, TokenIds
from quire.bench.load.stream_loads import StreamSizes, run_stream_loads
from quire.bench.machine.clock import clock
from quire.engine.async_llm import AsyncLLM
from quire.types.request import SamplingParams
from tests.devices.cpu.programs import HAS_NATIVE

GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)

needs_native = pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")


class PacedEngine:
    """Sends the first token after 20 ms, the others two at a time, 5 ms apart."""

    def __init__(self, num_missing: int = 0, error: str | None = None) -> None:
        self.requests: list[LoadRequest] = []
        self.num_missing, self.error = num_missing, error
        self.num_in_flight = self.max_in_flight = 0

    @property
    def prompts(self) -> list[TokenIds | None]:
        return [request.prompt for request in self.requests]

    async def send(self, request: LoadRequest, due: float) -> RequestResult:
        self.requests.append(request)
        self.num_in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.num_in_flight)
        result = RequestResult(due, sent=clock(), error=self.error)
        await asyncio.sleep(0.02)
        result.event_times.append(clock())
        for _ in range((request.max_tokens - 1 - self.num_missing) // 2):
            await asyncio.sleep(0.005)
            result.event_times.append(clock())
        self.num_in_flight -= 1
        result.output_tokens, result.ended = request.max_tokens - self.num_missing, clock()
        return result


@pytest.mark.pure
def test_every_prompt_is_sent_once_and_no_more_are_in_flight_than_clients():
    engine, prompts = PacedEngine(), [[index] for index in range(10)]
    summary = asyncio.run(closed_loop(engine, PromptSet(prompts, 3, 5)))
    assert sorted(engine.prompts) == prompts and engine.max_in_flight == 3
    assert summary.output_tokens == 50 and summary.output_per_second == pytest.approx(50 / summary.seconds)


@pytest.mark.pure
def test_the_first_token_and_the_gaps_are_measured_separately():
    summary = asyncio.run(closed_loop(PacedEngine(), PromptSet([[1], [2]], 2, 7)))
    assert summary.first_token.p50 >= 0.02 and summary.gap.p50 >= 0.005
    assert summary.seconds >= 0.02 + 3 * 0.005


@pytest.mark.pure
def test_extra_fields_are_used_in_turn():
    engine = PacedEngine()
    asyncio.run(closed_loop(engine, PromptSet([[1], [2], [3]], 1, 1, [{"model": "a"}, {"model": "b"}])))
    assert [request.extra_fields["model"] for request in engine.requests] == ["a", "b", "a"]


@pytest.mark.pure
def test_an_answer_that_is_too_short_is_an_error():
    with pytest.raises(IncompleteAnswer, match="3 tokens instead of 5"):
        asyncio.run(closed_loop(PacedEngine(num_missing=2), PromptSet([[1]], 1, 5)))


@pytest.mark.pure
def test_a_failed_request_is_an_error():
    with pytest.raises(IncompleteAnswer, match="503: full"):
        asyncio.run(closed_loop(PacedEngine(error="503: full"), PromptSet([[1]], 1, 5)))


@needs_native
@pytest.mark.e2e
def test_our_engine_answers_a_closed_loop(model_file):
    rng = random.Random(1)
    prompts = [[rng.randrange(256, 49152) for _ in range(8)] for _ in range(5)]

    async def run():
        async with await AsyncLLM.open(model_file, in_process=True, num_blocks=32, max_context=64, max_rows=4) as llm:
            client = InProcessClient(llm)
            summary = await closed_loop(client, PromptSet(prompts, 2, 6))
            result = await client.send(LoadRequest(prompt=prompts[0], max_tokens=6), clock())
            (expected,) = await llm.generate([prompts[0]], GREEDY)
            return summary, result, expected

    summary, result, expected = asyncio.run(run())
    assert summary.output_tokens == 30 and 0 < summary.first_token.p50 <= summary.seconds
    assert (result.num_tokens, "".join(result.text)) == (6, expected.text)


@needs_native
@pytest.mark.e2e
@pytest.mark.slow
def test_all_loads_can_be_run(model_file):
    async def run():
        async with await AsyncLLM.open(model_file, in_process=True, num_blocks=400, max_context=1024) as llm:
            sizes = StreamSizes(num_streams=2, num_requests=2, num_cold=1)
            return await run_stream_loads(InProcessClient(llm), range(300, 3000), sizes)

    results = asyncio.run(run())
    assert results.unique.output_tokens == results.shared.output_tokens == 128
    assert len(results.cold_seconds) == len(results.alone_seconds) == 1 and results.cold_ratio > 0
