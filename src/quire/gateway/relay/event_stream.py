"""A stream of an upstream that is not Quire: whole events, the first text, the usage, and the error at a broken end.

Only whole events are passed on, so that an error can follow at any time. Events before the first text are held back:
until then another upstream may answer in place of this one, and the client sees one answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from quire.gateway.relay.body_head import usage_in
from quire.serve.relayed.frames import RelayedUsage

SSE, NDJSON = "text/event-stream", "application/x-ndjson"
TEXTS = ("content", "text", "reasoning_content", "reasoning", "thinking", "arguments", "partial_json", "response")
MAX_HELD = 1 << 16  # bytes of events without text: then they are passed on


class EventStream:
    """Splits the bytes of one stream into what may be sent to the client."""

    def __init__(self, content_type: str, keeps_text: bool = False) -> None:
        self.is_lines = content_type.startswith(NDJSON)
        self.usage: RelayedUsage | None = None
        self.num_events = 0
        self.has_text = False
        self.is_ended = False  # the upstream has said that the answer is complete
        self.text = ""  # if it is kept
        self._mark = b"\n" if self.is_lines else b"\n\n"
        self._keeps_text = keeps_text
        self._rest = b""
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """The whole events that this piece completes. Empty while there is no text."""
        data = self._rest + data if self._rest else data
        if b"\r\n" in data and not self.is_lines:
            data = data.replace(b"\r\n", b"\n")
        end = data.rfind(self._mark)
        if end < 0:
            self._rest = data
            return b""
        whole, self._rest = data[: end + len(self._mark)], data[end + len(self._mark) :]
        self.num_events += whole.count(self._mark)
        if self._keeps_text or not self.has_text or b"usage" in whole or b"eval_count" in whole:
            self._read(whole)
        if not self.is_ended and (b"[DONE]" in whole or b'"done":true' in whole or b"message_stop" in whole):
            self.is_ended = True
        if not self.is_ended and (b"response.completed" in whole or b"response.incomplete" in whole):
            self.is_ended = True
        if self.has_text or self.is_ended or len(self._held) > MAX_HELD:
            self.has_text = True
            whole, self._held = self._held + whole, b""
            return whole
        self._held += whole
        return b""

    def finish(self) -> bytes:
        """What is left at the end of a stream that ended by itself."""
        rest, self._held, self._rest = self._held + self._rest, b"", b""
        return rest

    def failure(self, error_body: bytes) -> bytes:
        """The event that tells the client that the stream is broken."""
        return error_body + b"\n" if self.is_lines else b"event: error\ndata: " + error_body + b"\n\n"

    def _read(self, whole: bytes) -> None:
        for event in events_in(whole, self.is_lines):
            usage = usage_in(event)
            if usage is not None and usage.prompt + usage.output:
                self.usage = usage
            text = text_of(event)
            self.has_text = self.has_text or bool(text)
            if self._keeps_text:
                self.text += text


def events_in(data: bytes, is_lines: bool) -> Iterator[Any]:
    """The JSON values of whole events."""
    for line in data.split(b"\n"):
        if not is_lines:
            if not line.startswith(b"data:"):
                continue
            line = line[5:].strip()
        if line[:1] == b"{":
            try:
                yield msgspec.json.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue


def text_of(event: Any) -> str:
    """All text in an event's deltas, of any dialect."""
    if isinstance(event, list):
        return "".join(map(text_of, event))
    if not isinstance(event, dict):
        return ""
    own = "".join(value for key in TEXTS if isinstance(value := event.get(key), str))
    if isinstance(event.get("delta"), str):  # Responses
        own += event["delta"]
    inner = ("choices", "delta", "message", "content_block", "tool_calls", "function")
    return own + "".join(text_of(event[key]) for key in inner if isinstance(event.get(key), dict | list))
