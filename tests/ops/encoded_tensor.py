"""Tensors in any number format, made in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.quant.registry import all_formats
from tests.quant.blocks import weight_blocks


@dataclass(frozen=True)
class EncodedTensor:
    """A tensor as the container readers return it."""

    name: str
    shape: tuple[int, ...]
    format: str
    data: np.ndarray

    @property
    def num_bytes(self) -> int:
        return self.data.nbytes

    @classmethod
    def of(cls, name: str, array: np.ndarray, fmt: str) -> EncodedTensor:
        blocks = np.ascontiguousarray(array, np.float32).reshape(-1, all_formats()[fmt].block_weights)
        return cls(name, array.shape, fmt, np.ascontiguousarray(all_formats()[fmt].quantize(blocks)).reshape(-1))

    @classmethod
    def random(cls, name: str, shape: tuple[int, ...], fmt: str, seed: int) -> EncodedTensor:
        """A tensor of random bytes, for formats that cannot be written."""
        num_blocks = int(np.prod(shape)) // all_formats()[fmt].block_weights
        return cls(name, shape, fmt, weight_blocks(all_formats()[fmt], num_blocks, seed).reshape(-1))

    def matrix(self, index: int) -> EncodedTensor:
        """One matrix of a stack."""
        data = self.data.reshape(self.shape[0], -1)[index]
        return EncodedTensor(f"{self.name}.{index}", self.shape[1:], self.format, data)

    def dequantize(self) -> np.ndarray:
        fmt = all_formats()[self.format]
        return fmt.dequantize(self.data.reshape(-1, fmt.block_bytes)).reshape(self.shape)
