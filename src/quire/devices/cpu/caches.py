"""The KV caches of a native program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.ops.cache import CacheSpec, Latent, PagedKV


def add_caches(program: Any, specs: Sequence[CacheSpec], kv_dtype: str) -> None:
    """Add the cache of every layer, in their order."""
    for spec in specs:
        if isinstance(spec, Latent):
            program.latent_cache(kv_dtype, spec.dim, spec.rope_dim)
        elif isinstance(spec, PagedKV):
            dims = (spec.num_heads, spec.key_dim, spec.value_dim)
            program.cache(kv_dtype, *dims, spec.window or 0, spec.chunk or 0)
