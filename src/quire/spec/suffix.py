"""Drafts from the text itself: what followed the last time that its newest tokens occurred.

Edits, extraction, code and JSON repeat their prompt and themselves. An index maps every run of MIN_MATCH tokens to the
place after its last occurrence, and each place to the one before it; of the newest few, the one with the longest equal
text before it is continued. A run is packed into one integer: as a tuple it takes twice the memory and 1.5 × the time.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from quire.spec.drafter import NO_DRAFT, Draft, Text

MIN_MATCH = 3  # tokens; with two, most drafts are wrong
LONG_MATCHES = (6, 12, 24)  # tokens from which a match is stronger
MAX_PLACES = 4  # occurrences that are compared
MAX_INDEXED = 32768  # tokens at the end of a prompt; earlier ones are not searched
MAX_ADDED = 4096  # tokens that one call indexes, in about a millisecond: the next step waits for it
LEAST_ADDED = 64  # more of each further text, so that a long prompt delays the drafts of no other text
TOKEN_BITS = 32
RUN_BITS = (1 << (TOKEN_BITS * MIN_MATCH)) - 1


class SuffixDrafter:
    """Continues the newest occurrence that agrees longest with the end of the text."""

    name = "suffix"
    priors = (0.45, 0.65, 0.8, 0.9)

    def __init__(self) -> None:
        self._indexes: dict[str, _Index] = {}

    def propose(self, texts: Sequence[Text], limit: int) -> list[Draft]:
        """Return a draft for each text whose tokens are indexed. Long prompts are indexed in several calls."""
        drafts, room = [], MAX_ADDED
        for text in texts:
            index = self._indexes.get(text.sample_id)
            if index is None:
                index = self._indexes[text.sample_id] = _Index(max(0, len(text.tokens) - MAX_INDEXED))
            room -= index.add(text.tokens, max(room, LEAST_ADDED))
            drafts.append(index.continue_text(text.tokens, limit))
        return drafts

    def forget(self, sample_id: str) -> None:
        """Drop a text's index."""
        self._indexes.pop(sample_id, None)


class _Index:
    """The places of a text's runs of MIN_MATCH tokens."""

    def __init__(self, begin: int) -> None:
        self._begin = begin
        self._end = begin  # tokens before this place are indexed
        self._run = 0  # the tokens before `_end`
        self._last: dict[int, int] = {}  # run -> the place after its last occurrence
        self._earlier = array("i")  # for each indexed place: the one before it with the same run; -1: none

    def add(self, tokens: array[int], most: int) -> int:
        """Index at most so many of the new tokens; return how many."""
        last, earlier, run, first = self._last, self._earlier, self._run, self._begin + MIN_MATCH
        begin, stop = self._end, min(len(tokens), self._end + most)
        for end, token in enumerate(tokens[begin:stop], begin + 1):
            run = (run << TOKEN_BITS | token) & RUN_BITS
            if end >= first:
                earlier.append(last.get(run, -1))
                last[run] = end
        self._run, self._end = run, stop
        return stop - begin

    def continue_text(self, tokens: array[int], limit: int) -> Draft:
        """Return what followed the best earlier occurrence of the last tokens. No draft until all are indexed."""
        if self._end < len(tokens):
            return NO_DRAFT
        best, longest = self._best_place(tokens)
        if best < 0:
            return NO_DRAFT
        strength = sum(longest >= length for length in LONG_MATCHES)
        found = tokens[best : best + limit]
        while len(found) < limit:  # the match reaches the end of the text: repeat its period
            found.extend(found[: limit - len(found)])
        return Draft(found, strength)

    def _best_place(self, tokens: array[int]) -> tuple[int, int]:
        """Return the place after the best earlier occurrence, and its length; -1: there is none."""
        place = self._earlier[-1] if self._earlier else -1
        best, longest = -1, 0
        for _ in range(MAX_PLACES):
            if place < 0:
                break
            length = self._match_length(tokens, place)
            if length > longest:
                best, longest = place, length
            place = self._earlier[place - self._begin - MIN_MATCH]
        return best, longest

    def _match_length(self, tokens: array[int], place: int) -> int:
        """Return how many tokens before `place` equal those at the end of the text."""
        length, most, end = MIN_MATCH, min(LONG_MATCHES[-1], place - self._begin), len(tokens)
        while length < most and tokens[place - 1 - length] == tokens[end - 1 - length]:
            length += 1
        return length
