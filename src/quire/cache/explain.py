"""Explains a prompt's hit or miss in the prefix tree, in numbers and in a sentence."""

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
    DIVERGED = "diverged"  # the tree continues with another token
    EVICTED = "evicted"  # the next block was evicted
    OTHER_SALT = "other_salt"  # the next tokens are cached for another model, adapter or tenant
    UNSEEN = "unseen"  # the next tokens are in neither the tree nor the eviction history


@dataclass(frozen=True, slots=True)
class Explanation:
    """`num_hit` of `num_tokens` tokens were found; the first missing one is at position `num_hit`."""

    num_tokens: int
    num_hit: int
    cause: Cause
    prompt_token: int | None = None  # the token of the prompt where the hit ends
    cached_token: int | None = None  # DIVERGED: the token in the tree at that position
    evicted_at: float | None = None  # EVICTED: on the engine's clock

    def __str__(self) -> str:
        head = f"{self.num_hit} of {self.num_tokens} tokens were cached"
        match self.cause:
            case Cause.WHOLE:
                return f"{head}."
            case Cause.DIVERGED:
                tokens = f"the prompt has token {self.prompt_token}, the cache {self.cached_token}"
                return f"{head}; at position {self.num_hit} {tokens}."
            case Cause.EVICTED:
                return f"{head}; the next block was evicted at {self.evicted_at:.3f}."
            case Cause.OTHER_SALT:
                return f"{head}; the next tokens are cached for another model, adapter or salt."
            case Cause.UNSEEN:
                return f"{head}; the next tokens were never computed, or evicted long ago."


def explain(tree: PrefixTree, history: History, tokens: array[int], key: CacheKey) -> Explanation:
    """Match the tokens and examine the place where the match ends. Changes nothing."""
    data = tokens.tobytes()
    root = root_of(key)
    match = tree.match(data, root)
    num_hit = match.num_tokens
    if num_hit == len(tokens):
        return Explanation(len(tokens), num_hit, Cause.WHOLE)
    at = len(match.blocks) * tree.block_tokens * TOKEN_BYTES
    evicted_at = history.eviction_time(match.node + data[at : at + tree.block_tokens * TOKEN_BYTES])
    if evicted_at is not None:
        return Explanation(len(tokens), num_hit, Cause.EVICTED, tokens[num_hit], evicted_at=evicted_at)
    if any(tree.match(data, other).num_tokens > num_hit for other in tree.roots if other != root):
        return Explanation(len(tokens), num_hit, Cause.OTHER_SALT, tokens[num_hit])
    sibling = match.partial_block if match.num_partial else next(iter(tree.children(match.node)), NO_BLOCK)
    rest = tokens_of(tree.chunk(sibling))[match.num_partial :] if num_hit and sibling != NO_BLOCK else ()
    if rest:
        return Explanation(len(tokens), num_hit, Cause.DIVERGED, tokens[num_hit], cached_token=rest[0])
    return Explanation(len(tokens), num_hit, Cause.UNSEEN, tokens[num_hit])
