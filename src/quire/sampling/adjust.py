"""Changes to logits before the filters: tokens ruled out, logit bias, penalties for tokens already in the text.

Order: allowed tokens, bad words, stop tokens before min_tokens, logit bias, then repetition, frequency and presence
penalties. The repetition penalty counts prompt and output, the other two only the output.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.sampling.speech import SpeechFilter
from quire.types.step import Join

Array = NDArray[Any]

NEVER = np.float32(-np.inf)


class Adjustments:
    """The adjustments of one row, with the token history that its request's penalties need."""

    def __init__(self, join: Join, vocab_size: int) -> None:
        params = join.sampling
        self._params = params
        self._speech = None if join.speech is None else SpeechFilter(join.speech, join.tokens[join.num_prompt :])
        self._min_total = join.num_prompt + params.min_tokens
        self._stops = np.array(sorted(join.stops), np.int64) if params.min_tokens else None
        self._bias_ids = np.fromiter(params.logit_bias.keys(), np.int64, len(params.logit_bias))
        self._bias = np.fromiter(params.logit_bias.values(), np.float32, len(params.logit_bias))
        self.allowed = None if params.allowed_token_ids is None else np.unique(np.array(params.allowed_token_ids))
        self._text: list[int] | None = list(join.tokens) if params.bad_words else None
        tokens = np.array(join.tokens, np.int64)
        self._seen: Array | None = None  # bool [vocab]
        if params.repetition_penalty != 1.0:
            self._seen = np.zeros(vocab_size, np.bool_)
            self._seen[tokens] = True
        self._counts: Array | None = None  # float32 [vocab], of the output
        if params.presence_penalty or params.frequency_penalty:
            self._counts = np.bincount(tokens[join.num_prompt :], minlength=vocab_size).astype(np.float32)

    @staticmethod
    def are_needed(join: Join) -> bool:
        """Return whether anything changes the logits of this row."""
        params = join.sampling
        return bool(
            join.speech is not None
            or params.min_tokens
            or params.logit_bias
            or params.allowed_token_ids is not None
            or params.bad_words
            or params.repetition_penalty != 1.0
            or params.presence_penalty
            or params.frequency_penalty
        )

    def add_token(self, token: int) -> None:
        """Append a token to the row's history."""
        if self._speech is not None:
            self._speech.add_token(token)
        if self._seen is not None:
            self._seen[token] = True
        if self._counts is not None:
            self._counts[token] += 1.0
        if self._text is not None:
            self._text.append(token)

    def apply(self, logits: Array, position: int, left: Array | None = None) -> Array:
        """Return adjusted logits [vocab] for the token at `position`. The input is not changed: a device may own it.

        `left` are the tokens that a grammar allows, if there is one. If all of them are stop tokens, min_tokens is
        ignored.
        """
        x = logits.copy()
        if self._text is not None:
            for word in self._params.bad_words:
                if word and tuple(self._text[len(self._text) - len(word) + 1 :]) == word[:-1]:
                    x[word[-1]] = NEVER
        if self._stops is not None and position < self._min_total and not _all_in(left, self._stops):
            x[self._stops] = NEVER
        if len(self._bias):
            x[self._bias_ids] += self._bias
        if self._seen is not None:
            ids = np.flatnonzero(self._seen)
            penalty = np.float32(self._params.repetition_penalty)
            x[ids] = np.where(x[ids] > 0, x[ids] / penalty, x[ids] * penalty)
        if self._counts is not None:
            x -= np.float32(self._params.frequency_penalty) * self._counts
            x -= np.float32(self._params.presence_penalty) * (self._counts > 0)
        if self._speech is not None:
            self._speech.apply(x)
        return x


def _all_in(left: Array | None, stops: Array) -> bool:
    return left is not None and len(left) <= len(stops) and bool(np.isin(left, stops).all())
