"""Typed access to a model's configuration. An error about a value of the wrong type or size names its key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

import numpy as np

from quire.models.errors import UnsupportedModel

MAX_SIZE = 1 << 31  # far beyond every model, and small enough to multiply without overflow
MAX_LAYERS = 1 << 12
MAX_HEAD_DIM = 1 << 14
TINY, HUGE = 1e-30, 1e30  # bounds of real numbers, beyond which computations may overflow
MAX_SHOWN = 60  # characters of a value in a message
_INFINITY = {"__float__": "Infinity"}


class Values:
    """Keys and their values. A key whose value is null counts as left out."""

    def __init__(
        self,
        given: Mapping[str, Any],
        prefix: str = "",
        spelling: Mapping[str, str] = MappingProxyType({}),
        by_layer: frozenset[str] = frozenset(),
    ) -> None:
        self._given = given
        self._prefix = prefix  # of the keys in messages: `rope_scaling.`, `llama.`
        self._spelling = spelling  # our key -> the file's, where they differ
        self._by_layer = by_layer  # keys that may have a number for each layer

    def names(self) -> set[str]:
        """Return all keys, including those whose value is null."""
        return set(self._given)

    def shown(self, key: str) -> str:
        """Return the key as the file spells it."""
        return f"{self._prefix}{self._spelling.get(key, key)}"

    def __contains__(self, key: str) -> bool:
        return self._given.get(key) is not None

    def size(self, key: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        """A whole number from 1 to `most`. Without a default the key is required."""
        found = self.size_or_none(key, most)
        return found if found is not None else self._required(key, default)

    def size_or_none(self, key: str, most: int = MAX_SIZE) -> int | None:
        """Like `size`; None if the key is left out."""
        return self._integer(key, self._given[key], 1, most) if key in self else None

    def size_unless_auto(self, key: str) -> int | None:
        """Like `size_or_none`; None also if the value is "auto"."""
        return None if self._given.get(key) == "auto" else self.size_or_none(key)

    def integer(self, key: str) -> int:
        """A whole number that may be 0. The key is required."""
        found = self.integer_or_none(key)
        return found if found is not None else self._required(key, None)

    def integer_or_none(self, key: str, least: int = 0) -> int | None:
        """A whole number from `least` on; None if the key is left out."""
        return self._integer(key, self._given[key], least, MAX_SIZE) if key in self else None

    def sizes(self, key: str) -> tuple[int, ...] | None:
        """A list of whole numbers from 1 on; None if the key is left out."""
        if key not in self:
            return None
        value = self._given[key]
        if not isinstance(value, list | tuple):
            raise self.refusal(key, "a list of whole numbers")
        return tuple(self._integer(key, each, 1, MAX_SIZE) for each in value)

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers from 0 on; none if the key is left out."""
        value = self._given[key] if key in self else ()
        if not isinstance(value, list | tuple):
            raise self.refusal(key, "a list of whole numbers")
        return tuple(self._integer(key, each, 0, MAX_SIZE) for each in value)

    def pairs(self, key: str) -> tuple[tuple[int, int], ...]:
        """Return a list of pairs of whole numbers from 0 on; empty if the key is missing or null."""
        value = self._given.get(key) or ()
        is_list = isinstance(value, list | tuple)
        if not is_list or not all(isinstance(each, list | tuple) and len(each) == 2 for each in value):
            raise self.refusal(key, "a list of pairs of whole numbers")
        first, second = ([self._integer(key, each[at], 0, MAX_SIZE) for each in value] for at in (0, 1))
        return tuple(zip(first, second, strict=True))

    def flags(self, key: str, count: int) -> tuple[bool, ...] | None:
        """The first `count` of a list of 0 and 1; None if the key is left out."""
        if key not in self:
            return None
        value = self._given[key]
        if not isinstance(value, list | tuple) or len(value) < count or any(each not in (0, 1) for each in value):
            raise self.refusal(key, f"a list of {count} numbers, each 0 or 1")
        return tuple(bool(each) for each in value[:count])

    def uniform_size(self, key: str, default: int | None = None, most: int = MAX_SIZE, least: int = 1) -> int:
        """Like `size`, or a number from `least` on; a list with one number per layer is accepted if all are equal.

        If layers may differ in this key, return that of the first layer where it is not 0.
        """
        value = self._given.get(key)
        if not isinstance(value, list | tuple):
            return self._required(key, default) if value is None else self._integer(key, value, least, most)
        differs = key in self._by_layer
        numbers = [self._integer(key, each, 0 if differs else least, most) for each in value]
        numbers = [number for number in numbers if number] if differs else numbers
        if not numbers or (len(set(numbers)) > 1 and not differs):
            raise UnsupportedModel(f"Layers that differ in '{self.shown(key)}' are not supported.")
        return numbers[0]

    def sizes_of_layers(self, key: str, num_layers: int) -> tuple[int, ...]:
        """Return the number of every layer; the file has one for all, or a list. The key is required."""
        value = self._given.get(key)
        sizes = self.sizes(key) if isinstance(value, list | tuple) else (self.size(key),) * num_layers
        if sizes is None or len(sizes) != num_layers:
            raise self.refusal(key, f"a list of {num_layers} numbers, one for each layer")
        return sizes

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return a list of positive numbers. The key is required."""
        value = self._given[key] if key in self else self._required(key, None)
        found = [_finite(each) for each in value] if isinstance(value, list | tuple) else [None]
        if any(each is None or not TINY < each < HUGE for each in found):
            raise self.refusal(key, "a list of numbers above 0")
        return tuple(each for each in found if each is not None)

    def numbers_of_layers(self, key: str, num_layers: int) -> tuple[float, ...]:
        """A list of one number for each layer, of any sign. The key is required."""
        value = self._given[key] if key in self else self._required(key, None)
        found = [_finite(each) for each in value] if isinstance(value, list | tuple) else []
        if len(found) != num_layers or None in found:
            raise self.refusal(key, f"a list of {num_layers} numbers, one for each layer")
        return tuple(each for each in found if each is not None)

    def limits(self, key: str) -> tuple[float, float]:
        """Two numbers from 0 on, of which the second may be infinite; 0 and infinity if the key is left out.

        JSON has no infinity: transformers writes an object in its place.
        """
        value = self._given[key] if key in self else (0.0, math.inf)
        ends = value if isinstance(value, list | tuple) and len(value) == 2 else (None, None)
        low, high = _finite(ends[0]), math.inf if ends[1] in (math.inf, _INFINITY) else _finite(ends[1])
        if low is None or high is None or not 0 <= low < high:
            raise self.refusal(key, "a list of two numbers from 0 on, the smaller one first")
        return low, high

    def number(self, key: str, default: float | None = None, *, above: float = 0.0) -> float:
        """A number greater than `above`, neither huge nor tiny."""
        if key not in self:
            return self._required(key, default)
        value = _finite(self._given[key])
        if value is None or not max(above, TINY) < value < HUGE:
            raise self.refusal(key, f"a number above {above:g}")
        return value

    def number_or_none(self, key: str) -> float | None:
        """Like `number`; None if the key is left out or 0."""
        return None if _finite(self._given.get(key)) in (None, 0) else self.number(key)

    def number_unless_zero(self, key: str, default: float) -> float:
        """Like `number`; zero means the default."""
        return default if _finite(self._given.get(key)) == 0 else self.number(key, default)

    def fraction(self, key: str, default: float | None = None) -> float:
        """A number from 0 to 1."""
        if key not in self:
            return self._required(key, default)
        value = _finite(self._given[key])
        if value is None or not 0 <= value <= 1:
            raise self.refusal(key, "a number from 0 to 1")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false."""
        if key not in self:
            return default
        value = self._given[key]
        if not isinstance(value, bool | np.bool_):
            raise self.refusal(key, "true or false")
        return bool(value)

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self._given[key] if key in self else default
        if not isinstance(value, str):
            raise self.refusal(key, "a string")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of strings; None if the key is left out."""
        if key not in self:
            return None
        value = self._given[key]
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            raise self.refusal(key, "a list of strings")
        return tuple(value)

    def table(self, key: str) -> Values:
        """The values of an object under this key; none if the key is left out."""
        return Values(self.mapping(key), f"{self._prefix}{key}.")

    def mapping(self, key: str) -> Mapping[str, Any]:
        """The object under this key, unread."""
        value = self._given[key] if key in self else {}
        if not isinstance(value, Mapping):
            raise self.refusal(key, "an object")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """Return no, one or several ids, without duplicates, in order. Some files write -1 for a missing id."""
        value = self._given.get(key)
        values = value if isinstance(value, list | tuple) else [value]
        ids = [self._integer(key, each, -1, MAX_SIZE) for each in values if each is not None]
        return tuple(dict.fromkeys(each for each in ids if each >= 0))

    def refusal(self, key: str, expected: str) -> UnsupportedModel:
        """The error for a value that is not what it must be."""
        shown = brief(self._given.get(key))
        return UnsupportedModel(f"The model's configuration has {self.shown(key)} = {shown}: it must be {expected}.")

    def _integer(self, key: str, value: Any, least: int, most: int) -> int:
        is_number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
        is_whole = is_number and (isinstance(value, Integral) or (math.isfinite(value) and value == int(value)))
        if not is_whole or not least <= value <= most:
            raise self.refusal(key, f"a whole number from {least} to {most:,}")
        return int(value)

    def _required(self, key: str, default: Any) -> Any:
        if default is None:
            raise UnsupportedModel(f"The model's configuration lacks '{self.shown(key)}'.")
        return default


def _finite(value: Any) -> float | None:
    """Return the value as a finite float; None if it is none."""
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def brief(value: Any) -> str:
    """Format a value for a message, truncated."""
    shown = repr(value)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}…"
