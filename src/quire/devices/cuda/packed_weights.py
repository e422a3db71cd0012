"""Experts' matrices in quantized formats, packed without rounding a number (see _triton/packing.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from quire.devices._triton.packing import (
    MAX_EXPONENT,
    PACKED,
    Unpacked,
    join_unpacked,
    pack,
    unpack_blocks,
    unpack_int4,
)
from quire.graph.weight import StackedTensor, Weight
from quire.weights.quantized_tensors import INT4
from quire.weights.random_weights import RandomTensor

from .weights import as_tensor


def packed_format(weights: Sequence[Weight], device: torch.device) -> str | None:
    """Return the packed format of stacks that share an input, rows of which are concatenated. None: they have none.

    Reads the scales where they decide.
    """
    formats = {weight.format for weight in weights}
    (format, *others) = formats
    if others:
        return None
    if format == INT4:
        return _common(map(_int4_format, weights))
    if format not in PACKED:
        return None
    if format == "mxfp4" and any(_largest_exponent(weight) > MAX_EXPONENT for weight in weights):
        return None
    return format


def fill_packed(weights: Sequence[Weight], memory: Tensor, format: str) -> None:
    """Write the matrices of all experts, those of one expert joined, to `memory` [experts, bytes]."""
    columns = weights[0].shape[2]
    for index, target in enumerate(memory):
        parts = [_unpacked(weight, index, format, memory.device) for weight in weights]
        target.copy_(pack(PACKED[format], join_unpacked(parts), columns))


def _unpacked(weight: Weight, index: int, format: str, device: torch.device) -> Unpacked:
    rows = weight.shape[1]
    if weight.format == INT4:
        parts = _int4(weight, index)
        return unpack_int4(format, *(torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in parts[:3]))
    if isinstance(weight.source, RandomTensor):
        return unpack_blocks(format, _random_blocks(weight, device))
    raw = _raw(weight, index)
    return unpack_blocks(format, as_tensor(raw).to(device).reshape(rows, -1))


def _raw(weight: Weight, index: int) -> np.ndarray:
    """The bytes of one matrix of a stack, rows in the graph's order."""
    source, rows = weight.source, weight.shape[1]
    if isinstance(source, StackedTensor):
        data = source.parts[index].data
    else:
        data = source.data.reshape(weight.shape[0], -1)[index]
    stored = data.reshape(source.shape[-2], -1)
    order = weight.row_order
    taken = stored if order is None else stored[order]
    assert len(taken) == rows
    return np.ascontiguousarray(taken)
