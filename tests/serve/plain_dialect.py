"""A dialect with nothing to it: fields are those of our own words, events are lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from quire.serve.dialects.contract import (
    CountEndpoint,
    Decoded,
    Dialect,
    GenerateEndpoint,
    ListEndpoint,
    Reply,
    RequestLimits,
    ShowEndpoint,
)
from quire.types.answer import Usage
from quire.types.chat import Answered, Ask, ChatRequest, CompletionRequest, Event, ModelCard, Terms, Tool, ToolChoice
from quire.types.errors import InvalidRequest, QuireError
from quire.types.message import Message
from quire.types.request import Constraint, ConstraintKind, SamplingParams


class PlainWriter:
    content_type = "application/x-ndjson"

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def open(self, usage: Usage) -> bytes:
        return _line(open={name: getattr(self._reply, name) for name in ("id", "created", "model")})

    def write(self, events: Sequence[Event]) -> bytes:
        return b"".join(_line(**{type(event).__name__: _plain(event)}) for event in events)

    def close(self, usage: Usage) -> bytes:
        return _line(usage={name: getattr(usage, name) for name in Usage.__slots__})

    def fail(self, error: QuireError) -> bytes:
        return _line(error=error.code)

    def whole(self, answered: Answered) -> bytes:
        usage = {name: getattr(answered.usage, name) for name in Usage.__slots__}
        choices = [{name: _plain(getattr(c, name)) for name in c.__slots__} for c in answered.choices]
        return _line(choices=choices, usage=usage)


def decode_chat(body: bytes, limits: RequestLimits) -> Decoded:
    said = _read(body)
    messages = tuple(Message(**message) for message in said.pop("messages"))
    tools = tuple(Tool(**tool) for tool in said.pop("tools", ()))
    choice = ToolChoice(**said.pop("tool_choice", {}))
    return _decoded(ChatRequest("", messages, tools=tools, tool_choice=choice), said, limits)


def decode_completion(body: bytes, limits: RequestLimits) -> Decoded:
    said = _read(body)
    prompts = tuple(prompt if isinstance(prompt, str) else tuple(prompt) for prompt in said.pop("prompts"))
    return _decoded(CompletionRequest("", prompts), said, limits)


def decode_count(body: bytes, limits: RequestLimits) -> ChatRequest:
    ask = decode_chat(body, limits).ask
    assert isinstance(ask, ChatRequest)
    return ask


def _decoded(ask: Ask, said: dict[str, Any], limits: RequestLimits) -> Decoded:
    names = {each.name for each in fields(ask)}
    sampling = {each.name for each in fields(SamplingParams)}
    terms = {each.name for each in fields(Terms)}
    unknown = said.keys() - names - sampling - terms
    if unknown:
        raise InvalidRequest(f"There is no {min(unknown)}.", field=min(unknown))
    if said.get("n", 1) > limits.max_n:
        raise InvalidRequest(f"n is at most {limits.max_n}.", field="n")
    chosen = {k: tuple(v) if isinstance(v, list) else v for k, v in said.items() if k in sampling}
    plain = {name: value for name, value in said.items() if name in names - {"constraint"}}
    if "constraint" in said:
        plain["constraint"] = Constraint(ConstraintKind(said["constraint"].pop("kind")), **said["constraint"])
    ask = replace(
        ask, **plain, sampling=SamplingParams(**chosen), terms=Terms(**{k: said[k] for k in said.keys() & terms})
    )
    return Decoded(ask, PlainWriter)


def _read(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except ValueError as error:
        raise InvalidRequest(f"The body is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise InvalidRequest("The body is not an object.")
    return said


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {name: _plain(each) for name, each in value._asdict().items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if hasattr(value, "__slots__") and hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return list(value) if isinstance(value, bytes) else value


def _line(**said: Any) -> bytes:
    return json.dumps(said).encode() + b"\n"


def _name_of(body: bytes) -> str:
    return _read(body)["model"]


def _cards(cards: Sequence[ModelCard]) -> bytes:
    return _line(models=[card.name for card in cards])


PLAIN = Dialect(
    "plain",
    endpoints=(
        GenerateEndpoint("/plain/chat", decode_chat),
        GenerateEndpoint("/plain/complete", decode_completion),
        CountEndpoint("/plain/count", decode_count, lambda count: _line(count=count)),
        ListEndpoint("/plain/models", _cards),
        ListEndpoint("/plain/loaded", _cards, only_loaded=True),
        ShowEndpoint("/plain/models/{name}", lambda card: _line(name=card.name, architecture=card.architecture)),
        ShowEndpoint("/plain/show", lambda card: _line(name=card.name), _name_of),
    ),
    error=lambda error: _line(plain_error=error.code, message=error.public, field=getattr(error, "field", None)),
    headers={"x-plain": "yes"},
    schemas={"/plain/chat": {"type": "object"}, "/plain/complete": {"type": "object"}},
)
