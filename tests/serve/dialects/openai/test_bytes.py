"""The bytes of a stream, exactly; and that any text comes through them whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.serve.dialects.contract import AnswerWriter, Reply, RequestLimits
from quire.serve.dialects.openai import dialect as openai
from quire.serve.dialects.responses import dialect as responses
from quire.types.answer import Usage
from quire.types.chat import Ending, Event, Finish, PromptEcho, ReasoningDelta, TextDelta, ToolDelta
from quire.types.errors import StepFailed

pytestmark = pytest.mark.pure

REPLY = Reply("7", 12.9, 'my "model"', "fp_7")
USAGE = Usage(prompt=3, cached=2, output=1, first_token_seconds=0.0, seconds=0.0)
CHAT, COMPLETIONS, RESPONSES = "chat", "completions", "responses"
PLAIN = {
    CHAT: (openai.decode_chat, {"messages": [{"role": "user", "content": "Hi"}]}),
    COMPLETIONS: (openai.decode_completion, {"prompt": "Hi"}),
    RESPONSES: (responses.decode, {"input": "Hi"}),
}


def writer(name: str, **fields: Any) -> AnswerWriter:
    decode, body = PLAIN[name]
    return decode(json.dumps({"model": "m", "stream": True, **body, **fields}).encode(), RequestLimits()).writer(REPLY)


HEAD = (
    b'data: {"id":"chatcmpl-7","created":12,"model":"my \\"model\\"","system_fingerprint":"fp_7",'
    b'"object":"chat.completion.chunk","choices":['
)


def test_the_stream_of_a_chat():
    w = writer(CHAT)
    role = b'{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}'
    text = b'{"index":0,"delta":{"content":"\\"\\n"},"logprobs":null,"finish_reason":null}'
    thought = b'{"index":0,"delta":{"reasoning_content":"r","reasoning":"r"},"logprobs":null,"finish_reason":null}'
    begin = b'{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":""}}'
    end = b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}'
    assert w.content_type == "text/event-stream"
    assert w.open(USAGE) == HEAD + role + b"]}\n\n"
    assert w.write([TextDelta(0, '"\n')]) == HEAD + text + b"]}\n\n"
    assert w.write([ReasoningDelta(0, "r")]) == HEAD + thought + b"]}\n\n"
    assert w.write([ToolDelta(0, 0, "", "c", "f")]) == HEAD + (
        b'{"index":0,"delta":{"tool_calls":[' + begin + b']},"logprobs":null,"finish_reason":null}]}\n\n'
    )
    assert w.write([ToolDelta(0, 0, "{}")]) == HEAD + (
        b'{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]},'
        b'"logprobs":null,"finish_reason":null}]}\n\n'
    )
    assert w.write([Finish(0, Ending.TOOL_CALLS)]) == HEAD + end + b"]}\n\n"
    assert w.close(USAGE) == b"data: [DONE]\n\n"


def test_the_usage_of_a_chat():
    w = writer(CHAT, stream_options={"include_usage": True})
    assert w.write([TextDelta(0, "a")]).endswith(b'"finish_reason":null}],"usage":null}\n\n')
    usage = b'{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4,"prompt_tokens_details":{"cached_tokens":2,'
    usage += b'"cache_write_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}'
    assert w.close(USAGE) == HEAD + b'],"usage":' + usage + b"}\n\ndata: [DONE]\n\n"


def test_the_stream_of_a_completion():
    head = b'data: {"id":"cmpl-7","object":"text_completion","created":12,"model":"my \\"model\\"",'
    head += b'"system_fingerprint":"fp_7","choices":['
    w = writer(COMPLETIONS)
    assert w.open(USAGE) == b""
    text = b'{"index":3,"text":"a","logprobs":null,"finish_reason":null}]}\n\n'
    assert w.write([TextDelta(3, "a")]) == head + text
    end = b'{"index":3,"text":"","logprobs":null,"finish_reason":"length"}]}\n\n'
    assert w.write([Finish(3, Ending.LENGTH)]) == head + end
    assert w.close(USAGE) == b"data: [DONE]\n\n"


def test_the_text_of_a_response():
    w = writer(RESPONSES)
    w.open(USAGE)
    w.write([TextDelta(0, "a")])
    data = b'{"type":"response.output_text.delta","item_id":"msg_7_0","output_index":0,"content_index":0,"logprobs":[],'
    assert w.write([TextDelta(0, '"\n')]) == (
        b"event: response.output_text.delta\ndata: " + data + b'"delta":"\\"\\n","sequence_number":5}\n\n'
    )


@pytest.mark.parametrize("name", [CHAT, COMPLETIONS])
def test_a_failed_stream_has_no_good_end(name):
    said = b'data: {"error":{"message":"No.","type":"server_error","param":null,"code":"step_failed"}}\n\n'
    assert writer(name).fail(StepFailed("No.")) == said


def test_a_prompt_that_nobody_asked_for_is_not_told():
    assert all(writer(name).write([PromptEcho(0, "Hi", (1,))]) == b"" for name in PLAIN)


def events(stream: bytes) -> list[Any]:
    """The data of a stream of server-sent events, each of which is one line and ends with an empty one."""
    assert stream.endswith(b"\n\n") and b"\r" not in stream
    found = []
    for event in stream[:-2].split(b"\n\n"):
        lines = event.split(b"\n")
        assert all(line.startswith((b"data: ", b"event: ")) for line in lines) and len(lines) <= 2
        found.append(json.loads(lines[-1].removeprefix(b"data: ")))
    return found


texts = st.text(min_size=1)  # of anything but halves of surrogate pairs, which no tokenizer makes
TOLD = {
    CHAT: lambda data: data["choices"][0]["delta"].get("content") or "",
    COMPLETIONS: lambda data: data["choices"][0]["text"],
    RESPONSES: lambda data: data["delta"] if data["type"] == "response.output_text.delta" else "",
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("fields", [{}, {"return_token_ids": True}], ids=["plain", "tokens"])
@settings(max_examples=100, deadline=None)
@given(pieces=st.lists(texts, min_size=1, max_size=5))
def test_any_text_comes_through(name, fields, pieces):
    w = writer(name, **(fields if name != RESPONSES else {}))
    stream = w.open(USAGE) + w.write([TextDelta(0, piece, (1,)) for piece in pieces])
    assert "".join(map(TOLD[name], events(stream))) == "".join(pieces)


@pytest.mark.parametrize("name", PLAIN)
@settings(max_examples=50, deadline=None)
@given(pieces=st.lists(st.tuples(st.booleans(), st.text(max_size=3)), max_size=6))
def test_it_does_not_matter_how_events_are_grouped(name, pieces):
    said: list[Event] = [(TextDelta if is_text else ReasoningDelta)(0, text) for is_text, text in pieces]
    said += [ToolDelta(0, 0, "{", "c", "f"), ToolDelta(0, 0, "}"), Finish(0, Ending.TOOL_CALLS)]
    one_by_one, at_once = writer(name), writer(name)
    assert b"".join(one_by_one.write([event]) for event in said) == at_once.write(said)
    assert one_by_one.close(USAGE) == at_once.close(USAGE)
    assert at_once.write([]) == b""
