"""Applies the rules of a speech model to logits; see `SpeechRules`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.types.speech_rules import SpeechRules

Array = NDArray[Any]
NEVER = np.float32(-np.inf)


class SpeechFilter:
    """The rules for one row, with the tokens that it has written."""

    def __init__(self, rules: SpeechRules, written: Sequence[int]) -> None:
        self._rules = rules
        self._suppressed = np.array(rules.suppressed, np.int64)
        self._suppressed_first = np.array(rules.suppressed_first, np.int64)
        self._written = list(written)

    def add_token(self, token: int) -> None:
        """Append a token to what is written."""
        self._written.append(token)

    def apply(self, x: Array) -> None:
        """Rule out tokens of the logits x [vocab], in place."""
        x[self._suppressed] = NEVER
        if not self._written:
            x[self._suppressed_first] = NEVER
        if self._rules.first_timestamp is not None:
            self._order_timestamps(x, self._rules.first_timestamp)

    def _order_timestamps(self, x: Array, first: int) -> None:
        written = self._written
        if not written:
            x[:first] = NEVER
            if self._rules.max_initial is not None:
                x[first + self._rules.max_initial + 1 :] = NEVER
        else:
            ends_with_time = written[-1] >= first
            is_pair = len(written) < 2 or written[-2] >= first
            if ends_with_time and is_pair:
                x[first:] = NEVER  # a segment begins: text
            elif ends_with_time:
                x[: self._rules.end] = NEVER  # a segment has ended: the next one begins, or the text ends
            last = next((token for token in reversed(written) if token >= first), None)
            if last is not None:
                may_repeat = ends_with_time and not is_pair
                x[first : last + (0 if may_repeat else 1)] = NEVER
        times = x[first:]
        most = times.max() if len(times) else NEVER
        if np.isfinite(most) and most + np.log(np.exp(times - most).sum()) > x[:first].max():
            x[:first] = NEVER
