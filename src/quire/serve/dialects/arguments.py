"""A call's arguments as an object, for APIs that do not send them as text."""

from __future__ import annotations

from typing import Any

import msgspec

_OBJECT = msgspec.json.Decoder(dict[str, Any])


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments; what is no JSON object (an answer that was cut short) stays readable under INVALID_JSON."""
    try:
        return _OBJECT.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {"INVALID_JSON": text}
