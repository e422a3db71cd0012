"""Parses a call's arguments, for APIs that send them as an object."""

from __future__ import annotations

from typing import Any

import msgspec

_OBJECT = msgspec.json.Decoder(dict[str, Any])


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments as an object. Other text (of an answer that was cut off) is put under INVALID_JSON."""
    try:
        return _OBJECT.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {"INVALID_JSON": text}
