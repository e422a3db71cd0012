"""Turns tokens into text as they are generated.

Law: the texts of all pushes and the flush, joined, are `tokenizer.decode` of all tokens, cut at the first stop string
that is complete only after the first `min_tokens` tokens.
A character is returned when its last byte has come and no stop string can begin in it; every byte is read once.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable
from typing import Protocol

from quire.text.stops import StopScanner, StopStrings


class SpellsTokens(Protocol):
    """The methods of a tokenizer that a detokenizer needs."""

    @property
    def special_ids(self) -> frozenset[int]: ...
    def token_bytes(self, token: int) -> bytes: ...
    def opening_bytes(self, token: int) -> bytes: ...


class Detokenizer:
    """The text of one answer. `continues`: the answer continues a text, so a leading space is kept.

    `shown` are special tokens whose names are part of the text, such as the marks around tool calls.
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
        """The stop string that was found; no text is returned after it."""
        return self._scanner.found

    def push(self, tokens: Iterable[int]) -> str:
        """Return the text that has become certain."""
        safe = []
        for token in tokens:
            if self._scanner.found is not None:
                break
            self.num_tokens += 1
            if token not in self._skipped:
                safe.append(self._scanner.feed(self._utf8.decode(self._spell(token)), self._may_stop))
        return "".join(safe)

    def flush(self) -> str:
        """Return the rest at the end: an unfinished character becomes U+FFFD, and held text is released."""
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
