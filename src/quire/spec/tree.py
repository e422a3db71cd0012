"""Drafts from the prefix tree: what other requests and earlier turns had after the same whole context.

Nothing is stored for it: the tree has the tokens of everything that is cached. A request sees only what is below its
own root, so nothing crosses from one tenant or adapter to another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from quire.spec.drafter import NO_DRAFT, Draft, Text

LOOK_EVERY = 24  # tokens after a text was not found: it is rarely found soon after

T_contra = TypeVar("T_contra", bound=Text, contravariant=True)


class TreeDrafter(Generic[T_contra]):
    """Continues a text as an equal one was continued. `find` looks that up, up to so many tokens."""

    name = "tree"
    priors = (0.7,)

    def __init__(self, find: Callable[[T_contra, int], Sequence[int]]) -> None:
        self._find = find
        self._look_at: dict[str, int] = {}  # tokens from which a text is looked up again

    def propose(self, texts: Sequence[T_contra], limit: int) -> list[Draft]:
        """Return a draft for each text."""
        return [self._propose(text, limit) for text in texts]

    def forget(self, sample_id: str) -> None:
        """Drop when to look up a text again."""
        self._look_at.pop(sample_id, None)

    def _propose(self, text: T_contra, limit: int) -> Draft:
        if len(text.tokens) < self._look_at.get(text.sample_id, 0):
            return NO_DRAFT
        found = self._find(text, limit)
        if not found:
            self._look_at[text.sample_id] = len(text.tokens) + LOOK_EVERY
        return Draft(found)
