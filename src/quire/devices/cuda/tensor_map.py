"""Tensor maps: descriptions of matrices for the GPU's copy engine, in boxes of 128 bytes by some rows."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint32, c_uint64, c_void_p
from typing import NamedTuple

from torch import Tensor

from .nvrtc import check, driver

BOX_BYTES = 128
MAP_BYTES = 128
SWIZZLE_128B, PROMOTE_128B, UINT8, UINT16 = 3, 2, 0, 1


class Box(NamedTuple):
    """What one copy loads."""

    rows: int
    parts: int = 1  # side by side in the matrix, one after the other in shared memory


def tensor_map(matrix: Tensor, columns: int, box: Box) -> bytes:
    """Encode a contiguous tensor as rows of `columns` numbers. Chunks of 16 bytes are swizzled in shared memory."""
    width = matrix.element_size()
    rows, wide = matrix.numel() // columns, BOX_BYTES // width
    memory = ctypes.create_string_buffer(MAP_BYTES + 64)
    encoded = (ctypes.c_char * MAP_BYTES).from_buffer(memory, -ctypes.addressof(memory) % 64)
    code = driver().cuTensorMapEncodeTiled(
        byref(encoded), UINT8 if width == 1 else UINT16, c_uint32(3), c_void_p(matrix.data_ptr()),
        (c_uint64 * 3)(wide, rows, columns // wide), (c_uint64 * 2)(columns * width, BOX_BYTES),
        (c_uint32 * 3)(wide, *box), (c_uint32 * 3)(1, 1, 1), 0, SWIZZLE_128B, PROMOTE_128B, 0,
    )  # fmt: skip
    check(code, "A tensor map cannot be encoded")
    return bytes(encoded)
