"""Converts the input of a response, a text or a list of items, to messages.

Thoughts, text and calls of an assistant are separate items there, and one message here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from msgspec import Struct

from quire.serve.dialects.body import convert_value
from quire.serve.dialects.openai.content import Content, ContentPart, read_content
from quire.serve.dialects.openai.conversation import arguments_text
from quire.serve.dialects.strict_json import quoted
from quire.types.errors import InvalidRequest
from quire.types.message import Message, Role, ToolCall

Status = Literal["in_progress", "completed", "incomplete"]


class MessageItem(Struct, kw_only=True, forbid_unknown_fields=True):
    """A message."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    type: Literal["message"] = "message"
    id: str | None = None
    status: Status | None = None
    phase: str | None = None


class CallItem(Struct, kw_only=True, forbid_unknown_fields=True):
    """A call that the assistant made."""

    call_id: str
    name: str
    arguments: str
    type: Literal["function_call"]
    id: str | None = None
    status: Status | None = None
    parsed_arguments: Any = None  # what OpenAI's client adds


class OutputItem(Struct, kw_only=True, forbid_unknown_fields=True):
    """The result of a call."""

    call_id: str
    output: Content
    type: Literal["function_call_output"]
    id: str | None = None
    name: str | None = None
    status: Status | None = None


class ReasoningItem(Struct, kw_only=True, forbid_unknown_fields=True):
    """A thought of the assistant."""

    type: Literal["reasoning"]
    summary: list[ContentPart] | None = None
    content: list[ContentPart] | None = None
    id: str | None = None
    status: Status | None = None


Item = MessageItem | CallItem | OutputItem | ReasoningItem

SHAPES: dict[str, type[Item]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": OutputItem,
    "reasoning": ReasoningItem,
}
_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def read_conversation(given: str | list[dict[str, Any]], instructions: str | None) -> tuple[Message, ...]:
    """All messages. Instructions are the first."""
    first = [Message("system", instructions)] if instructions else []
    if isinstance(given, str):
        return (*first, Message("user", given))
    if not given:
        raise InvalidRequest("input is an empty list; give at least one item.", field="input")
    return (*first, *_joined([_item(item, f"input[{place}]") for place, item in enumerate(given)]))


def _item(given: dict[str, Any], field: str) -> Item:
    """Read one item. Fields that are null are left out: clients send back all fields of an answer's items."""
    kind = given.get("type", "message" if "role" in given else None)
    shape = SHAPES.get(kind) if isinstance(kind, str) else None
    if shape is None:
        known = ", ".join(map(repr, SHAPES))
        raise InvalidRequest(f"{field}.type is {quoted(kind)}; it must be one of {known}.", field=f"{field}.type")
    filled = {name: value for name, value in given.items() if value is not None}
    if "encrypted_content" in filled:
        public = f"{field}.encrypted_content cannot be read here; give the thoughts as content, or leave the item out."
        raise InvalidRequest(public, field=f"{field}.encrypted_content")
    return convert_value(filled, shape, field)


def _joined(items: Sequence[Item]) -> list[Message]:
    """Make one message for each turn: calls belong to the message before them, thoughts to the one after them."""
    messages: list[Message] = []
    calls: dict[int, list[ToolCall]] = {}  # by the place of their message
    thought: str | None = None
    for place, item in enumerate(items):
        field = f"input[{place}]"
        match item:
            case ReasoningItem():
                thought = "\n".join(filter(None, (thought, _thought(item, field))))
            case MessageItem(role=role, content=content):
                text, keep = read_content(content, f"{field}.content")
                reasoning, thought = (thought, None) if role == "assistant" else (None, thought)
                messages.append(Message(_ROLES[role], text, reasoning=reasoning, keep=keep))
            case CallItem(call_id=call_id, name=name, arguments=arguments):
                if thought is not None or not messages or messages[-1].role != "assistant":
                    messages.append(Message("assistant", reasoning=thought))
                    thought = None
                call = ToolCall(call_id, name, arguments_text(arguments, f"{field}.arguments"))
                calls.setdefault(len(messages) - 1, []).append(call)
            case OutputItem(call_id=call_id, output=output, name=name):
                text, keep = read_content(output, f"{field}.output")
                messages.append(Message("tool", text, tool_call_id=call_id, name=name, keep=keep))
    if thought is not None:
        messages.append(Message("assistant", reasoning=thought))
    for place, made in calls.items():
        messages[place] = replace(messages[place], tool_calls=tuple(made))
    return messages


def _thought(item: ReasoningItem, field: str) -> str:
    """The text of a thought, or else of its summary."""
    return read_content(item.content, f"{field}.content").text or read_content(item.summary, f"{field}.summary").text
