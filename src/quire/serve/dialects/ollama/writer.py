"""Writes answers as Ollama does: one JSON object a line, the last with the counts and with durations in nanoseconds.

A tool call is written when it is complete, because its arguments are an object.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from quire.serve.dialects.arguments import arguments_of
from quire.serve.dialects.contract import Reply
from quire.serve.dialects.usage import own_counts
from quire.types.answer import Usage
from quire.types.chat import Answered, Ending, Event, Finish, ReasoningDelta, ScoredToken, TextDelta, ToolDelta
from quire.types.errors import QuireError
from quire.types.message import ToolCall

_encode = msgspec.json.Encoder().encode

_DONE_REASONS = {
    Ending.STOP: "stop",
    Ending.STOP_TEXT: "stop",
    Ending.LENGTH: "length",
    Ending.TOOL_CALLS: "stop",
    Ending.CANCELLED: "cancelled",
}


def error_body(error: QuireError) -> bytes:
    """Encode an error, for a body or a line."""
    return _encode({"error": error.public})


def time_of(seconds: float) -> str:
    """A time in the format of RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


class LineWriter:
    """Writes one answer of /api/chat, whose text is in a message, or of /api/generate, whose text is a field."""

    content_type = "application/x-ndjson"

    def __init__(self, reply: Reply, chats: bool) -> None:
        self._reply = reply
        self._chats = chats
        self._start = _encode({"model": reply.model, "created_at": time_of(reply.created)})[:-1]
        opening, closing = (b',"message":{"role":"assistant","content":', b"}") if chats else (b',"response":', b"")
        self._text = self._start + opening
        self._tail = closing + b',"done":false'
        self._line = self._tail + b"}\n"
        self._call: ToolCall | None = None
        self._arguments: list[str] = []
        self._scored: tuple[ScoredToken, ...] = ()  # of the call
        self._num_calls = 0
        self._ending = Ending.STOP

    def open(self, usage: Usage) -> bytes:
        """Nothing: every line is alike."""
        return b""

    def write(self, events: Sequence[Event]) -> bytes:
        """A line for each piece of text or thought, and for each complete call."""
        if len(events) == 1:  # nearly always
            return self._one(events[0])
        return b"".join([self._one(event) for event in events])

    def close(self, usage: Usage) -> bytes:
        """The last line."""
        return self._end_call() + self._last("", {}, self._ending, usage) + b"\n"

    def fail(self, error: QuireError) -> bytes:
        """The error line that ends a stream."""
        return error_body(error) + b"\n"

    def whole(self, answered: Answered) -> bytes:
        """The answer as one object."""
        (choice,) = answered.choices
        more: dict[str, Any] = {"thinking": choice.reasoning} if choice.reasoning else {}
        if choice.tool_calls:
            more["tool_calls"] = [_call(call, place) for place, call in enumerate(choice.tool_calls)]
        last = self._last(choice.text, more, choice.ending, answered.usage)
        if not choice.logprobs:
            return last
        return last[:-1] + b',"logprobs":' + _encode([_score(token) for token in choice.logprobs]) + b"}"

    def _one(self, event: Event) -> bytes:
        if isinstance(event, TextDelta):
            if self._call is None and not event.logprobs:  # nearly always
                return self._text + _encode(event.text) + self._line if event.text else b""
            return self._end_call() + self._content_line(_encode(event.text), event.logprobs, bool(event.text))
        match event:
            case ReasoningDelta():
                thought = b'"","thinking":' + _encode(event.text)
                return self._end_call() + self._content_line(thought, event.logprobs, bool(event.text))
            case ToolDelta():
                is_new = event.id is not None
                ended = self._end_call() if is_new else b""
                if is_new:
                    self._call = ToolCall(event.id or "", event.name or "", "")
                self._arguments.append(event.arguments)
                self._scored += event.logprobs
                return ended
            case Finish():
                self._ending = event.ending
                return self._end_call()
        return b""

    def _content_line(self, content: bytes, logprobs: tuple[ScoredToken, ...], has_content: bool) -> bytes:
        if not has_content and not logprobs:
            return b""
        if not logprobs:
            return self._text + content + self._line
        scores = _encode([_score(token) for token in logprobs])
        return self._text + content + self._tail + b',"logprobs":' + scores + b"}\n"

    def _end_call(self) -> bytes:
        if self._call is None:
            return b""
        whole = ToolCall(self._call.id, self._call.name, "".join(self._arguments))
        calls = _encode([_call(whole, self._num_calls)])
        scored, self._scored = self._scored, ()
        self._call, self._arguments, self._num_calls = None, [], self._num_calls + 1
        return self._content_line(b'"","tool_calls":' + calls, scored, has_content=True)

    def _last(self, text: str, more: dict[str, Any], ending: Ending, usage: Usage) -> bytes:
        message = {"message": {"role": "assistant", "content": text, **more}}
        fields = message if self._chats else {"response": text, **more}
        rest = {**fields, "done": True, "done_reason": _DONE_REASONS[ending], **_cost(usage)}
        return self._start + b"," + _encode(rest)[1:]


class LoadWriter:
    """Writes the answer to a request that only loads or unloads a model: one object, streamed or not."""

    content_type = "application/x-ndjson"

    def __init__(self, reply: Reply, chats: bool, reason: str) -> None:
        content: dict[str, Any] = {"message": {"role": "assistant", "content": ""}} if chats else {"response": ""}
        facts = {"model": reply.model, "created_at": time_of(reply.created)}
        self._body = _encode({**facts, **content, "done": True, "done_reason": reason})

    def open(self, usage: Usage) -> bytes:
        """Nothing."""
        return b""

    def write(self, events: Sequence[Event]) -> bytes:
        """Nothing: no token is made."""
        return b""

    def close(self, usage: Usage) -> bytes:
        """The object that says it is done."""
        return self._body + b"\n"

    def fail(self, error: QuireError) -> bytes:
        """The error."""
        return error_body(error) + b"\n"

    def whole(self, answered: Answered) -> bytes:
        """The object that says it is done."""
        return self._body


def _call(call: ToolCall, place: int) -> dict[str, Any]:
    function = {"index": place, "name": call.name, "arguments": arguments_of(call.arguments)}
    return {"id": call.id, "function": function}


def _score(token: ScoredToken) -> dict[str, Any]:
    score = {"token": token.text, "logprob": token.logprob, "bytes": list(token.bytes)}
    return {**score, "top_logprobs": [_score(each) for each in token.top]} if token.top else score


def _cost(usage: Usage) -> dict[str, Any]:
    """Counts and durations. The model was loaded before the clock began. `forced_eval_count` and `drafts` are ours."""
    first, total = round(usage.first_token_seconds * 1e9), round(usage.seconds * 1e9)
    own = own_counts(usage)
    own |= {"forced_eval_count": own.pop("forced_tokens")} if usage.forced else {}
    return {
        "total_duration": total,
        "load_duration": 0,
        "prompt_eval_count": usage.prompt,
        "prompt_eval_duration": first,
        "eval_count": usage.output,
        "eval_duration": max(0, total - first),
        **own,
    }
