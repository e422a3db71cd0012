"""The functions of templates: Go's own, and those that Ollama adds. The interpreter implements `and` and `or`, which
stop at the first deciding value."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from quire.text.go_template.errors import GoRunError
from quire.text.go_template.values import compare_values, is_equal, is_true, to_json, to_text

MAX_WIDTH = 10_000
VERB = re.compile(r"%([-+# 0]*)(\d*)(?:\.(\d*))?(.|$)", re.DOTALL)
LAZY = ("and", "or")


def _length(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, list | dict):
        return len(value)
    raise GoRunError(f"{to_text(value)[:64]} has no length")


def _index(value: Any, *places: Any) -> Any:
    for place in places:
        if isinstance(value, dict):
            value = value.get(place)
        elif isinstance(value, list | str) and isinstance(place, int):
            whole: Any = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
            if not 0 <= place < len(whole):
                raise GoRunError(f"there is no place {place} in {len(whole)}")
            value = whole[place]
        else:
            raise GoRunError("only lists, maps and strings have an index")
    return value


def _slice(value: Any, *ends: Any) -> Any:
    whole: Any = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    if not isinstance(whole, list | bytes) or not all(isinstance(end, int) for end in ends) or len(ends) > 2:
        raise GoRunError("only lists and strings can be sliced, by up to two numbers")
    start = ends[0] if ends else 0
    end = ends[1] if len(ends) == 2 else len(whole)
    if not 0 <= start <= end <= len(whole):
        raise GoRunError(f"there is no slice from {start} to {end} in {len(whole)}")
    part = whole[start:end]
    return part.decode("utf-8", "replace") if isinstance(part, bytes) else part


def _print(*values: Any) -> str:
    """Join the values, with a space between two neighbours that are not strings."""
    text = ""
    for place, value in enumerate(values):
        if place and not isinstance(value, str) and not isinstance(values[place - 1], str):
            text += " "
        text += to_text(value)
    return text


def _printf(form: Any, *values: Any) -> str:
    if not isinstance(form, str):
        raise GoRunError("printf begins with a string")
    left = list(values)

    def written(verb: re.Match[str]) -> str:
        flags, width, precision, letter = verb.groups()
        if letter == "%":
            return "%"
        if not left:
            return f"%!{letter}(MISSING)"
        if int(width or 0) > MAX_WIDTH or int(precision or 0) > MAX_WIDTH:
            raise GoRunError(f"a width is larger than {MAX_WIDTH:,}")
        text = _verb(letter, left.pop(0), flags, precision)
        fill = "0" if "0" in flags and "-" not in flags and letter not in "sqv" else " "
        wide = int(width or 0)
        return text.ljust(wide) if "-" in flags else text.rjust(wide, fill)

    text = VERB.sub(written, form)
    return f"{text}%!(EXTRA {', '.join(map(to_text, left))})" if left else text


def _verb(letter: str, value: Any, flags: str, precision: str | None) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match letter:
        case "v" | "s":
            text = to_text(value)
            return text if precision is None or letter == "v" else text[: int(precision or 0)]
        case "q":
            return '"' + to_text(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        case "t" if isinstance(value, bool):
            return to_text(value)
        case "d" if isinstance(value, int) and is_number:
            return f"{value:+d}" if "+" in flags else str(value)
        case "x" if isinstance(value, int) and is_number:
            return f"{value:x}"
        case "x" if isinstance(value, str):
            return value.encode("utf-8", "surrogatepass").hex()
        case "c" if isinstance(value, int) and is_number and 0 <= value < 0x110000:
            return chr(value)
        case "f" | "e" | "g" if is_number:
            digits = "" if precision is None and letter == "g" else f".{precision or (6 if precision is None else 0)}"
            return f"{float(value):{digits}{letter}}"
        case _:
            return f"%!{letter}({to_text(value)})"


def _equal(first: Any, *others: Any) -> bool:
    if not others:
        raise GoRunError("eq takes at least two values")
    return any(is_equal(first, other) for other in others)


def _today(*_: Any) -> str:
    return datetime.now(UTC).astimezone().date().isoformat()


def _yesterday(*_: Any) -> str:
    return (datetime.now(UTC).astimezone().date() - timedelta(days=1)).isoformat()


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "eq": _equal,
    "ne": lambda left, right: not is_equal(left, right),
    "lt": lambda left, right: compare_values(left, right) < 0,
    "le": lambda left, right: compare_values(left, right) <= 0,
    "gt": lambda left, right: compare_values(left, right) > 0,
    "ge": lambda left, right: compare_values(left, right) >= 0,
    "not": lambda value: not is_true(value),
    "len": _length,
    "index": _index,
    "slice": _slice,
    "print": _print,
    "println": lambda *values: " ".join(map(to_text, values)) + "\n",
    "printf": _printf,
    "html": lambda *values: html.escape(_print(*values)),
    "json": to_json,
    "currentDate": _today,
    "yesterdayDate": _yesterday,
}
NAMES = frozenset((*FUNCTIONS, *LAZY))
