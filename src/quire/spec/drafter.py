"""What a drafter is: it proposes tokens that may follow some texts, for all of them at once.

Most look tokens up, in microseconds. One may run a model (`ModelDrafter`): its guesses take time, so it is asked only
where they are expected to pay for it.
"""

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


class StepTime(NamedTuple):
    """How long a step of a drafter's model took."""

    num_tokens: int
    seconds: float


class ModelDrafter(Protocol):
    """A drafter that runs a model. Before it drafts, it reads what is new in a text: its backlog.

    It may draft for fewer texts than it is asked for, and begin a text again at any time: it only guesses.
    """

    name: str
    priors: tuple[float, ...]
    max_drafts: int  # tokens of a draft

    def backlogs(self, texts: Sequence[Text]) -> list[int | None]:
        """Return how many tokens of each text it has yet to read; None: it cannot draft for that text now."""
        ...

    def read(self, texts: Sequence[Text], num_tokens: int) -> None:
        """Read up to so many tokens of the backlogs, the first text first."""
        ...

    def propose(self, texts: Sequence[Text], limit: int) -> list[Draft]:
        """Read the backlogs and return a draft of at most `limit` tokens for each text."""
        ...

    def forget(self, sample_id: str) -> None:
        """The text has ended."""
        ...

    def take_times(self) -> list[StepTime]:
        """Return how long its steps took since the last call, but for those that prepared something."""
        ...
