"""Several workloads at once, each with its share of the sessions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from quire.bench.asks import Session, Workload


@dataclass(frozen=True, slots=True)
class Mixed:
    """`of` is written like unique*2+chat+rag: two of three parts are its first."""

    of: str = "unique*2+shared*2+chat"
    parts: tuple[tuple[Workload, float], ...] = field(default=(), metadata={"is_made": True})  # what `of` says

    def sessions(self, chance: random.Random) -> Iterator[Session]:
        """Without end. Each part draws from a chance of its own, so that its sessions do not depend on the others'."""
        sources = [workload.sessions(random.Random(chance.random())) for workload, _ in self.parts]
        shares = [share for _, share in self.parts]
        while True:
            (source,) = chance.choices(sources, shares)
            yield next(source)


WORKLOAD = Mixed
