"""Reads the messages of a chat completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from quire.serve.dialects.openai.content import Content, read_content
from quire.serve.dialects.openai.terms import OpenAICacheControl, keep_seconds
from quire.serve.dialects.strict_json import check_depth
from quire.types.errors import InvalidRequest
from quire.types.message import Message, Role, ToolCall

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


class OpenAICalledFunction(Struct, forbid_unknown_fields=True):
    """The function of a call. Some clients send the arguments as an object."""

    name: str
    arguments: str | dict[str, Any] = "{}"
    parsed_arguments: Any = None  # what OpenAI's client adds


class OpenAIToolCall(Struct, forbid_unknown_fields=True):
    """One of an assistant's tool calls."""

    id: str
    function: OpenAICalledFunction
    type: Literal["function"] = "function"
    index: int | None = None  # of a streamed answer


class ChatMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """One message, of any role. An assistant's message may be sent back as it came."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[OpenAIToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning: str | None = None  # vLLM
    reasoning_content: str | None = None  # SGLang, llama.cpp
    cache_control: OpenAICacheControl | None = None
    annotations: list[Any] | None = None
    parsed: Any = None
    audio: Any = None
    function_call: Any = None


def read_messages(given: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """Convert all messages."""
    return tuple(_message(message, f"messages[{place}]") for place, message in enumerate(given))


def arguments_text(given: str | dict[str, Any], field: str) -> str:
    """A call's arguments as JSON text; an empty text becomes an empty object."""
    if isinstance(given, dict):
        check_depth(given, field)
        return msgspec.json.encode(given).decode()
    return given if given.strip() else "{}"


def _message(given: ChatMessage, field: str) -> Message:
    _refuse(given, field)
    text, keep = read_content(given.content, f"{field}.content")
    calls = [_call(call, f"{field}.tool_calls[{place}]") for place, call in enumerate(given.tool_calls or ())]
    marks = [mark for mark in (keep, keep_seconds(given.cache_control)) if mark is not None]
    return Message(
        _ROLES[given.role],
        text or given.refusal or "",
        reasoning=given.reasoning_content or given.reasoning or None,
        tool_calls=tuple(calls),
        tool_call_id=given.tool_call_id,
        name=given.name,
        keep=max(marks, default=None),
    )


def _call(given: OpenAIToolCall, field: str) -> ToolCall:
    arguments = arguments_text(given.function.arguments, f"{field}.function.arguments")
    return ToolCall(given.id, given.function.name, arguments)


def _refuse(given: ChatMessage, field: str) -> None:
    """Refuse fields that do not fit the role, or are not supported."""
    is_assistant = given.role == "assistant"
    for name, is_wrong, why in (
        ("function_call", given.function_call is not None, "is not supported; give tool_calls."),
        ("audio", given.audio is not None, "is not supported; only text is."),
        ("content", given.content is None and not is_assistant, "is missing."),
        ("tool_call_id", given.tool_call_id is None and given.role == "tool", "is missing: which call is answered?"),
        ("tool_call_id", given.tool_call_id is not None and given.role != "tool", "is for the role 'tool'."),
        ("tool_calls", bool(given.tool_calls) and not is_assistant, "is for the role 'assistant'."),
    ):
        if is_wrong:
            raise InvalidRequest(f"{field}.{name} {why}", field=f"{field}.{name}")
