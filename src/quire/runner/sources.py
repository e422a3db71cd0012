"""Encodes sources: runs the encoder, then stores keys and values of each decoder layer in the decoder's blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from quire.devices.base import ComputesSources, Device, Limits, LoweringOptions, Program, StoresSources
from quire.graph.weight import Weights
from quire.models.source import DrawnSource
from quire.ops.batch import Batch, RowPart
from quire.runner.alignment import Alignment, source_slots
from quire.types.source import EncoderInput, SourceBlocks

Array = NDArray[Any]
STEP_TOKENS = 2048  # of short sources that are encoded together
PAIR_TOKENS = 256  # whose keys and values are computed at once: of all layers they are many numbers
MOST_ROWS = 64


def source_limits(source: DrawnSource, limits: Limits) -> tuple[Limits, Limits]:
    """The limits of the encoder's program and of that of the pairs. Neither keeps anything between steps."""
    tokens, size = max(source.max_tokens, STEP_TOKENS), limits.block_tokens
    plain = replace(limits, windows=(), num_states=0, num_source_blocks=0, max_source_blocks=0)
    blocks = -(-tokens // size) + MOST_ROWS
    encoder = replace(plain, max_tokens=tokens, max_rows=MOST_ROWS, max_logits=tokens, max_blocks=blocks,
                      num_blocks=blocks)  # fmt: skip
    pairs = PAIR_TOKENS // size
    return encoder, replace(plain, max_tokens=PAIR_TOKENS, max_rows=1, max_logits=PAIR_TOKENS, max_blocks=pairs,
                            num_blocks=pairs)  # fmt: skip


def lower_source(device: Device, source: DrawnSource, limits: Limits, options: LoweringOptions) -> SourcePrograms:
    """Lower both graphs."""
    encoder, pairs = source_limits(source, limits)
    options = replace(options, kept=None, samples=False)
    first, second = (
        device.lower(graph, _used(source.weights, graph.weight_names()), each, options)
        for graph, each in ((source.encoder, encoder), (source.pairs, pairs))
    )
    size, columns = limits.block_tokens, source.aligned_keys
    alignment = Alignment(columns, limits.num_source_blocks * size, size) if len(columns) else None
    return SourcePrograms(first, second, source.num_features, encoder.max_tokens, size, alignment)


def _used(weights: Weights, names: Iterable[str]) -> Weights:
    return {name: weights[name] for name in names}


@dataclass(frozen=True, slots=True)
class SourcePrograms:
    """What computes sources."""

    encoder: Program
    pairs: Program
    num_features: int  # 0: sources are token ids
    max_tokens: int  # of one launch
    block_tokens: int
    alignment: Alignment | None = None  # of models that find words in their sources

    def encode(self, joined: Sequence[SourceBlocks], decoder: object) -> None:
        """Encode the new ones among these sources, and store them in the decoder's blocks."""
        new = [each for each in joined if each.source is not None]
        while new:
            count, total = 1, new[0].num_tokens
            while count < min(len(new), MOST_ROWS) and total + new[count].num_tokens <= self.max_tokens:
                total += new[count].num_tokens
                count += 1
            self._encode(new[:count], decoder)
            new = new[count:]

    def _encode(self, sources: Sequence[SourceBlocks], decoder: object) -> None:
        batch = self._batch([cast(EncoderInput, each.source) for each in sources])
        slots = np.concatenate([source_slots(each, self.block_tokens) for each in sources])
        if isinstance(decoder, ComputesSources) and self.alignment is None:  # else the host needs some of the keys
            decoder.compute_source(batch, slots, self.encoder, self.pairs)
            return
        hidden = self.encoder.launch(batch).result().logits
        assert hidden is not None
        for first in range(0, len(slots), PAIR_TOKENS):
            part = hidden[first : first + PAIR_TOKENS]
            blocks = range(-(-len(part) // self.block_tokens))
            batch = Batch.of([RowPart([0] * len(part), 0, blocks, len(part))], self.block_tokens)
            pairs = self.pairs.launch(replace(batch, features=part)).result().logits
            assert pairs is not None
            cast(StoresSources, decoder).store_source(slots[first : first + PAIR_TOKENS], pairs)
            if self.alignment is not None:
                self.alignment.store(slots[first : first + PAIR_TOKENS], pairs)

    def _batch(self, sources: Sequence[EncoderInput]) -> Batch:
        """A step of the encoder: all tokens of these sources."""
        parts, first = [], 0
        for source in sources:
            blocks = range(first, first + -(-source.num_tokens // self.block_tokens))
            first += len(blocks)
            parts.append(RowPart(source.tokens or [0] * source.num_tokens, 0, blocks, source.num_tokens))
        batch = Batch.of(parts, self.block_tokens)
        if self.num_features:
            rows = [np.frombuffer(source.features, np.float32).reshape(-1, self.num_features) for source in sources]
            batch = replace(batch, features=np.concatenate(rows))
        return batch
