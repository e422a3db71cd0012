"""What a drafter is: it proposes tokens that may follow some texts, for all of them at once and in microseconds."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Text(Protocol):
    """What a drafter reads of a running text."""

    @property
    def sample_id(self) -> str: ...
    @property
    def tokens(self) -> array[int]:
        """Prompt, then output: grows."""
        ...


class Draft(NamedTuple):
    """Tokens that may come next, and how much speaks for them: drafts of equal strength are accepted alike."""

    tokens: Sequence[int]
    strength: int = 0


NO_DRAFT = Draft(())


class Drafter(Protocol):
    """One way of guessing. It may keep what it likes about a text until `forget`."""

    name: str
    priors: tuple[float, ...]  # probability that a draft's first token is accepted, for each strength

    def propose(self, texts: Sequence[Text], limit: int) -> list[Draft]:
        """Return a draft of at most `limit` tokens for each text; NO_DRAFT: nothing to say."""
        ...

    def forget(self, sample_id: str) -> None:
        """The text has ended."""
        ...
