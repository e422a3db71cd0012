"""Drafts by a head: a layer or two that go on from the hidden rows of the target (MTP, EAGLE-3).

Of token i the head reads the token and the target's hidden row of token i - 1, and guesses token i + 1. For further
tokens it reads its own hidden rows in place of the target's, so what it has read of drafts is read again once the
target has computed them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.spec.draft_model import DraftCache, DraftModel, DraftRoom, FollowedText, Reading, RunsPlans, SampledText
from quire.spec.hidden_rows import HiddenRows
from quire.types.step import StepPlan

Array = NDArray[Any]
MAX_HEAD_DRAFTS = 5  # tokens of a draft: each further one is guessed from guesses


class HeadDrafter(DraftModel):
    """A head of the target. Its runner asks it for the rows that tokens bring along."""

    max_drafts = MAX_HEAD_DRAFTS

    def __init__(self, name: str, cache: DraftCache, room: DraftRoom, hidden: HiddenRows) -> None:
        self.name = name
        self._hidden = hidden
        self._own: dict[str, Array] = {}  # the head's hidden row of the newest token of each text
        self._to_token: Array | None = None
        super().__init__(_NoRunner(), cache, room)

    def run_on(self, runner: RunsPlans, to_token: Array | None = None) -> None:
        """Set what runs its steps. `to_token`: tokens of the target by those of the head, if they differ."""
        self._runner, self._to_token = runner, to_token

    def forget(self, sample_id: str) -> None:
        """Release a text's row and blocks, and its hidden rows."""
        super().forget(sample_id)
        self._hidden.forget(sample_id)
        self._own.pop(sample_id, None)

    # ── for its runner ──

    def features(self, plan: StepPlan) -> Array:
        """Return the rows that the tokens of a step bring along: the target's, or its own after a guess."""
        return np.concatenate([self._features(part.request_id, part.start, part.num_tokens) for part in plan.parts])

    def keep(self, plan: StepPlan, hidden: Array) -> None:
        """Take the head's hidden row of the last token of each text."""
        end = 0
        for part in plan.parts:
            end += part.num_tokens
            self._own[part.request_id] = hidden[end - 1 : end].copy()

    def _features(self, sample_id: str, start: int, count: int) -> Array:
        followed = self._followed[sample_id]
        first = followed.begin + start  # place of the first token in the text
        if first >= len(followed.tokens):
            return self._own[sample_id]
        return self._hidden.rows(sample_id, first - 1, first - 1 + count)

    # ── texts ──

    def _backlog(self, text: SampledText) -> int | None:
        known, last = self._hidden.known(text.sample_id), len(text.tokens) - 1
        if len(text.tokens) + 1 > self._room.max_context or not known.start <= last - 1 < known.stop:
            return None
        followed = self._followed.get(text.sample_id)
        num_read = 0 if followed is None else min(followed.num_read, last)
        return len(text.tokens) - max(num_read, known.start + 1)

    def _follow(self, text: SampledText, num_tokens: int) -> FollowedText | None:
        known = self._hidden.known(text.sample_id)
        if not known.start <= len(text.tokens) - 2 < known.stop:
            return None
        followed = self._followed.get(text.sample_id)
        if followed is not None and min(followed.num_read, len(text.tokens) - 1) <= known.start:
            super().forget(text.sample_id)  # rows that it has not read are gone
        return super()._follow(text, num_tokens)

    def _begin(self, text: SampledText) -> FollowedText | None:
        if not self._free_rows and not self._forget_oldest():
            return None
        first, tokens, key = self._hidden.known(text.sample_id).start + 1, text.tokens[1:], text.request.cache
        hit = self._cache.match(tokens, key, len(tokens) - 1)
        begin = 1
        if 1 + hit.num_tokens < first:  # what is between was not read, and its rows are gone
            begin, tokens = first, text.tokens[first:]
            hit = self._cache.match(tokens, key, 0)
        lease = self._cache.lease(hit, tokens, key, self._clock)
        if begin > 1:
            self._cache.detach(lease, self._clock)  # it begins elsewhere than the texts that others find
        row = self._free_rows.pop()
        followed = FollowedText(text.sample_id, row, lease, text.tokens[:], begin + lease.num_hit, begin)
        self._announce(followed, text)
        return followed

    def _forget_oldest(self) -> bool:
        """Forget what was read of the text that was not asked for the longest, but not its hidden rows."""
        idle = [each for each in self._followed.values() if each.used_at < self._clock]
        if idle:
            super().forget(min(idle, key=lambda each: each.used_at).sample_id)
        return bool(idle)

    def _mark_read(self, reading: Reading) -> None:
        if reading.start < len(reading.text.tokens):  # what it reads of drafts is read again
            super()._mark_read(reading)

    def _token_of(self, sampled: int) -> int:
        return sampled if self._to_token is None else int(self._to_token[sampled])


class _NoRunner:
    """Stands in until the head is lowered."""

    def launch(self, plan: StepPlan) -> Any:
        raise TypeError("the head has no runner yet")

    def collect(self, flight: Any) -> Any:
        raise TypeError("the head has no runner yet")
