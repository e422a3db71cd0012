"""The events of an OpenAI stream, as far as a benchmark reads them: is there a part of the answer, and the usage."""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"[DONE]"


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """What the server counted."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Timings(msgspec.Struct):
    cache_n: int | None = None  # llama-server's word for cached tokens


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class Event(msgspec.Struct):
    """One of them."""

    choices: list[_Choice] = []
    usage: Usage | None = None
    timings: _Timings | None = None
    error: Any = None

    @property
    def part(self) -> str | None:
        """What it adds to the answer. None: nothing; a call of a tool is an empty part."""
        for choice in self.choices:
            delta = choice.delta
            if delta is None:
                return choice.text or None
            if said := delta.content or delta.reasoning_content or delta.reasoning:
                return said
            if delta.tool_calls:
                return ""
        return None

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that the server had computed before."""
        details = self.usage.prompt_tokens_details if self.usage is not None else None
        if details is not None and details.cached_tokens is not None:
            return details.cached_tokens
        return self.timings.cache_n if self.timings is not None else None


decode = msgspec.json.Decoder(Event).decode


def error_text(said: Any) -> str:
    """A server's complaint in few words."""
    for name in ("error", "message", "detail"):
        if isinstance(said, dict) and name in said:
            said = said[name]
    return str(said)[:200]
