"""Converts Anthropic's blocks to messages.

Every block becomes a message; neighbours of one role are then joined. So a user's text between two tool results stays
in its place, and consecutive messages of one role are one turn, as in Anthropic's API.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from quire.serve.dialects.anthropic.body import (
    AnthropicCacheControl,
    Block,
    ClearThinking,
    CountBody,
    LastTurns,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
)
from quire.serve.dialects.strict_json import json_text
from quire.types.errors import InvalidRequest
from quire.types.message import Message, Role, ToolCall

# Claude Code begins its system prompt with a line that differs in every request, which would defeat the prefix cache.
_BILLING = "x-anthropic-billing-header:"

# An assistant's blocks are pieces of one text, as this server sent them; other blocks are separate texts.
_BETWEEN: dict[Role, str] = {"assistant": "", "user": "\n", "system": "\n"}


def read_conversation(body: CountBody) -> tuple[tuple[Message, ...], float | None]:
    """All messages, the system message first; and how long to keep the prompt if no message says so."""
    messages = list(_joined(_pieces(body.messages)))
    if messages and messages[-1] == Message("assistant"):
        messages.pop()  # nothing to continue
    if not messages:
        raise InvalidRequest("messages: At least one message is required", field="messages")
    if messages[-1].tool_calls:
        raise InvalidRequest("messages: The last tool_use has no tool_result", field="messages")
    if body.cache_control:
        messages[-1] = replace(messages[-1], keep=_longest((messages[-1].keep, body.cache_control.seconds)))
    for edit in (body.context_management and body.context_management.edits) or ():
        _forget(messages, edit)
    return _with_system(body, messages)


def _with_system(body: CountBody, messages: list[Message]) -> tuple[tuple[Message, ...], float | None]:
    """Add the system message. Tools are part of it or before it, so it has the cache marks of tools."""
    given = body.system or ()
    blocks = (TextBlock(text=given),) if isinstance(given, str) else given
    marked = (*blocks, *(body.tools or ()))
    keep = _longest(_seconds(each.cache_control) for each in marked)
    text = "\n".join(filter(None, (_without_billing(block.text) for block in blocks)))
    if not text:
        return tuple(messages), keep
    return (Message("system", text, keep=keep), *messages), None


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(_BILLING) else text


def _pieces(turns: Sequence[Turn]) -> Iterator[Message]:
    names: dict[str, str] = {}  # id of a call so far -> name
    for place, turn in enumerate(turns):
        at = f"messages.{place}"
        is_last = place == len(turns) - 1
        if not turn.content and not (is_last and turn.role == "assistant"):
            raise InvalidRequest(
                f"{at}.content: Only the last message, if the assistant's, may be empty", f"{at}.content"
            )
        if isinstance(turn.content, str):
            yield Message(turn.role, turn.content)
            continue
        for number, block in enumerate(turn.content):
            yield _piece(turn.role, block, names, f"{at}.content.{number}")


def _piece(role: Role, block: Block, names: dict[str, str], at: str) -> Message:
    match block:
        case TextBlock():
            return Message(role, block.text, keep=_seconds(block.cache_control))
        case ToolResultBlock() if role == "user":
            if block.tool_use_id not in names:
                raise InvalidRequest(f"{at}.tool_use_id: No tool_use before it has this id", f"{at}.tool_use_id")
            return _result(block, names[block.tool_use_id])
        case ToolUseBlock() if role == "assistant":
            names[block.id] = block.name
            call = ToolCall(block.id, block.name, json_text(block.input, f"{at}.input"))
            return Message("assistant", tool_calls=(call,), keep=_seconds(block.cache_control))
        case ThinkingBlock() if role == "assistant":
            return Message("assistant", reasoning=block.thinking)
        case RedactedThinkingBlock() if role == "assistant":
            return Message("assistant")
        case _:
            raise InvalidRequest(f"{at}.type: A message of the {role} has no such block", f"{at}.type")


def _result(block: ToolResultBlock, name: str) -> Message:
    content = block.content or ""
    text = content if isinstance(content, str) else "\n".join(part.text for part in content)
    inner = () if isinstance(content, str) else (_seconds(part.cache_control) for part in content)
    return Message(
        "tool",
        f"Error: {text}" if block.is_error else text,
        tool_call_id=block.tool_use_id,
        name=name,
        keep=_longest((_seconds(block.cache_control), *inner)),
    )


def _joined(pieces: Iterable[Message]) -> Iterator[Message]:
    for role, run in groupby(pieces, key=lambda piece: piece.role):
        if role == "tool":
            yield from run
            continue
        parts = list(run)
        yield Message(
            role,
            _BETWEEN[role].join(part.text for part in parts if part.text),
            reasoning="".join(part.reasoning or "" for part in parts) or None,
            tool_calls=tuple(call for part in parts for call in part.tool_calls),
            keep=_longest(part.keep for part in parts),
        )


def _forget(messages: list[Message], edit: ClearThinking) -> None:
    """Drop the thoughts of older turns."""
    if edit.keep is not None and not isinstance(edit.keep, LastTurns):
        return
    num_kept = edit.keep.value if edit.keep else 1
    thoughtful = [place for place, message in enumerate(messages) if message.reasoning]
    for place in thoughtful[:-num_kept]:
        messages[place] = replace(messages[place], reasoning=None)


def _seconds(mark: AnthropicCacheControl | None) -> float | None:
    return mark.seconds if mark else None


def _longest(keeps: Iterable[float | None]) -> float | None:
    return max((keep for keep in keeps if keep is not None), default=None)
