"""Sets of replicas as bit masks: one bit for each life of a replica's cache.

When a replica is removed, restarted or sends a snapshot, its bit is retired, and it gets another one. What the bit has
marked is swept up in small portions; then the bit is used again.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_REMEMBERED = 4096


class ReplicaBits:
    """Which replica has which bit."""

    def __init__(self) -> None:
        self._names: list[str | None] = []  # by the bit's number; None: free, retired or being swept
        self._numbers: dict[str, int] = {}
        self._names_of: dict[int, tuple[str, ...]] = {}  # results of `names`
        self.live = 0  # mask of the bits in use
        self.retired = 0  # mask of the bits to sweep

    def __contains__(self, name: str) -> bool:
        return name in self._numbers

    def mask_of(self, name: str) -> int:
        """Return the mask of a replica's bit; 0 if it has none."""
        number = self._numbers.get(name)
        return 0 if number is None else 1 << number

    def assign(self, name: str) -> int:
        """Give a replica a new bit, retire the old one, and return the new mask."""
        self.retire(name)
        taken = self.live | self.retired
        number = (~taken & (taken + 1)).bit_length() - 1  # the lowest bit that is neither live nor retired
        while len(self._names) <= number:
            self._names.append(None)
        self._names[number], self._numbers[name] = name, number
        self.live |= 1 << number
        self._names_of.clear()
        return 1 << number

    def retire(self, name: str) -> None:
        """Take a replica's bit away."""
        number = self._numbers.pop(name, None)
        if number is not None:
            self._names[number] = None
            self.live &= ~(1 << number)
            self.retired |= 1 << number
            self._names_of.clear()

    def release(self, mask: int) -> None:
        """Let retired bits be used again: nothing is marked with them any more."""
        self.retired &= ~mask

    def names(self, mask: int) -> tuple[str, ...]:
        """Return the replicas in a mask of live bits."""
        names = self._names_of.get(mask)
        if names is None:
            if len(self._names_of) >= MAX_REMEMBERED:
                self._names_of.clear()
            names = tuple(name for number, name in enumerate(self._names) if name is not None and mask >> number & 1)
            self._names_of[mask] = names
        return names


class InternedMasks:
    """One object for equal masks: millions of blocks share a few sets of replicas."""

    SPARE = 65_536  # masks kept although no block has them

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._limit = self.SPARE

    def get(self, mask: int) -> int:
        """Return the object for this mask."""
        return self._known.setdefault(mask, mask)

    @property
    def is_full(self) -> bool:
        """Are there many masks, most of which may be unused?"""
        return len(self._known) > self._limit

    def keep(self, used: Iterable[int]) -> None:
        """Forget all masks but those in use."""
        self._known = {mask: mask for mask in used}
        self._limit = 2 * len(self._known) + self.SPARE
