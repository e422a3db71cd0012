"""Prompts of a trace become marks: each stands for a token and all before it, so equal marks are equal beginnings.

With the model's files tokens are those that a server would compute, through its dialects and its template. Without
them text is cut into pieces of about a token: lengths are estimates then, and shares of prefixes hardly suffer.
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

PIECE = re.compile(r" ?[^\W\d_]{1,7}|\d{1,3}|\s+|[^\w\s]{1,2}|_")  # English comes to within 15 % of real tokenizers
EXCERPT_TOKENS = 24
UNLIMITED = RequestLimits(1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 30, 1 << 20, 1 << 20)


class Exactness(StrEnum):
    """How well the length of a prompt is known."""

    MARKED = "marked"  # its tokens were counted by a server
    EXACT = "exact"  # tokens of the model that is planned for
    ESTIMATED = "estimated"  # pieces of text
    UNKNOWN = "unknown"  # a length at best: what the prompt was nobody says


@dataclass(frozen=True, slots=True)
class Marked:
    """One prompt."""

    marks: array[int]
    exactness: Exactness
    excerpt: Callable[[int], str] | None = None  # its words from a token on


class Marker:
    """Makes marks of requests; with a `model_text`, those of its model."""

    def __init__(self, model_text: ModelText | None = None) -> None:
        self._model_text = model_text
        endpoints = (each for dialect in all_dialects() for each in dialect.endpoints)
        self._decoders = {each.path: each.decode for each in endpoints if isinstance(each, GenerateEndpoint)}

    def prompts(self, request: TracedRequest) -> list[Marked]:
        """Those of a request; one of unknown marks if nobody says."""
        if request.tokens is not None:
            marks = request.tokens if request.has_marks else marks_of(request.tokens)
            return [Marked(marks, Exactness.MARKED)]
        if request.text is not None:
            return [self._of_text(request.text)]
        if request.body is not None:
            return self._of_body(request)
        return [Marked(array("I"), Exactness.UNKNOWN)]

    def _of_text(self, text: str) -> Marked:
        if self._model_text is not None and self._model_text.tokenizer is not None:
            return self._exact(self._model_text.encode_rendered(text))
        return _estimate(text)

    def _of_body(self, request: TracedRequest) -> list[Marked]:
        ask = self._ask(request)
        if ask is not None and self._model_text is not None:
            try:
                return [self._exact(prompt.tokens) for prompt in encode_prompts(ask, self._model_text)]
            except QuireError:  # a template that refuses it, say
                pass
        return list(_vague(ask)) if ask is not None else [_estimate("\n".join(_strings(request.body)))]

    def _ask(self, request: TracedRequest) -> Ask | None:
        """The body in our own words; None if it is not one that Quire takes."""
        decode = self._decoders.get(request.path)
        if decode is None:
            return None
        body = {"model": "", **(request.body or {})}
        try:
            return drop_forbidden_tools(decode(msgspec.json.encode(body), UNLIMITED).ask)
        except QuireError:
            return None

    def _exact(self, tokens: tuple[int, ...]) -> Marked:
        assert self._model_text is not None
        model_text = self._model_text
        return Marked(
            marks_of(tokens),
            Exactness.EXACT,
            lambda start: model_text.decode(list(tokens[start : start + EXCERPT_TOKENS])),
        )


def _estimate(text: str) -> Marked:
    pieces = PIECE.findall(text)
    numbers = [zlib.crc32(piece.encode(errors="replace")) for piece in pieces]
    return Marked(
        marks_of(numbers),
        Exactness.ESTIMATED,
        lambda start: "".join(pieces[start : start + EXCERPT_TOKENS]),
    )


def _vague(ask: Ask) -> Iterator[Marked]:
    """Without a model; but a prompt that was sent as tokens is what it is."""
    if isinstance(ask, ChatRequest):
        tools = "".join(f"{tool.name} {tool.description} {dict(tool.parameters)}\n" for tool in ask.tools)
        yield _estimate(tools + "".join(f"{message.role}\n{message.text}\n" for message in ask.messages))
        return
    for prompt in ask.prompts:
        yield _estimate(prompt) if isinstance(prompt, str) else Marked(marks_of(prompt), Exactness.MARKED)


def _strings(value: Any) -> Iterator[str]:
    """Every text in a body, in order, its settings aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            if name not in ("model", "type", "user"):
                yield from _strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _strings(each)
