"""Finds the running requests that read the same blocks, so that a device can read those blocks once for all of them.

Two block tables with the same block at the same index agree on all blocks before it, since a block of the prefix tree
has exactly one path from the root. So one column of the tables gives the members of a group, and bisection its depth.
A table that differs from its path in the tree counts up to there: an equal block that another request computed first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container

from quire.scheduler.request_state import RequestState
from quire.types.step import SharedPrefix

Member = tuple[list[int], int]  # block table, row


class PrefixGroups:
    """Groups of running requests. Searched again only after a request was admitted."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._groups: tuple[SharedPrefix, ...] = ()
        self._released_rows: set[int] = set()  # since the last `find`
        self._is_current = True

    def invalidate(self) -> None:
        """Search again: a request was admitted, and its table may begin like another."""
        self._is_current = False

    def remove_row(self, row: int) -> None:
        """Remove a released row. The other rows of its group still share their blocks."""
        self._released_rows.add(row)

    def find(self, running: list[RequestState], computing: Container[RequestState]) -> tuple[SharedPrefix, ...]:
        """Return the groups among the running requests.

        Blocks that a request in `computing` computes in this very step are not counted as shared by it: each of its
        tokens reads a different part of them. They are from the next step on.
        """
        if not self._is_current:
            members = [(self._table(state, state in computing), state.row) for state in running]
            self._groups = tuple(_split(members, 0))
            self._is_current = not any(state in computing for state in running)
        elif self._released_rows and self._groups:
            self._groups = tuple(kept for group in self._groups if (kept := self._without_released(group)) is not None)
        self._released_rows.clear()
        return self._groups

    def _table(self, state: RequestState, is_computing: bool) -> list[int]:
        assert state.lease is not None
        lease = state.lease
        table = lease.blocks[: state.computed // self._block_tokens] if is_computing else lease.blocks
        return table if lease.first_twin is None else table[: lease.first_twin]

    def _without_released(self, group: SharedPrefix) -> SharedPrefix | None:
        """Return the group without released rows, or None if fewer than two rows are left."""
        if self._released_rows.isdisjoint(group.rows):
            return group
        rows = tuple(row for row in group.rows if row not in self._released_rows)
        return SharedPrefix(rows, group.num_blocks) if len(rows) > 1 else None


def _split(members: list[Member], depth: int) -> list[SharedPrefix]:
    """Group tables that agree on their first `depth` blocks by their next blocks, so that the most reads are saved."""
    branches: defaultdict[int, list[Member]] = defaultdict(list)
    for member in members:
        if len(member[0]) > depth:
            branches[member[0][depth]].append(member)
    groups = []
    for branch in branches.values():
        if len(branch) > 1:
            common = _common_depth(branch)
            deeper = _split(branch, common)
            together = SharedPrefix(tuple(row for _, row in branch), common)
            groups += [together] if _saved_reads([together]) >= _saved_reads(deeper) else deeper
    return groups


def _saved_reads(groups: list[SharedPrefix]) -> int:
    """Return the block reads that a device saves by reading each group's blocks once."""
    return sum((len(group.rows) - 1) * group.num_blocks for group in groups)


def _common_depth(members: list[Member]) -> int:
    """Return how many blocks all these tables have in common; at least one."""
    low, high = 1, min(len(table) for table, _ in members)
    first = members[0][0]
    while low < high:
        middle = (low + high + 1) // 2
        block = first[middle - 1]
        if all(table[middle - 1] == block for table, _ in members):
            low = middle
        else:
            high = middle - 1
    return low
