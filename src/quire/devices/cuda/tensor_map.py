"""Matrices as the copy engine of a GPU is to see them: in boxes of 128 bytes by some rows."""

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
    """What one copy brings."""

    rows: int
    parts: int = 1  # side by side, of which one comes behind the other


def tensor_map(matrix: Tensor, columns: int, box: Box) -> bytes:
    """A contiguous tensor as rows of so many numbers. Chunks of 16 bytes lie swizzled in shared memory."""
    width = matrix.element_size()
    rows, wide = matrix.numel() // columns, BOX_BYTES // width
    room = ctypes.create_string_buffer(MAP_BYTES + 64)
    found = (ctypes.c_char * MAP_BYTES).from_buffer(room, -ctypes.addressof(room) % 64)
    code = driver().cuTensorMapEncodeTiled(
        byref(found), UINT8 if width == 1 else UINT16, c_uint32(3), c_void_p(matrix.data_ptr()),
        (c_uint64 * 3)(wide, rows, columns // wide), (c_uint64 * 2)(columns * width, BOX_BYTES),
        (c_uint32 * 3)(wide, *box), (c_uint32 * 3)(1, 1, 1), 0, SWIZZLE_128B, PROMOTE_128B, 0,
    )  # fmt: skip
    check(code, "A matrix has no tensor map")
    return bytes(found)
