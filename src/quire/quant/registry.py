"""Finds every format file of this package, and looks formats up by the names that files and users give them."""

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
    """Every format by name. The files are imported here, once, when the first weight is looked at."""
    for module in iter_modules(quire.quant.__path__):
        import_module(f"{quire.quant.__name__}.{module.name}")
    return MappingProxyType(dict(sorted(REGISTERED.items())))


@cache
def gguf_formats() -> Mapping[int, QuantFormat]:
    """The formats that a GGUF file may hold, by its type number."""
    return MappingProxyType({f.gguf_type: f for f in all_formats().values() if f.gguf_type is not None})


@cache
def safetensors_formats() -> Mapping[str, QuantFormat]:
    """The formats that a safetensors file may hold, by its dtype name."""
    return MappingProxyType({f.safetensors_dtype: f for f in all_formats().values() if f.safetensors_dtype is not None})
