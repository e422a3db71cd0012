"""Questions about documents that are found for them: some documents are found often, and stand before the others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from quire.bench.asks import Ask, Session, says
from quire.bench.lengths import Lengths, parse_lengths
from quire.bench.words import text

SYSTEM = says("system", "Answer the question from these documents alone, and say which of them you used.")


@dataclass(frozen=True, slots=True)
class Rag:
    """The n-th document is found in proportion to n^-skew; those that were found stand in that order."""

    documents: int = 16
    found: int = 2  # for one question
    document: Lengths = field(default=parse_lengths("200-400"))
    skew: float = 1.0
    input: Lengths = field(default=parse_lengths("24"))
    output: Lengths = field(default=parse_lengths("64"))

    def sessions(self, chance: random.Random) -> Iterator[Session]:
        """Without end."""
        library = [text(chance, self.document.draw(chance)) for _ in range(self.documents)]
        weights = [(place + 1) ** -self.skew for place in range(self.documents)]
        while True:
            chosen: set[int] = set()
            while len(chosen) < min(self.found, self.documents):
                chosen.update(chance.choices(range(self.documents), weights))
            parts = [f"Document {place + 1}: {library[place]}" for place in sorted(chosen)]
            question = f"Question: {text(chance, self.input.draw(chance))}"
            asked = says("user", "\n\n".join([*parts, question]))
            yield Session((Ask((SYSTEM, asked), self.output.draw(chance)),))


WORKLOAD = Rag
