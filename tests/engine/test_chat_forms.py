"""Conversations from Python are read as the server reads them over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("msgspec")

from quire.engine.chat_forms import chat_request, take_chat_options
from quire.engine.prompt_forms import chat_requests, prompt_or_chat_request
from quire.serve.dialects.contract import RequestLimits
from quire.serve.dialects.openai.dialect import decode_chat
from quire.types.chat import ChatRequest, Tool, ToolChoice
from quire.types.errors import InvalidRequest
from quire.types.message import Message, ToolCall

pytestmark = pytest.mark.pure

USER = {"role": "user", "content": "Hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "get", "description": "Get it.", "parameters": {"type": "object"}}}
OTHER = {"type": "function", "function": {"name": "put", "strict": True}}
ANSWERED = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL], "annotations": []}


def read(messages: Any, **words: Any) -> ChatRequest:
    return chat_request(messages, take_chat_options(words))


def over_http(messages: Any, **words: Any) -> ChatRequest:
    ask = decode_chat(json.dumps({"messages": messages, **words}).encode(), RequestLimits()).ask
    assert isinstance(ask, ChatRequest)
    return ask


@pytest.mark.parametrize(
    "messages, words",
    [
        ([USER], {}),
        ([{"role": "developer", "content": "Be brief."}, USER], {}),
        (
            [
                {
                    "role": "user",
                    "name": "Ann",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                }
            ],
            {},
        ),
        ([USER, {"role": "assistant", "content": "Ho", "reasoning_content": "Hm."}, USER], {}),
        ([USER, {"role": "assistant", "content": "Ho", "reasoning": "Hm."}, USER], {}),
        ([USER, ANSWERED, {"role": "tool", "tool_call_id": "c1", "content": "1"}], {"tools": [TOOL]}),
        ([USER], {"tools": [TOOL, OTHER], "tool_choice": "auto", "parallel_tool_calls": False}),
        ([USER], {"tools": [TOOL], "tool_choice": "none"}),
        ([USER], {"tools": [TOOL], "tool_choice": "required"}),
        ([USER], {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": True}),
        ([USER], {"tools": [TOOL, OTHER], "tool_choice": {"type": "function", "function": {"name": "put"}}}),
        ([USER], {"chat_template_kwargs": {"enable_thinking": False, "tone": "dry"}}),
        ([USER], {"reasoning_effort": "none"}),
        ([USER], {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}),
    ],
)
def test_a_conversation_is_the_same_request_as_over_http(messages: Any, words: Any) -> None:
    ours, theirs = read(messages, **words), over_http(messages, **words)
    for name in ("messages", "tools", "tool_choice", "think", "template_variables", "continue_last"):
        assert getattr(ours, name) == getattr(theirs, name), name


def test_our_own_objects_are_taken_as_they_are() -> None:
    messages = [Message("user", "Hi"), {"role": "assistant", "tool_calls": [ToolCall("c1", "get", "{}")]}]
    request = read(messages, tools=[Tool("get")], tool_choice=ToolChoice("required", "get"))
    assert request.messages == (messages[0], Message("assistant", tool_calls=(ToolCall("c1", "get", "{}"),)))
    assert request.tools == (Tool("get"),) and request.tool_choice.name == "get"


def test_arguments_of_calls_may_be_objects() -> None:
    call = {"function": {"name": "get", "arguments": {"a": [1]}}}
    (message,) = read([{"role": "assistant", "tool_calls": [call]}]).messages
    assert message.tool_calls == (ToolCall("", "get", '{"a": [1]}'),)
    assert message.tool_calls[0].parsed_arguments == {"a": [1]}
    assert ToolCall("", "get", '{"a').parsed_arguments is None and ToolCall("", "get", "[]").parsed_arguments is None


@pytest.mark.parametrize(
    "messages, words, field, text",
    [
        ([], {}, "messages", "list of messages"),
        ([5], {}, "messages", "list of messages"),
        ([{"role": "critic", "content": "a"}], {}, "messages", "role must be one of"),
        ([{"role": "user"}], {}, "messages", r"messages\[0\].content is missing"),
        ([{"role": "user", "content": "a", "mood": "good"}], {}, "messages", "'mood'"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], {}, "messages", "parts of text"),
        ([{"role": "user", "content": "\ud800"}], {}, "messages", "surrogate"),
        ([{"role": "assistant", "tool_calls": [{"id": "c"}]}], {}, "messages", "function with a name"),
        ([USER], {"tools": [{"name": "get"}]}, "tools", "list of tools"),
        ([USER], {"tools": [{"function": {"name": "a b"}}]}, "tools", "letters, digits"),
        ([USER], {"tools": [{"function": {"name": "a", "parameters": {"x": object()}}}]}, "tools", "JSON schema"),
        ([USER], {"tools": [TOOL, TOOL]}, "tools", "Two tools"),
        ([USER], {"tools": [TOOL], "tool_choice": "must"}, "tool_choice", "'required'"),
        ([USER], {"tool_choice": "required"}, "tool_choice", "no tools"),
        (
            [USER],
            {"tools": [TOOL], "tool_choice": {"function": {"name": "put"}}},
            "tool_choice",
            "not one of the tools",
        ),
        ([USER], {"tools": [TOOL], "parallel_tool_calls": "no"}, "parallel_tool_calls", "true or false"),
        ([USER], {"reasoning_effort": "huge"}, "reasoning_effort", "minimal"),
        ([USER], {"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking", "boolean"),
        ([USER], {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "cannot be set"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(messages: Any, words: Any, field: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text) as caught:
        read(messages, **words)
    assert caught.value.field == field


def test_one_conversation_or_several() -> None:
    options = take_chat_options({})
    assert [len(each.messages) for each in chat_requests("Hi", options)] == [1]
    assert [len(each.messages) for each in chat_requests([USER, USER], options)] == [2]
    assert [len(each.messages) for each in chat_requests([[USER], [USER, USER]], options)] == [1, 2]


def test_arguments_of_conversations_are_refused_beside_a_plain_prompt() -> None:
    with pytest.raises(InvalidRequest, match="needs a conversation") as caught:
        prompt_or_chat_request("Hi", take_chat_options({"tools": [TOOL]}))
    assert caught.value.field == "tools"
