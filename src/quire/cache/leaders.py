"""Leaders: which lease computes a block that the tree does not have yet, so that others can wait for it."""

from __future__ import annotations

from array import array

from quire.cache.lease import Hit, Lease
from quire.cache.radix import PrefixTree, common_head, root_of


class Leaders:
    """The next block of every running lease, if its tokens are known. Only the cache calls it.

    For a model with states also the last one, of which not all tokens are known: a request that does not wait for the
    checkpoint in it may have to compute all tokens before it.
    """

    def __init__(self, tree: PrefixTree, has_states: bool) -> None:
        self._tree = tree
        self._has_states = has_states
        self._leases: dict[bytes, Lease] = {}  # edge -> the lease that will seal it

    def announce(self, lease: Lease, tokens: array[int]) -> None:
        """Announce the next block that this lease computes, if its tokens are known and no other lease does."""
        self.retract(lease)
        size = self._tree.block_tokens
        begin = len(lease.path) * size
        end = begin + size
        if end > lease.num_known:
            if not self._has_states or begin >= lease.num_known:
                return
            end = lease.num_known
        node = self._tree.node(lease.path[-1]) if lease.path else root_of(lease.key)
        edge = node + tokens[begin:end].tobytes()
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
        chunk = tokens[at : at + size].tobytes()
        leader = self._leases.get(hit.node + chunk)
        if leader is None and self._has_states:
            leader = self._with_common_head(hit.node, chunk)
        if leader is None and hit.num_tokens < hit.depth:
            again = (self._leases.get(self._tree.key(node)) for node in reversed(hit.path[len(hit.blocks) :]))
            leader = next((lease for lease in again if lease is not None), None)
        return leader

    def _with_common_head(self, node: bytes, chunk: bytes) -> Lease | None:
        """Return the lease whose next block has the most tokens in common with the one after a node, if any has."""
        heads = {edge: common_head(edge[len(node) :], chunk) for edge in self._leases if edge.startswith(node)}
        longest = max(heads, key=lambda edge: heads[edge], default=b"")
        return self._leases[longest] if heads.get(longest) else None

    def check(self, leases: dict[int, Lease]) -> None:
        """Assert that every announcement is that of a running lease."""
        announced = {lease.announced_edge: lease for lease in leases.values() if lease.announced_edge}
        assert announced == self._leases
