"""Converts a user's values of sampling parameters to the engine's, or refuses them by name.

One string becomes one stop string, one number a list of one, a list a tuple, a numpy number a Python number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from quire.types.errors import InvalidRequest

AUTO, OFF = "auto", "off"  # of `speculate`
MAX_INT = 2**31 - 1
MAX_BIAS = 1e6
MAX_SHOWN = 64  # characters of a wrong value in a message


def refusal(name: str, value: object, takes: str) -> InvalidRequest:
    """The error for a value that a parameter cannot have."""
    return InvalidRequest(f"{name} is {_shown(value)}; it must be {takes}.", field=name)


def whole(name: str, value: Any, low: int, high: int, takes: str) -> int:
    """A whole number of at least `low`. More than `high` is `high`: no model has so many tokens."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise refusal(name, value, f"a whole number, {takes}")
    if int(value) < low:
        raise refusal(name, value, takes)
    return min(int(value), high)


def seed_number(name: str, value: Any) -> int:
    """Any whole number. Only its last 64 bits count, and only those fit into a message to an engine."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise refusal(name, value, "a whole number")
    made = int(value)
    return made if -(2**63) <= made < 2**64 else made % 2**64


def number(name: str, value: Any, takes: str) -> float:
    """A finite number."""
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise refusal(name, value, f"a number, {takes}")
    try:
        made = float(value)
    except (OverflowError, ValueError):
        made = math.inf
    if not math.isfinite(made):
        raise refusal(name, value, takes)
    return made


def truth(name: str, value: Any) -> bool:
    """True or False; 1 and 0 too."""
    if isinstance(value, bool) or (isinstance(value, Integral) and value in (0, 1)):
        return bool(value)
    if type(value).__name__ == "bool":  # numpy's
        return bool(value)
    raise refusal(name, value, "true or false")


def speculation(name: str, value: Any) -> str:
    """`auto` or `off`; true and false mean the same."""
    if isinstance(value, str) and value in (AUTO, OFF):
        return value
    try:
        return AUTO if truth(name, value) else OFF
    except InvalidRequest:
        raise refusal(name, value, f"{AUTO}, {OFF}, true or false") from None


def strings(name: str, value: Any) -> tuple[str, ...]:
    """One string, or several; none of them empty."""
    found = (value,) if isinstance(value, str) else _listed(name, value, "a string or a list of strings")
    for stop in found:
        if not isinstance(stop, str) or not stop:
            raise refusal(name, value, "a string or a list of strings, none of them empty")
        if not is_unicode(stop):
            raise refusal(name, value, "text without halves of surrogate pairs")
    return found


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """One token id, or several."""
    if isinstance(value, Integral):
        value = (value,)
    found = _listed(name, value, "a token id or a list of them")
    if all(type(token) is int and 0 <= token <= MAX_INT for token in found):
        return found
    for token in found:
        if isinstance(token, bool) or not isinstance(token, Integral) or not 0 <= int(token) <= MAX_INT:
            raise refusal(name, value, "a token id or a list of them: whole numbers, 0 or more")
    return tuple(map(int, found))


def token_id_lists(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    """Lists of token ids, none of them empty."""
    takes = "a list of lists of token ids, none of them empty: a text can be written in many tokens"
    found = _listed(name, value, takes)
    if any(isinstance(word, str | Integral) for word in found):
        raise refusal(name, value, takes)
    made = tuple(token_ids(name, word) for word in found)
    if not all(made):
        raise refusal(name, value, takes)
    return made


def biases(name: str, value: Any) -> dict[int, float]:
    """Values to add to the logit of each token; ids may be strings, as in JSON."""
    if not isinstance(value, Mapping):
        raise refusal(name, value, "a mapping from token ids to numbers")
    takes = f"a mapping from token ids to numbers from {-MAX_BIAS:g} to {MAX_BIAS:g}"
    made: dict[int, float] = {}
    for token, bias in value.items():
        if isinstance(token, str) and token.isascii() and token.isdigit():
            token = int(token[: len(str(MAX_INT)) + 1])  # a longer one is too large already
        if not isinstance(token, Integral):
            raise refusal(name, value, takes)
        (token_id,) = token_ids(name, token)
        made[token_id] = number(name, bias, takes)
        if abs(made[token_id]) > MAX_BIAS:
            raise refusal(name, bias, takes)
    return made


def is_unicode(text: str) -> bool:
    """Can the text be written as UTF-8? Half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _listed(name: str, value: Any, takes: str) -> tuple[Any, ...]:
    if type(value) is tuple:
        return value
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise refusal(name, value, takes)
    return tuple(value)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # of a user's class
        text = f"a {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
