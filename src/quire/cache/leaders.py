"""Leaders: which lease computes a block that the tree does not have yet, so that others can wait for it."""

from __future__ import annotations

from array import array

from quire.cache.lease import Hit, Lease
from quire.cache.radix import PrefixTree, root_of


class Leaders:
    """The next block of every running lease, if its tokens are known. Only the cache calls it."""

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self._leases: dict[bytes, Lease] = {}  # edge -> the lease that will seal it

    def announce(self, lease: Lease, tokens: array[int]) -> None:
        """Announce the next block that this lease computes, if its tokens are known and no other lease does."""
        self.retract(lease)
        size = self._tree.block_tokens
        end = (len(lease.path) + 1) * size
        if end <= lease.num_known:
            node = self._tree.node(lease.path[-1]) if lease.path else root_of(lease.key)
            edge = node + tokens[end - size : end].tobytes()
            if self._leases.setdefault(edge, lease) is lease:
                lease.announced_edge = edge

    def retract(self, lease: Lease) -> None:
        """Remove the announcement of a lease."""
        if lease.announced_edge:
            del self._leases[lease.announced_edge]
            lease.announced_edge = b""

    def find(self, hit: Hit, tokens: array[int]) -> Lease | None:
        """Return the lease that computes the block after those found, or that computes one of them again."""
        if not self._leases:
            return None
        size = self._tree.block_tokens
        at = len(hit.path) * size
        leader = self._leases.get(hit.node + tokens[at : at + size].tobytes())
        if leader is None and hit.num_tokens < hit.depth:
            again = (self._leases.get(self._tree.key(node)) for node in reversed(hit.path[len(hit.blocks) :]))
            leader = next((lease for lease in again if lease is not None), None)
        return leader

    def check(self, leases: dict[int, Lease]) -> None:
        """Assert that every announcement is that of a running lease."""
        announced = {lease.announced_edge: lease for lease in leases.values() if lease.announced_edge}
        assert announced == self._leases
