"""What `match` finds and what a request holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quire.cache.radix import PrefixTree
from quire.types.request import CacheKey, Pin
from quire.types.step import CopyBlock

NO_SLOT = -1  # no state: it begins with zeros


class Hit(NamedTuple):
    """The prefix of some tokens at which a request can resume: whole blocks, then the head of one more."""

    blocks: list[int]
    num_tokens: int
    source: int  # the block whose head is to be copied, or NO_BLOCK
    leader: Lease | None  # the lease that computes the next block, if there is one
    node: bytes = b""  # identity of the last block of `path`
    limit: int | None = None  # how many tokens were looked up
    version: int = -1  # `num_changes` of the tree
    depth: int = 0  # tokens found in the tree; more than `num_tokens` where a window's block or a state is missing
    path: Sequence[int] = ()  # the whole blocks found in the tree; `blocks` are the first of them
    state: int = NO_SLOT  # the slot of the state after `num_tokens` tokens
    window_sources: tuple[int, ...] = ()  # for each window group, the block whose head is to be copied, or NO_BLOCK


@dataclass(slots=True, eq=False)
class WindowLease:
    """A request's blocks of one window group. Only the cache changes it, but for `num_sent`."""

    blocks: list[int]  # by place, position // block_tokens; NO_BLOCK before `first`
    first: int  # place of the first block that is held
    num_stored: int  # places whose blocks were added to the tree, or had a block there
    num_sent: int = 0  # places that the runner has; kept by the scheduler
    resume_points: tuple[int, ...] = ()  # positions where other requests are likely to resume
    copy: CopyBlock | None = None  # done before the first step; its source is held until then


@dataclass(slots=True, eq=False)
class StateLease:
    """A request's state slots. Only the cache changes it."""

    source: int  # read by the first step, and held until it is over; then NO_SLOT
    target: int  # the live slot: it has the state after the newest token that is scheduled
    wanted: list[int]  # positions, ascending, at which a checkpoint is to be made
    planned: int  # tokens in planned steps, as far as `take_saves` was called
    saved: list[tuple[int, int]] = field(default_factory=list)  # (position, slot) of checkpoints not in the tree yet
    branch: int = NO_SLOT  # written by a step with drafts instead of `target`

    def slots(self) -> list[int]:
        """Return every slot that is held."""
        return [slot for slot in (self.source, self.target, self.branch) if slot != NO_SLOT] + [
            slot for _, slot in self.saved
        ]


@dataclass(slots=True, eq=False)
class Lease:
    """The blocks that one request holds. Only the cache changes it."""

    key: CacheKey
    num_known: int  # tokens known at its start: others may wait for their blocks, but not for sampled ones
    pins: tuple[Pin, ...]
    blocks: list[int]  # the request's block table
    path: list[int]  # the tree's blocks for the full ones; differs from `blocks` where an equal block came first
    first_twin: int | None = field(default=None, kw_only=True)  # the first place where they differ
    num_hit: int  # tokens that need not be computed
    copy: CopyBlock | None = None  # done before the first step; its source is held until then
    announced_edge: bytes = b""  # the edge that this lease is the first to compute
    is_private: bool = False  # no more of its blocks are added to the tree
    windows: list[WindowLease] = field(default_factory=list)
    state: StateLease | None = None

    def twins(self) -> list[int]:
        """Return the blocks of `path` that are not ours but equal to ours: they are held to keep the path."""
        if self.first_twin is None:  # nearly always
            return []
        return [twin for twin, block in zip(self.path, self.blocks, strict=False) if twin != block]

    def twin_before(self, place: int) -> int | None:
        """Return the first place before this one where path and blocks differ."""
        return self.first_twin if self.first_twin is not None and self.first_twin < place else None

    def held_blocks(self) -> list[int]:
        """Return every hold on a block of the group of all tokens."""
        return self.blocks + self.twins() + ([] if self.copy is None else [self.copy.source])

    def check(self, tree: PrefixTree) -> None:
        """Assert that the path is in the tree, and first differs from the blocks where it says."""
        assert self.is_private or all(block in tree for block in self.path)
        differing = (place for place, block in enumerate(self.path) if block != self.blocks[place])
        assert self.first_twin == next(differing, None)
