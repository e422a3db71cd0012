"""Send requests to our engine in this process, without HTTP."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

from quire.bench.load.request_result import RequestResult
from quire.bench.load.session import LoadRequest
from quire.bench.load.stream_loads import (
    MAX_CONTEXT,
    OUTPUT_TOKENS,
    UNIQUE_TOKENS,
    StreamResults,
    StreamSizes,
    run_stream_loads,
)
from quire.bench.machine.clock import clock
from quire.engine.async_llm import AsyncLLM
from quire.types.errors import QuireError
from quire.types.request import Constraint, ConstraintKind, SamplingParams

BLOCK_TOKENS = 16


class InProcessClient:
    """A client of one opened model."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm

    async def send(self, request: LoadRequest, due: float) -> RequestResult:
        """Send it now and wait for the whole answer. Errors are in the result."""
        ignore_eos = not request.expects_json
        result = RequestResult(due, request.max_tokens, ignore_eos, request.expects_json, sent=clock())
        sampling = SamplingParams(max_tokens=request.max_tokens, temperature=0.0, ignore_eos=ignore_eos)
        try:
            await self._stream(request, sampling, result)
        except QuireError as error:
            result.error = error.public
        result.ended = clock()
        return result

    async def _stream(self, request: LoadRequest, sampling: SamplingParams, result: RequestResult) -> None:
        num_tokens = 0
        async with aclosing(self._llm.stream(_prompt(request), sampling, constraint=_constraint(request))) as deltas:
            async for delta in deltas:
                num_tokens += len(delta.tokens)
                if delta.tokens:
                    result.event_times.append(clock())
                    result.text.append(delta.text)
                if delta.usage is not None:
                    result.prompt_tokens, result.cached_tokens = delta.usage.prompt, delta.usage.cached
        result.output_tokens = num_tokens


def _prompt(request: LoadRequest) -> Any:
    if request.prompt is not None:
        return request.prompt
    if request.body is not None:
        return request.body.get("messages") or request.body.get("prompt")
    return request.messages


def _constraint(request: LoadRequest) -> Constraint | None:
    format = request.extra_fields.get("response_format")
    return None if format is None else Constraint(ConstraintKind.SCHEMA, json.dumps(format["json_schema"]["schema"]))


async def measure_stream_loads(model: str, words: tuple[int, ...], sizes: StreamSizes) -> StreamResults:
    """Run the fixed loads on our engine. It has blocks for all streams, and 1/8 more for shared prefixes."""
    num_blocks = sizes.num_streams * (UNIQUE_TOKENS + OUTPUT_TOKENS) // BLOCK_TOKENS
    settings = {
        "max_context": MAX_CONTEXT,
        "num_blocks": num_blocks + num_blocks // 8,
        "max_rows": max(sizes.num_streams, 16),
        "speculate": "off",  # as the peers are measured
    }
    async with await AsyncLLM.open(model, in_process=True, **settings) as llm:
        return await run_stream_loads(InProcessClient(llm), words, sizes)
