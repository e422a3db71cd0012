"""The KV caches of a native program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.devices.base import Limits
from quire.ops.cache import CacheSpec, Latent, PagedKV, cache_groups

ALL_TOKENS = 0  # the group of caches that keep all tokens


def add_caches(program: Any, specs: Sequence[CacheSpec], limits: Limits) -> None:
    """Add the window groups, then the cache of every layer, in their order."""
    groups = cache_groups(specs, [each.window for each in limits.windows])
    numbers = [program.window(*each) for each in limits.windows]
    for index, spec in enumerate(specs):
        if isinstance(spec, Latent):
            program.latent_cache(limits.kv_dtype, spec.dim, spec.rope_dim)
        elif isinstance(spec, PagedKV):
            at = groups.window_of(index)
            reads = (spec.num_heads, spec.key_dim, spec.value_dim, spec.window or 0, spec.chunk or 0)
            program.cache(limits.kv_dtype, *reads, ALL_TOKENS if at is None else numbers[at])
