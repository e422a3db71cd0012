"""Several workloads at once, each with its share of the sessions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from quire.bench.load.session import Session, SessionSource


@dataclass(frozen=True, slots=True)
class MixedWorkload:
    """`of` lists workloads with weights: unique*2+chat is two thirds unique, one third chat."""

    of: str = "unique*2+shared*2+chat"
    parts: tuple[tuple[SessionSource, float], ...] = field(
        default=(), metadata={"is_derived": True}
    )  # parsed from `of`

    def sessions(self, rng: random.Random) -> Iterator[Session]:
        """Yield sessions without end. Each part has its own seed: its sessions do not depend on the other parts."""
        sources = [workload.sessions(random.Random(rng.random())) for workload, _ in self.parts]
        shares = [share for _, share in self.parts]
        while True:
            (source,) = rng.choices(sources, shares)
            yield next(source)


WORKLOAD = MixedWorkload
