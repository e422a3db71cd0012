"""Drafts from a prediction: the text that the client expects as the answer, for example a file before a small change.

The answer is followed in the prediction from its beginning. Where the two part, the place is looked up again by the
newest tokens of the answer: of several the first after the last place, since changes keep the order of what they leave.
A long prediction is indexed for that in several calls, so that no step waits for all of it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from quire.spec.drafter import NO_DRAFT, Draft, Text
from quire.types.step import PREDICTION

MIN_MATCH = 2  # tokens; fewer are at too many places
LONG_MATCH = 8  # tokens from which the answer follows the prediction
MAX_ADDED = 4096  # tokens that one call indexes: the next step waits for it
LEAST_ADDED = 64  # more of each further text

T_contra = TypeVar("T_contra", bound=Text, contravariant=True)


class PredictionDrafter(Generic[T_contra]):
    """Drafts the next tokens of the prediction. `find` returns a text's prediction, and where its answer begins."""

    name = PREDICTION
    priors = (0.5, 0.85)  # after a few equal tokens, or none at the beginning; after many

    def __init__(self, find: Callable[[T_contra], tuple[Sequence[int], int]]) -> None:
        self._find = find
        self._followers: dict[str, _Follower] = {}

    def propose(self, texts: Sequence[T_contra], limit: int) -> list[Draft]:
        """Return a draft for each text that has a prediction."""
        drafts, room = [], MAX_ADDED
        for text in texts:
            follower = self._follower(text)
            if follower is None:
                drafts.append(NO_DRAFT)
                continue
            room -= follower.add(max(room, LEAST_ADDED))
            drafts.append(follower.continue_text(text.tokens, limit))
        return drafts

    def forget(self, sample_id: str) -> None:
        """Drop a text's place."""
        self._followers.pop(sample_id, None)

    def _follower(self, text: T_contra) -> _Follower | None:
        predicted, begin = self._find(text)
        if not predicted:
            return None
        follower = self._followers.get(text.sample_id)
        if follower is None:
            follower = self._followers[text.sample_id] = _Follower(predicted, begin)
        return follower


class _Follower:
    """The place in a prediction that an answer has reached."""

    def __init__(self, predicted: Sequence[int], begin: int) -> None:
        self._predicted = array("I", predicted)
        self._begin = begin
        self._read = begin  # tokens of the text that were compared
        self._place: int | None = 0  # of the token that comes next; None: the answer has left the prediction
        self._last = 0  # the last place, kept while it has left
        self._length = 0  # tokens since it was found again
        self._places: dict[tuple[int, ...], list[int]] = {}  # run of MIN_MATCH tokens -> places after it, ascending
        self._end = 0  # predicted tokens before this place are indexed

    def add(self, most: int) -> int:
        """Index at most so many of the predicted tokens; return how many."""
        predicted, places = self._predicted, self._places
        stop = min(len(predicted), self._end + most)
        for end in range(max(self._end, MIN_MATCH - 1) + 1, stop + 1):
            places.setdefault(tuple(predicted[end - MIN_MATCH : end]), []).append(end)
        num_added, self._end = stop - self._end, stop
        return num_added

    def continue_text(self, tokens: array[int], limit: int) -> Draft:
        """Follow the new tokens, then return what the prediction has next."""
        for end in range(self._read + 1, len(tokens) + 1):
            self._follow(tokens, end)
        self._read = len(tokens)
        if self._place is None or self._place >= len(self._predicted):
            return NO_DRAFT
        return Draft(self._predicted[self._place : self._place + limit], int(self._length >= LONG_MATCH))

    def _follow(self, tokens: array[int], end: int) -> None:
        predicted, place = self._predicted, self._place
        if place is not None and place < len(predicted) and predicted[place] == tokens[end - 1]:
            self._place, self._last, self._length = place + 1, place + 1, self._length + 1
            return
        self._place, self._length = None, 0
        if end - self._begin < MIN_MATCH:
            return
        places = self._places.get(tuple(tokens[end - MIN_MATCH : end]))
        if places:
            at = bisect_left(places, self._last)
            self._place = self._last = places[at if at < len(places) else -1]
            self._length = MIN_MATCH
