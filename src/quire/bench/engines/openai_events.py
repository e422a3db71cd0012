"""The events of an OpenAI stream, as far as a benchmark reads them: whether one carries output, and the usage."""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"[DONE]"


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class StreamUsage(msgspec.Struct):
    """The server's token counts."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Timings(msgspec.Struct):
    cache_n: int | None = None  # cached tokens, in llama-server's answers


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None  # if the request asked for them
    finish_reason: str | None = None


class StreamEvent(msgspec.Struct):
    """One server-sent event."""

    choices: list[_Choice] = []
    usage: StreamUsage | None = None
    timings: _Timings | None = None
    error: Any = None

    @property
    def output(self) -> str | None:
        """The text that it adds to the answer; empty for a tool call or for tokens without text. None: no output."""
        for choice in self.choices:
            delta = choice.delta
            text = choice.text if delta is None else delta.content or delta.reasoning_content or delta.reasoning
            if text:
                return text
            if choice.token_ids or (delta is not None and delta.tool_calls):
                return ""
        return None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that came from the server's prefix cache."""
        details = self.usage.prompt_tokens_details if self.usage is not None else None
        if details is not None and details.cached_tokens is not None:
            return details.cached_tokens
        return self.timings.cache_n if self.timings is not None else None


decode_event = msgspec.json.Decoder(StreamEvent).decode


def error_text(error: Any) -> str:
    """Return the message of an error object, in whichever of the usual fields it is."""
    for name in ("error", "message", "detail"):
        if isinstance(error, dict) and name in error:
            error = error[name]
    return str(error)[:200]
