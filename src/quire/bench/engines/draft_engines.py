"""Engines that answer groups of requests with and without drafts: in this process, or behind a server of their own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import httpx

from quire.bench.engines.quire_server import one_model_server
from quire.bench.machine.processes import process_tree, processor_seconds
from quire.engine.llm import LLM
from quire.engine.messages import Flush
from quire.engine.model_files import read_model_text
from quire.types.request import Constraint, SamplingParams
from quire.weights.checkpoint import open_checkpoint

MAX_CONTEXT = 2048
SECONDS = 600.0  # for one request
EVENT, END = "data: ", "[DONE]"


class DraftedAnswer(NamedTuple):
    """What is measured of one answer."""

    seconds: float
    first_token_seconds: float
    output: int  # tokens
    drafted: int
    accepted: int


class DraftEngine(Protocol):
    """An engine whose requests say whether drafts are allowed."""

    vocab_size: int
    needs_warm_up: bool  # before it is measured

    def flush(self) -> None:
        """Empty the prefix cache."""
        ...

    def answer(
        self, prompts: Sequence[Any], ways: Sequence[SamplingParams], constraint: Constraint | None
    ) -> list[DraftedAnswer]:
        """Answer all prompts at once."""
        ...

    def processor_seconds(self) -> float:
        """Return the processor time of all threads so far."""
        ...


class InProcessEngine:
    """An engine in this process."""

    needs_warm_up = True

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self.vocab_size = llm.client.ready.vocab_size

    def flush(self) -> None:
        """Empty the prefix cache."""
        self._llm.client.ask(Flush()).result()

    def answer(
        self, prompts: Sequence[Any], ways: Sequence[SamplingParams], constraint: Constraint | None
    ) -> list[DraftedAnswer]:
        """Answer all prompts at once."""
        answers = self._llm.generate(list(prompts), list(ways), constraint=constraint, progress=False)
        usages = [each.usage for each in answers]
        return [DraftedAnswer(u.seconds, u.first_token_seconds, u.output, u.drafted, u.accepted) for u in usages]

    def processor_seconds(self) -> float:
        """Return the processor time of all threads so far."""
        return time.process_time()


class ServedEngine:
    """An engine behind `quire serve`: answers are streamed over HTTP and timed by the client, from the first one on."""

    needs_warm_up = False

    def __init__(self, process: int, url: str, vocab_size: int, runner: asyncio.Runner) -> None:
        self._process, self._runner = process, runner
        self._http = httpx.AsyncClient(base_url=url, timeout=SECONDS, limits=httpx.Limits(max_connections=None))
        self.vocab_size = vocab_size

    def flush(self) -> None:
        """Empty the prefix cache."""
        self._runner.run(self._http.post("/v1/cache/flush", json={})).raise_for_status()

    def answer(
        self, prompts: Sequence[Any], ways: Sequence[SamplingParams], constraint: Constraint | None
    ) -> list[DraftedAnswer]:
        """Answer all prompts at once."""
        return self._runner.run(self._answer_all(prompts, ways, constraint))

    def processor_seconds(self) -> float:
        """Return the processor time of the server's processes so far."""
        return sum(processor_seconds(each) or 0.0 for each in process_tree(self._process))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _answer_all(
        self, prompts: Sequence[Any], ways: Sequence[SamplingParams], constraint: Constraint | None
    ) -> list[DraftedAnswer]:
        requests = (self._answer_one(_body(prompt, way, constraint)) for prompt, way in zip(prompts, ways, strict=True))
        return await asyncio.gather(*requests)

    async def _answer_one(self, body: dict[str, Any]) -> DraftedAnswer:
        began, first, usage = time.perf_counter(), 0.0, dict[str, Any]()
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            if response.is_error:
                await response.aread()
                raise RuntimeError(f"{response.status_code}: {response.text}")
            async for line in response.aiter_lines():
                event = line.removeprefix(EVENT)
                if event in (line, END):  # a line without data, or the last one
                    continue
                first = first or time.perf_counter() - began
                usage = json.loads(event).get("usage") or usage
        drafts = usage.get("completion_tokens_details", {}).get("drafts", {}).values()
        drafted, accepted = (sum(each[name] for each in drafts) for name in ("drafted", "accepted"))
        return DraftedAnswer(time.perf_counter() - began, first, usage["completion_tokens"], drafted, accepted)


def _body(prompt: Any, way: SamplingParams, constraint: Constraint | None) -> dict[str, Any]:
    """Return a request for completions."""
    body: dict[str, Any] = {"model": "m", "prompt": prompt, "stream": True, "stream_options": {"include_usage": True}}
    for name in ("seed", "temperature", "max_tokens", "ignore_eos", "speculate"):
        if (value := getattr(way, name)) is not None:
            body[name] = value
    if constraint is not None:
        body["structured_outputs"] = {"json": json.loads(constraint.text)}
    return body


@contextmanager
def local_engine(model: Path, max_rows: int) -> Iterator[DraftEngine]:
    """Open the model in this process."""
    with LLM(model, max_rows=max_rows, max_context=MAX_CONTEXT) as llm:
        yield InProcessEngine(llm)


@contextmanager
def served_engine(model: Path, max_rows: int) -> Iterator[DraftEngine]:
    """Serve the model in processes of its own."""
    tokenizer = read_model_text(open_checkpoint(model)).tokenizer
    assert tokenizer is not None, f"{model} has no tokenizer"
    server = one_model_server(str(model), None, max_rows=max_rows, max_context=MAX_CONTEXT)
    with server as (process, url), asyncio.Runner() as runner:
        engine = ServedEngine(process, url, tokenizer.num_tokens, runner)
        try:
            yield engine
        finally:
            runner.run(engine.close())
