"""Encoder-decoders on a GPU: attention to an encoder's output, neighbours of tokens, and how sources get into blocks.

An encoder's output never leaves the device: its program and that of the pairs run on the stream of the decoder, before
the step that reads the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.devices._triton.attention import PLAIN
from quire.devices._triton.attention_work import AttentionKind
from quire.devices._triton.bidirectional import shift_rows
from quire.devices._triton.kv_write import write_kv
from quire.devices.base import Limits, Program
from quire.graph.graph import Node
from quire.ops.batch import Batch
from quire.ops.cache import Cross

from .attention import AttendCache
from .caches import Caches
from .encoder import CudaEncoder
from .instructions import Run

if TYPE_CHECKING:
    from .lower import Lowering

Array = NDArray[Any]
BEYOND = 1 << 30  # a position behind every source
PAIR_BYTES = 256 << 20  # of keys and values of all layers that are computed at once


@dataclass(frozen=True, slots=True, eq=False)
class ShiftTokens:
    """The neighbours of tokens in their rows."""

    value: int
    by: int
    out: int

    def __call__(self, run: Run) -> None:
        run.values[self.out] = shift_rows(run.whole(self.value), run.row_bounds(), self.by)


def lower_attention_source(lowering: Lowering, node: Node) -> AttendCache:
    """attention_source: over blocks that were stored before the step."""
    assert node.cache is not None
    (q,), spec = node.inputs, lowering.graph.caches[node.cache]
    assert isinstance(spec, Cross)
    kind = AttentionKind.of(spec.paged, q.dim)._replace(is_source=True)
    chunk, scale, out = lowering.fixed_chunk, node.attrs["scale"], node.output.id
    return AttendCache(q.id, None, None, lowering.caches, node.cache, kind, scale, PLAIN, chunk, out)


def lower_shift_tokens(lowering: Lowering, node: Node) -> ShiftTokens:
    """shift_tokens."""
    return ShiftTokens(node.inputs[0].id, node.attrs["by"], node.output.id)


def source_blocks(limits: Limits) -> int:
    """Return the blocks of the longest source that a row may read."""
    return limits.max_source_blocks or limits.num_source_blocks


def store_pairs(caches: Caches, slots: Array, pairs: Tensor) -> None:
    """Store pairs [n, all layers], a layer's keys and then its values, in slots [n] of the layers' caches."""
    places, at = torch.from_numpy(slots).to(pairs.device), 0
    for layer, spec in enumerate(caches.specs):
        if not isinstance(spec, Cross):
            continue
        keys, values = spec.num_heads * spec.key_dim, spec.num_heads * spec.value_dim
        k, v = pairs[:, at : at + keys], pairs[:, at + keys : at + keys + values]
        write_kv(k, v, places, *caches.of(layer))
        at += keys + values


def compute_pairs(caches: Caches, batch: Batch, slots: Array, programs: tuple[Program, Program]) -> None:
    """Encode whole sources, and store the pairs of all their tokens."""
    encoder, pairs = programs
    assert isinstance(encoder, CudaEncoder) and isinstance(pairs, CudaEncoder)
    hidden = encoder.run(batch)
    count = max(1, min(pairs.limits.max_tokens, PAIR_BYTES // (4 * pairs.output.dim)))
    for first in range(0, len(hidden), count):
        part = hidden[first : first + count]
        store_pairs(caches, slots[first : first + count], pairs.run_rows(part))
