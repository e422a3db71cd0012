"""Partly filled blocks: which sizes of them follow a block, so that a lookup tries only these."""

from __future__ import annotations

from collections.abc import Iterator


class Tails:
    """The partly filled blocks of an index, by the digest before them."""

    def __init__(self) -> None:
        self._parents: dict[bytes, bytes] = {}  # digest of a partly filled block -> digest of its parent
        self._sizes: dict[bytes, tuple[int, int]] = {}  # parent -> how many, their sizes as bits; some may be gone

    def add(self, digest: bytes, parent: bytes, size: int) -> None:
        """Add a partly filled block of `size` tokens."""
        count, sizes = self._sizes.get(parent, (0, 0))
        self._parents[digest] = parent
        self._sizes[parent] = (count + 1, sizes | 1 << size)

    def discard(self, digest: bytes) -> None:
        """Remove a block; one that is not partly filled is ignored."""
        parent = self._parents.pop(digest, None)
        if parent is not None:
            count, sizes = self._sizes[parent]
            if count > 1:
                self._sizes[parent] = (count - 1, sizes)
            else:
                del self._sizes[parent]

    def sizes(self, parent: bytes) -> Iterator[int]:
        """Yield the sizes of partly filled blocks after this one, largest first. Some may be gone."""
        sizes = self._sizes.get(parent, (0, 0))[1]
        while sizes:
            size = sizes.bit_length() - 1
            sizes ^= 1 << size
            yield size
