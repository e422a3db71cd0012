"""Weights on their way to the GPU: read as they are stored, several matrices of one input laid into one.

stored as                                               multiplied as
bf16, f16, f32                                          the step's number format; FP8 if that is wished for
FP8 with a scale for the tensor or for each row         the same bytes
FP8 with a scale for each block                         FP8, dequantized and rounded once more, row by row
4 bits in groups: AWQ, GPTQ, packed, q4_0, q4_1, q4_k   the same values; FP8 if that is wished for
any other format                                        the step's number format; FP8 if that is wished for
any, if plain numbers are wished for                    the step's number format
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
from quire.weights.quantized_tensors import ScaledTensor
from quire.weights.random_weights import RandomTensor

from .int4 import Int4Linear, Room, joined_int4, place_int4
from .linear import Linear, Multiplies, to_fp8_rows
from .tiles import Tiles

FP8_MULTIPLE = 16  # rows and columns
TO_FP8, TO_PLAIN = "fp8", "plain"  # wishes
PLAIN = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


@dataclass(slots=True, eq=False)
class Placer:
    """Puts weights where they are used. What is asked for twice is placed once."""

    weights: Weights
    device: torch.device
    dtype: torch.dtype  # of activations, and of weights that are not quantized
    tiles: Tiles
    quantize: str | None = None  # what matrices become: TO_FP8, TO_PLAIN; None: as the table above says
    scratch: Scratch = field(init=False)
    room: Room = field(init=False)
    widened: set[str] = field(default_factory=set)  # formats of matrices that no kernel here multiplies with
    _placed: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scratch = Scratch(self.device)
        self.room = Room(self.dtype, self.device)

    def vector(self, name: str) -> Tensor:
        """Norms and the like, in float32."""
        return self._once(self.weights[name], torch.float32)

    def table(self, name: str) -> Tensor:
        """A matrix whose rows are looked up, or multiplied with as they are: embeddings and the head."""
        return self._once(self.weights[name], self.dtype)

    def head(self, name: str) -> Linear:
        """Never quantized here: its rounding goes straight into the choice of tokens."""
        return Linear(self.table(name), None, None, self.tiles, self.scratch)

    def matrix(self, names: Sequence[str], biases: Sequence[str | None], is_gate: bool = False) -> Multiplies:
        """Matrices of one input, one below the other."""
        weights = [self.weights[name] for name in names]
        bias = self._bias(names, biases)
        if self.is_fp8(names):
            values, scales = zip(*map(self._fp8, weights), strict=True)
            return Linear(torch.cat(values), torch.cat(scales), bias, self.tiles, self.scratch, is_gate)
        parts = joined_int4(weights) if self._takes_int4 else None
        if parts is not None:
            weight, columns = place_int4(parts, self.device)
            self.room.reserve(weight.shape[0] * weight.shape[1])
            return Int4Linear(weight, columns, bias, self.tiles, self.scratch, self.room, is_gate)
        if self.quantize != TO_PLAIN:
            self.widened.update(weight.format for weight in weights if weight.format not in PLAIN)
        whole = torch.cat([self._read(weight, self.dtype) for weight in weights])
        return Linear(whole, None, bias, self.tiles, self.scratch, is_gate)

    @property
    def _takes_int4(self) -> bool:
        """Only bfloat16 is streamed, and only what is streamed is deterministic."""
        return self.quantize != TO_PLAIN and (self.dtype == torch.bfloat16 or not self.tiles.is_fixed)

    def is_fp8(self, names: Sequence[str]) -> bool:
        """Will these matrices be FP8? Of those that are not, only sizes that the library multiplies become so."""
        formats = {self.weights[name].format for name in names}
        fits = all(size % FP8_MULTIPLE == 0 for name in names for size in self.weights[name].shape)
        return self.quantize != TO_PLAIN and ("f8_e4m3" in formats or (self.quantize == TO_FP8 and fits))

    def _fp8(self, weight: Weight) -> tuple[Tensor, Tensor]:
        """Values [rows, columns] as FP8, and the scale of each row."""
        source = weight.source
        if isinstance(source, ScaledTensor) and source.block is None:
            order, scale = weight.row_order, torch.from_numpy(source.scale).expand(weight.shape[0])
            values = _as_tensor(np.ascontiguousarray(weight.raw())).view(FP8).reshape(weight.shape)
            return values.to(self.device), (scale if order is None else scale[order]).to(self.device)
        is_short = weight.format == "bf16" or isinstance(source, RandomTensor)
        return to_fp8_rows(self._read(weight, torch.bfloat16 if is_short else torch.float32))

    def _bias(self, names: Sequence[str], biases: Sequence[str | None]) -> Tensor | None:
        if not any(biases):
            return None
        parts = [
            self._read(self.weights[bias], self.dtype)
            if bias is not None
            else torch.zeros(self.weights[name].shape[0], dtype=self.dtype, device=self.device)
            for name, bias in zip(names, biases, strict=True)
        ]
        return torch.cat(parts)

    def _once(self, weight: Weight, dtype: torch.dtype) -> Tensor:
        if id(weight) not in self._placed:
            self._placed[id(weight)] = self._read(weight, dtype).contiguous()
        return self._placed[id(weight)]

    def _read(self, weight: Weight, dtype: torch.dtype) -> Tensor:
        """[*shape] on the device. Random weights are drawn here: nobody waits for them to come from the host."""
        source = weight.source
        if isinstance(source, RandomTensor):
            drawn = torch.empty(weight.shape, dtype=dtype, device=self.device)
            return drawn.normal_(source.mean, source.std)
        if weight.format in PLAIN:
            raw = np.ascontiguousarray(weight.raw()) if weight.row_order is not None else weight.source.data
            tensor = _as_tensor(raw).view(PLAIN[weight.format]).reshape(weight.shape)
        else:
            tensor = torch.from_numpy(weight.float32())
        return tensor.to(self.device).to(dtype)


def _as_tensor(raw: NDArray[np.uint8]) -> Tensor:
    """The bytes of an array where they lie. Torch warns of one that is read only, though nobody writes here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(raw.reshape(-1))
