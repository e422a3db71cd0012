"""One of several models by weight, always the same for the same user: for A/B tests and gradual rollouts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from quire.gateway.policy import RequestFacts

STICKY = ("user", "session", "key", "conversation")  # tried in this order, unless the rule names one


@dataclass(frozen=True, slots=True)
class Split:
    """Weights of models. Which users get which model depends on the seed alone."""

    weights: Mapping[str, float]
    seed: str
    by: str = ""  # one of STICKY; "": the first of them that the request has

    def choose(self, facts: RequestFacts) -> str:
        """The model for this request."""
        total = sum(self.weights.values())
        point = hash_fraction(self.seed, self._identity(facts)) * total
        for name, weight in self.weights.items():
            point -= weight
            if point < 0:
                return name
        return next(reversed(list(self.weights)))

    def _identity(self, facts: RequestFacts) -> str:
        known = {"user": facts.user, "session": facts.session, "key": facts.key, "conversation": facts.first}
        if self.by:
            return known[self.by]
        return next((f"{name}:{value}" for name, value in known.items() if value), "")


def hash_fraction(seed: str, identity: str) -> float:
    """A pseudo-random number from 0 up to 1, always the same for the same arguments."""
    digest = hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=8, key=_key(seed)).digest()
    return int.from_bytes(digest, "big") / 2**64


def _key(seed: str) -> bytes:
    return hashlib.sha256(seed.encode()).digest()
