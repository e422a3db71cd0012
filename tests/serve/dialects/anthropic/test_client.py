"""Anthropic's own client is the judge: it asks our functions, and must understand every answer."""

import asyncio
import json

import anthropic
import httpx2
import pytest
from pydantic import BaseModel

from quire.serve.dialects.anthropic.dialect import DIALECT, decode
from quire.serve.dialects.contract import Reply, RequestLimits
from quire.types.answer import Usage
from quire.types.chat import Answered, Choice, Ending, Finish, ReasoningDelta, TextDelta, ToolDelta
from quire.types.errors import DeadlineExceeded, InvalidRequest, Overloaded, QuireError, StepFailed
from quire.types.message import Message, ToolCall
from tests.serve.dialects.canned import USAGE, Canned

pytestmark = pytest.mark.pure

ASK = {"model": "smollm2:135m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
TEXT = (TextDelta(0, "Hel"), TextDelta(0, 'lo\n"wörld" \u2028 😀'), Finish(0, Ending.STOP))
CALLS = (
    ReasoningDelta(0, "Let me "),
    ReasoningDelta(0, "think."),
    TextDelta(0, ""),
    TextDelta(0, "I'll look."),
    ToolDelta(0, 0, id="t1", name="weather"),
    ToolDelta(0, 0, '{"city": "Pa'),
    ToolDelta(0, 0, 'ris", "days": [1, 2]}'),
    ToolDelta(0, 1, "{}", id="t2", name="time"),
    ToolDelta(0, 2, id="t3", name="nothing"),
    Finish(0, Ending.TOOL_CALLS),
)


def client(server: Canned) -> anthropic.Anthropic:
    transport = httpx2.MockTransport(server.handler(httpx2.Response))
    http = httpx2.Client(transport=transport)
    return anthropic.Anthropic(api_key="k", base_url="http://quire", http_client=http, max_retries=0)


def async_client(server: Canned) -> anthropic.AsyncAnthropic:
    transport = httpx2.MockTransport(server.async_handler(httpx2.Response))
    http = httpx2.AsyncClient(transport=transport)
    return anthropic.AsyncAnthropic(api_key="k", base_url="http://quire", http_client=http, max_retries=0)


def whole(server: Canned, **fields):
    return client(server).messages.create(**{**ASK, **fields})


def streamed(server: Canned, **fields):
    with client(server).messages.stream(**{**ASK, **fields}) as stream:
        return stream.get_final_message()


def async_whole(server: Canned, **fields):
    async def ask():
        async with async_client(server) as one:
            return await one.messages.create(**{**ASK, **fields})

    return asyncio.run(ask())


def async_streamed(server: Canned, **fields):
    async def ask():
        async with async_client(server) as one, one.messages.stream(**{**ASK, **fields}) as stream:
            return await stream.get_final_message()

    return asyncio.run(ask())


WAYS = pytest.mark.parametrize("way", [whole, streamed, async_whole, async_streamed])


@WAYS
def test_text(way):
    message = way(Canned(DIALECT, TEXT))
    assert message.id == "msg_0123" and message.model == "smollm2:135m" and message.role == "assistant"
    assert [(block.type, block.text) for block in message.content] == [("text", 'Hello\n"wörld" \u2028 😀')]
    assert message.stop_reason == "end_turn" and message.stop_sequence is None


@WAYS
def test_the_three_kinds_of_input_tokens_are_the_prompt(way):
    usage = way(Canned(DIALECT, TEXT)).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (10, 60, 30)
    assert usage.output_tokens == 7 and usage.output_tokens_details.thinking_tokens == 2


@WAYS
def test_thinking_text_and_calls(way):
    server = Canned(DIALECT, CALLS)
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("weather", "time", "nothing")]
    message = way(server, tools=tools, thinking={"type": "adaptive"})
    thinking, text, weather, time, nothing = message.content
    assert thinking.type == "thinking" and thinking.thinking == "Let me think." and thinking.signature == ""
    assert text.text == "I'll look."
    assert (weather.id, weather.name, weather.input) == ("t1", "weather", {"city": "Paris", "days": [1, 2]})
    assert (time.name, time.input, nothing.input) == ("time", {}, {})
    assert message.stop_reason == "tool_use"
    assert server.asked[0].think is True and len(server.asked[0].tools) == 3


@WAYS
def test_an_answer_sent_back_is_what_it_was(way):
    message = way(Canned(DIALECT, CALLS), thinking={"type": "adaptive"})
    server = Canned(DIALECT, TEXT)
    results = [{"type": "tool_result", "tool_use_id": f"t{i}", "content": "ok"} for i in (1, 2, 3)]
    way(server, messages=[*ASK["messages"], message.to_param(), {"role": "user", "content": results}])
    arguments = '{"city":"Paris","days":[1,2]}'
    calls = (ToolCall("t1", "weather", arguments), ToolCall("t2", "time", "{}"), ToolCall("t3", "nothing", "{}"))
    assert server.asked[0].messages[1] == Message("assistant", "I'll look.", "Let me think.", calls)
    assert [message.name for message in server.asked[0].messages[2:]] == ["weather", "time", "nothing"]


@WAYS
@pytest.mark.parametrize(
    "finish, reason, sequence",
    [
        (Finish(0, Ending.STOP), "end_turn", None),
        (Finish(0, Ending.STOP_TEXT, "END"), "stop_sequence", "END"),
        (Finish(0, Ending.STOP_TEXT, 7), "end_turn", None),
        (Finish(0, Ending.LENGTH), "max_tokens", None),
        (Finish(0, Ending.TOOL_CALLS), "tool_use", None),
        (Finish(0, Ending.CANCELLED), "pause_turn", None),
    ],
)
def test_endings(way, finish, reason, sequence):
    message = way(Canned(DIALECT, (TextDelta(0, "a"), finish)), stop_sequences=["END"])
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)


@WAYS
def test_an_empty_answer_has_no_content(way):
    assert way(Canned(DIALECT, (Finish(0, Ending.STOP),))).content == []


@WAYS
def test_thoughts_that_are_not_to_be_shown_are_not(way):
    message = way(Canned(DIALECT, CALLS), thinking={"type": "adaptive", "display": "omitted"})
    assert message.content[0].type == "thinking" and message.content[0].thinking == ""
    assert message.content[1].text == "I'll look."


class Point(BaseModel):
    x: int


def test_a_parsed_answer():
    server = Canned(DIALECT, (TextDelta(0, '{"x": '), TextDelta(0, "5}"), Finish(0, Ending.STOP)))
    assert client(server).messages.parse(**ASK, output_format=Point).parsed_output == Point(x=5)
    with client(server).messages.stream(**ASK, output_format=Point) as stream:
        assert stream.get_final_message().parsed_output == Point(x=5)
    assert all('"x"' in ask.constraint.text for ask in server.asked)


def test_the_events_of_a_stream():
    with client(Canned(DIALECT, CALLS)).messages.stream(**ASK) as stream:
        kinds = [event.type for event in stream]
    raw = [event.type for event in client(Canned(DIALECT, TEXT)).messages.create(**ASK, stream=True)]
    assert raw == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 5
    assert kinds.count("thinking") == 2 and kinds.count("signature") == 1 and kinds.count("input_json") == 3


def test_many_events_in_one_piece_are_the_same_bytes():
    body = json.dumps({**ASK, "stream": True}).encode()
    one, all_ = (decode(body, RequestLimits()).writer(Reply("0", 0.0, "m")) for _ in range(2))
    assert b"".join(one.write([event]) for event in CALLS) == all_.write(CALLS)


def test_a_stream_begins_with_the_tokens_of_the_prompt_and_a_ping():
    opened = decode(json.dumps(ASK).encode(), RequestLimits()).writer(Reply("0", 0.0, "m")).open(USAGE).decode()
    start, ping, rest = opened.split("\n\n")
    assert start.startswith("event: message_start\ndata: {")
    counts = json.loads(start.partition("data: ")[2])["message"]["usage"]
    assert counts["input_tokens"] == USAGE.prompt - USAGE.cached - USAGE.kept > 0
    assert (counts["cache_read_input_tokens"], counts["cache_creation_input_tokens"]) == (USAGE.cached, USAGE.kept)
    assert ping == 'event: ping\ndata: {"type":"ping"}' and rest == ""


def test_arguments_that_were_cut_short_stay_readable():
    choice = Choice(0, "", Ending.LENGTH, tool_calls=(ToolCall("t1", "f", '{"a": '),))
    writer = decode(json.dumps(ASK).encode(), RequestLimits()).writer(Reply("0", 0.0, "m"))
    message = json.loads(writer.whole(Answered((choice,), Usage(1, 0, 1, 0.0, 0.0))))
    assert message["content"][0]["input"] == {"INVALID_JSON": '{"a": '}


def test_counting_tokens():
    server = Canned(DIALECT, num_tokens=17)
    counted = client(server).messages.count_tokens(model="m", messages=ASK["messages"], system="s", tools=[])
    assert counted.input_tokens == 17 and len(server.asked[0].messages) == 2


class Forbidden(QuireError):
    status = 403


class Missing(QuireError):
    status = 404


class TooLarge(QuireError):
    status = 413


class Unknown(QuireError):
    status = 401


class Often(QuireError):
    status = 429


class Odd(QuireError):
    status = 418


@pytest.mark.parametrize(
    "error, kind",
    [
        (InvalidRequest("No."), "invalid_request_error"),
        (Unknown("No."), "authentication_error"),
        (Forbidden("No."), "permission_error"),
        (Missing("No."), "not_found_error"),
        (TooLarge("No."), "request_too_large"),
        (Often("No."), "rate_limit_error"),
        (Odd("No."), "invalid_request_error"),
        (StepFailed("No."), "api_error"),
        (Overloaded("No.", 1.0), "overloaded_error"),
        (DeadlineExceeded(3), "timeout_error"),
    ],
)
def test_errors_have_their_types(error, kind):
    body = json.loads(DIALECT.error(error))
    assert body == {"type": "error", "error": {"type": kind, "message": error.public}}


def test_a_bad_request_is_one_for_the_client():
    with pytest.raises(anthropic.BadRequestError) as raised:
        client(Canned(DIALECT, TEXT)).messages.create(**ASK, extra_body={"foo": 1})
    assert raised.value.type == "invalid_request_error" and raised.value.api_message.startswith("foo: Extra inputs")


def test_a_stream_that_fails_raises_in_the_client():
    server = Canned(DIALECT, (TextDelta(0, "a"),), fails=Overloaded("Full.", 1.0))
    with pytest.raises(anthropic.APIStatusError) as raised, client(server).messages.stream(**ASK) as stream:
        stream.until_done()
    assert raised.value.type == "overloaded_error"
