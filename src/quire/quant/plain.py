"""The dtypes that numpy knows and no model computes in: float64, integers, bool. Only the dtype differs.

float32 cannot hold every one of their values; a reader that needs them exactly views the tensor's bytes as `dtype`.
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


@quant_format("f64", gguf_type=28, safetensors="F64")
class Float64(PlainFormat):
    """8 bytes: an IEEE double."""

    dtype, block_bytes = "<f8", 8


@quant_format("i8", gguf_type=24, safetensors="I8")
class Int8(PlainFormat):
    """1 byte, two's complement."""

    dtype, block_bytes = "|i1", 1


@quant_format("i16", gguf_type=25, safetensors="I16")
class Int16(PlainFormat):
    """2 bytes, two's complement."""

    dtype, block_bytes = "<i2", 2


@quant_format("i32", gguf_type=26, safetensors="I32")
class Int32(PlainFormat):
    """4 bytes, two's complement."""

    dtype, block_bytes = "<i4", 4


@quant_format("i64", gguf_type=27, safetensors="I64")
class Int64(PlainFormat):
    """8 bytes, two's complement."""

    dtype, block_bytes = "<i8", 8


@quant_format("u8", safetensors="U8")
class UInt8(PlainFormat):
    """1 byte, unsigned."""

    dtype, block_bytes = "|u1", 1


@quant_format("u16", safetensors="U16")
class UInt16(PlainFormat):
    """2 bytes, unsigned."""

    dtype, block_bytes = "<u2", 2


@quant_format("u32", safetensors="U32")
class UInt32(PlainFormat):
    """4 bytes, unsigned."""

    dtype, block_bytes = "<u4", 4


@quant_format("u64", safetensors="U64")
class UInt64(PlainFormat):
    """8 bytes, unsigned."""

    dtype, block_bytes = "<u8", 8


@quant_format("bool", safetensors="BOOL")
class Bool(PlainFormat):
    """1 byte: zero is false, anything else is true."""

    dtype, block_bytes = "|b1", 1

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        return (raw != 0).astype(np.float32)
