"""Converts Ollama's messages.

Ollama's calls may have no ids, and results may not name their call. A call without an id gets one, and a result without
one belongs to the first open call (with the result's tool_name, if it has one).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from quire.serve.dialects.ollama.body import MessageBody
from quire.serve.dialects.strict_json import json_text
from quire.types.errors import InvalidRequest
from quire.types.message import Message, Role, ToolCall

_ROLES: dict[str, Role] = {role: role for role in get_args(Role)}
_MAX_OPEN = 256  # calls that are searched for the one of a result


def read_conversation(given: Sequence[MessageBody]) -> tuple[Message, ...]:
    """All messages, in their order."""
    messages: list[Message] = []
    open_calls: list[ToolCall] = []
    num_calls = 0
    for place, message in enumerate(given):
        at = f"messages.{place}"
        role = _role(message, at)
        text = message.content or ""
        if role == "assistant":
            calls = _calls(message, num_calls, at)
            num_calls += len(calls)
            open_calls.extend(calls)
            messages.append(Message(role, text, reasoning=message.thinking or None, tool_calls=calls))
        elif role == "tool":
            found = _take(open_calls, message)
            call_id, name = (found.id, found.name) if found else (message.tool_call_id, message.tool_name)
            messages.append(Message(role, text, tool_call_id=call_id or None, name=name or None))
        else:
            open_calls.clear()
            messages.append(Message(role, text))
    return tuple(messages)


def _role(message: MessageBody, at: str) -> Role:
    role = _ROLES.get(message.role.lower())
    if role is None:
        raise InvalidRequest(f"{at}.role: Must be one of {', '.join(_ROLES)}", field=f"{at}.role")
    if message.images:
        raise InvalidRequest(f"{at}.images: Not supported. This server reads text.", field=f"{at}.images")
    return role


def _calls(message: MessageBody, num_before: int, at: str) -> tuple[ToolCall, ...]:
    calls = []
    for place, call in enumerate(message.tool_calls or ()):
        arguments = json_text(call.function.arguments or {}, f"{at}.tool_calls.{place}.function.arguments")
        calls.append(ToolCall(call.id or f"call_{num_before + place}", call.function.name, arguments))
    return tuple(calls)


def _take(open_calls: list[ToolCall], result: MessageBody) -> ToolCall | None:
    """Remove and return the open call that this result belongs to."""
    for place, call in enumerate(open_calls[:_MAX_OPEN]):
        if result.tool_call_id:
            is_match = call.id == result.tool_call_id
        else:
            is_match = not result.tool_name or call.name == result.tool_name
        if is_match:
            return open_calls.pop(place)
    return None
