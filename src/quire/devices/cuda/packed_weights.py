"""Experts' matrices in quantized formats, packed without rounding a number (see _triton/packing.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from quire.devices._triton.packing import (
    PACKED,
    CannotPack,
    Unpacked,
    int4_format,
    join_rows,
    pack,
    random_unpacked,
    unpack_blocks,
    unpack_int4,
)
from quire.devices.facts import DeviceUnavailable
from quire.graph.weight import Weight
from quire.weights.quantized_tensors import INT4, as_grouped_int4
from quire.weights.random_weights import RandomTensor

from .weights import as_tensor


def common_packed_format(weights: Sequence[Weight]) -> str | None:
    """Return the packed format of stacks whose rows are concatenated. None: they have none, or not the same."""
    formats = {_format_of(weight) for weight in weights}
    return formats.pop() if len(formats) == 1 else None


def _format_of(weight: Weight) -> str | None:
    if weight.format != INT4:
        return weight.format if weight.format in PACKED else None
    parts = as_grouped_int4(weight.matrix(0))
    return None if parts is None or parts.columns is not None else int4_format(parts.group)


def packed_matrix(weights: Sequence[Weight], format: str, device: torch.device) -> Tensor:
    """Pack the matrices of one expert, rows of all of them concatenated: uint8 [bytes]."""
    try:
        return pack(PACKED[format], join_rows([_unpacked(weight, format, device) for weight in weights]))
    except CannotPack as error:
        raise DeviceUnavailable(
            f"The matrix {weights[0].name} is in the format {weights[0].format} with {error}, which experts on this "
            "device do not support. Convert the model when it is loaded: --quantize plain, or fp8."
        ) from None


def _unpacked(weight: Weight, format: str, device: torch.device) -> Unpacked:
    if isinstance(weight.source, RandomTensor):
        return random_unpacked(PACKED[format], (weight.shape[0], weight.shape[1]), weight.source.std, device)
    if weight.format != INT4:
        return unpack_blocks(format, as_tensor(weight.raw()).to(device).view(weight.shape[0], -1))
    parts = as_grouped_int4(weight)
    if parts is None or parts.columns is not None or int4_format(parts.group) != format:
        raise CannotPack("groups or an order of columns that other experts do not have")
    return unpack_int4(*(_placed(each, device) for each in parts[:3]))


def _placed(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
