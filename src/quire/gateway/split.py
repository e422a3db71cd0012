"""One of several models by weight, the same one for the same user: what A/B tests and gradual changes need."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from quire.gateway.policy import Facts

STICKY = ("user", "session", "key", "conversation")  # and in this order, unless one is named


@dataclass(frozen=True, slots=True)
class Split:
    """Weights of models. Which part of the users gets which depends on the seed alone."""

    weights: Mapping[str, float]
    seed: str
    by: str = ""  # one of STICKY; "": the first of them that the request has

    def choose(self, facts: Facts) -> str:
        """The model of whoever asks."""
        total = sum(self.weights.values())
        point = share_of(self.seed, self._identity(facts)) * total
        for name, weight in self.weights.items():
            point -= weight
            if point < 0:
                return name
        return next(reversed(list(self.weights)))

    def _identity(self, facts: Facts) -> str:
        known = {"user": facts.user, "session": facts.session, "key": facts.key, "conversation": facts.first}
        if self.by:
            return known[self.by]
        return next((f"{name}:{value}" for name, value in known.items() if value), "")


def share_of(seed: str, identity: str) -> float:
    """A number from 0 up to 1 that looks drawn by lot, and is always the same."""
    digest = hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=8, key=_key(seed)).digest()
    return int.from_bytes(digest, "big") / 2**64


def _key(seed: str) -> bytes:
    return hashlib.sha256(seed.encode()).digest()
