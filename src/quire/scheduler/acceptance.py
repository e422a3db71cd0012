"""How often drafted tokens were accepted: by drafter, strength and place in the draft, of all requests and of each one.

An estimate is a decayed share. A request starts from that of all requests, and a drafter from its prior. A place after
the first starts from the share of all such places, so that what is learned of one applies to the others at once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

DECAY, LATER_DECAY = 0.9, 0.95  # of earlier drafts of the same request: their first tokens, and the others
COMMON_DECAY = 0.99  # of earlier drafts of all requests
PRIOR_TRIALS = 3.0  # that an estimate is worth where it is the start of another
LATER_PLACES = ((1, 2), (2, 4), (4, 1 << 20))  # tokens of a draft after its first one, which have shares of their own

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


@dataclass(slots=True)
class PlaceShares:
    """The shares of one source by place. A later token counts only if those before it were accepted."""

    first: SuccessShare = field(default_factory=SuccessShare)
    later: SuccessShare = field(default_factory=SuccessShare)  # all tokens after the first
    places: tuple[SuccessShare, ...] = field(default_factory=lambda: tuple(SuccessShare() for _ in LATER_PLACES))

    def add(self, num_drafts: int, num_accepted: int, decays: tuple[float, float]) -> None:
        """Count a verified draft. Tokens after the first wrong one are not counted."""
        self.first.add(min(num_accepted, 1), 1, decays[0])
        num_judged = min(num_drafts, num_accepted + 1)
        if num_judged > 1:
            self.later.add(num_accepted - 1, num_judged - 1, decays[1])
            for share, (begin, end) in zip(self.places, LATER_PLACES, strict=True):
                if num_judged > begin:
                    share.add(min(num_accepted, end) - begin, min(num_judged, end) - begin, decays[1])


@dataclass(slots=True)
class RequestDrafts:
    """What is known of one request's drafts."""

    shares: defaultdict[Source, PlaceShares] = field(default_factory=lambda: defaultdict(PlaceShares))
    num_skipped: int = 0  # opportunities since its last draft that did not pay
    patience: int = 8  # skipped opportunities until a draft is tried anyway
    model_skipped: int = 0  # steps since the drafter that is a model drafted for it
    model_patience: int = 0  # such steps until it is tried again, though little is expected; 0: never tried so
    chances: dict[Source, list[float]] = field(default_factory=dict)  # of a draft's tokens, if they are kept


class Acceptance:
    """Estimates that a draft's tokens are accepted."""

    def __init__(self, priors: dict[Source, float]) -> None:
        self._priors = priors
        self._all = defaultdict[Source, PlaceShares](PlaceShares)

    def probabilities(self, request: RequestDrafts, source: Source) -> list[float]:
        """Return the probability that the first token is accepted; then, for each of `LATER_PLACES`, that a token there
        is accepted if those before it were."""
        prior = self._priors[source]
        common, own = self._all[source], request.shares[source]
        later = common.later.after((1.0 + prior) / 2)
        found = [own.first.after(common.first.after(prior))]
        for common_share, own_share in zip(common.places, own.places, strict=True):
            found.append(own_share.after(own.later.after(common_share.after(later))))
        return found

    def record(self, request: RequestDrafts, source: Source, num_drafts: int, num_accepted: int) -> None:
        """Learn from a verified draft."""
        request.shares[source].add(num_drafts, num_accepted, (DECAY, LATER_DECAY))
        self._all[source].add(num_drafts, num_accepted, (COMMON_DECAY, COMMON_DECAY))
