"""Explains a prompt's hit or miss in the prefix tree, in numbers and in a sentence."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from enum import StrEnum

from quire.cache.columns import Columns
from quire.cache.history import History
from quire.cache.radix import NO_BLOCK, TOKEN_BYTES, PrefixTree, TreeMatch, root_of, tokens_of
from quire.types.request import CacheKey


class Cause(StrEnum):
    """Why the hit ends where it ends."""

    WHOLE = "whole"  # every token was found; a model with states or windows always computes the last one
    DIVERGED = "diverged"  # the tree continues with another token
    EVICTED = "evicted"  # the next block was evicted
    OTHER_SALT = "other_salt"  # the next tokens are cached for another model, adapter or tenant
    UNSEEN = "unseen"  # the next tokens are in neither the tree nor the eviction history
    NO_CHECKPOINT = "no_checkpoint"  # more tokens are in the tree, but no state was kept after the hit
    WINDOW_EVICTED = "window_evicted"  # more tokens are in the tree, but window blocks before them were evicted


@dataclass(frozen=True, slots=True)
class Explanation:
    """A request resumes at position `num_hit`: that many of `num_tokens` tokens need not be computed."""

    num_tokens: int
    num_hit: int
    cause: Cause
    prompt_token: int | None = None  # the token of the prompt where the hit ends
    cached_token: int | None = None  # DIVERGED: the token in the tree at that position
    evicted_at: float | None = None  # EVICTED: on the engine's clock
    num_in_tree: int = 0  # tokens found in the tree: more than `num_hit` with the last two causes

    def __str__(self) -> str:
        head = f"{self.num_hit} of {self.num_tokens} tokens were cached"
        more = f"{head}; {self.num_in_tree - self.num_hit} more are in the tree"
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
            case Cause.NO_CHECKPOINT if not self.num_hit:
                return f"{more}, but no state was kept there."
            case Cause.NO_CHECKPOINT:
                return f"{more}, but the last state that was kept is at position {self.num_hit}."
            case Cause.WINDOW_EVICTED:
                return f"{more}, but blocks of a window before them were evicted."


def explain(
    tree: PrefixTree, columns: Columns | None, history: History, tokens: array[int], key: CacheKey
) -> Explanation:
    """Match the tokens and examine the place where the match ends. Changes nothing."""
    match = tree.match(tokens.tobytes(), root_of(key))
    num_hit, cause = match.num_tokens, None
    if columns is not None:
        num_hit, cause = _resume_point(columns, match, len(tokens))
    if cause is not None:
        token = tokens[num_hit] if num_hit < len(tokens) else None
        return Explanation(len(tokens), num_hit, cause, token, num_in_tree=match.num_tokens)
    explanation = _explain_match(tree, history, tokens, match, root_of(key))
    return replace(explanation, num_hit=num_hit, num_in_tree=match.num_tokens)


def _resume_point(columns: Columns, match: TreeMatch, num_tokens: int) -> tuple[int, Cause | None]:
    """Return where a request resumes, and why not where the match ends; None: it does."""
    most = min(match.num_tokens, num_tokens - 1)  # the last token is always computed, for its logits
    path = match.all_blocks
    at = columns.resume(path, most)
    if at == most:
        return at, None
    is_state_missing = columns.states is not None and columns.states.nearest(path, most)[0] == at
    return at, Cause.NO_CHECKPOINT if is_state_missing else Cause.WINDOW_EVICTED


def _explain_match(
    tree: PrefixTree, history: History, tokens: array[int], match: TreeMatch, root: bytes
) -> Explanation:
    """Explain why the match ends where it ends."""
    data, num_hit = tokens.tobytes(), match.num_tokens
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
