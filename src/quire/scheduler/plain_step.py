"""The next step without drafts, as far as it is known when drafts are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from quire.scheduler.request_state import Phase, RequestState
from quire.scheduler.step_costs import WITHOUT_LOGITS

NEWCOMER_TOKENS = 128  # of prompts, guessed, in a step that will admit some


class PlainStep(NamedTuple):
    """What the next step computes without drafts."""

    num_texts: int  # that decode: each of them yields a token
    num_others: int = 0  # tokens that must be computed anyway and yield none: of prompts, or forced ones

    @classmethod
    def of(cls, running: Sequence[RequestState], has_newcomers: bool, budget: int) -> Self:
        """Return the step of these texts, of `budget` tokens at most. `has_newcomers`: others will be admitted."""
        num_texts, num_due = 0, NEWCOMER_TOKENS if has_newcomers else 0
        for state in running:
            num_due += state.remaining
            num_texts += state.phase is not Phase.PREFILLING
        return cls(num_texts, max(0, min(num_due, budget) - num_texts))

    @property
    def num_tokens(self) -> int:
        """Return the number of all its tokens."""
        return self.num_texts + self.num_others

    @property
    def size(self) -> float:
        """Return its size, as in `StepCosts`."""
        return self.num_texts + WITHOUT_LOGITS * self.num_others
