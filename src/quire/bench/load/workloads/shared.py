"""Prompts that begin with the same long text, such as the instructions of one application."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from quire.bench.load.lengths import LengthDistribution, parse_lengths
from quire.bench.load.random_words import random_words
from quire.bench.load.session import Session, single_request


@dataclass(frozen=True, slots=True)
class SharedWorkload:
    """The prefix of one of the groups, or with probability `1 - hit` an unshared one of the same length."""

    prefix: LengthDistribution = field(default=parse_lengths("512"))
    groups: int = 1
    hit: float = 1.0
    input: LengthDistribution = field(default=parse_lengths("32"))
    output: LengthDistribution = field(default=parse_lengths("64"))

    def sessions(self, rng: random.Random) -> Iterator[Session]:
        """Yield sessions without end. The first request of a group is a cache miss, later ones hit."""
        prefixes = [random_words(rng, self.prefix.draw(rng)) for _ in range(self.groups)]
        while True:
            is_hit, prefix = rng.random() < self.hit, rng.choice(prefixes)
            if not is_hit:
                prefix = random_words(rng, self.prefix.draw(rng))
            yield single_request(f"{prefix}\n\n{random_words(rng, self.input.draw(rng))}", self.output.draw(rng))


WORKLOAD = SharedWorkload
