"""Tokens to text while they are being made.

Law: the texts of all pushes and the flush, joined, are `tokenizer.decode` of all tokens, cut at the first stop string
that is complete only after the first `min_tokens` tokens.
A character is given out when its last byte is there and no stop string can begin in it; every byte is looked at once.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable
from typing import Protocol

from quire.text.stops import StopScanner, StopStrings


class SpellsTokens(Protocol):
    """What a detokenizer needs of a tokenizer."""

    @property
    def special_ids(self) -> frozenset[int]: ...
    def token_bytes(self, token: int) -> bytes: ...
    def opening_bytes(self, token: int) -> bytes: ...


class Detokenizer:
    """One answer's text. `continues`: the answer goes on from other text, so its first space is its own.

    `shown` are special tokens whose names are part of the text all the same, such as the marks around tool calls.
    """

    def __init__(
        self,
        tokenizer: SpellsTokens,
        stop: tuple[str, ...] | StopStrings = (),
        *,
        skip_special: bool = True,
        min_tokens: int = 0,
        continues: bool = False,
        shown: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        if shown:
            self._skipped = self._skipped.difference(shown)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._scanner = StopScanner(stop if isinstance(stop, StopStrings) else StopStrings(stop))
        self._min_tokens = min_tokens
        self._at_start = not continues
        self.num_tokens = 0  # tokens read, up to the one that completed a stop string

    @property
    def stopped_by(self) -> str | None:
        """The stop string that was found; from then on no text comes out."""
        return self._scanner.found

    def push(self, tokens: Iterable[int]) -> str:
        """Text that has become certain."""
        safe = []
        for token in tokens:
            if self._scanner.found is not None:
                break
            self.num_tokens += 1
            if token not in self._skipped:
                safe.append(self._scanner.feed(self._utf8.decode(self._spell(token)), self._may_stop))
        return "".join(safe)

    def flush(self) -> str:
        """The rest, when no more tokens come: an unfinished character becomes U+FFFD, held text is let go."""
        if self._scanner.found is not None:
            return ""
        safe = self._scanner.feed(self._utf8.decode(b"", final=True), self._may_stop)
        return safe if self._scanner.found is not None else safe + self._scanner.finish()

    @property
    def _may_stop(self) -> bool:
        return self.num_tokens > self._min_tokens

    def _spell(self, token: int) -> bytes:
        data = self._tokenizer.token_bytes(token)
        if self._at_start and data:
            self._at_start = False
            return self._tokenizer.opening_bytes(token)
        return data
