"""A device made of the references alone, for tests of what stands above devices."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from quire.devices.base import Limits, StepOutput
from quire.graph.graph import Graph
from quire.graph.interpret import Interpreter
from quire.graph.weight import Weights
from quire.ops.batch import Batch


@dataclass
class Done:
    """A step that was computed at once."""

    logits: np.ndarray

    def mask(self, bits: np.ndarray) -> None:
        raise NotImplementedError

    def result(self) -> StepOutput:
        return StepOutput(logits=self.logits)


@dataclass
class InterpreterProgram:
    """Runs every step with the interpreter, and proves that its batch is sound."""

    interpreter: Interpreter
    limits: Limits
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # tokens, rows, logits of every step

    def launch(self, batch: Batch) -> Done:
        batch.check(self.limits.num_blocks, self.limits.block_tokens)
        assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in vars_of(batch))
        assert len(batch.token_ids) <= self.limits.max_tokens and len(batch.logits_at) <= self.limits.max_logits
        self.batches.append((len(batch.token_ids), len(batch.lengths), len(batch.logits_at)))
        return Done(self.interpreter.run(batch))


def vars_of(batch: Batch) -> list[np.ndarray]:
    return [getattr(batch, name) for name in Batch.__slots__]


@dataclass
class InterpreterDevice:
    """What `devices.open` would give."""

    name: str = "stand-in"
    programs: list[InterpreterProgram] = field(default_factory=list)

    def lower(self, graph: Graph, weights: Weights, limits: Limits) -> InterpreterProgram:
        interpreter = Interpreter(graph, weights, limits.num_blocks, limits.block_tokens)
        self.programs.append(InterpreterProgram(interpreter, limits))
        return self.programs[-1]


DEVICE = InterpreterDevice()
