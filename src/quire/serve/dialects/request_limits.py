"""Checks of a request against the server's limits. Errors name the field as the client wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.serve.dialects.contract import RequestLimits
from quire.serve.dialects.strict_json import json_text
from quire.types.errors import InvalidRequest


def check_stops(values: Sequence[str], limits: RequestLimits, field: str) -> tuple[str, ...]:
    """Check stop strings, and return them."""
    if len(values) > limits.max_stops:
        raise InvalidRequest(f"{field}: {len(values)} strings are more than the {limits.max_stops} allowed", field)
    for place, value in enumerate(values):
        if not 0 < len(value) <= limits.max_stop_chars:
            one = f"{field}.{place}"
            raise InvalidRequest(f"{one}: A stop string has from 1 to {limits.max_stop_chars} characters", one)
    return tuple(values)


def check_tools(names: Sequence[str], limits: RequestLimits, field: str) -> None:
    """Check the number of tools and their names."""
    if len(names) > limits.max_tools:
        raise InvalidRequest(f"{field}: {len(names)} tools are more than the {limits.max_tools} allowed", field)
    for place, name in enumerate(names):
        if not name:
            raise InvalidRequest(f"{field}.{place}.name: A tool has a name", f"{field}.{place}.name")
    if len(set(names)) != len(names):
        raise InvalidRequest(f"{field}: Tool names must be unique", field)


def limited_schema_text(schema: Mapping[str, Any], limits: RequestLimits, field: str) -> str:
    """Write a JSON schema as text. Refuses one that is too large."""
    text = json_text(schema, field)
    if len(text.encode()) > limits.max_schema_bytes:
        raise InvalidRequest(f"{field}: The schema is larger than {limits.max_schema_bytes} bytes", field)
    return text
