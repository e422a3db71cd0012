"""Which running requests read the same blocks, so that a device can read those once for all of them.

Two tables that have the same block at the same place agree on all blocks before it: a block of the tree has one past.
So the members of a group are found by looking at one column of their tables, and its depth by bisection.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container

from quire.scheduler.request_state import RequestState
from quire.types.step import SharedPrefix

Member = tuple[list[int], int]  # block table, row


class PrefixGroups:
    """The groups of the running requests; found anew only when someone has joined."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._groups: tuple[SharedPrefix, ...] = ()
        self._left: set[int] = set()  # rows given up since the groups were told
        self._is_current = True

    def joined(self) -> None:
        """A request has joined: its table may begin like others'."""
        self._is_current = False

    def left(self, row: int) -> None:
        """A row was given up. The others still share what they shared."""
        self._left.add(row)

    def find(self, running: list[RequestState], computing: Container[RequestState]) -> tuple[SharedPrefix, ...]:
        """The groups among these requests. Some are `computing` blocks that others may read in the same step: with
        those they share them from the next one on, since each of their tokens reads of them what is before it."""
        if not self._is_current:
            members = [(self._table(state, state in computing), state.row) for state in running]
            self._groups = tuple(_split(members, 0))
            self._is_current = not any(state in computing for state in running)
        elif self._left and self._groups:
            self._groups = tuple(kept for group in self._groups if (kept := self._without(group)) is not None)
        self._left.clear()
        return self._groups

    def _table(self, state: RequestState, is_computing: bool) -> list[int]:
        assert state.lease is not None
        return state.lease.blocks[: state.computed // self._block_tokens] if is_computing else state.lease.blocks

    def _without(self, group: SharedPrefix) -> SharedPrefix | None:
        """What is left of a group, if it is one still."""
        if self._left.isdisjoint(group.rows):
            return group
        rows = tuple(row for row in group.rows if row not in self._left)
        return SharedPrefix(rows, group.num_blocks) if len(rows) > 1 else None


def _split(members: list[Member], depth: int) -> list[SharedPrefix]:
    """Group tables that agree on their first `depth` blocks by how they go on, so that most reads are saved."""
    ways: defaultdict[int, list[Member]] = defaultdict(list)
    for member in members:
        if len(member[0]) > depth:
            ways[member[0][depth]].append(member)
    groups = []
    for way in ways.values():
        if len(way) > 1:
            common = _common_depth(way)
            deeper = _split(way, common)
            together = SharedPrefix(tuple(row for _, row in way), common)
            groups += [together] if _saved([together]) >= _saved(deeper) else deeper
    return groups


def _saved(groups: list[SharedPrefix]) -> int:
    """Block reads that a device saves by reading each group's blocks once."""
    return sum((len(group.rows) - 1) * group.num_blocks for group in groups)


def _common_depth(members: list[Member]) -> int:
    """How many blocks all these tables have in common; at least one."""
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
