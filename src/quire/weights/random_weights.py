"""Tensors that no file has: random numbers of the right shapes, for measuring a model without its weights.

A device that sees a `RandomTensor` draws numbers of its own; only who asks for `data` has them made on the host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from quire.quant.registry import all_formats

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RandomTensor:
    """Normal numbers around `centre`. The same name gives the same ones on every host."""

    name: str
    shape: tuple[int, ...]
    spread: float  # standard deviation
    centre: float = 0.0
    format: str = "bf16"

    @property
    def num_bytes(self) -> int:
        return all_formats()[self.format].bytes_for(math.prod(self.shape))

    @property
    def data(self) -> NDArray[np.uint8]:
        """Made anew at every call."""
        fmt = all_formats()[self.format]
        return np.ascontiguousarray(fmt.quantize(self._draw().reshape(-1, fmt.block_weights))).reshape(-1)

    def dequantize(self) -> NDArray[np.float32]:
        """What `data` holds, as a new array."""
        fmt = all_formats()[self.format]
        return fmt.dequantize(self.data.reshape(-1, fmt.block_bytes)).reshape(self.shape)

    def _draw(self) -> NDArray[np.float32]:
        seed = int.from_bytes(blake2b(self.name.encode(), digest_size=16).digest(), "little")
        numbers = np.random.Generator(np.random.Philox(seed)).standard_normal(self.shape, np.float32)
        numbers *= np.float32(self.spread)
        numbers += np.float32(self.centre)
        return numbers
