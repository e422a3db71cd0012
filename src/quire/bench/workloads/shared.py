"""Prompts that begin with the same long text, as those of one application with its instructions do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from quire.bench.asks import Session, one
from quire.bench.lengths import Lengths, parse_lengths
from quire.bench.words import text


@dataclass(frozen=True, slots=True)
class Shared:
    """A prefix of one of the groups, or with the chance `1 - hit` one that nobody shares and is as long."""

    prefix: Lengths = field(default=parse_lengths("512"))
    groups: int = 1
    hit: float = 1.0
    input: Lengths = field(default=parse_lengths("32"))
    output: Lengths = field(default=parse_lengths("64"))

    def sessions(self, chance: random.Random) -> Iterator[Session]:
        """Without end. The first of a group computes what those after it find."""
        prefixes = [text(chance, self.prefix.draw(chance)) for _ in range(self.groups)]
        while True:
            is_hit, prefix = chance.random() < self.hit, chance.choice(prefixes)
            begin = prefix if is_hit else text(chance, self.prefix.draw(chance))
            yield one(f"{begin}\n\n{text(chance, self.input.draw(chance))}", self.output.draw(chance))


WORKLOAD = Shared
