"""The asynchronous halves of the same libraries, several requests at once, against a whole server."""

from __future__ import annotations

import asyncio
import json

import pytest

from quire.serve.http.app import all_dialects
from tests.serve.running import running

anthropic = pytest.importorskip("anthropic")
ollama = pytest.importorskip("ollama")
openai = pytest.importorskip("openai")

pytestmark = pytest.mark.e2e

CITIES = ("France", "Italy", "Spain", "Japan")
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def question(country: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"What is the capital of {country}?"}]


@pytest.fixture(scope="module")
def server(model_file):
    with running(model_file, all_dialects()) as made:
        yield made


def test_openai_streams_what_it_answers_whole(server):
    async def both(client, country):
        asked = {"model": "toy", "messages": question(country), "max_tokens": 12, "temperature": 0}
        whole = await client.chat.completions.create(**asked)
        stream = await client.chat.completions.create(**asked, stream=True)
        said = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return whole.choices[0].message.content, "".join(said)

    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(both(client, country) for country in CITIES))

    answers = asyncio.run(ask())
    assert all(whole and whole == streamed for whole, streamed in answers) and len(set(answers)) > 1


def test_anthropic_streams_what_it_answers_whole(server):
    async def both(client, country):
        asked = {"model": "toy", "messages": question(country), "max_tokens": 12, "extra_body": {"temperature": 0}}
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            return whole.content[0].text, "".join([text async for text in stream.text_stream])

    async def ask():
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(both(client, country) for country in CITIES))

    assert all(whole and whole == streamed for whole, streamed in asyncio.run(ask()))


def test_ollama_streams_what_it_answers_whole(server):
    async def both(client, country):
        options = {"num_predict": 12, "temperature": 0}
        whole = await client.chat("toy", question(country), options=options)
        pieces = await client.chat("toy", question(country), options=options, stream=True)
        return whole.message.content, "".join([piece.message.content or "" async for piece in pieces])

    async def ask():
        async with ollama.AsyncClient(host=server.url) as client:
            return await asyncio.gather(*(both(client, country) for country in CITIES))

    assert all(whole and whole == streamed for whole, streamed in asyncio.run(ask()))


def test_all_tokens_of_a_call_are_told_and_scored_whole_and_streamed(server):
    function = {"name": "weather", "parameters": PARAMETERS}
    asked = {
        "model": "toy",
        "messages": question("France"),
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 100,
        "logprobs": True,
        "extra_body": {"return_token_ids": True},
    }

    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            whole = await client.chat.completions.create(**asked)
            return whole, [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]

    whole, chunks = asyncio.run(ask())
    (choice,) = whole.choices
    (call,) = choice.message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    scored = [token.token for token in choice.logprobs.content]
    assert len(scored) == len(choice.token_ids) == whole.usage.completion_tokens > 5
    assert call.function.arguments in "".join(scored)
    parts = [chunk.choices[0] for chunk in chunks]
    assert [token for part in parts for token in getattr(part, "token_ids", None) or ()] == choice.token_ids
    assert [token.token for part in parts if part.logprobs for token in part.logprobs.content] == scored
