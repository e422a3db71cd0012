"""What the gateway must know of a body that it does not decode: the model, whether it streams, its usage."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from quire.serve.relayed.frames import RelayedUsage

PART = re.compile(rb'name="model"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n')
MAX_SEARCHED = 1 << 16  # bytes of a form in which the model is searched, from its start and its end


class BodyHead(msgspec.Struct):
    """The fields of a JSON body; others are skipped."""

    model: str = ""
    name: str = ""  # Ollama's older name of the model
    stream: bool | None = None
    user: str = ""
    max_tokens: int | None = None


_decoder = msgspec.json.Decoder(BodyHead)


def read_body_head(body: bytes, content_type: str) -> BodyHead:
    """Read the fields. A body that is neither JSON nor a form has none: the upstream refuses it."""
    if content_type.startswith("multipart/"):
        found = PART.search(body[:MAX_SEARCHED]) or PART.search(body[-MAX_SEARCHED:])
        return BodyHead(model=found[1].decode("utf-8", "replace") if found else "")
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return BodyHead()


def with_model(body: bytes, model: str) -> bytes:
    """The JSON body with another model: for an alias. Other bodies are returned as they are."""
    try:
        fields: Any = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return body
    if not isinstance(fields, dict):
        return body
    key = "name" if "name" in fields and "model" not in fields else "model"
    return msgspec.json.encode({**fields, key: model})


def usage_in(value: Any) -> RelayedUsage | None:
    """The usage in a decoded answer, in the words of any dialect."""
    if not isinstance(value, dict):
        return None
    if "eval_count" in value or "prompt_eval_count" in value:  # Ollama
        return RelayedUsage(_whole(value.get("prompt_eval_count")), 0, _whole(value.get("eval_count")))
    found = value.get("usage")
    if not isinstance(found, dict):
        inner = next((value[key] for key in ("response", "message") if isinstance(value.get(key), dict)), None)
        return usage_in(inner)
    details = found.get("prompt_tokens_details") or found.get("input_tokens_details") or {}
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    if "input_tokens" in found and "cache_read_input_tokens" in found:  # Anthropic counts cached tokens apart
        cached = found["cache_read_input_tokens"]
        total = _whole(found["input_tokens"]) + _whole(cached) + _whole(found.get("cache_creation_input_tokens"))
        return RelayedUsage(total, _whole(cached), _whole(found.get("output_tokens")))
    prompt = found.get("prompt_tokens", found.get("input_tokens"))
    output = found.get("completion_tokens", found.get("output_tokens"))
    return RelayedUsage(_whole(prompt), _whole(cached), _whole(output))


def usage_of_body(body: bytes) -> RelayedUsage | None:
    """The usage of a whole answer."""
    try:
        return usage_in(msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
