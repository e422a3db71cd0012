"""Copies weights to the GPU and converts them; matrices that share an input are concatenated.

stored as                                               multiplied as, by the option `quantize`:
                                                        None                                 fp8     plain
bf16, f16, f32                                          activations' format                  FP8     activations' format
FP8 with a scale for the tensor or for each row         the same bytes                       same    activations' format
FP8 with a scale for each block                         FP8, rounded again, row by row       same    activations' format
4 bits in groups: AWQ, GPTQ, packed, q4_0, q4_1, q4_k   the same values                      FP8     activations' format
any other format                                        activations' format                  FP8     activations' format
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.devices._triton.norm import FP8
from quire.devices._triton.stream import Scratch
from quire.graph.weight import Weight, Weights
from quire.weights.quantized_tensors import ScaledTensor, scales_of
from quire.weights.random_weights import RandomTensor

from .int4 import Int4Linear, MatrixBuffer, join_int4, place_int4
from .linear import Linear, Multiplies, to_fp8_rows
from .tiles import Tiles

FP8_MULTIPLE = 16  # rows and columns
TO_FP8, TO_PLAIN = "fp8", "plain"  # values of `quantize`
PLAIN = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


@dataclass(slots=True, eq=False)
class Placer:
    """Places weights on the device. A weight that is used twice is placed once."""

    weights: Weights
    device: torch.device
    dtype: torch.dtype  # of activations, and of weights that are not quantized
    tiles: Tiles
    quantize: str | None = None  # TO_FP8, TO_PLAIN or None: see the table above
    host_share: float = 0.0  # of the experts of every layer, to be kept in host memory
    scratch: Scratch = field(init=False)
    buffer: MatrixBuffer = field(init=False)
    dequantized: set[str] = field(default_factory=set)  # formats of matrices that were dequantized for lack of a kernel
    _placed: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scratch = Scratch(self.device)
        self.buffer = MatrixBuffer(self.dtype, self.device)

    def vector(self, name: str) -> Tensor:
        """Place a vector, such as the weight of a norm, in float32."""
        return self._once(self.weights[name], torch.float32)

    def table(self, name: str) -> Tensor:
        """Place an unquantized matrix: the embeddings or the head."""
        return self._once(self.weights[name], self.dtype)

    def router(self, name: str) -> Tensor:
        """Place the matrix of a router as it is stored, if activations have that format, else in float32."""
        weight = self.weights[name]
        return self._once(weight, self.dtype if PLAIN.get(weight.format) == self.dtype else torch.float32)

    def head(self, name: str, bias: str | None) -> Linear:
        """Place the head. It is never quantized here: its rounding errors affect sampling directly."""
        return Linear(self.table(name), None, self._bias((name,), (bias,)), self.tiles, self.scratch)

    def matrix(
        self, names: Sequence[str], biases: Sequence[str | None], kind: str = "", is_gate: bool = False
    ) -> Multiplies:
        """Place matrices that share an input, concatenated along their rows. `kind`: the activation of the product."""
        weights = [self.weights[name] for name in names]
        bias = self._bias(names, biases)
        if self.is_fp8(names):
            values, scales = zip(*map(self.fp8, weights), strict=True)
            return Linear(torch.cat(values), torch.cat(scales), bias, self.tiles, self.scratch, is_gate, kind)
        parts = join_int4(weights) if self._supports_int4 else None
        if parts is not None:
            weight, columns = place_int4(parts, self.device)
            self.buffer.reserve(weight.shape[0] * weight.shape[1])
            return Int4Linear(weight, columns, bias, self.tiles, self.scratch, self.buffer, is_gate, kind)
        if self.quantize != TO_PLAIN:
            self.dequantized.update(weight.format for weight in weights if weight.format not in PLAIN)
        whole = torch.cat([self.read(weight, self.dtype) for weight in weights])
        return Linear(whole, None, bias, self.tiles, self.scratch, is_gate, kind)

    @property
    def _supports_int4(self) -> bool:
        """Only bfloat16 is streamed, and only streamed products are deterministic."""
        return self.quantize != TO_PLAIN and (self.dtype == torch.bfloat16 or not self.tiles.is_fixed)

    def is_fp8(self, names: Sequence[str]) -> bool:
        """Return whether these matrices will be FP8. Others are converted only if the library supports their sizes."""
        formats = {self.weights[name].format for name in names}
        fits = all(size % FP8_MULTIPLE == 0 for name in names for size in self.weights[name].shape)
        return self.quantize != TO_PLAIN and ("f8_e4m3" in formats or (self.quantize == TO_FP8 and fits))

    def fp8(self, weight: Weight) -> tuple[Tensor, Tensor]:
        """Return the values [rows, columns] as FP8, and the scale of each row."""
        source = weight.source
        if isinstance(source, ScaledTensor) and source.block is None and weight.format == source.format:
            values = as_tensor(np.ascontiguousarray(weight.raw())).view(FP8).reshape(weight.shape)
            scales = torch.from_numpy(scales_of(weight).values[:, 0].copy())
            return values.to(self.device), scales.to(self.device)
        is_short = weight.format == "bf16" or isinstance(source, RandomTensor)
        return to_fp8_rows(self.read(weight, torch.bfloat16 if is_short else torch.float32))

    def _bias(self, names: Sequence[str], biases: Sequence[str | None]) -> Tensor | None:
        if not any(biases):
            return None
        parts = [
            self.read(self.weights[bias], self.dtype)
            if bias is not None
            else torch.zeros(self.weights[name].shape[0], dtype=self.dtype, device=self.device)
            for name, bias in zip(names, biases, strict=True)
        ]
        return torch.cat(parts)

    def _once(self, weight: Weight, dtype: torch.dtype) -> Tensor:
        if id(weight) not in self._placed:
            self._placed[id(weight)] = self.read(weight, dtype).contiguous()
        return self._placed[id(weight)]

    def read(self, weight: Weight, dtype: torch.dtype) -> Tensor:
        """Return the weight [*shape] on the device. Random weights are generated there, which is faster."""
        source = weight.source
        if isinstance(source, RandomTensor) and not weight.transform.negated_exp:
            numbers = torch.empty(weight.shape, dtype=dtype, device=self.device)
            return numbers.normal_(source.mean, source.std)
        if weight.format in PLAIN:
            raw = np.ascontiguousarray(weight.raw())
            tensor = as_tensor(raw).view(PLAIN[weight.format]).reshape(weight.shape)
        else:
            tensor = torch.from_numpy(weight.float32())
        return tensor.to(self.device).to(dtype)


def as_tensor(raw: NDArray[np.uint8]) -> Tensor:
    """View the bytes of an array as a tensor. Torch's warning about read-only arrays is silenced: nothing writes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(raw.reshape(-1))
