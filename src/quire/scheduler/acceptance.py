"""How often drafts were accepted: by drafter and strength, of all requests and of each one, newest first.

An estimate is a decayed share. A request starts from that of all requests, and a drafter from its prior.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DECAY, LATER_DECAY = 0.9, 0.95  # of earlier drafts of the same request: their first tokens, and the others
COMMON_DECAY = 0.99  # of earlier drafts of all requests
PRIOR_TRIALS = 3.0  # that an estimate is worth where it is the start of another
NUM_PLACES = 2  # the first token of a draft, and the others, which are accepted more often if that one was

Source = tuple[str, int]  # drafter and strength


@dataclass(slots=True)
class SuccessShare:
    """A decayed count of trials and of those that succeeded."""

    hits: float = 0.0
    trials: float = 0.0

    def add(self, hits: int, trials: int, decay: float) -> None:
        """Count more trials."""
        kept = decay**trials
        self.hits, self.trials = self.hits * kept + hits, self.trials * kept + trials

    def after(self, prior: float) -> float:
        """Return the estimate, which starts from a prior."""
        return (self.hits + PRIOR_TRIALS * prior) / (self.trials + PRIOR_TRIALS)


class SourceShares:
    """The shares of each source, for the first token of a draft and for the others."""

    def __init__(self) -> None:
        self._shares: dict[Source, tuple[SuccessShare, ...]] = {}

    def of(self, source: Source) -> tuple[SuccessShare, ...]:
        """Return a source's shares."""
        found = self._shares.get(source)
        if found is None:
            found = self._shares[source] = tuple(SuccessShare() for _ in range(NUM_PLACES))
        return found

    def add(self, source: Source, num_drafts: int, num_accepted: int, decays: tuple[float, float]) -> None:
        """Count a verified draft: tokens after the first wrong one say nothing."""
        first, others = self.of(source)
        first.add(min(num_accepted, 1), 1, decays[0])
        if num_accepted and num_drafts > 1:
            others.add(num_accepted - 1, min(num_drafts, num_accepted + 1) - 1, decays[1])


@dataclass(slots=True)
class RequestDrafts:
    """What is known of one request's drafts."""

    shares: SourceShares = field(default_factory=SourceShares)
    num_skipped: int = 0  # opportunities since its last draft that did not pay
    patience: int = 8  # skipped opportunities until a draft is tried anyway
    model_skipped: int = 0  # steps since the drafter that is a model drafted for it
    model_patience: int = 0  # such steps until it is tried again, though little is expected; 0: never tried so
    chances: dict[Source, list[float]] = field(default_factory=dict)  # of a draft's tokens, if they are kept


class Acceptance:
    """Estimates that a draft's tokens are accepted."""

    def __init__(self, priors: dict[Source, float]) -> None:
        self._priors = priors
        self._all = SourceShares()

    def probabilities(self, request: RequestDrafts, source: Source) -> tuple[float, float]:
        """Return the probability that the first token is accepted; and a later one, if those before it were."""
        prior = self._priors[source]
        all_first, all_others = self._all.of(source)
        first, others = request.shares.of(source)
        return first.after(all_first.after(prior)), others.after(all_others.after((1.0 + prior) / 2))

    def record(self, request: RequestDrafts, source: Source, num_drafts: int, num_accepted: int) -> None:
        """Learn from a verified draft."""
        request.shares.add(source, num_drafts, num_accepted, (DECAY, LATER_DECAY))
        self._all.add(source, num_drafts, num_accepted, (COMMON_DECAY, COMMON_DECAY))
