"""Write GGUF files with random weights. Speed does not depend on the values of weights.

Random rows are made once for each format and width, and repeated from another row in each matrix: a file of 6 GB is
written as fast as the disk takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.bench.engines.gguf_writer import GgufTensor, Shape, write_gguf

F32 = 0  # GGUF's format number
ROWS_AT_ONCE = 4096
ROWS_APART = 977  # between the first rows of two matrices
# Ends of names of matrices that stay f32: routers and kernels of convolutions.
FLOATS = ("ffn_gate_inp.weight", "shortconv.conv.weight", "ssm_conv1d.weight")
RATE = "ssm_a"  # the end of the name of a rate at which a state decays


@dataclass(frozen=True, slots=True)
class RandomFormat:
    """A format of blocks: a scale, a minimum behind it if it has one, and random bytes. Or plain numbers of 16 bits."""

    number: int  # GGUF's
    block_weights: int
    block_bytes: int
    scale: float  # of a block: weights have mean 0 and a standard deviation of about 0.02
    minimum: float | None = None  # None: scales have random signs, or the mean would not be 0, and all tokens alike
    scale_at: int = 0  # the byte of a block at which the scale begins


F16 = RandomFormat(number=1, block_weights=1, block_bytes=2, scale=0.02)
BF16 = RandomFormat(number=30, block_weights=1, block_bytes=2, scale=0.02)
Q4_0 = RandomFormat(number=2, block_weights=32, block_bytes=18, scale=4.3e-3)
Q8_0 = RandomFormat(number=8, block_weights=32, block_bytes=34, scale=2.7e-4)
Q4_1 = RandomFormat(number=3, block_weights=32, block_bytes=20, scale=4.3e-3, minimum=-3.2e-2)
Q4_K = RandomFormat(number=12, block_weights=256, block_bytes=144, scale=1.2e-4, minimum=9e-4)
Q5_K = RandomFormat(number=13, block_weights=256, block_bytes=176, scale=5.8e-5, minimum=9e-4)
Q6_K = RandomFormat(number=14, block_weights=256, block_bytes=210, scale=1.46e-5, scale_at=208)

FormatOf = Callable[[str], RandomFormat]  # by a tensor's name


def write_random_gguf(
    into: Path, metadata: Mapping[str, Any], shapes: Mapping[str, Shape], kind: RandomFormat | FormatOf
) -> Path:
    """Write the file, unless it exists: matrices are random in that format, or in f32; vectors are ones in f32.

    Rates are -1: a state decays.
    """
    formats = {name: _format_of(name, shape, kind) for name, shape in shapes.items()}
    tensors = {name: _tensor(shape, formats[name]) for name, shape in shapes.items()}
    rows = _RandomRows()

    def numbers(name: str) -> Iterator[NDArray[Any]]:
        for piece in rows.of(shapes[name], formats[name]):
            yield -piece if name.endswith(RATE) else piece

    return write_gguf(into, metadata, tensors, numbers)


def _format_of(name: str, shape: Shape, kind: RandomFormat | FormatOf) -> RandomFormat | None:
    """The format of a tensor; None: f32."""
    if len(shape) == 1 or name.endswith(FLOATS):
        return None
    return kind if isinstance(kind, RandomFormat) else kind(name)


def _tensor(shape: Shape, kind: RandomFormat | None) -> GgufTensor:
    if kind is None:
        return GgufTensor(shape, F32, 4 * prod(shape))
    return GgufTensor(shape, kind.number, prod(shape) // kind.block_weights * kind.block_bytes)


class _RandomRows:
    """Random rows of each format and width. Matrices repeat them from different rows on."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._made: dict[tuple[RandomFormat, int], NDArray[Any]] = {}  # [ROWS_AT_ONCE, bytes of a row]
        self._next = 0

    def of(self, shape: Shape, kind: RandomFormat | None) -> Iterator[NDArray[Any]]:
        """Yield the numbers of a tensor in pieces."""
        if kind is None:
            yield np.ones(shape, "<f4") if len(shape) == 1 else self._rng.normal(0.0, 0.02, shape).astype("<f4")
            return
        if (kind, shape[-1]) not in self._made:
            self._made[kind, shape[-1]] = _random_rows(self._rng, kind, shape[-1])
        rows, left = self._made[kind, shape[-1]], prod(shape[:-1])
        self._next = at = (self._next + ROWS_APART) % ROWS_AT_ONCE
        while left > 0:
            piece = rows[at : at + left]
            yield piece
            left, at = left - len(piece), 0


def _random_rows(rng: np.random.Generator, kind: RandomFormat, width: int) -> NDArray[Any]:
    if kind.block_weights == 1:
        numbers = rng.standard_normal((ROWS_AT_ONCE, width), np.float32) * np.float32(kind.scale)
        return numbers.astype("<f2") if kind is F16 else (numbers.view(np.uint32) >> 16).astype("<u2")
    head = np.array([kind.scale] if kind.minimum is None else [kind.scale, kind.minimum], "<f2").view(np.uint8)
    blocks = rng.integers(0, 256, (ROWS_AT_ONCE * width // kind.block_weights, kind.block_bytes), np.uint8)
    last = kind.scale_at + 1  # the byte with the scale's sign
    signs = blocks[:, last] & 0x80
    blocks[:, kind.scale_at : kind.scale_at + head.size] = head
    if kind.minimum is None:
        blocks[:, last] |= signs
    return blocks.reshape(ROWS_AT_ONCE, -1)
