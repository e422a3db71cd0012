"""Experts' matrices: each at an address of its own, on the device or in host memory, in a table that kernels read.

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

from .expert_placement import num_on_host
from .packed_weights import common_packed_format, packed_matrix
from .pinned import pinned
from .weights import TO_FP8, TO_PLAIN, Placer, as_tensor

FORMATS = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
NAMES = {each: str(dtype).removeprefix("torch.") for dtype, each in FORMATS.items()}
NAMES |= dict.fromkeys(("fp8_rows", "fp8_blocks"), str(FP8).removeprefix("torch."))  # torch's, for people


@dataclass(frozen=True, slots=True, eq=False)
class ExpertMatrices:
    """A matrix of every expert, or a gate and an up matrix of every expert, gate rows first."""

    matrices: Matrices
    memory: Tensor  # uint8 [experts on the device, bytes]
    host: Tensor | None  # uint8 [experts in host memory, bytes]
    places: list[int]  # of every expert: its row of `memory`, and beyond these, of `host`

    @property
    def num_experts(self) -> int:
        """On the device and in host memory."""
        return len(self.places)

    def is_on_gpu(self, expert: int) -> bool:
        """Return whether an expert is in the device's memory."""
        return self.places[expert] < len(self.memory)

    def bytes_of(self, expert: int) -> Tensor:
        """The matrix of an expert, as bytes."""
        place, count = self.places[expert], len(self.memory)
        if place < count:
            return self.memory[place]
        assert self.host is not None
        return self.host[place - count]

    def exchange(self, to_gpu: int, to_host: int, moved: Tensor) -> None:
        """Exchange an expert in host memory with one on the device, on the current stream. `moved`: room for one."""
        source, target = self.bytes_of(to_gpu), self.bytes_of(to_host)
        moved = moved[: len(target)]
        moved.copy_(target)
        target.copy_(source, non_blocking=True)
        source.copy_(moved, non_blocking=True)
        for expert, its in ((to_gpu, target), (to_host, source)):
            self.matrices.addresses[expert : expert + 1].fill_(its.data_ptr())
        places = self.places
        places[to_gpu], places[to_host] = places[to_host], places[to_gpu]

    @property
    def format_name(self) -> str:
        """Torch's name of the format, or ours."""
        return NAMES.get(self.matrices.format, self.matrices.format)

    @property
    def num_weights(self) -> int:
        """Numbers of all experts."""
        return self.num_experts * self.matrices.num_rows * self.matrices.num_columns


def place_experts(placer: Placer, names: Sequence[str], biases: Sequence[str | None]) -> ExpertMatrices:
    """Place stacks [experts, rows, columns] that share an input; rows of each expert are concatenated."""
    weights = [placer.weights[name] for name in names]
    (num_experts, _, columns), rows = weights[0].shape, sum(weight.shape[1] for weight in weights)
    format = _format_of(placer, weights)
    size = _size(format, rows, columns)
    on_host = num_on_host(placer.host_share, num_experts)
    memory = torch.empty((num_experts - on_host, size), dtype=torch.uint8, device=placer.device)
    host = pinned((on_host, size), placer.device) if on_host else None
    scratch = None if placer.tiles.is_fixed else placer.scratch
    addresses = torch.empty(num_experts, dtype=torch.int64, device=placer.device)
    matrices = Matrices(addresses, format, rows, columns, _biases(placer, weights, biases), scratch)
    placed = ExpertMatrices(matrices, memory, host, list(range(num_experts)))
    if format in FORMATS.values() and host is None:
        _fill_plain(placer, weights, memory, rows * columns)
    else:
        for index in range(num_experts):
            filled = _bytes(placer, [weight.matrix(index) for weight in weights], format)
            placed.bytes_of(index)[: len(filled)].copy_(filled)
    addresses.copy_(torch.tensor([placed.bytes_of(index).data_ptr() for index in range(num_experts)]))
    return placed


def expert_sizes(placer: Placer, names: Sequence[str]) -> tuple[int, int]:
    """Return how many experts these stacks have, and the bytes of each once they are placed."""
    weights = [placer.weights[name] for name in names]
    rows, columns = sum(weight.shape[1] for weight in weights), weights[0].shape[2]
    return weights[0].shape[0], _size(_format_of(placer, weights), rows, columns)


def _size(format: str, rows: int, columns: int) -> int:
    return -(-bytes_of(format, rows, columns) // ALIGNMENT) * ALIGNMENT


def _format_of(placer: Placer, weights: Sequence[Weight]) -> str:
    """Return the format in which these stacks are multiplied."""
    plain = FORMATS[placer.dtype]
    if placer.quantize == TO_PLAIN:
        return plain
    if placer.quantize is None and (packed := common_packed_format(weights)) is not None:
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


def _bytes(placer: Placer, weights: Sequence[Weight], format: str) -> Tensor:
    """Return the matrices of one expert, rows of all of them concatenated, as bytes on the device."""
    if format in PACKED:
        return packed_matrix(weights, format, placer.device)
    if format in FORMATS.values():
        return torch.cat([placer.read(weight, placer.dtype) for weight in weights]).view(-1).view(torch.uint8)
    values, scales = zip(*(_fp8(placer, weight, format) for weight in weights), strict=True)
    return torch.cat([torch.cat(each).reshape(-1).view(torch.uint8) for each in (values, scales)])


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
