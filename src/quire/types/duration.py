"""How long something lasts, as people and Ollama's clients write it: a number of seconds, or 1h30m."""

from __future__ import annotations

import re

from quire.types.errors import InvalidRequest

MAX_SECONDS = 2**63 / 1e9  # what a duration of Go's holds
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_DURATION = re.compile(rf"([-+]?)((?:{_PART})+|0)")


def seconds_of(duration: str | float, field: str) -> float:
    """A number of seconds, or a duration as Go writes it (1h30m). Negative: for ever, which is -1."""
    if isinstance(duration, str):
        found = _DURATION.fullmatch(duration) if len(duration) < 100 else None
        if not found:
            what = f"{duration[:100]!r} is not a duration, such as 5m, 1h30m or -1s"
            raise InvalidRequest(f"{field}: {what}", field=field)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, found[2]))
        duration = -seconds if found[1] == "-" else seconds
    if duration > MAX_SECONDS:
        raise InvalidRequest(f"{field}: Longer than a duration can be", field=field)
    return max(float(duration), -1.0)


def seconds_of_flag(text: str, field: str) -> float:
    """A duration as a flag or an environment variable spells it: a plain number is seconds."""
    try:
        return seconds_of(float(text), field)
    except ValueError:
        return seconds_of(text, field)
