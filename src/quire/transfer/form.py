"""What the blocks of an engine are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockForm:
    """What the blocks of an engine are: two engines exchange them if both have the same layout."""

    layout: str
    block_tokens: int
    part_bytes: tuple[int, ...]  # of a block of all tokens, of each window group's, and of a state (0: there is none)
    has_own_memory: bool = False  # they lie in memory that is not the host's

    @property
    def max_bytes(self) -> int:
        """Bytes of a block with all its parts."""
        return sum(self.part_bytes)
