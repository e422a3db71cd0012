"""Ollama's own client is the judge: it asks our functions, and must understand every answer."""

import asyncio
import json
from datetime import UTC, datetime
from itertools import product

import httpx
import ollama
import pytest

from quire.serve.dialects.contract import Reply, RequestLimits
from quire.serve.dialects.ollama.dialect import DIALECT, decode_chat
from quire.serve.dialects.ollama.models import human_number
from quire.types.chat import ChatRequest, Ending, Finish, ModelCard, ReasoningDelta, ScoredToken, TextDelta, ToolDelta
from quire.types.errors import Overloaded
from quire.types.message import Message
from tests.serve.dialects.canned import Canned

pytestmark = pytest.mark.pure

TEXT = (TextDelta(0, "Hel"), TextDelta(0, ""), TextDelta(0, 'lo\n"wörld" 😀'), Finish(0, Ending.STOP))
CALLS = (
    ReasoningDelta(0, "Let me "),
    ReasoningDelta(0, "think."),
    TextDelta(0, "I'll look."),
    ToolDelta(0, 0, id="t1", name="weather"),
    ToolDelta(0, 0, '{"city": "Pa'),
    ToolDelta(0, 0, 'ris"}'),
    ToolDelta(0, 1, id="t2", name="time"),
    Finish(0, Ending.TOOL_CALLS),
)
CARDS = (
    ModelCard(
        "smollm2:135m",
        created=1_700_000_000.25,
        num_bytes=98_000_000,
        digest="sha256:abc",
        format="gguf",
        architecture="llama",
        num_parameters=134_515_008,
        quantization="Q4_1",
        max_context=8192,
        template="{{ messages }}",
        license="Apache-2.0",
        capabilities=("completion", "tools"),
        metadata={"general.name": "SmolLM2", "tokenizer.chat_template": "{{ messages }}", "llama.block_count": 30},
        loaded_bytes=120_000_000,
        accelerator_bytes=7,
        expires=1_700_000_300.0,
    ),
    ModelCard("forever"),
    ModelCard("on-disk", is_loaded=False),
)


def client(server: Canned) -> ollama.Client:
    return ollama.Client("http://quire", transport=httpx.MockTransport(server.handler(httpx.Response)))


def async_client(server: Canned) -> ollama.AsyncClient:
    return ollama.AsyncClient("http://quire", transport=httpx.MockTransport(server.async_handler(httpx.Response)))


async def _gathered(server: Canned, verb: str, fields: dict) -> list:
    answer = await getattr(async_client(server), verb)(**fields)
    return [part async for part in answer] if fields["stream"] else [answer]


def parts(server: Canned, verb: str, streams: bool, is_async: bool, **fields) -> list:
    """The parts of an answer: one if it is not streamed."""
    given = {"messages": [{"role": "user", "content": "Hi"}]} if verb == "chat" else {"prompt": "Hi"}
    fields = {"model": "m", "stream": streams, **given, **fields}
    if is_async:
        return asyncio.run(_gathered(server, verb, fields))
    answer = getattr(client(server), verb)(**fields)
    return list(answer) if streams else [answer]


def content(verb: str, part) -> str:
    return part.message.content if verb == "chat" else part.response


def thinking(verb: str, part) -> str:
    return (part.message.thinking if verb == "chat" else part.thinking) or ""


EACH = pytest.mark.parametrize("streams, is_async", [*product((False, True), repeat=2)])
VERBS = pytest.mark.parametrize("verb", ["chat", "generate"])


@EACH
@VERBS
def test_text(verb, streams, is_async):
    answer = parts(Canned(DIALECT, TEXT), verb, streams, is_async)
    assert len(answer) == (3 if streams else 1)
    assert "".join(content(verb, part) for part in answer) == 'Hello\n"wörld" 😀'
    assert [part.done for part in answer] == [*([False, False] if streams else []), True]
    assert all(part.model == "m" and part.created_at == "2023-11-14T22:13:20.500000Z" for part in answer)


@EACH
@VERBS
def test_counts_and_durations_in_nanoseconds(verb, streams, is_async):
    last = parts(Canned(DIALECT, TEXT), verb, streams, is_async)[-1]
    assert (last.prompt_eval_count, last.eval_count) == (100, 7)
    assert (last.total_duration, last.load_duration) == (1_000_000_000, 0)
    assert (last.prompt_eval_duration, last.eval_duration) == (250_000_000, 750_000_000)


@EACH
@VERBS
@pytest.mark.parametrize(
    "ending, reason",
    [
        (Ending.STOP, "stop"),
        (Ending.STOP_TEXT, "stop"),
        (Ending.LENGTH, "length"),
        (Ending.TOOL_CALLS, "stop"),
        (Ending.CANCELLED, "cancelled"),
    ],
)
def test_endings(verb, streams, is_async, ending, reason):
    events = (TextDelta(0, "a"), Finish(0, ending))
    assert parts(Canned(DIALECT, events), verb, streams, is_async)[-1].done_reason == reason


@EACH
@VERBS
def test_thinking(verb, streams, is_async):
    events = (ReasoningDelta(0, "Let me "), ReasoningDelta(0, "think."), *TEXT)
    server = Canned(DIALECT, events)
    answer = parts(server, verb, streams, is_async, think=True)
    assert "".join(thinking(verb, part) for part in answer) == "Let me think."
    assert "".join(content(verb, part) for part in answer) == 'Hello\n"wörld" 😀'
    assert server.asked[0].think is True


def weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: Where.
    """
    return city


@EACH
def test_calls_are_whole_and_have_objects(streams, is_async):
    server = Canned(DIALECT, CALLS)
    answer = parts(server, "chat", streams, is_async, tools=[weather])
    calls = [call for part in answer for call in part.message.tool_calls or ()]
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("weather", {"city": "Paris"}),
        ("time", {}),
    ]
    assert "".join(part.message.content for part in answer) == "I'll look."
    (tool,) = server.asked[0].tools
    assert tool.name == "weather" and tool.parameters["properties"]["city"]["type"] == "string"


def test_an_answer_sent_back_is_what_it_was():
    message = client(Canned(DIALECT, CALLS)).chat("m", [{"role": "user", "content": "Hi"}]).message
    server = Canned(DIALECT, TEXT)
    result = {"role": "tool", "content": "sunny", "tool_name": "weather"}
    client(server).chat("m", [{"role": "user", "content": "Hi"}, message, result])
    ask = server.asked[0]
    assert isinstance(ask, ChatRequest) and ask.messages[1].text == "I'll look."
    assert (
        ask.messages[1].reasoning == "Let me think." and ask.messages[1].tool_calls[0].arguments == '{"city":"Paris"}'
    )
    assert ask.messages[2] == Message("tool", "sunny", tool_call_id="call_0", name="weather")


def test_many_events_in_one_piece_are_the_same_bytes():
    body = b'{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}'
    one, all_ = (decode_chat(body, RequestLimits()).writer(Reply("0", 0.0, "m")) for _ in range(2))
    assert b"".join(one.write([event]) for event in CALLS) == all_.write(CALLS)


def test_a_call_that_was_cut_short_stays_readable():
    events = (ToolDelta(0, 0, '{"city": ', id="t1", name="weather"), Finish(0, Ending.LENGTH))
    (first, last) = parts(Canned(DIALECT, events), "chat", True, False)
    assert first.message.tool_calls[0].function.arguments == {"INVALID_JSON": '{"city": '}
    assert last.done_reason == "length"


@EACH
@VERBS
def test_logprobs(verb, streams, is_async):
    top = (ScoredToken(5, "Hi", b"Hi", -0.5), ScoredToken(6, "Ho", b"Ho", -1.5))
    events = (TextDelta(0, "Hi", (5,), (top[0]._replace(top=top),)), Finish(0, Ending.STOP))
    answer = parts(Canned(DIALECT, events), verb, streams, is_async, logprobs=True, top_logprobs=2)
    (score,) = [score for part in answer for score in part.logprobs or ()]
    assert (score.token, score.logprob) == ("Hi", -0.5)
    assert [(each.token, each.logprob) for each in score.top_logprobs] == [("Hi", -0.5), ("Ho", -1.5)]


@EACH
@VERBS
@pytest.mark.parametrize("keep_alive, reason", [(None, "load"), ("5m", "load"), (0, "unload")])
def test_loading_and_unloading(verb, streams, is_async, keep_alive, reason):
    empty = {"messages": []} if verb == "chat" else {"prompt": ""}
    server = Canned(DIALECT)
    (part,) = parts(server, verb, streams, is_async, keep_alive=keep_alive, **empty)
    assert part.done and part.done_reason == reason and content(verb, part) == "" and part.model == "m"
    assert server.asked[0].prompts == ()


@EACH
@VERBS
def test_options_and_formats_of_the_client(verb, streams, is_async):
    server = Canned(DIALECT, TEXT)
    options = ollama.Options(temperature=0.5, num_predict=9, stop=["x"], num_ctx=4096, mirostat=1)
    parts(server, verb, streams, is_async, options=options, format={"type": "object"}, keep_alive="1h")
    ask = server.asked[0]
    assert (ask.sampling.temperature, ask.sampling.max_tokens, ask.sampling.stop) == (0.5, 9, ("x",))
    assert ask.constraint.text == '{"type":"object"}' and ask.terms.keep_alive == 3600.0


@VERBS
def test_a_bad_request_is_an_error_of_the_client(verb):
    with pytest.raises(ollama.ResponseError) as raised:
        parts(Canned(DIALECT, TEXT), verb, False, False, options={"temperature": "hot"})
    assert raised.value.status_code == 400 and raised.value.error.startswith("options.temperature must be")


@VERBS
def test_a_stream_that_fails_raises_in_the_client(verb):
    server = Canned(DIALECT, (TextDelta(0, "a"),), fails=Overloaded("Full.", 1.0))
    with pytest.raises(ollama.ResponseError, match="Full"):
        parts(server, verb, True, False)


def test_the_list_of_models():
    first, *others = client(Canned(DIALECT, cards=CARDS)).list().models
    assert first.model == "smollm2:135m" and first.size == 98_000_000 and first.digest == "abc"
    assert first.modified_at == datetime(2023, 11, 14, 22, 13, 20, 250000, tzinfo=UTC)
    assert first.details.model_dump() == {
        "parent_model": "",
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "134.52M",
        "quantization_level": "Q4_1",
    }
    assert [other.model for other in others] == ["forever", "on-disk"]


def test_the_models_in_memory():
    forever, first = client(Canned(DIALECT, cards=CARDS)).ps().models
    assert first.name == first.model == "smollm2:135m" and first.size == 120_000_000 and first.size_vram == 7
    assert first.expires_at == datetime(2023, 11, 14, 22, 18, 20, tzinfo=UTC) and first.context_length == 8192
    assert forever.model == "forever" and forever.expires_at.year == 9999


def test_one_model():
    shown = client(Canned(DIALECT, cards=CARDS)).show("smollm2:135m")
    assert shown.template == "{{ messages }}" and shown.license == "Apache-2.0"
    assert shown.capabilities == ["completion", "tools"] and shown.details.family == "llama"
    assert shown.modelinfo == {
        "general.architecture": "llama",
        "general.parameter_count": 134_515_008,
        "llama.context_length": 8192,
        "general.name": "SmolLM2",
        "llama.block_count": 30,
    }
    assert "FROM smollm2:135m\n" in shown.modelfile and shown.parameters == ""


def test_the_version():
    status, _, (body,) = Canned(DIALECT).answer("/api/version", b"")
    assert status == 200 and json.loads(body) == {"version": "1.2.3"}


@pytest.mark.parametrize(
    "number, text",
    [(0, "0"), (999, "999"), (1500, "2K"), (134_515_008, "134.52M"), (7_000_000, "7M"), (8_030_261_248, "8.0B")],
)
def test_counts_are_shortened_as_there(number, text):
    assert human_number(number) == text
