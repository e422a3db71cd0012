"""Prompts without a common prefix: the prefix cache never hits, every prompt is computed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from quire.bench.load.lengths import LengthDistribution, parse_lengths
from quire.bench.load.random_words import random_words
from quire.bench.load.session import Session, single_request


@dataclass(frozen=True, slots=True)
class UniqueWorkload:
    """One request a session."""

    input: LengthDistribution = field(default=parse_lengths("256"))
    output: LengthDistribution = field(default=parse_lengths("64"))

    def sessions(self, rng: random.Random) -> Iterator[Session]:
        """Yield sessions without end."""
        while True:
            yield single_request(random_words(rng, self.input.draw(rng)), self.output.draw(rng))


WORKLOAD = UniqueWorkload
