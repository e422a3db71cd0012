"""One declared setting: its names, the values that it takes, and its help."""

from __future__ import annotations

from dataclasses import field
from numbers import Integral, Real
from typing import Any, NamedTuple

from quire.types.errors import InvalidRequest


class BadSetting(InvalidRequest):
    """A setting has an invalid value. The message has the setting, the value and what it takes."""

    code = "bad_setting"


MOST = 2**31 - 1  # default `high` of numbers: the largest 32-bit integer
BOOLS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
DECLARED = {"choices": (), "low": None, "high": MOST, "secret": False}  # a secret is never printed
TYPES: dict[type, Any] = {bool: bool, int: Integral, float: Real, str: str}
TAKES = {int: "a whole number", float: "a number", bool: "true or false", str: "text without a NUL character"}


def setting(default: Any, help: str, **more: Any) -> Any:
    """A field with its help text; more: `choices`, `low` and `high` (the least and most it may be), `secret`."""
    return field(default=default, metadata=DECLARED | more | {"help": help})


class Setting(NamedTuple):
    """One declared setting, as help pages show it."""

    section: str
    name: str
    type: Any
    default: Any
    help: str
    choices: tuple[Any, ...]
    low: float | None
    high: float
    secret: bool

    @property
    def flag(self) -> str:
        """Its flag on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return "QUIRE_" + self.name.upper()

    @property
    def kind(self) -> type:
        """The type of its value, other than None."""
        return next(
            (each for each in (bool, int, float, str) if each in (self.type, *getattr(self.type, "__args__", ()))), str
        )

    @property
    def may_be_none(self) -> bool:
        """Does it take None, which leaves it to the engine?"""
        return type(None) in getattr(self.type, "__args__", ())

    def parse(self, text: str) -> Any:
        """Parse the text of a flag or a variable."""
        if self.may_be_none and text.lower() in ("", "none", "auto"):
            return None
        if self.kind is bool:
            return BOOLS.get(text.lower(), text)  # other text is refused by `check`
        try:
            return self.kind(text)
        except ValueError:
            raise self._wrong(text) from None

    def check(self, value: Any) -> None:
        """Refuse a value of another type, or outside the declared choices or range."""
        if value is None and self.may_be_none:
            return
        is_right = isinstance(value, TYPES[self.kind]) and (self.kind is bool or not isinstance(value, bool))
        if not is_right or value != value or (self.kind is str and "\0" in value):  # NaN is not equal to itself
            raise self._wrong(value)
        if self.choices and value not in self.choices:
            public = f"{self.name} is {value!r}; choose from {', '.join(map(str, self.choices))}."
            raise BadSetting(public, field=self.name)
        if self.low is not None and value < self.low:
            raise BadSetting(f"{self.name} is {value!r}; it must be at least {self.low:g}.", field=self.name)
        if self.kind in (int, float) and value > self.high:
            raise BadSetting(f"{self.name} is {value!r}; it must be at most {self.high:.10g}.", field=self.name)

    def _wrong(self, value: Any) -> BadSetting:
        return BadSetting(f"{self.name} is {value!r}; it must be {TAKES[self.kind]}.", field=self.name)
