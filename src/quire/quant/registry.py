"""Discovers the format files of this package, and looks formats up by name or container type."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

import quire.quant

from .format import REGISTERED, QuantFormat


@cache
def all_formats() -> Mapping[str, QuantFormat]:
    """Return every format by name. The files are imported at the first call."""
    for module in iter_modules(quire.quant.__path__):
        import_module(f"{quire.quant.__name__}.{module.name}")
    return MappingProxyType(dict(sorted(REGISTERED.items())))


@cache
def gguf_formats() -> Mapping[int, QuantFormat]:
    """Return the formats that a GGUF file may hold, by type number."""
    return MappingProxyType({f.gguf_type: f for f in all_formats().values() if f.gguf_type is not None})


@cache
def safetensors_formats() -> Mapping[str, QuantFormat]:
    """Return the formats that a safetensors file may hold, by dtype name."""
    return MappingProxyType({f.safetensors_dtype: f for f in all_formats().values() if f.safetensors_dtype is not None})
