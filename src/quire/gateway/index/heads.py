"""The tokens of blocks, by the digest before them: how far a prompt goes into a block that it does not have in common.

An engine copies the common head of such a block, so a hit is exact to the token. Tokens are kept in two generations of
limited size; a look-up moves what it uses to the younger one. For blocks in neither, a hit is exact to the block.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

TOKEN_BYTES = 4
MAX_PARENTS = 500_000  # of one generation: about 110 MB
MAX_TRIED = 16  # children compared with a prompt


class BlockHeads:
    """Children of blocks as bytes of their tokens, sorted: the longest common head is next to a prompt's place."""

    def __init__(self, max_parents: int = MAX_PARENTS) -> None:
        self._max_parents = max_parents
        self._young: dict[bytes, bytes | list[bytes]] = {}  # most blocks have one child, stored without a list
        self._old: dict[bytes, bytes | list[bytes]] = {}

    def add(self, parent: bytes, chunk: bytes) -> None:
        """Add a block with these tokens after `parent`."""
        known = self._children(parent)
        if known is None:
            self._keep(parent, chunk)
        elif isinstance(known, bytes):
            if known != chunk:
                self._keep(parent, sorted((known, chunk)))
        else:
            at = bisect_left(known, chunk)
            if at == len(known) or known[at] != chunk:
                insort(known, chunk)

    def discard(self, parent: bytes, chunk: bytes) -> None:
        """Remove a block that no replica has any more."""
        known = self._children(parent)
        if isinstance(known, list):
            at = bisect_left(known, chunk)
            if at < len(known) and known[at] == chunk:
                del known[at]
                if len(known) == 1:
                    self._keep(parent, known[0])
        elif known == chunk:
            self._young.pop(parent, None)
            self._old.pop(parent, None)

    def nearest(self, parent: bytes, tokens: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the blocks after `parent` with a common head with these tokens, the longest head first.

        Nothing may be added or discarded meanwhile: a block may have thousands of children, which are not copied.
        """
        known = self._children(parent)
        if known is None:
            return
        chunks = [known] if isinstance(known, bytes) else known
        after = bisect_left(chunks, tokens)
        before = after - 1
        for _ in range(MAX_TRIED):
            left = common_tokens(chunks[before], tokens) if before >= 0 else 0
            right = common_tokens(chunks[after], tokens) if after < len(chunks) else 0
            if not left and not right:
                return
            if left > right:
                yield left, chunks[before]
                before -= 1
            else:
                yield right, chunks[after]
                after += 1

    def _children(self, parent: bytes) -> bytes | list[bytes] | None:
        """Return the children of a block, and move them to the younger generation."""
        known = self._young.get(parent)
        if known is None and (known := self._old.pop(parent, None)) is not None:
            self._keep(parent, known)
        return known

    def _keep(self, parent: bytes, children: bytes | list[bytes]) -> None:
        self._young[parent] = children
        if len(self._young) > self._max_parents:
            self._old, self._young = self._young, {}


def common_tokens(left: bytes, right: bytes) -> int:
    """Return how many tokens two chunks have in common at their beginning."""
    size = min(len(left), len(right))
    differ = int.from_bytes(left[:size], "big") ^ int.from_bytes(right[:size], "big")
    return (size - (differ.bit_length() + 7) // 8) // TOKEN_BYTES
