"""Experts' matrices on the device: each at an address of its own, in a table that kernels read.

stored as                                               multiplied as, by the option `quantize`:
                                                        None                                 fp8     plain
bf16, f16, f32                                          activations' format                  FP8     activations' format
FP8 with a scale for the tensor or for each row         the same bytes                       same    activations' format
FP8 with a scale for each block of 128 x 128            the same bytes                       same    activations' format
formats of packing.PACKED (q4_k, mxfp4, int4, …)        the same values                      FP8     activations' format
any other format                                        activations' format                  FP8     activations' format
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.devices._triton.expert_formats import ALIGNMENT, BLOCK, bytes_of
from quire.devices._triton.experts import Matrices
from quire.devices._triton.norm import FP8
from quire.devices._triton.packing import PACKED
from quire.graph.weight import StackedTensor, Weight
from quire.weights.quantized_tensors import ScaledTensor, scales_of
from quire.weights.random_weights import RandomTensor

from .packed_weights import packed_format, packed_matrix
from .weights import TO_FP8, TO_PLAIN, Placer, as_tensor

FORMATS = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
NAMES = {each: str(dtype).removeprefix("torch.") for dtype, each in FORMATS.items()}
NAMES |= dict.fromkeys(("fp8_rows", "fp8_blocks"), str(FP8).removeprefix("torch."))  # torch's, for people


@dataclass(frozen=True, slots=True, eq=False)
class ExpertMatrices:
    """A matrix of every expert, or a gate and an up matrix of every expert, gate rows first."""

    matrices: Matrices
    memory: Tensor  # uint8 [experts, bytes]

    @property
    def format_name(self) -> str:
        """Torch's name of the format, or ours."""
        return NAMES.get(self.matrices.format, self.matrices.format)

    @property
    def num_weights(self) -> int:
        """Numbers of all experts."""
        return len(self.memory) * self.matrices.num_rows * self.matrices.num_columns


def place_experts(placer: Placer, names: Sequence[str], biases: Sequence[str | None]) -> ExpertMatrices:
    """Place stacks [experts, rows, columns] that share an input; rows of each expert are concatenated."""
    weights = [placer.weights[name] for name in names]
    (num_experts, _, columns), rows = weights[0].shape, sum(weight.shape[1] for weight in weights)
    format = _format_of(placer, weights)
    size = -(-bytes_of(format, rows, columns) // ALIGNMENT) * ALIGNMENT
    memory = torch.empty((num_experts, size), dtype=torch.uint8, device=placer.device)
    if format in FORMATS.values():
        _fill_plain(placer, weights, memory, rows * columns)
    elif format in PACKED:
        for index in range(num_experts):
            packed = packed_matrix([weight.matrix(index) for weight in weights], format, placer.device)
            memory[index, : len(packed)].copy_(packed)
    else:
        for index in range(num_experts):
            _fill_fp8(placer, [weight.matrix(index) for weight in weights], memory[index], format)
    addresses = memory.data_ptr() + size * torch.arange(num_experts, dtype=torch.int64, device=placer.device)
    scratch = None if placer.tiles.is_fixed else placer.scratch
    matrices = Matrices(addresses, format, rows, columns, _biases(placer, weights, biases), scratch)
    return ExpertMatrices(matrices, memory)


def _format_of(placer: Placer, weights: Sequence[Weight]) -> str:
    """Return the format in which these stacks are multiplied."""
    plain = FORMATS[placer.dtype]
    if placer.quantize == TO_PLAIN:
        return plain
    if placer.quantize is None and (packed := packed_format(weights)) is not None:
        return packed
    kinds = {_fp8_kind(weight) for weight in weights}
    if len(kinds) == 1 and None not in kinds:
        (kind,) = kinds
        rows = [weight.shape[1] for weight in weights]
        if kind == "fp8_rows" or all(count % BLOCK == 0 for count in rows[:-1]):
            return str(kind)
    if placer.quantize == TO_FP8:
        return "fp8_rows"
    placer.dequantized.update(weight.format for weight in weights if weight.format not in FORMATS.values())
    return plain


def _fp8_kind(weight: Weight) -> str | None:
    """Return the format that holds the bytes of a stored FP8 stack. None: there is none."""
    source = weight.matrix(0).source
    if isinstance(source, RandomTensor) and source.format == "f8_e4m3":
        return "fp8_rows"
    if not isinstance(source, ScaledTensor) or weight.format != source.format:
        return None
    if source.block is None:
        return "fp8_rows"
    scales = scales_of(weight.matrix(0))
    return "fp8_blocks" if scales.height == scales.width == BLOCK else None


def _fill_plain(placer: Placer, weights: Sequence[Weight], memory: Tensor, size: int) -> None:
    """Write the numbers of all experts, in the activations' format."""
    width = placer.dtype.itemsize
    numbers = memory[:, : size * width].view(placer.dtype).view(len(memory), -1, weights[0].shape[2])
    start = 0
    for weight in weights:
        part = numbers[:, start : start + weight.shape[1]]
        start += weight.shape[1]
        first = weight.matrix(0).source
        if isinstance(first, RandomTensor):
            part.normal_(first.mean, first.std)  # all experts at once
        elif isinstance(weight.source, StackedTensor):
            for index, target in enumerate(part):
                target.copy_(placer.read(weight.matrix(index), placer.dtype))
        else:
            part.copy_(placer.read(weight, placer.dtype))


def _fill_fp8(placer: Placer, weights: Sequence[Weight], memory: Tensor, format: str) -> None:
    """Write the matrices of one expert: the values of all, then the scales of all."""
    values, scales = zip(*(_fp8(placer, weight, format) for weight in weights), strict=True)
    parts = [torch.cat(each).reshape(-1).view(torch.uint8) for each in (values, scales)]
    joined = torch.cat(parts)
    memory[: len(joined)].copy_(joined)


def _fp8(placer: Placer, weight: Weight, format: str) -> tuple[Tensor, Tensor]:
    """Return the values [rows, columns] as FP8, and the scales, float32 [rows] or [blocks of rows, of columns]."""
    if format == "fp8_rows":
        return placer.fp8(weight)
    raw = as_tensor(np.ascontiguousarray(weight.raw())).view(FP8).reshape(weight.shape)
    return raw.to(placer.device), torch.from_numpy(scales_of(weight).values).to(placer.device)


def _biases(placer: Placer, weights: Sequence[Weight], biases: Sequence[str | None]) -> Tensor | None:
    """Return the biases [experts, rows] in float32."""
    if not any(biases):
        return None
    parts = [
        placer.read(placer.weights[bias], torch.float32)
        if bias is not None
        else torch.zeros(weight.shape[:2], device=placer.device)
        for weight, bias in zip(weights, biases, strict=True)
    ]
    return torch.cat(parts, 1)
