"""No body, however broken, gets more out of a decoder than InvalidRequest with a sentence."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from quire.serve.dialects.contract import Reply, RequestLimits
from quire.serve.dialects.openai import dialect as openai
from quire.serve.dialects.responses import dialect as responses
from quire.types.answer import Usage
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure

MANY, SOME = (settings(max_examples=n, deadline=None, suppress_health_check=list(HealthCheck)) for n in (500, 150))
LIMITS = RequestLimits()
REPLY = Reply("0", 0.0, "m")
USAGE = Usage(1, 0, 0, 0.0, 0.0)
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"model": "m", "prompt": "Hi"},
    "/v1/responses": {"model": "m", "input": "Hi"},
}
DECODERS = {
    "/v1/chat/completions": openai.decode_chat,
    "/v1/completions": openai.decode_completion,
    "/v1/responses": responses.decode,
}
SCHEMAS: dict[str, Any] = {**openai.DIALECT.schemas, **responses.DIALECT.schemas}
TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}, "strict": True}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
NAMED = {"type": "function", "function": {"name": "f"}}
PART = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
SHARED: dict[str, Any] = {
    "model": "m",
    "temperature": 0.5,
    "logit_bias": {"1": 2},
    "stop": ["a"],
    "bad_words": [[1]],
    "keep": {"ttl": 5, "rank": 3},
    "metadata": {"a": "b"},
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
    "stream": True,
}
RICH: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        **SHARED,
        "messages": [
            {"role": "developer", "content": [PART]},
            {"role": "user", "content": "Hi", "name": "n"},
            {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": [PART]},
        ],
        "tools": [{"type": "function", "function": TOOL}],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"a": [1]}, "strict": True}},
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 2,
        "chat_template_kwargs": {"enable_thinking": True, "x": {"y": 1}},
    },
    "/v1/completions": {
        **SHARED,
        "prompt": [[1, 2], [3]],
        "structured_outputs": {"choice": ["a", "b"]},
        "stream_options": {"include_usage": True},
        "echo": True,
        "logprobs": 3,
    },
    "/v1/responses": {
        **SHARED,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "a", "annotations": []}],
            },
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "o"}]},
        ],
        "tools": [{"type": "function", **TOOL}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {"a": [1]}, "strict": True}},
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["message.output_text.logprobs"],
    },
}
every_endpoint = pytest.mark.parametrize("path", BASES)

# JSON's types, with a value of each that no field takes, however it is shaped.
SAMPLES: dict[str, Any] = {
    "string": "\u0000no such value",
    "integer": -(10**30),
    "number": -1.5e300,
    "boolean": True,
    "array": [[{}]],
    "object": {"no such name": 1},
}
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def types_of(node: dict[str, Any]) -> set[str]:
    """The types that a field's schema allows; all of them if it says nothing."""
    if "anyOf" in node:
        return set().union(*(types_of(kind) for kind in node["anyOf"]))
    if "enum" in node:
        return {"string", "array", "boolean", "integer", "number"}  # of some values
    found = node.get("type")
    if found is None:
        return set(SAMPLES)
    return {"number", "integer"} if found == "number" else {found}


def refuse(path: str, body: bytes) -> str:
    with pytest.raises(InvalidRequest) as caught:
        DECODERS[path](body, LIMITS)
    public = caught.value.public
    assert public and len(public) < 1000 and public.encode("utf-8") and caught.value.status == 400
    return public


def survive(path: str, body: bytes) -> None:
    """Either it is served, which begins with a writer, or it is refused."""
    try:
        decoded = DECODERS[path](body, LIMITS)
    except InvalidRequest as error:
        assert error.public
    else:
        assert isinstance(decoded.writer(REPLY).open(USAGE), bytes)


def names(path: str) -> st.SearchStrategy[str]:
    return st.sampled_from(sorted(SCHEMAS[path]["properties"]))


@every_endpoint
@MANY
@given(data=st.data())
def test_a_field_of_the_wrong_type_is_refused(path, data):
    name = data.draw(names(path))
    wrong = sorted(set(SAMPLES) - types_of(SCHEMAS[path]["properties"][name]))
    assume(wrong)
    value = SAMPLES[data.draw(st.sampled_from(wrong))]
    public = refuse(path, json.dumps({**BASES[path], name: value}).encode())
    assert name in public


@every_endpoint
@SOME
@given(name=st.text(min_size=1, max_size=300), value=values)
def test_an_unknown_name_is_refused(path, name, value):
    assume(name not in SCHEMAS[path]["properties"])
    try:
        body = json.dumps({**BASES[path], name: value}, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        body = json.dumps({**BASES[path], name: value}).encode()
    refuse(path, body)


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all that is inside."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [found for key, value in inner for found in [(*path, key), *places(value, (*path, key))]]


@every_endpoint
@MANY
@given(data=st.data())
def test_a_rich_body_with_one_change_is_served_or_refused(path, data):
    body = json.loads(json.dumps(RICH[path]))
    *outer, last = data.draw(st.sampled_from(places(body)))
    node = body
    for key in outer:
        node = node[key]
    if data.draw(st.integers(0, 4)) == 0:
        del node[last]
    else:
        node[last] = data.draw(values | st.sampled_from(list(SAMPLES.values())))
    survive(path, json.dumps(body).encode())


@every_endpoint
def test_the_rich_body_itself_is_served(path):
    assert DECODERS[path](json.dumps(RICH[path]).encode(), LIMITS).ask.stream


NESTED = ["messages", "prompt", "input", "tools", "tool_choice", "response_format", "metadata", "chat_template_kwargs"]
NESTED += ["guided_json", "documents", "audio", "no_such_name", "keep", "text", "store", "modalities"]


@every_endpoint
@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("depth", [200, 900, 100_000])
@pytest.mark.parametrize("opening, closing", [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_refused(path, name, depth, opening, closing):
    start = json.dumps({key: value for key, value in BASES[path].items() if key != name})[:-1]
    refuse(path, f'{start}, "{name}": {opening * depth}1{closing * depth}}}'.encode())


@every_endpoint
@pytest.mark.parametrize("where", ["tools", "schema"])
def test_deep_nesting_where_anything_may_stand_is_refused(path, where):
    deep = '{"a":' * 300 + "1" + "}" * 300
    named = '"name": "f", "parameters": ' + deep
    tool = (
        f'{{"type": "function", {named}}}'
        if path == "/v1/responses"
        else f'{{"type": "function", "function": {{{named}}}}}'
    )
    more = {"tools": f'"tools": [{tool}]', "schema": f'"structured_outputs": {{"json": {deep}}}'}[where]
    public = refuse(path, f"{json.dumps(BASES[path])[:-1]}, {more}}}".encode())
    assert "nested too deeply" in public or "tools" in public


@every_endpoint
@SOME
@given(data=st.data())
def test_damaged_bytes_are_served_or_refused(path, data):
    body = bytearray(json.dumps({**BASES[path], "stop": ["é", "\U0001f600"], "temperature": 0.5}).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body)))
        piece = data.draw(
            st.binary(max_size=4)
            | st.sampled_from(
                [rb"\ud800", rb"\udc00x", b"\xff", b"\xed\xa0\x80", b"NaN", b"1e999", b"[" * 5000, b"\x00"]
            )
        )
        body[place : place + data.draw(st.integers(0, 3))] = piece
    survive(path, bytes(body))


@every_endpoint
@SOME
@given(
    body=st.binary(max_size=64)
    | st.text(string.printable).map(str.encode)
    | values.map(lambda v: json.dumps(v).encode())
)
def test_what_is_no_request_at_all_is_refused(path, body):
    refuse(path, body)


@every_endpoint
@pytest.mark.parametrize(
    "piece, says",
    [
        (b'""', "must be a number"),
        (b"NaN", "not valid JSON"),
        (b"-Infinity", "not valid JSON"),
        (b"1e999", "out of range"),
        (b"-1e999", "out of range"),
        (b"9" * 5000, "out of range"),
        (b"9" * 400, "out of range"),
        (rb'"\ud800"', "not valid JSON"),
        (rb'"\ud800\ud800abcdef"', "surrogate"),
        (b"0x10", "not valid JSON"),
        (b"01", "not valid JSON"),
        (b"", "not valid JSON"),
        (b'"\n"', "not valid JSON"),
    ],
)
def test_what_json_has_not_is_refused(path, piece, says):
    public = refuse(path, json.dumps(BASES[path])[:-1].encode() + b', "temperature": ' + piece + b"}")
    assert says in public


@every_endpoint
@pytest.mark.parametrize("piece", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"])
def test_what_is_no_text_is_refused(path, piece):
    public = refuse(path, json.dumps(BASES[path])[:-1].encode() + b', "user": "a' + piece + b'"}')
    assert public == "The body is not valid UTF-8."


@every_endpoint
def test_a_long_name_or_value_is_not_repeated_in_full(path):
    for fields in ({"x" * 100_000: 1}, {"service_tier": "x" * 100_000}, {"tool_choice": "x" * 100_000}):
        refuse(path, json.dumps({**BASES[path], **fields}).encode())
