"""The KV write of attention whose k and v come from any op: each number goes to its token's slot."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch

MAX_BLOCK = 1024  # numbers of a program


@triton.jit
def _write_one(
    source, cache, columns, slot, WIDTH: tl.constexpr, DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr
):  # fmt: skip
    """Write some columns of a token to its slot."""
    is_there = columns < WIDTH
    numbers = tl.load(source + columns, mask=is_there, other=0.0)
    head = slot // BLOCK_TOKENS * (WIDTH // DIM) + columns // DIM
    place = (head * BLOCK_TOKENS + slot % BLOCK_TOKENS) * DIM + columns % DIM
    tl.store(cache + place, numbers.to(cache.dtype.element_ty), mask=is_there)


@triton.jit
def _write(
    k, v, slots, k_cache, v_cache, k_stride, v_stride, KEYS: tl.constexpr, KEY_DIM: tl.constexpr,
    VALUES: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    follow(CHAINED)
    _write_one(k + token * k_stride, k_cache, columns, slot, KEYS, KEY_DIM, BLOCK_TOKENS)
    _write_one(v + token * v_stride, v_cache, columns, slot, VALUES, VALUE_DIM, BLOCK_TOKENS)


def write_kv(k: Tensor, v: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    """Write k [T, kv_heads * key_dim] and v [T, kv_heads * value_dim] to their slots [T].

    The caches are [blocks, kv_heads, block_tokens, dim]. The strides between tokens of k and v are arbitrary.
    """
    widest = max(k.shape[1], v.shape[1])
    block = min(MAX_BLOCK, triton.next_power_of_2(widest))
    constants = {
        "KEYS": k.shape[1],
        "KEY_DIM": k_cache.shape[3],
        "VALUES": v.shape[1],
        "VALUE_DIM": v_cache.shape[3],
        "BLOCK_TOKENS": k_cache.shape[2],
        "BLOCK": block,
    }
    args = (k, v, slots, k_cache, v_cache, k.stride(0), v.stride(0))
    launch(_write, (len(k), triton.cdiv(widest, block)), args, constants, LaunchShape(2))
