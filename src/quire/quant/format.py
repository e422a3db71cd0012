"""The contract of a number format, and the decorator that makes a class one.

A format stores weights in blocks: `block_weights` of them in `block_bytes` bytes, blocks one after another along a row.
A plain dtype is a format whose block is a single number. All multi-byte numbers are little endian.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

F16 = np.dtype("<f2")
F32 = np.dtype("<f4")


class QuantFormat(ABC):
    """How weights lie in memory. Stateless: one instance of each class lives in the registry."""

    name: ClassVar[str]
    gguf_type: ClassVar[int | None]  # its number in a GGUF tensor description
    safetensors_dtype: ClassVar[str | None]  # its name in a safetensors header
    block_weights: ClassVar[int]
    block_bytes: ClassVar[int]

    @abstractmethod
    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        """uint8 [num_blocks, block_bytes] -> float32 [num_blocks, block_weights]; may be a view of `raw`.

        Any bytes are valid: a broken scale gives infinities or NaN. The caller decides whether numpy warns about them.
        """

    def quantize(self, weights: NDArray[np.float32]) -> NDArray[np.uint8]:
        """float32 [num_blocks, block_weights] -> uint8 [num_blocks, block_bytes]; only some formats support it."""
        raise NotImplementedError(f"{self.name} can be read but not written")

    def bytes_for(self, num_weights: int) -> int:
        """Return the bytes that `num_weights` take. Raises ValueError unless they fill whole blocks."""
        num_blocks, rest = divmod(num_weights, self.block_weights)
        if rest:
            raise ValueError(f"{num_weights} weights do not fill blocks of {self.block_weights} ({self.name})")
        return num_blocks * self.block_bytes


REGISTERED: dict[str, QuantFormat] = {}  # filled by the decorator below, read by registry.py alone

FormatClass = TypeVar("FormatClass", bound=type[QuantFormat])


def quant_format(
    name: str, *, gguf_type: int | None = None, safetensors: str | None = None
) -> Callable[[FormatClass], FormatClass]:
    """Register the class under `name`, and under its number or name in the containers that support it."""

    def register(cls: FormatClass) -> FormatClass:
        if name in REGISTERED:
            raise ValueError(f"two number formats are called {name!r}")
        cls.name, cls.gguf_type, cls.safetensors_dtype = name, gguf_type, safetensors
        REGISTERED[name] = cls()
        return cls

    return register
