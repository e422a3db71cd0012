"""Whatever a client sends, it gets an answer: a body is taken or refused with a sentence, and nothing else is raised.

Each endpoint sees 700 bodies that must be refused (malformed, misshapen, any bytes) and 200 that need not be.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.serve.dialects.anthropic import dialect as anthropic
from quire.serve.dialects.contract import RequestLimits
from quire.serve.dialects.ollama import dialect as ollama
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
MARK = {"type": "ephemeral", "ttl": "1h"}

PROMPT = {
    "model": "m",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hello", "cache_control": MARK}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Hi."},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "2"}],
                    "is_error": False,
                },
                {"type": "text", "text": "And?"},
            ],
        },
    ],
    "system": [{"type": "text", "text": "Be kind."}],
    "tools": [{"name": "add", "description": "Adds.", "input_schema": SCHEMA, "strict": True, "cache_control": MARK}],
    "tool_choice": {"type": "tool", "name": "add", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "cache_control": MARK,
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
}
MESSAGES = {
    **PROMPT,
    "max_tokens": 4096,
    "stream": True,
    "stop_sequences": ["a"],
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "metadata": {"user_id": "u"},
    "service_tier": "auto",
}
COMMON = {
    "model": "m",
    "stream": False,
    "format": SCHEMA,
    "options": {
        "num_predict": 5,
        "temperature": 0.5,
        "top_k": 1,
        "stop": ["a"],
        "seed": 1,
        "use_mmap": True,
        "num_ctx": 9,
    },
    "keep_alive": "5m",
    "think": True,
    "logprobs": True,
    "top_logprobs": 5,
}
CHAT = {
    **COMMON,
    "messages": [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "add", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "2", "tool_name": "add", "tool_call_id": "c"},
    ],
    "tools": [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}],
}
GENERATE = {**COMMON, "prompt": "Hello", "system": "s", "raw": False, "context": [], "images": []}
SHOW = {"model": "m", "verbose": True}

Decode = Callable[[bytes], object]
ENDPOINTS: dict[str, tuple[Decode, dict[str, Any], Any]] = {
    "/v1/messages": (lambda body: anthropic.decode(body, RequestLimits()), MESSAGES, anthropic.DIALECT),
    "/v1/messages/count_tokens": (
        lambda body: anthropic.decode_count(body, RequestLimits()),
        PROMPT,
        anthropic.DIALECT,
    ),
    "/api/chat": (lambda body: ollama.decode_chat(body, RequestLimits()), CHAT, ollama.DIALECT),
    "/api/generate": (lambda body: ollama.decode_generate(body, RequestLimits()), GENERATE, ollama.DIALECT),
    "/api/show": (ollama.name_to_show, SHOW, ollama.DIALECT),
}
EACH = pytest.mark.parametrize("path", ENDPOINTS)

Place = tuple[str | int, ...]


def kind_of(value: object) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def taken(schema: dict[str, Any]) -> set[str]:
    """The kinds of values that a schema takes. Empty: all."""
    if "anyOf" in schema:
        return set().union(*(taken(each) for each in schema["anyOf"]))
    kinds = {kind_of(each) for each in schema["enum"]} if "enum" in schema else {schema["type"]} if schema else set()
    return kinds | ({"integer"} if "number" in kinds else set())


def places(value: Any, schema: dict[str, Any], at: Place = ()) -> Iterator[tuple[Place, set[str]]]:
    """Every place in a body that has a declared shape, and the kinds of values that may stand there."""
    yield at, taken(schema)
    for each in schema.get("anyOf", [schema]):
        if isinstance(value, list) and "items" in each:
            for number, item in enumerate(value):
                yield from places(item, each["items"], (*at, number))
        elif isinstance(value, dict) and "properties" in each:
            tags = each["properties"].get("type", {}).get("enum")
            if not tags or value.get("type") in tags:
                for name in value.keys() & each["properties"].keys():
                    yield from places(value[name], each["properties"][name], (*at, name))


def put(body: Any, at: Place, value: Any) -> Any:
    if not at:
        return value
    inner = put(body[at[0]], at[1:], value)
    if isinstance(body, dict):
        return {**body, at[0]: inner}
    return [inner if number == at[0] else item for number, item in enumerate(body)]


PLACES = {path: sorted(places(body, dialect.schemas[path]), key=str) for path, (_, body, dialect) in ENDPOINTS.items()}

VALUES = {
    "null": st.none(),
    "boolean": st.booleans(),
    "integer": st.integers(-(10**40), 10**40),
    "number": st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: repr(number) != str(int(number))),
    "string": st.text(max_size=5),
    "array": st.lists(st.integers() | st.none(), max_size=3),
    "object": st.dictionaries(st.text(max_size=3), st.none(), max_size=2),
}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
POISON = [
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"-1e999",
    b"9" * 5000,
    b'"\\ud800"',
    b'"\\udc00x"',
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'"\x00"',
    b'"unended',
    b"[" * 100_000,
    b"[" * 50_000 + b"]" * 50_000,
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b'{"k": 1, "k": 2}',
    b"01",
    b"'a'",
    b"undefined",
    b"/* */ 1",
    b"[1,]",
    b'{"a": 1,}',
]


@st.composite
def malformed(draw: st.DrawFn, path: str) -> bytes:
    """Not JSON, or not such as every reader reads alike."""
    _, body, _ = ENDPOINTS[path]
    text = json.dumps(body).encode()
    match draw(st.sampled_from(["poison", "cut", "tail", "twice", "bytes", "coding"])):
        case "poison":
            at, _ = draw(st.sampled_from(PLACES[path]))
            return json.dumps(put(body, at, "<here>")).encode().replace(b'"<here>"', draw(st.sampled_from(POISON)))
        case "cut":
            return text[: draw(st.integers(0, len(text) - 1))]
        case "tail":
            return text + draw(st.sampled_from([b"x", b"{}", b",", b"]", b"\xff", b"\x00", text]))
        case "twice":
            name = json.dumps(draw(st.sampled_from(sorted(body))))
            return b"{" + name.encode() + b": null, " + text[1:]
        case "bytes":
            place = draw(st.integers(0, len(text) - 1))
            return text[:place] + draw(st.sampled_from([b"\x00", b"\xff", b"\xc3", b"\xf0\x9f"])) + text[place:]
        case _:
            return json.dumps(body).encode(draw(st.sampled_from(["utf-16", "utf-32", "utf-8-sig"])))


@st.composite
def misshapen(draw: st.DrawFn, path: str) -> bytes:
    """JSON with a value where only values of other kinds may stand."""
    _, body, _ = ENDPOINTS[path]
    at, kinds = draw(st.sampled_from([(at, kinds) for at, kinds in PLACES[path] if kinds]))
    others = sorted(set(VALUES) - kinds)
    value = draw(VALUES[draw(st.sampled_from(others))])
    return json.dumps(put(body, at, value)).encode()


def is_taken(decode: Decode, body: bytes) -> bool:
    """Served, or refused as it must be: whatever else is raised, and a long answer to a long body, fails the test."""
    try:
        decode(body)
    except InvalidRequest as error:
        assert 0 < len(error.public) < 1000 and error.status == 400
        error.public.encode()
        return False
    return True


@EACH
def test_the_bodies_that_the_bad_ones_are_made_from_are_good(path):
    decode, body, _ = ENDPOINTS[path]
    assert is_taken(decode, json.dumps(body).encode()) and len(PLACES[path]) >= 3


@EACH
def test_malformed_bodies_are_refused(path):
    @settings(max_examples=300, deadline=None)
    @given(malformed(path))
    def refused(body: bytes) -> None:
        assert not is_taken(ENDPOINTS[path][0], body)

    refused()


@EACH
def test_misshapen_bodies_are_refused(path):
    @settings(max_examples=300, deadline=None)
    @given(misshapen(path))
    def refused(body: bytes) -> None:
        assert not is_taken(ENDPOINTS[path][0], body)

    refused()


@EACH
def test_any_value_in_any_place_is_taken_or_refused(path):
    decode, body, _ = ENDPOINTS[path]

    @settings(max_examples=200, deadline=None)
    @given(st.sampled_from(PLACES[path]), ANYTHING)
    def answered(place: tuple[Place, set[str]], value: Any) -> None:
        is_taken(decode, json.dumps(put(body, place[0], value)).encode("utf-8", "surrogatepass"))

    answered()


@EACH
def test_any_bytes_are_refused(path):
    @settings(max_examples=100, deadline=None)
    @given(st.binary(max_size=200))
    def refused(body: bytes) -> None:
        assert not is_taken(ENDPOINTS[path][0], body)

    refused()


@EACH
def test_long_names_and_values_are_not_repeated_to_the_client(path):
    decode, body, _ = ENDPOINTS[path]
    is_taken(decode, json.dumps({**body, "x" * 10_000: 1}).encode())
    for name in body:
        is_taken(decode, json.dumps({**body, name: "y" * 10_000}).encode())


@EACH
@pytest.mark.parametrize("digits", [30, 400, 4000])
def test_a_number_of_any_length_is_taken_or_refused(path, digits):
    decode, body, _ = ENDPOINTS[path]
    for at, _ in PLACES[path]:
        for number in (int("9" * digits), -int("9" * digits)):
            is_taken(decode, json.dumps(put(body, at, number)).encode())
