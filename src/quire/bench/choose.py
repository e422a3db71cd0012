"""Workloads by their names: `NAME`, or `NAME:option=value,option=value`; `trace=FILE` is `trace:file=FILE`."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import fields, replace
from importlib import import_module
from typing import Any, get_type_hints

from quire.bench import workloads
from quire.bench.asks import Workload
from quire.bench.lengths import Lengths, parse_lengths
from quire.types.errors import InvalidRequest


def names() -> tuple[str, ...]:
    """Of all workloads."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(workloads.__path__)))


def choose(text: str, lengths: Mapping[str, str] | None = None) -> Workload:
    """The workload that is written so. `lengths` are set where it has such options and the text does not name them."""
    name, _, rest = text.partition(":")
    if name.startswith("trace="):
        name, rest = "trace", f"file={text.removeprefix('trace=')}"
    kind = _kind(name)
    hints = {key: hint for key, hint in get_type_hints(kind).items() if key in _options(kind)}
    asked = {key: value for key, value in (lengths or {}).items() if key in hints}
    for each in filter(None, rest.split(",")):
        option, is_set, value = each.partition("=")
        if option not in hints or not is_set:
            raise InvalidRequest(f"{name} has no option {option!r}. It has: {', '.join(hints)}.", field="workload")
        asked[option] = value
    made = kind(**{key: _value(hints[key], key, value) for key, value in asked.items()})
    return _with_parts(made, lengths) if name == "mixed" else made


def _kind(name: str) -> Any:
    if name not in names():
        raise InvalidRequest(f"There is no workload {name!r}. There are: {', '.join(names())}.", field="workload")
    return import_module(f"quire.bench.workloads.{name}").WORKLOAD


def _options(kind: Any) -> dict[str, Any]:
    return {each.name: each.default for each in fields(kind) if not each.metadata.get("is_made")}


def _value(hint: type, key: str, value: str) -> Any:
    if hint is Lengths:
        return parse_lengths(value)
    try:
        return hint(value)
    except ValueError:
        raise InvalidRequest(f"{key}={value}: {hint.__name__} is needed.", field="workload") from None


def _with_parts(mixed: Any, lengths: Mapping[str, str] | None) -> Workload:
    parts = []
    for each in mixed.of.split("+"):
        name, _, share = each.partition("*")
        parts.append((choose(name, lengths), float(_value(float, "of", share or "1"))))
    made: Workload = replace(mixed, parts=tuple(parts))
    return made


def described() -> list[tuple[str, str, str]]:
    """Of each workload its name, what it is, and its options with what they are if nothing is said."""
    told = []
    for name in names():
        options = ", ".join(f"{key}={value}" for key, value in _options(_kind(name)).items())
        about = (import_module(f"quire.bench.workloads.{name}").__doc__ or "").partition("\n")[0]
        told.append((name, about, options))
    return told
