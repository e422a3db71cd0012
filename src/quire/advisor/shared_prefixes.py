"""Finds the prefixes that prompts share, as a tree, and the tokens that each saves in an unlimited prefix cache.

Prompts are sorted, so that those with a common prefix are neighbours. The tree consists of the intervals over which
neighbours have that many tokens in common. Equal marks mean equal prefixes, so a common length is a binary search.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.advisor.workload import TraceCall, TraceWorkload

EXCERPT_CHARS = 72
MIN_SAVING = 0.002  # share of the prompt tokens below which reports omit a prefix


@dataclass(slots=True)
class Prefix:
    """Tokens `start` to `end` that several calls share. Mutable only while the tree is built."""

    end: int
    num_calls: int
    example: int  # index of a call that has it
    start: int = 0
    tenant: str = ""
    excerpt: str = ""
    children: list[Prefix] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens after those of the parent."""
        return self.end - self.start

    @property
    def saves(self) -> int:
        """Prompt tokens that need not be computed because of it: its tokens, for all calls but the first."""
        return self.num_tokens * (self.num_calls - 1)

    @property
    def total_saving(self) -> int:
        """What it and its descendants save."""
        return self.saves + sum(child.total_saving for child in self.children)


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """The shared prefixes of a workload, largest saving first."""

    roots: tuple[Prefix, ...]
    num_prompt_tokens: int

    @property
    def saves(self) -> int:
        """Prompt tokens that all of them save."""
        return sum(root.total_saving for root in self.roots)

    @property
    def share(self) -> float:
        """Share of the prompt tokens that an earlier prompt had."""
        return self.saves / self.num_prompt_tokens if self.num_prompt_tokens else 0.0

    def largest(self, count: int) -> list[Prefix]:
        """Return the prefixes with the largest own savings, at any depth."""
        pending, prefixes = list(self.roots), []
        while pending:
            prefix = pending.pop()
            prefixes.append(prefix)
            pending += prefix.children
        return sorted(prefixes, key=lambda prefix: -prefix.saves)[:count]


def find_shared_prefixes(workload: TraceWorkload) -> SharedPrefixes:
    """Find what prompts with the same cache key share."""
    calls = workload.calls
    by_key: dict[object, list[int]] = {}
    for index, call in enumerate(calls):
        by_key.setdefault(call.key, []).append(index)
    roots = [root for indices in by_key.values() for root in _roots(calls, indices)]
    for root in roots:
        _fill_in(root, calls)
    roots.sort(key=lambda root: -root.total_saving)
    return SharedPrefixes(tuple(roots), workload.num_prompt)


def _roots(calls: Sequence[TraceCall], indices: list[int]) -> list[Prefix]:
    """Return the trees of one key's prompts, found with a stack of open intervals."""
    indices = sorted(indices, key=lambda index: calls[index].marks.tobytes())
    roots: list[Prefix] = []
    open_intervals: list[tuple[int, int, list[Prefix]]] = []  # length, first position, children so far
    lengths = [common_length(calls[one].marks, calls[two].marks) for one, two in itertools.pairwise(indices)]
    for at, length in enumerate([*lengths, 0]):
        first = at
        children: list[Prefix] = []
        while open_intervals and open_intervals[-1][0] > length:
            end, first, inside = open_intervals.pop()
            children = [Prefix(end, at + 1 - first, indices[first], children=inside + children)]
            if open_intervals and open_intervals[-1][0] > length:
                open_intervals[-1][2].extend(children)
                children = []
        if length and open_intervals and open_intervals[-1][0] == length:
            open_intervals[-1][2].extend(children)
        elif length:
            open_intervals.append((length, first, children))
        else:
            roots += children
    return roots


def _fill_in(root: Prefix, calls: Sequence[TraceCall]) -> None:
    """Set start, tenant and excerpt of a prefix and its descendants."""
    pending = [root]
    while pending:
        prefix = pending.pop()
        call = calls[prefix.example]
        prefix.tenant = call.key.salt
        if call.excerpt is not None:
            prefix.excerpt = " ".join(call.excerpt(prefix.start).split())[:EXCERPT_CHARS]
        prefix.children.sort(key=lambda child: -child.total_saving)
        for child in prefix.children:
            child.start = prefix.end
            pending.append(child)


def common_length(left: array[int], right: array[int]) -> int:
    """Return the number of tokens that two prompts have in common at their beginning."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[middle - 1] == right[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
