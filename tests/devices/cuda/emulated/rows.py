"""The one-kernel step for few rows, launched on the CPU."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quire.devices.cuda.few_rows import KERNELS, TILE_ROWS, FewRows, ProductShape, _parts
from quire.devices.cuda.few_rows_model import ModelInstructions
from quire.devices.cuda.nvrtc import LaunchConfig
from quire.devices.cuda.program import CudaProgram
from quire.devices.cuda.tensor_map import MAP_BYTES
from tests.devices.cuda.emulated.build import Emulated, built

NUM_PROCESSORS = 3
SHARED_MEMORY = 227 << 10


@dataclass(slots=True, eq=False)
class EmulatedRows(FewRows):
    """The same launches, on the CPU."""

    folder: str = ""

    def _kernel(self, num_tokens: int, row_tokens: int) -> Any:
        max_tokens = next(most for most, each in KERNELS if num_tokens <= most and each == row_tokens)
        plan = self._memory_plan(max_tokens, row_tokens)
        shared = plan.pop("shared")
        definitions = tuple((self._definitions | plan).items())
        return Emulated(built("few_rows", definitions, self.folder)), LaunchConfig(self.num_processors, 32 * 18, shared)

    def _tensor_maps(self) -> Tensor:
        names, maps = ("QKV", "OUT_PROJ", "GATE", "DOWN"), []
        linears = [(each, names[i]) for layer in self.model.layers for i, each in enumerate(layer.linears)]
        for linear, name in [*linears, (self.model.head.linear, "HEAD")]:
            weight, tiles = linear.weight, self._definitions[f"{name}_TILES"]
            shape = ProductShape(weight.shape[0], weight.shape[1], weight.element_size())
            rows = tiles * TILE_ROWS // (2 if linear.is_gate else 1)
            fields = (weight.data_ptr(), shape.rows, shape.columns * shape.width, rows, _parts(shape, tiles))
            maps.append(struct.pack("<5Q", *fields).ljust(MAP_BYTES, b"\0"))
        return torch.frombuffer(bytearray(b"".join(maps)), dtype=torch.uint8)


def emulated(program: CudaProgram, folder: Path) -> EmulatedRows:
    """Build the kernel of a program, which must be one that it supports."""
    model = ModelInstructions.of(program.instructions)
    assert model is not None
    assert model.unsupported(program.caches) is None
    return EmulatedRows(model, program.caches, NUM_PROCESSORS, SHARED_MEMORY, folder=str(folder))
