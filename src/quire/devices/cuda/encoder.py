"""An encoder on a GPU: a step is whole texts, nothing outlives it, and its output is one vector of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.devices._triton.embed import embed_positions
from quire.devices._triton.pool import pool_tokens
from quire.devices._triton.rope import TokenPlacement
from quire.devices.base import StepOutput
from quire.ops.batch import Batch

from .instructions import Instruction, Run
from .out_of_memory import convert_out_of_memory


@dataclass(frozen=True, slots=True, eq=False)
class EmbedTypes:
    """Learned vectors of the types of tokens."""

    table: Tensor
    out: int

    def __call__(self, run: Run) -> None:
        assert run.token_types is not None
        run.values[self.out] = embed_positions(run.token_types, self.table, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """One vector of each of the step's pools."""

    value: int
    out: int
    dtype: torch.dtype | None  # None: that of the value

    def __call__(self, run: Run) -> None:
        x = run.whole(self.value)
        assert run.pools is not None
        run.values[self.out] = pool_tokens(x, run.pools, run.where.positions, self.dtype or x.dtype)


@dataclass(slots=True, eq=False)
class PendingVectors:
    """A launched step."""

    vectors: Tensor
    _output: StepOutput | None = None

    def result(self) -> StepOutput:
        """Wait for the step."""
        if self._output is None:
            self._output = StepOutput(None, pooled=self.vectors.float().cpu().numpy())
        return self._output


@dataclass(frozen=True, slots=True, eq=False)
class CudaEncoder:
    """The instructions of one model."""

    instructions: list[Instruction]
    output: int  # the value that has the vectors or scores
    device: torch.device
    num_blocks: int = 0  # nothing is stored

    def launch(self, batch: Batch) -> PendingVectors:
        """Start a step."""
        return convert_out_of_memory(lambda: self._launch(batch))

    def _launch(self, batch: Batch) -> PendingVectors:
        with torch.no_grad():
            ids, positions = self._send(batch.token_ids), self._send(batch.positions)
            none = torch.zeros(0, dtype=torch.int32, device=self.device)
            run = Run(ids, TokenPlacement(positions, positions), none, {}, none, None)
            run.pools, run.token_types = self._send(batch.pools), self._send(batch.token_types)
            for instruction in self.instructions:
                instruction(run)
            return PendingVectors(run.whole(self.output))

    def _send(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.int32)).to(self.device)
