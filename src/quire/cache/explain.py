"""Why a prompt hit or missed the prefix tree, in numbers and in a sentence."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import StrEnum

from quire.cache.history import History
from quire.cache.radix import NO_BLOCK, TOKEN_BYTES, PrefixTree, root_of, tokens_of
from quire.types.request import CacheKey


class Cause(StrEnum):
    """Why the hit ends where it ends."""

    WHOLE = "whole"  # every token was found
    DIVERGED = "diverged"  # the tree goes on here, with another token
    EVICTED = "evicted"  # the next block was here and had to go
    OTHER_SALT = "other_salt"  # the next tokens are known, but to another model, adapter or tenant
    UNSEEN = "unseen"  # nothing like the next tokens is remembered


@dataclass(frozen=True, slots=True)
class Explanation:
    """`num_hit` of `num_tokens` tokens were found; the first one that was not is at position `num_hit`."""

    num_tokens: int
    num_hit: int
    cause: Cause
    given: int | None = None  # the token of the prompt where the hit ends
    cached: int | None = None  # DIVERGED: the token that the tree has there instead
    evicted_at: float | None = None  # EVICTED: on the engine's clock

    def __str__(self) -> str:
        head = f"{self.num_hit} of {self.num_tokens} tokens were cached"
        match self.cause:
            case Cause.WHOLE:
                return f"{head}."
            case Cause.DIVERGED:
                return f"{head}; at position {self.num_hit} the prompt has token {self.given}, the cache {self.cached}."
            case Cause.EVICTED:
                return f"{head}; the block that follows was evicted at {self.evicted_at:.3f}."
            case Cause.OTHER_SALT:
                return f"{head}; what follows is cached for another model, adapter or salt."
            case Cause.UNSEEN:
                return f"{head}; what follows was not computed before, or is long forgotten."


def explain(tree: PrefixTree, history: History, tokens: array[int], key: CacheKey) -> Explanation:
    """Follow the tokens as `match` does and look around at the place where that ends. Changes nothing."""
    data = tokens.tobytes()
    root = root_of(key)
    reach = tree.reach(data, root)
    num_hit = reach.num_tokens
    if num_hit == len(tokens):
        return Explanation(len(tokens), num_hit, Cause.WHOLE)
    at = len(reach.blocks) * tree.block_tokens * TOKEN_BYTES
    lost = history.lost_at(reach.node + data[at : at + tree.block_tokens * TOKEN_BYTES])
    if lost is not None:
        return Explanation(len(tokens), num_hit, Cause.EVICTED, tokens[num_hit], evicted_at=lost)
    if any(tree.reach(data, other).num_tokens > num_hit for other in tree.roots if other != root):
        return Explanation(len(tokens), num_hit, Cause.OTHER_SALT, tokens[num_hit])
    beside = reach.near if reach.shared else next(iter(tree.children(reach.node)), NO_BLOCK)
    there = tokens_of(tree.chunk(beside))[reach.shared :] if num_hit and beside != NO_BLOCK else ()
    if there:
        return Explanation(len(tokens), num_hit, Cause.DIVERGED, tokens[num_hit], cached=there[0])
    return Explanation(len(tokens), num_hit, Cause.UNSEEN, tokens[num_hit])
