"""The layout and sizes of an engine's KV blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockForm:
    """Layout and sizes of blocks. Two engines exchange blocks only if their layouts are equal."""

    layout: str
    block_tokens: int
    part_bytes: tuple[int, ...]  # of a full-attention block, of a block of each window group, of a state (0: none)
    has_own_memory: bool = False  # the blocks are in device memory, not in host memory

    @property
    def max_bytes(self) -> int:
        """Bytes of a block with all its parts."""
        return sum(self.part_bytes)
