"""A device's memory, as far as the cache is concerned: which tokens were computed into which block and slot.

A token's content is the whole text up to it, so content that belongs to another text is always noticed.
"""

from __future__ import annotations

from quire.cache.lease import NO_SLOT, Lease
from quire.cache.radix import NO_BLOCK
from quire.types.step import CopyBlock

Text = tuple[int, ...]


class Memory:
    def __init__(self, block_tokens: int, windows: tuple[int, ...]) -> None:
        self.block_tokens = block_tokens
        self.windows = windows
        self.tokens: dict[tuple[int, int, int], Text] = {}  # group, block, offset
        self.states: dict[int, Text] = {}
        self.uncommitted: set[tuple[int, int, int]] = set()  # group, block, offset: written by steps in flight

    def begin(self, lease: Lease, text: Text) -> int:
        """Do the copies of a lease's first step; return the slot that its state is read from."""
        for group, copy in enumerate([lease.copy, *(window.copy for window in lease.windows)]):
            if copy is not None:
                copied = {(group, copy.source, offset) for offset in range(copy.num_tokens)}
                assert copied.isdisjoint(self.uncommitted), "a block's head is copied before it is computed"
                self.copy(group, copy)
        if lease.state is None:
            return NO_SLOT
        source = lease.state.source
        assert (source == NO_SLOT) == (lease.num_hit == 0)
        assert source == NO_SLOT or self.states[source] == text[: lease.num_hit], "it resumes with another text's state"
        return source

    def copy(self, group: int, copy: CopyBlock) -> None:
        for offset in range(copy.num_tokens):
            self.tokens[group, copy.target, offset] = self.tokens[group, copy.source, offset]

    def compute(self, lease: Lease, text: Text, start: int, end: int) -> None:
        """Check what the tokens from `start` to `end` read, and write them."""
        tables = [lease.blocks, *(window.blocks for window in lease.windows)]
        reaches = [len(text), *self.windows]
        for group, (table, reach) in enumerate(zip(tables, reaches, strict=True)):
            for position in range(max(0, start + 1 - reach), start):
                place, offset = divmod(position, self.block_tokens)
                assert table[place] != NO_BLOCK, "a block in the window is not held"
                assert self.tokens[group, table[place], offset] == text[: position + 1], "it reads another text"
            for position in range(start, end):
                place, offset = divmod(position, self.block_tokens)
                self.tokens[group, table[place], offset] = text[: position + 1]
                self.uncommitted.add((group, table[place], offset))

    def advance(self, source: int, target: int, text: Text, start: int, end: int) -> None:
        """Check the state that a step reads, and write the one after it."""
        assert start == 0 or self.states[source] == text[:start], "the state is that of another text"
        self.states[target] = text[:end]

    def commit(self, lease: Lease, start: int, end: int) -> None:
        for group, table in enumerate([lease.blocks, *(window.blocks for window in lease.windows)]):
            for position in range(start, end):
                place, offset = divmod(position, self.block_tokens)
                self.uncommitted.discard((group, table[place], offset))

    def lose(self, lease: Lease, start: int, end: int) -> None:
        """Destroy what a failed step should have written."""
        for group, table in enumerate([lease.blocks, *(window.blocks for window in lease.windows)]):
            for position in range(start, end):
                place, offset = divmod(position, self.block_tokens)
                if table[place] != NO_BLOCK:
                    self.tokens[group, table[place], offset] = ()
        self.commit(lease, start, end)
