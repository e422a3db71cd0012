"""Prompts that have nothing in common: no cache helps, every prompt is computed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from quire.bench.asks import Session, one
from quire.bench.lengths import Lengths, parse_lengths
from quire.bench.words import text


@dataclass(frozen=True, slots=True)
class Unique:
    """One question a session."""

    input: Lengths = field(default=parse_lengths("256"))
    output: Lengths = field(default=parse_lengths("64"))

    def sessions(self, chance: random.Random) -> Iterator[Session]:
        """Without end."""
        while True:
            yield one(text(chance, self.input.draw(chance)), self.output.draw(chance))


WORKLOAD = Unique
