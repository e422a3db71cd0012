"""Numpy's other dtypes, in which no model computes: float64, integers, bool.

float32 cannot hold all of their values; code that needs them exactly views the tensor's bytes as `dtype`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from .format import QuantFormat, quant_format

if TYPE_CHECKING:
    from numpy.typing import NDArray


class PlainFormat(QuantFormat):
    """A block is one number of `dtype`."""

    dtype: ClassVar[str]
    block_weights = 1

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        return raw.view(self.dtype).astype(np.float32)


# name, numpy dtype, type number in GGUF, name in safetensors
DTYPES = (
    ("f64", "<f8", 28, "F64"),
    ("i8", "|i1", 24, "I8"),
    ("i16", "<i2", 25, "I16"),
    ("i32", "<i4", 26, "I32"),
    ("i64", "<i8", 27, "I64"),
    ("u8", "|u1", None, "U8"),
    ("u16", "<u2", None, "U16"),
    ("u32", "<u4", None, "U32"),
    ("u64", "<u8", None, "U64"),
)


def _define(name: str, dtype: str, gguf_type: int | None, safetensors: str) -> None:
    """Register the format of one numpy dtype."""

    @quant_format(name, gguf_type=gguf_type, safetensors=safetensors)
    class Format(PlainFormat):
        __doc__ = f"One {np.dtype(dtype).name} number, little endian."
        block_bytes = np.dtype(dtype).itemsize

    Format.dtype = dtype


for _row in DTYPES:
    _define(*_row)


@quant_format("bool", safetensors="BOOL")
class Bool(PlainFormat):
    """1 byte: zero is false, anything else is true."""

    dtype, block_bytes = "|b1", 1

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        return (raw != 0).astype(np.float32)
