"""Writes answers as Anthropic's API does: server-sent events that open and close one content block after another.

A stream is message_start, ping, (content_block_start, content_block_delta*, content_block_stop)*, message_delta and
message_stop. message_start has the prompt's tokens, as far as they are known when the stream begins: how many of them
were cached is known with the first token. message_delta has all of the usage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from quire.serve.dialects.arguments import arguments_of
from quire.serve.dialects.contract import Reply
from quire.serve.dialects.usage import own_counts
from quire.types.answer import Usage
from quire.types.chat import Answered, Choice, Ending, Event, Finish, ReasoningDelta, TextDelta, ToolDelta
from quire.types.errors import QuireError

_encode = msgspec.json.Encoder().encode

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}

_STOP_REASONS = {
    Ending.STOP: "end_turn",
    Ending.LENGTH: "max_tokens",
    Ending.TOOL_CALLS: "tool_use",
    Ending.CANCELLED: "pause_turn",  # incomplete: sent back as it is, it can be continued
}

_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_MESSAGE_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":%b'
_END = b"}}\n\n"

_NOTHING, _THINKING, _TEXT = -3, -2, -1  # kind of the open block; of a call, its index


def error_body(error: QuireError) -> bytes:
    """Encode an error, for a body or an event."""
    kind = ERROR_TYPES.get(error.status) or ("invalid_request_error" if error.status < 500 else "api_error")
    return _encode({"type": "error", "error": {"type": kind, "message": error.public}})


class MessageWriter:
    """Writes one message. Without `shows_thinking`, blocks of thoughts are empty."""

    content_type = "text/event-stream"

    def __init__(self, reply: Reply, shows_thinking: bool = True) -> None:
        self._reply = reply
        self._shows_thinking = shows_thinking
        self._block = -1  # index of the last block
        self._open = _NOTHING
        self._head = b""  # of a delta of the open block
        self._finish: Finish | None = None

    def open(self, usage: Usage) -> bytes:
        """The message without its content."""
        return _event("message_start", message=_message(self._reply, [], (None, None), usage)) + _PING

    def write(self, events: Sequence[Event]) -> bytes:
        """One delta for each piece of text, thought or arguments."""
        if len(events) == 1:  # nearly always
            return self._one(events[0])
        return b"".join([self._one(event) for event in events])

    def close(self, usage: Usage) -> bytes:
        """The stop reason and the usage."""
        reason, sequence = _stop(self._finish.ending, self._finish.stop) if self._finish else ("end_turn", None)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return self._end_block() + _event("message_delta", delta=delta, usage=_usage(usage)) + _MESSAGE_STOP

    def fail(self, error: QuireError) -> bytes:
        """The error event that ends a stream."""
        return b"event: error\ndata: %b\n\n" % error_body(error)

    def whole(self, answered: Answered) -> bytes:
        """The message."""
        (choice,) = answered.choices
        stop = _stop(choice.ending, choice.stop)
        return _encode(_message(self._reply, self._content(choice), stop, answered.usage))

    def _one(self, event: Event) -> bytes:
        if isinstance(event, TextDelta):
            if self._open == _TEXT and event.text:  # nearly always
                return self._head + _encode(event.text) + _END
            return self._begin_text() + self._head + _encode(event.text) + _END if event.text else b""
        match event:
            case ReasoningDelta():
                start = self._begin_thinking() if event.text and self._open != _THINKING else b""
                is_shown = event.text and self._shows_thinking
                return start + self._head + _encode(event.text) + _END if is_shown else start
            case ToolDelta():
                start = self._begin_call(event) if event.call != self._open else b""
                return start + self._head + _encode(event.arguments) + _END if event.arguments else start
            case Finish():
                self._finish = event
        return b""

    def _begin_text(self) -> bytes:
        return self._begin(_TEXT, {"type": "text", "text": ""}, b'"text_delta","text":')

    def _begin_thinking(self) -> bytes:
        empty = {"type": "thinking", "thinking": "", "signature": ""}
        return self._begin(_THINKING, empty, b'"thinking_delta","thinking":')

    def _begin_call(self, event: ToolDelta) -> bytes:
        empty: dict[str, Any] = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
        return self._begin(event.call, empty, b'"input_json_delta","partial_json":')

    def _begin(self, kind: int, empty: dict[str, Any], delta: bytes) -> bytes:
        ended = self._end_block()
        self._block += 1
        self._open = kind
        self._head = _DELTA % (self._block, delta)
        return ended + _event("content_block_start", index=self._block, content_block=empty)

    def _end_block(self) -> bytes:
        ended, self._open = self._open, _NOTHING
        if ended == _NOTHING:
            return b""
        signature = {"type": "signature_delta", "signature": ""}
        signed = _event("content_block_delta", index=self._block, delta=signature) if ended == _THINKING else b""
        return signed + _event("content_block_stop", index=self._block)

    def _content(self, choice: Choice) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        if choice.reasoning:
            thinking = choice.reasoning if self._shows_thinking else ""
            blocks.append({"type": "thinking", "thinking": thinking, "signature": ""})
        if choice.text:
            blocks.append({"type": "text", "text": choice.text})
        for call in choice.tool_calls:
            given = arguments_of(call.arguments)
            blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": given})
        return blocks


def _event(name: str, **data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **data}))


def _stop(ending: Ending, stop: str | int | None) -> tuple[str, str | None]:
    """The stop reason, and the stop sequence that was found."""
    if ending is Ending.STOP_TEXT:
        return ("stop_sequence", stop) if isinstance(stop, str) else ("end_turn", None)
    return _STOP_REASONS[ending], None


def _message(
    reply: Reply, content: list[dict[str, Any]], stop: tuple[str | None, str | None], usage: Usage
) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": stop[0],
        "stop_sequence": stop[1],
        "usage": _usage(usage),
    }


def _usage(usage: Usage) -> dict[str, Any]:
    """`input_tokens` are those neither read from the cache nor written to be kept. The details have our counts too."""
    details = {"thinking_tokens": usage.reasoning} | own_counts(usage)
    return {
        "input_tokens": max(0, usage.prompt - usage.cached - usage.kept),
        "cache_creation_input_tokens": usage.kept,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
        "output_tokens_details": details,
    }
