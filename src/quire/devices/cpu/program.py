"""Programs of the CPU: one native call per step, or the references without native code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.devices.base import Limits, StepOutput
from quire.graph.graph import Graph
from quire.graph.weight import Weights
from quire.ops.batch import Batch, StateSlots

from .buffers import BufferSlice
from .extra_rows import ExtraRows
from .fallback import Fallback, interpreter_for
from .reference_blocks import ReferenceBlocks, read_rows, rows_bytes, write_rows
from .variant_choice import VariantChoice

Array = NDArray[Any]


class FinishedStep:
    """A pending step that has already run: the CPU runs it in `launch`."""

    def __init__(self, output: StepOutput) -> None:
        self._output = output

    def result(self) -> StepOutput:
        """Return its output."""
        return self._output


class OutputSizes(NamedTuple):
    """Columns of what a program computes; 0: it has no such output."""

    logits: int = 0
    vectors: int = 0  # of pools, or their scores

    @classmethod
    def of(cls, graph: Graph) -> OutputSizes:
        """Return the sizes of a graph's outputs."""
        dims = {kind: value.dim for kind, value in graph.outputs.items() if kind != "hidden"}
        return cls(dims.pop("logits", 0), next(iter(dims.values()), 0))


class NativeProgram:
    """A graph lowered to native instructions. The native object owns weights, buffers and the KV cache."""

    def __init__(
        self,
        native: Any,
        sizes: OutputSizes,
        places: Mapping[int, BufferSlice],
        num_blocks: int,
        fallback: Fallback | None = None,
        extra: ExtraRows | None = None,
    ) -> None:
        self.native = native
        self._extra = extra or ExtraRows()
        self.fallback = fallback  # nodes without kernels
        self.num_blocks = num_blocks
        self._sizes = sizes
        self._places = places  # of values that no node reads or no node computes
        self._choices: Mapping[str, VariantChoice] = {}
        self.sources: tuple[tuple[int, int, int], ...] = ()  # caches of sources: index, widths of keys and values
        self.layout = ""  # what the bytes of KV blocks depend on; set by the device

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
        only_pools = self._sizes.vectors and not self._sizes.logits  # then a pool is a row of the native logits
        logits_at = np.ascontiguousarray(batch.pools[:, 1] - 1, np.int32) if only_pools else batch.logits_at
        num_logits = len(logits_at)
        num_top = batch.num_top if len(batch.num_top) else np.zeros(num_logits, np.int32)
        most = max(num_top.tolist(), default=0)
        logits = np.empty((num_logits, self._sizes.logits or self._sizes.vectors), np.float32)
        pooled = np.empty((len(batch.pools), self._sizes.vectors), np.float32)
        top_tokens, top_logits = np.empty((num_logits, most), np.int32), np.empty((num_logits, most), np.float32)
        of_tokens = (batch.token_ids, batch.positions, batch.slots, batch.row_of_token)
        of_rows = (batch.starts, batch.lengths, batch.block_tables, logits_at, batch.copies, batch.groups)
        fallback = None if self.fallback is None else self.fallback.begin(batch)
        windows = [(each.slots, each.block_tables, each.copies) for each in batch.windows]
        outputs = (num_top, logits, top_tokens, top_logits)
        self._extra.give(self.native, batch)
        source = None if batch.sources is None else (batch.sources.lengths, batch.sources.block_tables)
        pools = (batch.pools, pooled, batch.token_types)
        self.native.launch(*of_tokens, *of_rows, *outputs, fallback, windows, _slots(batch.states), source, pools)
        if only_pools:
            return FinishedStep(StepOutput(None, pooled=logits))
        hidden = self._extra.take(self.native, len(batch.token_ids)) if batch.keeps_hidden else None
        if not self._sizes.logits:
            return FinishedStep(StepOutput(None, hidden=hidden))
        vectors = pooled if self._sizes.vectors else None
        return FinishedStep(StepOutput(logits, top_tokens, top_logits, pooled=vectors, hidden=hidden))

    def release_blocks(self, blocks: Array) -> int:
        """Return pages that hold only these blocks to the system; return how many bytes were freed.

        Blocks of window groups stay: they are few.
        """
        return int(self.native.release_blocks(blocks))

    @property
    def block_layout(self) -> str:
        """What the bytes of blocks depend on. Empty where the references or sources have caches of their own."""
        has_others = self.fallback is not None and any(each.node.cache is not None for each in self.fallback.nodes)
        return "" if has_others or self.sources else self.layout

    @property
    def has_own_memory(self) -> bool:
        """Its blocks lie in the host's memory."""
        return False

    def block_bytes(self, group: int) -> int:
        """Bytes of a block, over the layers of a group."""
        return int(self.native.block_bytes(group))

    def read_blocks(self, group: int, blocks: Array) -> Array:
        """Return a copy of the bytes of blocks."""
        data = np.empty((len(blocks), self.block_bytes(group)), np.uint8)
        self.native.read_blocks(group, blocks, data)
        return data

    def write_blocks(self, group: int, blocks: Array, data: Array) -> None:
        """Overwrite the bytes of blocks."""
        self.native.write_blocks(group, blocks, data)

    @property
    def state_bytes(self) -> int:
        """Bytes of a state, over the recurrent layers."""
        return int(self.native.state_bytes)

    def read_state(self, slot: int) -> Array:
        """Return a copy of the bytes of a state."""
        data = np.empty((1, self.state_bytes), np.uint8)
        self.native.read_state(slot, data)
        return data[0]

    def write_state(self, slot: int, data: Array) -> None:
        """Overwrite the bytes of a state."""
        self.native.write_state(slot, data.reshape(1, -1))

    def store_source(self, slots: Array, pairs: Array) -> None:
        """Store keys and values of tokens of sources, for each layer that reads sources."""
        at = 0
        for cache, key_width, value_width in self.sources:
            keys, values = pairs[:, at : at + key_width], pairs[:, at + key_width : at + key_width + value_width]
            self.native.store_kv(cache, slots, np.ascontiguousarray(keys), np.ascontiguousarray(values))
            at += key_width + value_width

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
        self._blocks = ReferenceBlocks(self._interpreter)
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
        outputs = self._interpreter.outputs(batch)
        logits, hidden = outputs.pop("logits", None), outputs.pop("hidden", None)
        return FinishedStep(StepOutput(logits, pooled=next(iter(outputs.values()), None), hidden=hidden))

    @property
    def block_layout(self) -> str:
        """What the bytes of blocks depend on. Empty where layers read sources."""
        limits = self._limits
        form = f"{limits.block_tokens} tokens, {[each.window for each in limits.windows]}"
        return "" if self._blocks.has_sources else f"references: {form}"

    @property
    def has_own_memory(self) -> bool:
        """Its blocks lie in the host's memory."""
        return False

    def block_bytes(self, group: int) -> int:
        """Bytes of a block, over the layers of a group."""
        return rows_bytes(self._blocks.planes(group))

    def read_blocks(self, group: int, blocks: Array) -> Array:
        """Return a copy of the bytes of blocks."""
        return read_rows(self._blocks.planes(group), blocks)

    def write_blocks(self, group: int, blocks: Array, data: Array) -> None:
        """Overwrite the bytes of blocks."""
        write_rows(self._blocks.planes(group), blocks, data)

    @property
    def state_bytes(self) -> int:
        """Bytes of a state, over the recurrent layers."""
        return rows_bytes(self._blocks.states())

    def read_state(self, slot: int) -> Array:
        """Return a copy of the bytes of a state."""
        data: Array = read_rows(self._blocks.states(), np.array([slot]))[0]
        return data

    def write_state(self, slot: int, data: Array) -> None:
        """Overwrite the bytes of a state."""
        write_rows(self._blocks.states(), np.array([slot]), data.reshape(1, -1))

    def store_source(self, slots: Array, pairs: Array) -> None:
        """Store keys and values of tokens of sources, for each layer that reads sources."""
        self._interpreter.store_source(slots, pairs)


def _slots(states: StateSlots | None) -> tuple[Array, Array, Array] | None:
    """The arrays of a native launch."""
    return None if states is None else (states.source, states.target, states.saves)
