"""Number formats of experts' matrices: how a kernel reads a tile of one.

A matrix [N, K] of one expert is a run of bytes at an address of its own, a multiple of 16; what these bytes are
depends on FORMAT alone. So an expert can be moved by one copy and a change of its address, also to host memory.

bf16, f16, f32    the numbers, row after row
fp8_rows          FP8 numbers, row after row; then the float32 scales of the rows [N]
fp8_blocks        FP8 numbers, row after row; then the float32 scales of blocks of 128 x 128 [N / 128, K / 128], both
                  rounded up
quantized         q4_k, mxfp4, int4, … (packing.py), with products of their own (packed.py)
A new format adds a branch to `load_tile`, and to `load_row_scales` if its rows have scales, and its size to
`bytes_of`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .packing import PACKED

PLAIN_BYTES = {"bf16": 2, "f16": 2, "f32": 4}
BLOCK = 128  # rows and columns of a block of fp8_blocks
ALIGNMENT = 16  # of an expert's address


def bytes_of(format: str, rows: int, columns: int) -> int:
    """Return the size of one matrix."""
    if format in PLAIN_BYTES:
        return rows * columns * PLAIN_BYTES[format]
    if format in PACKED:
        return PACKED[format].num_bytes(rows, columns)
    if format == "fp8_rows":
        return rows * columns + 4 * rows
    assert format == "fp8_blocks", format
    return rows * columns + 4 * -(-rows // BLOCK) * -(-columns // BLOCK)


@triton.jit
def expert_address(table, expert):
    """Return the address of an expert's matrix, a pointer to bytes, given the table of addresses, int64 [experts]."""
    return tl.multiple_of(tl.load(table + expert).to(tl.pointer_type(tl.uint8)), 16)


@triton.jit
def load_tile(
    address, rows, start, N, K: tl.constexpr, BK: tl.constexpr, FORMAT: tl.constexpr, DTYPE: tl.constexpr
):  # fmt: skip
    """Return columns start .. start + BK - 1 of these rows [BN] of the matrix [N, K] at `address`, as DTYPE [BN, BK].

    start is a multiple of BK. BK divides K, except in the plain formats, which have zeros beyond K.
    """
    columns = start + tl.arange(0, BK)
    if FORMAT == "fp8_rows" or FORMAT == "fp8_blocks":
        tile = tl.load(address.to(tl.pointer_type(tl.float8e4nv)) + rows[:, None] * K + columns[None, :])
        if FORMAT == "fp8_rows":
            tile = tile.to(DTYPE)
        else:
            WIDTH: tl.constexpr = (K + 127) // 128
            scales = (address + N.to(tl.int64) * K).to(tl.pointer_type(tl.float32))
            of_rows = tl.load(scales + (rows // 128) * WIDTH + start // 128)  # BK divides 128
            tile = (tile.to(tl.float32) * of_rows[:, None]).to(DTYPE)
    else:
        if FORMAT == "bf16":
            numbers = address.to(tl.pointer_type(tl.bfloat16))
        elif FORMAT == "f16":
            numbers = address.to(tl.pointer_type(tl.float16))
        else:
            tl.static_assert(FORMAT == "f32", "the kernel lacks a format")
            numbers = address.to(tl.pointer_type(tl.float32))
        at = numbers + rows[:, None] * K + columns[None, :]
        tile = tl.load(at, mask=columns[None, :] < K, other=0.0) if K % BK else tl.load(at)
        tile = tile.to(DTYPE)
    return tile


@triton.jit
def load_row_scales(address, rows, N, K: tl.constexpr, FORMAT: tl.constexpr):
    """Return the factors [BN] that products with these rows are multiplied with, in float32."""
    if FORMAT == "fp8_rows":
        scales = (address + N.to(tl.int64) * K).to(tl.pointer_type(tl.float32))
        return tl.load(scales + rows)
    else:
        return tl.full(rows.shape, 1.0, tl.float32)
