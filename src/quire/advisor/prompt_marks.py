"""Converts prompts into marks. A mark is a hash of a token and all before it: equal marks, equal prefixes.

With the model's files the tokens are exactly those of a server: its dialects, its template, its tokenizer. Without them
text is split into pieces of about one token: lengths are estimates, shares of common prefixes are nearly exact.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from quire.observe.marks import marks_of
from quire.report.trace import TracedRequest
from quire.serve.dialects.contract import GenerateEndpoint, RequestLimits
from quire.serve.http.app import all_dialects
from quire.text.model_text import ModelText
from quire.text.prompts import drop_forbidden_tools, encode_prompts
from quire.types.chat import Ask, ChatRequest
from quire.types.errors import QuireError

PIECE = re.compile(r" ?[^\W\d_]{1,7}|\d{1,3}|\s+|[^\w\s]{1,2}|_")  # English text: within 15 % of real tokenizers
EXCERPT_TOKENS = 24
UNLIMITED = RequestLimits(1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 30, 1 << 20, 1 << 20)


class Exactness(StrEnum):
    """How exactly the tokens of a prompt are known."""

    MARKED = "marked"  # by a server
    EXACT = "exact"  # tokenized with the planned model
    ESTIMATED = "estimated"  # text split into pieces
    UNKNOWN = "unknown"  # at most the length is known


@dataclass(frozen=True, slots=True)
class MarkedPrompt:
    """The marks of one prompt."""

    marks: array[int]
    exactness: Exactness
    excerpt: Callable[[int], str] | None = None  # returns its text from a token on


class PromptMarker:
    """Computes the marks of requests; with `model_text`, from that model's tokens."""

    def __init__(self, model_text: ModelText | None = None) -> None:
        self._model_text = model_text
        endpoints = (each for dialect in all_dialects() for each in dialect.endpoints)
        self._decoders = {each.path: each.decode for each in endpoints if isinstance(each, GenerateEndpoint)}

    def prompts(self, request: TracedRequest) -> list[MarkedPrompt]:
        """Return the prompts of a request; one with exactness UNKNOWN if the trace has neither tokens nor text."""
        if request.tokens is not None:
            marks = request.tokens if request.has_marks else marks_of(request.tokens)
            return [MarkedPrompt(marks, Exactness.MARKED)]
        if request.text is not None:
            return [self._of_text(request.text)]
        if request.body is not None:
            return self._of_body(request)
        return [MarkedPrompt(array("I"), Exactness.UNKNOWN)]

    def _of_text(self, text: str) -> MarkedPrompt:
        if self._model_text is not None and self._model_text.tokenizer is not None:
            return self._exact(self._model_text.encode_rendered(text))
        return _estimate(text)

    def _of_body(self, request: TracedRequest) -> list[MarkedPrompt]:
        ask = self._ask(request)
        if ask is not None and self._model_text is not None:
            try:
                return [self._exact(prompt.tokens) for prompt in encode_prompts(ask, self._model_text)]
            except QuireError:  # for example, the template refuses it
                pass
        return list(_estimates(ask)) if ask is not None else [_estimate("\n".join(_strings(request.body)))]

    def _ask(self, request: TracedRequest) -> Ask | None:
        """Decode the body; None if Quire does not accept it."""
        decode = self._decoders.get(request.path)
        if decode is None:
            return None
        body = {"model": "", **(request.body or {})}
        try:
            return drop_forbidden_tools(decode(msgspec.json.encode(body), UNLIMITED).ask)
        except QuireError:
            return None

    def _exact(self, tokens: tuple[int, ...]) -> MarkedPrompt:
        assert self._model_text is not None
        model_text = self._model_text
        return MarkedPrompt(
            marks_of(tokens),
            Exactness.EXACT,
            lambda start: model_text.decode(list(tokens[start : start + EXCERPT_TOKENS])),
        )


def _estimate(text: str) -> MarkedPrompt:
    pieces = PIECE.findall(text)
    token_ids = [zlib.crc32(piece.encode(errors="replace")) for piece in pieces]
    return MarkedPrompt(
        marks_of(token_ids),
        Exactness.ESTIMATED,
        lambda start: "".join(pieces[start : start + EXCERPT_TOKENS]),
    )


def _estimates(ask: Ask) -> Iterator[MarkedPrompt]:
    """Yield the prompts without a model. A prompt sent as token ids is exact."""
    if isinstance(ask, ChatRequest):
        tools = "".join(f"{tool.name} {tool.description} {dict(tool.parameters)}\n" for tool in ask.tools)
        yield _estimate(tools + "".join(f"{message.role}\n{message.text}\n" for message in ask.messages))
        return
    for prompt in ask.prompts:
        yield _estimate(prompt) if isinstance(prompt, str) else MarkedPrompt(marks_of(prompt), Exactness.MARKED)


def _strings(value: Any) -> Iterator[str]:
    """Yield every text of a body in order, except for its settings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            if name not in ("model", "type", "user"):
                yield from _strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _strings(each)
