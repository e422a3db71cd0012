"""Workloads by name: `NAME`, or `NAME:option=value,option=value`; `trace=FILE` is short for `trace:file=FILE`."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import fields, replace
from importlib import import_module
from typing import Any, get_type_hints

from quire.bench.load import workloads
from quire.bench.load.lengths import LengthDistribution, parse_lengths
from quire.bench.load.session import SessionSource
from quire.types.errors import InvalidRequest


def workload_names() -> tuple[str, ...]:
    """Return the names of all workloads."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(workloads.__path__)))


def parse_workload(text: str, lengths: Mapping[str, str] | None = None) -> SessionSource:
    """Return the workload that `text` describes. `lengths` are defaults for options that it has and `text` omits."""
    name, _, rest = text.partition(":")
    if name.startswith("trace="):
        name, rest = "trace", f"file={text.removeprefix('trace=')}"
    kind = _workload_class(name)
    hints = {key: hint for key, hint in get_type_hints(kind).items() if key in _defaults(kind)}
    options = {key: value for key, value in (lengths or {}).items() if key in hints}
    for assignment in filter(None, rest.split(",")):
        option, equals, value = assignment.partition("=")
        if option not in hints or not equals:
            raise InvalidRequest(f"{name} has no option {option!r}. It has: {', '.join(hints)}.", field="workload")
        options[option] = value
    workload = kind(**{key: _parse_value(hints[key], key, value) for key, value in options.items()})
    return _with_parts(workload, lengths) if name == "mixed" else workload


def _workload_class(name: str) -> Any:
    if name not in workload_names():
        known = ", ".join(workload_names())
        raise InvalidRequest(f"There is no workload {name!r}. There are: {known}.", field="workload")
    return import_module(f"quire.bench.load.workloads.{name}").WORKLOAD


def _defaults(kind: Any) -> dict[str, Any]:
    return {each.name: each.default for each in fields(kind) if not each.metadata.get("is_derived")}


def _parse_value(hint: type, key: str, value: str) -> Any:
    if hint is LengthDistribution:
        return parse_lengths(value)
    try:
        return hint(value)
    except ValueError:
        raise InvalidRequest(f"{key}={value}: {hint.__name__} is needed.", field="workload") from None


def _with_parts(mixed: Any, lengths: Mapping[str, str] | None) -> SessionSource:
    """Parse the option `of` of the workload `mixed`."""
    parts = []
    for part in mixed.of.split("+"):
        name, _, weight = part.partition("*")
        parts.append((parse_workload(name, lengths), float(_parse_value(float, "of", weight or "1"))))
    workload: SessionSource = replace(mixed, parts=tuple(parts))
    return workload


def describe_workloads() -> list[tuple[str, str, str]]:
    """Return the name, a description and the options with their defaults of each workload."""
    rows = []
    for name in workload_names():
        options = ", ".join(f"{key}={value}" for key, value in _defaults(_workload_class(name)).items())
        description = (import_module(f"quire.bench.load.workloads.{name}").__doc__ or "").partition("\n")[0]
        rows.append((name, description, options))
    return rows
