"""Which beginnings prompts share, as a tree, and how many tokens each would save in a cache that forgets nothing.

Prompts are sorted, so that those with a common beginning are neighbours; the tree is that of the intervals over which
neighbours have so many tokens in common. A mark stands for all before it, so how many that is, is a binary search.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.advisor.workload import Call, Workload

SHOWN_WORDS = 72  # characters of an excerpt
LEAST_SAVING = 0.002  # of the prompt tokens: below, a prefix is not worth showing


@dataclass(slots=True)
class Prefix:
    """Tokens `start` to `end` of some calls. Mutable while the tree is built; afterwards nobody changes it."""

    end: int
    num_calls: int
    example: int  # place of a call that has it
    start: int = 0
    tenant: str = ""
    words: str = ""
    children: list[Prefix] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Its own, after those of its parent."""
        return self.end - self.start

    @property
    def saves(self) -> int:
        """Prompt tokens that need not be computed because of it: its own, for all calls but the first."""
        return self.num_tokens * (self.num_calls - 1)

    @property
    def saves_in_all(self) -> int:
        """Those of its continuations included."""
        return self.saves + sum(child.saves_in_all for child in self.children)


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """The shared beginnings of a workload, those that save most first."""

    roots: tuple[Prefix, ...]
    num_prompt_tokens: int

    @property
    def saves(self) -> int:
        """Tokens that all of them save."""
        return sum(root.saves_in_all for root in self.roots)

    @property
    def share(self) -> float:
        """Of all prompt tokens, those that were in an earlier prompt."""
        return self.saves / self.num_prompt_tokens if self.num_prompt_tokens else 0.0

    def largest(self, count: int) -> list[Prefix]:
        """Those that save most, wherever they are in the tree."""
        waiting, found = list(self.roots), []
        while waiting:
            prefix = waiting.pop()
            found.append(prefix)
            waiting += prefix.children
        return sorted(found, key=lambda each: -each.saves)[:count]


def prefix_tree(workload: Workload) -> PrefixTree:
    """What the prompts share, within each key."""
    calls = workload.calls
    by_key: dict[object, list[int]] = {}
    for place, call in enumerate(calls):
        by_key.setdefault(call.key, []).append(place)
    roots = [root for places in by_key.values() for root in _roots(calls, places)]
    for root in roots:
        _finish(root, calls)
    roots.sort(key=lambda root: -root.saves_in_all)
    return PrefixTree(tuple(roots), workload.num_prompt)


def _roots(calls: Sequence[Call], places: list[int]) -> list[Prefix]:
    """The intervals of one key's prompts, by a stack of those that are still open."""
    places = sorted(places, key=lambda place: calls[place].marks.tobytes())
    roots: list[Prefix] = []
    opened: list[tuple[int, int, list[Prefix]]] = []  # length, first place, children found so far
    heights = [common(calls[one].marks, calls[two].marks) for one, two in itertools.pairwise(places)]
    for at, height in enumerate([*heights, 0]):
        first = at
        children: list[Prefix] = []
        while opened and opened[-1][0] > height:
            length, first, inside = opened.pop()
            made = Prefix(length, at + 1 - first, places[first], children=inside + children)
            children = [made]
            if opened and opened[-1][0] > height:
                opened[-1][2].extend(children)
                children = []
        if height and opened and opened[-1][0] == height:
            opened[-1][2].extend(children)
        elif height:
            opened.append((height, first, children))
        else:
            roots += children
    return roots


def _finish(prefix: Prefix, calls: Sequence[Call]) -> None:
    """Where its own tokens begin, and how they read."""
    waiting = [prefix]
    while waiting:
        each = waiting.pop()
        call = calls[each.example]
        each.tenant = call.key.salt
        if call.excerpt is not None:
            each.words = " ".join(call.excerpt(each.start).split())[:SHOWN_WORDS]
        each.children.sort(key=lambda child: -child.saves_in_all)
        for child in each.children:
            child.start = each.end
            waiting.append(child)


def common(left: array[int], right: array[int]) -> int:
    """How many tokens two prompts begin with together."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[middle - 1] == right[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
