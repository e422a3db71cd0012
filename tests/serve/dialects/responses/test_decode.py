"""What every field of a response becomes, and every kind of item."""

from __future__ import annotations

import json
from operator import attrgetter
from typing import Any

import pytest

from quire.serve.dialects.contract import RequestLimits
from quire.serve.dialects.responses.dialect import DIALECT, decode, decode_count
from quire.types.chat import ChatRequest, Tool, ToolChoice
from quire.types.errors import InvalidRequest
from quire.types.message import Message, ToolCall
from quire.types.request import Constraint, ConstraintKind

pytestmark = pytest.mark.pure

LIMITS = RequestLimits(max_tools=2, max_logprobs=6)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
F, G = ({"type": "function", "name": name, "parameters": SCHEMA, "strict": None} for name in "fg")
ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}


def respond(**fields: Any) -> ChatRequest:
    ask = decode(json.dumps({"model": "m", "input": "Hi", **fields}).encode(), LIMITS).ask
    assert isinstance(ask, ChatRequest)
    return ask


def test_without_any_field_everything_is_a_default():
    assert respond() == ChatRequest("m", (Message("user", "Hi"),))


def test_null_is_the_same_as_no_field():
    schema: Any = DIALECT.schemas["/v1/responses"]
    optional = set(schema["properties"]) - {*schema["required"], "model"}
    assert respond(model=None).model == ""  # the only one that is served
    assert len(optional) > 50 and respond(**dict.fromkeys(optional)) == respond()


def case_id(value: object) -> str | None:
    return json.dumps(value) if isinstance(value, dict) else None


@pytest.mark.parametrize(
    "fields, place, wanted",
    [
        ({"max_output_tokens": 9}, "sampling.max_tokens", 9),
        ({"temperature": 0.5}, "sampling.temperature", 0.5),
        ({"top_k": -1}, "sampling.top_k", 0),
        ({"seed": 4}, "sampling.seed", 4),
        ({"stop": "x"}, "sampling.stop", ("x",)),
        ({"top_logprobs": 3}, "sampling.logprobs", 3),
        ({"include": ["message.output_text.logprobs"]}, "sampling.logprobs", 0),
        ({"include": ["reasoning.encrypted_content"]}, "sampling.logprobs", None),
        ({"instructions": "Be."}, "messages", (Message("system", "Be."), Message("user", "Hi"))),
        ({"stream": True}, "stream", True),
        ({"reasoning": {"effort": "none"}}, "think", False),
        ({"reasoning": {"effort": "high", "summary": "auto"}}, "think", True),
        ({"reasoning": {}}, "think", None),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, "constraint", None),
        ({"text": {"format": {"type": "json_object"}}}, "constraint", Constraint(ConstraintKind.JSON)),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": SCHEMA}}},
            "constraint",
            Constraint(ConstraintKind.SCHEMA, '{"type":"object","properties":{}}', strict=True),
        ),
        ({"grammar": 'start: "a"'}, "constraint", Constraint(ConstraintKind.LARK, 'start: "a"')),
        ({"tools": [F]}, "tools", (Tool("f", parameters=SCHEMA),)),
        (
            {"tools": [F, G], "tool_choice": {"type": "function", "name": "g"}},
            "tool_choice",
            ToolChoice("required", "g", parallel=False),
        ),
        ({"tools": [F, G], "tool_choice": ALLOWED}, "tools", (Tool("g", parameters=SCHEMA),)),
        ({"tools": [F], "parallel_tool_calls": False}, "tool_choice.parallel", False),
        ({"tools": [F], "tool_choice": "required"}, "tool_choice.parallel", False),
        ({"tools": [F], "tool_choice": "required", "parallel_tool_calls": True}, "tool_choice.parallel", True),
        ({"prompt_cache_key": "k"}, "terms.session", "k"),
        ({"priority": 5}, "terms.priority", 5),
        ({"keep": 9}, "terms.keep", 9.0),
        *(
            (fields, "sampling.n", 1)
            for fields in (
                {"store": False},
                {"background": False},
                {"truncation": "disabled"},
                {"metadata": {"a": "b"}},
                {"max_tool_calls": 3},
                {"stream_options": {"include_obfuscation": False}},
            )
        ),
    ],
    ids=case_id,
)
def test_a_field(fields, place, wanted):
    assert attrgetter(place)(respond(**fields)) == wanted


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def call(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def called(call_id: str) -> ToolCall:
    return ToolCall(call_id, "f", "{}")


SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]}
ASKED = {"role": "user", "content": "u"}
MARKED = {"type": "input_text", "text": "u", "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}


@pytest.mark.parametrize(
    "items, wanted",
    [
        ([ASKED], [Message("user", "u")]),
        ([{"role": "developer", "content": "d"}], [Message("system", "d")]),
        ([{"role": "user", "content": [MARKED]}], [Message("user", "u", keep=43200.0)]),
        ([SAID], [Message("assistant", "a")]),
        ([SAID, SAID], [Message("assistant", "a")] * 2),
        ([thought("t"), SAID], [Message("assistant", "a", reasoning="t")]),
        ([thought("t"), thought("u"), SAID], [Message("assistant", "a", reasoning="t\nu")]),
        (
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}, SAID],
            [Message("assistant", "a", reasoning="s")],
        ),
        ([SAID, call("1"), call("2")], [Message("assistant", "a", tool_calls=(called("1"), called("2")))]),
        ([call("1")], [Message("assistant", tool_calls=(called("1"),))]),
        ([thought("t"), call("1")], [Message("assistant", reasoning="t", tool_calls=(called("1"),))]),
        (
            [SAID, thought("t"), call("1")],
            [Message("assistant", "a"), Message("assistant", reasoning="t", tool_calls=(called("1"),))],
        ),
        ([ASKED, thought("t")], [Message("user", "u"), Message("assistant", reasoning="t")]),
        (
            [{"type": "function_call_output", "call_id": "1", "output": "out"}],
            [Message("tool", "out", tool_call_id="1")],
        ),
        (
            [{"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "out"}]}],
            [Message("tool", "out", tool_call_id="1")],
        ),
    ],
)
def test_items_become_messages(items, wanted):
    assert respond(input=items).messages == tuple(wanted)


IMAGE = {"type": "input_image", "image_url": "data:", "detail": "low"}


@pytest.mark.parametrize(
    "fields, field, says",
    [
        ({"input": []}, "input", "at least one item"),
        ({"input": [3]}, "input[0]", "must be an object"),
        ({"input": [{}]}, "input[0].type", "must be one of 'message', 'function_call'"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "'item_reference'"),
        ({"input": [{"type": ["message"]}]}, "input[0].type", "must be one of"),
        ({"input": [ASKED, {"role": "user"}]}, "input[1].content", "Missing"),
        ({"input": [{**ASKED, "mood": 1}]}, "input[0].mood", "Unrecognized"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "must be one of 'assistant'"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0].type", "only text is supported"),
        ({"input": [{**thought("t"), "encrypted_content": "x"}]}, "input[0].encrypted_content", "cannot be read"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f"}]}, "input[0].arguments", "Missing"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "only 'function' is supported"),
        ({"tools": [{"name": "f"}]}, "tools[0].type", "only 'function' is supported"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function", "Unrecognized"),
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name", "matching"),
        ({"tools": [F, F]}, "tools", "Two tools"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice", "'web_search'"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"include": ["file_search_call.results"]}, "include[0]", "it must be"),
        ({"top_logprobs": 7}, "top_logprobs", "at most 6"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "Missing"),
        ({"text": {"format": {"type": "json_object"}}, "regex": "a"}, "regex", "both prescribe"),
        ({"previous_response_id": "x"}, "previous_response_id", "nothing is stored here"),
        ({"conversation": "x"}, "conversation", "nothing is stored here"),
        ({"background": True}, "background", "is not supported"),
        ({"store": True}, "store", "is not supported"),
        ({"prompt": {"id": "x"}}, "prompt", "is not supported"),
        ({"truncation": "auto"}, "truncation", "never cut"),
        ({"n": 2}, "n", "one answer"),
        ({"return_token_ids": True}, "return_token_ids", "is not supported"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation", "not padded"),
        ({"max_output_tokens": 0}, "max_output_tokens", ">= 1"),
        ({"colour": 1}, "colour", "Unrecognized"),
        ({"messages": []}, "messages", "Unrecognized"),
    ],
    ids=case_id,
)
def test_what_cannot_be_honoured_is_refused_by_name(fields, field, says):
    with pytest.raises(InvalidRequest) as caught:
        respond(**fields)
    assert says in caught.value.public and caught.value.field == field


def test_counting_reads_the_same_body():
    assert decode_count(b'{"model":"m","input":"Hi"}', LIMITS) == respond()
