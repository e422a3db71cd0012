"""Questions with retrieved documents: some documents are retrieved often, and come first in the prompt."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from quire.bench.load.lengths import LengthDistribution, parse_lengths
from quire.bench.load.random_words import random_words
from quire.bench.load.session import LoadRequest, Session, chat_message

SYSTEM = chat_message("system", "Answer the question from these documents alone, and say which of them you used.")


@dataclass(frozen=True, slots=True)
class RagWorkload:
    """The n-th document is retrieved in proportion to n^-skew; a prompt has its documents in ascending order."""

    documents: int = 16
    found: int = 2  # documents for each question
    document: LengthDistribution = field(default=parse_lengths("200-400"))
    skew: float = 1.0
    input: LengthDistribution = field(default=parse_lengths("24"))
    output: LengthDistribution = field(default=parse_lengths("64"))

    def sessions(self, rng: random.Random) -> Iterator[Session]:
        """Yield sessions without end."""
        library = [random_words(rng, self.document.draw(rng)) for _ in range(self.documents)]
        weights = [(index + 1) ** -self.skew for index in range(self.documents)]
        while True:
            indices: set[int] = set()
            while len(indices) < min(self.found, self.documents):
                indices.update(rng.choices(range(self.documents), weights))
            parts = [f"Document {index + 1}: {library[index]}" for index in sorted(indices)]
            question = f"Question: {random_words(rng, self.input.draw(rng))}"
            user = chat_message("user", "\n\n".join([*parts, question]))
            yield Session((LoadRequest((SYSTEM, user), self.output.draw(rng)),))


WORKLOAD = RagWorkload
