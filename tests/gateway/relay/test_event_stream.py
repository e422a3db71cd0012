"""Streams of other servers: whole events, the first text, the usage; and what is read of bodies."""

from __future__ import annotations

import json

import pytest

from quire.gateway.relay.body_head import read_body_head, usage_in, with_model
from quire.gateway.relay.event_stream import EventStream, text_of
from quire.gateway.relay.text_resume import ContinuedEvents
from quire.serve.relayed.frames import DATA, END, FrameReader, RelayedUsage, encode_frame

pytestmark = pytest.mark.pure

ROLE = b'data: {"id":"a","choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = b'data: {"id":"a","choices":[{"delta":{"content":"hi"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\ndata: [DONE]\n\n'


def test_only_whole_events_are_passed_on_wherever_the_bytes_are_cut():
    whole = ROLE + TEXT + TEXT + USAGE
    for size in range(1, len(whole)):
        stream, sent = EventStream("text/event-stream"), b""
        for start in range(0, len(whole), size):
            piece = stream.feed(whole[start : start + size])
            assert piece == b"" or piece.endswith(b"\n\n")
            sent += piece
        assert sent == whole and stream.usage == RelayedUsage(3, 0, 2) and stream.is_ended


def test_nothing_is_passed_on_before_the_first_text():
    stream = EventStream("text/event-stream; charset=utf-8")
    assert stream.feed(ROLE) == b"" and not stream.has_text
    assert stream.feed(TEXT) == ROLE + TEXT


def test_lines_of_ollama_are_events_too():
    stream = EventStream("application/x-ndjson")
    assert (
        stream.feed(b'{"message":{"content":"a"},"done":false}\n{"mess')
        == b'{"message":{"content":"a"},"done":false}\n'
    )
    assert stream.feed(b'age":{"content":""},"done":true,"prompt_eval_count":4,"eval_count":1}\n')
    assert stream.usage == RelayedUsage(4, 0, 1) and stream.failure(b"{}") == b"{}\n"


def test_line_ends_of_windows_and_comments_are_accepted():
    stream = EventStream("text/event-stream")
    assert stream.feed(b": ping\r\n\r\n" + TEXT.replace(b"\n", b"\r\n")).endswith(b"\n\n")


@pytest.mark.parametrize(
    "event, text",
    [
        ({"choices": [{"delta": {"content": "a"}}]}, "a"),
        ({"choices": [{"text": "a"}]}, "a"),
        ({"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]}, "{}"),
        ({"type": "response.output_text.delta", "delta": "a"}, "a"),
        ({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}, "a"),
        ({"message": {"role": "assistant", "content": "a"}}, "a"),
        ({"response": "a"}, "a"),
        ({"choices": []}, ""),
        ([], ""),
    ],
)
def test_the_text_of_an_event_is_found_in_every_dialect(event, text):
    assert text_of(event) == text


@pytest.mark.parametrize(
    "answer, usage",
    [
        (
            {"usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}},
            (5, 4, 2),
        ),
        ({"usage": {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 3}}, (8, 3, 2)),
        ({"response": {"usage": {"input_tokens": 5, "output_tokens": 2}}}, (5, 0, 2)),
        ({"prompt_eval_count": 5, "eval_count": 2}, (5, 0, 2)),
        ({"usage": {"prompt_tokens": 5, "total_tokens": 5}}, (5, 0, 0)),
        ({"usage": None}, None),
        ([1], None),
    ],
)
def test_usage_is_found_in_every_dialect(answer, usage):
    assert usage_in(answer) == usage


def test_the_model_is_found_in_json_and_in_forms():
    assert read_body_head(b'{"x": [1], "model": "m", "stream": true}', "application/json").model == "m"
    form = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--x\r\n'
    assert read_body_head(form, "multipart/form-data; boundary=x").model == "whisper"
    assert read_body_head(b"\xff", "application/json").model == "" and read_body_head(b"", "").model == ""


def test_the_model_of_a_body_is_replaced():
    assert json.loads(with_model(b'{"model": "a", "x": 1}', "b")) == {"model": "b", "x": 1}
    assert json.loads(with_model(b'{"name": "a"}', "b")) == {"name": "b"}
    assert with_model(b"[1]", "b") == b"[1]" and with_model(b"{", "b") == b"{"


def test_frames_are_found_wherever_the_bytes_are_cut():
    frames = [(DATA, b"abc", b"j", 1), (DATA, b"", b"", 0), (END, b"x" * 300, b"usage", 0)]
    whole = b"".join(encode_frame(*frame) for frame in frames)
    for size in range(1, len(whole)):
        reader = FrameReader()
        found = [frame for start in range(0, len(whole), size) for frame in reader.feed(whole[start : start + size])]
        assert [tuple(frame) for frame in found] == frames


def test_continued_events_look_like_those_of_the_first_upstream():
    events = ContinuedEvents()
    assert events.rewrite(TEXT) == TEXT
    events.is_continuation = True
    other = b'data: {"id": "b", "choices":[{"delta":{"role":"assistant","content":"x"}}]}\n\n'
    assert b'"id":"a"' in events.rewrite(other) and b"role" not in events.rewrite(other)
