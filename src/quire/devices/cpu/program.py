"""Programs of the CPU: one native call per step, or the references without native code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.devices.base import Limits, StepOutput
from quire.graph.graph import Graph
from quire.graph.weight import Weights
from quire.ops.batch import Batch, StateSlots

from .buffers import BufferSlice
from .extra_rows import ExtraRows
from .fallback import Fallback, interpreter_for
from .variant_choice import VariantChoice

Array = NDArray[Any]


class FinishedStep:
    """A pending step that has already run: the CPU runs it in `launch`."""

    def __init__(self, output: StepOutput) -> None:
        self._output = output

    def result(self) -> StepOutput:
        """Return its output."""
        return self._output


class NativeProgram:
    """A graph lowered to native instructions. The native object owns weights, buffers and the KV cache."""

    def __init__(
        self,
        native: Any,
        vocab: int,
        places: Mapping[int, BufferSlice],
        num_blocks: int,
        fallback: Fallback | None = None,
        extra: ExtraRows | None = None,
    ) -> None:
        self.native = native
        self._extra = extra or ExtraRows()
        self.fallback = fallback  # nodes without kernels
        self.num_blocks = num_blocks
        self._vocab = vocab  # 0: the graph has no head
        self._places = places  # of values that no node reads or no node computes
        self._choices: Mapping[str, VariantChoice] = {}

    @property
    def kernels(self) -> dict[str, dict[str, float]]:
        """Per number format: the variant that computes products, then others with their times relative to it."""
        return {format: {each.variant: 1.0, **each.relative_times} for format, each in self._choices.items()}

    def multiply_with(self, choices: Mapping[str, VariantChoice]) -> None:
        """Compute the products of each format with the chosen variant."""
        for format, choice in choices.items():
            self.native.multiply_with(format, choice.variant)
        self._choices = choices

    @property
    def num_bytes(self) -> int:
        """Memory that the program asked for: weights, buffers, KV cache."""
        return int(self.native.num_bytes)

    def launch(self, batch: Batch) -> FinishedStep:
        """Run the step to its end. Raises ValueError if the batch exceeds the limits or is inconsistent."""
        num_logits = len(batch.logits_at)
        num_top = batch.num_top if len(batch.num_top) else np.zeros(num_logits, np.int32)
        most = max(num_top.tolist(), default=0)
        logits = np.empty((num_logits, self._vocab), np.float32)
        top_tokens, top_logits = np.empty((num_logits, most), np.int32), np.empty((num_logits, most), np.float32)
        of_tokens = (batch.token_ids, batch.positions, batch.slots, batch.row_of_token)
        of_rows = (batch.starts, batch.lengths, batch.block_tables, batch.logits_at, batch.copies, batch.groups)
        fallback = None if self.fallback is None else self.fallback.begin(batch)
        windows = [(each.slots, each.block_tables, each.copies) for each in batch.windows]
        outputs = (num_top, logits, top_tokens, top_logits)
        self._extra.give(self.native, batch)
        self.native.launch(*of_tokens, *of_rows, *outputs, fallback, windows, _slots(batch.states))
        hidden = self._extra.take(self.native, len(batch.token_ids))
        if not self._vocab:
            return FinishedStep(StepOutput(None, hidden=hidden))
        return FinishedStep(StepOutput(logits, top_tokens, top_logits, hidden=hidden))

    def release_blocks(self, blocks: Array) -> int:
        """Return pages that hold only these blocks to the system; return how many bytes were freed.

        Blocks of window groups stay: they are few.
        """
        return int(self.native.release_blocks(blocks))

    def feed(self, value: int, numbers: Array) -> None:
        """Set a value that no node computes: [tokens, dim]. For tests of single nodes."""
        self.native.poke(self._places[value].columns, np.ascontiguousarray(numbers, np.float32))

    def fetch(self, value: int, num_rows: int) -> Array:
        """Return a value that no node reads, [num_rows, dim]. For tests of single nodes."""
        out = np.empty((num_rows, self._places[value].dim), np.float32)
        self.native.peek(self._places[value].columns, out)
        return out


class ReferenceProgram:
    """The interpreter as a Program."""

    def __init__(self, graph: Graph, weights: Weights, limits: Limits) -> None:
        self._interpreter = interpreter_for(graph, weights, limits)
        self._limits = limits

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""
        return self._limits.num_blocks

    def launch(self, batch: Batch) -> FinishedStep:
        """Run the step to its end."""
        limits = self._limits
        if (
            len(batch.token_ids) > limits.max_tokens
            or len(batch.lengths) > limits.max_rows
            or len(batch.logits_at) > limits.max_logits
        ):
            raise ValueError("the step is larger than the program was lowered for")
        logits = self._interpreter.run(batch)
        return FinishedStep(StepOutput(logits, hidden=self._interpreter.hidden))


def _slots(states: StateSlots | None) -> tuple[Array, Array, Array] | None:
    """The arrays of a native launch."""
    return None if states is None else (states.source, states.target, states.saves)
