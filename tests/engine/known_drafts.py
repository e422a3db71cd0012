"""A drafter that knows each request's text, and errs at some positions."""

from __future__ import annotations

from collections.abc import Sequence

from quire.spec.drafter import NO_DRAFT, Draft, Text
from tests.models.toys import VOCAB


class KnownDrafts:
    """Drafts the known answers; every `wrong_every`-th token of a text is drafted wrong."""

    name, priors = "known", (0.9,)

    def __init__(self, answers: dict[str, tuple[Sequence[int], Sequence[int]]], wrong_every: int = 5) -> None:
        """`answers`: by sample, the prompt and what follows it."""
        self._texts = {name: [*prompt, *answer] for name, (prompt, answer) in answers.items()}
        self._wrong_every = wrong_every

    def propose(self, texts: Sequence[Text], limit: int) -> list[Draft]:
        return [self._propose(text, limit) for text in texts]

    def _propose(self, text: Text, limit: int) -> Draft:
        known, begin = self._texts.get(text.sample_id, []), len(text.tokens)
        found = known[begin : begin + limit]
        wrong = [(token + 1) % VOCAB for token in found]
        places = range(begin, begin + len(found))
        tokens = [w if at % self._wrong_every == 0 else t for at, t, w in zip(places, found, wrong, strict=True)]
        return Draft(tokens) if tokens else NO_DRAFT

    def forget(self, sample_id: str) -> None:
        pass
