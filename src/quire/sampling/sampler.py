"""Sampling on the host, row by row.

Law: a row's tokens depend on its own logits, parameters, text and seed, and on nothing else: not on other rows, not on
the order of the batch, not on drafts. So each row is computed by itself. That costs a few microseconds of Python per
row, beside 30 to 200 for its arithmetic, and keeps its numbers in the cache of one core.

Drafts are verified by sampling as if there were none, for as long as the draft equals the sampled token. For a draft
without probabilities this *is* rejection sampling: draft d is accepted with probability p(d), else the token comes from
p without d. Random numbers belong to positions, so drafts never change the text.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.sampling.adjust import Adjustments
from quire.sampling.counter import stream_of, uniform
from quire.sampling.filters import apply_filters, sample_index
from quire.sampling.logprobs import logprobs_of
from quire.sampling.mask import allowed_ids
from quire.types.errors import QuireError, StepFailed
from quire.types.step import Join, TokenLogprobs

Array = NDArray[Any]

MIN_TEMPERATURE = float(np.finfo(np.float32).tiny)  # the smallest temperature that is not 0
MAX_TOP = 256  # a larger top-k is computed on the host
NO_LOGITS = np.full(1, -np.inf, np.float32)  # stands in where every token is ruled out


class SampledTokens(NamedTuple):
    """The result of one row: its new tokens, or the error."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    error: QuireError | None = None


class Sampler:
    """Samples the tokens of one row. Created when its request joins; `choose` adds its own tokens to the history."""

    def __init__(self, join: Join, vocab_size: int) -> None:
        self.params = join.sampling
        self.is_greedy = join.sampling.is_greedy
        seed = join.sampling.seed
        if seed is None:
            seed = 0 if self.is_greedy else secrets.randbits(63)
        self.stream, self.offset = stream_of(seed, join.sample), join.offset
        self._adjust = Adjustments(join, vocab_size) if Adjustments.are_needed(join) else None
        self.num_top = 0  # the likeliest tokens that are enough to sample from; 0: all logits are needed
        if self._adjust is None and join.sampling.logprobs is None:
            top_k = 1 if self.is_greedy else join.sampling.top_k
            self.num_top = top_k if top_k <= MAX_TOP and top_k < vocab_size else 0

    @property
    def uses_history(self) -> bool:
        """Whether sampling depends on the text. If so, `add_tokens` must be called for every other token."""
        return self._adjust is not None

    @property
    def can_run_on_device(self) -> bool:
        """Whether a device can sample this row: it has temperature, min-p, top-k and top-p, and no logprobs."""
        return self._adjust is None and self.params.logprobs is None and self.params.typical_p >= 1.0

    def choose(self, logits: Array, position: int, bits: Array | None = None) -> int:
        """Sample the token at `position` from logits [vocab] and a grammar mask. Raises StepFailed if none is left."""
        x, ids = logits, None if bits is None else allowed_ids(bits, len(logits))
        if self._adjust is not None:
            x = self._adjust.apply(logits, position, ids)
            if self._adjust.allowed is not None:
                ids = self._adjust.allowed if ids is None else np.intersect1d(self._adjust.allowed, ids)
        if ids is not None:
            x = x[ids] if len(ids) else NO_LOGITS
        if self.is_greedy:
            at = int(x.argmax())
            _check(float(x[at]))
        else:
            at = self._draw(x, position)
        token = at if ids is None else int(ids[at])
        if self._adjust is not None:
            self._adjust.add_token(token)
        return token

    def run(self, logits: Array, position: int, drafts: Sequence[int] = (), mask: Array | None = None) -> SampledTokens:
        """Sample from `position` on, from logits [1 + drafts, vocab]: the accepted drafts and one more token.

        `mask` is the grammar's, [1 + drafts, words].
        """
        tokens: list[int] = []
        logprobs: list[TokenLogprobs] = []
        try:
            for index in range(len(logits)):
                tokens.append(self.choose(logits[index], position + index, None if mask is None else mask[index]))
                if self.params.logprobs is not None:
                    logprobs.append(logprobs_of(logits[index], tokens[-1], self.params.logprobs))
                if index < len(drafts) and drafts[index] != tokens[-1]:
                    break
        except StepFailed as error:
            return SampledTokens(error=error)
        return SampledTokens(tuple(tokens), tuple(logprobs))

    def pick(self, top: Top, position: int, drafts: Sequence[int] = ()) -> SampledTokens:
        """Do the same as `run`, from the `num_top` likeliest tokens of each position."""
        tokens: list[int] = []
        try:
            for index in range(len(top.tokens)):
                if top.tokens[index, 0] < 0:
                    _check(float("nan"))
                at = 0 if self.is_greedy else self._draw(top.logits[index, : self.num_top], position + index)
                tokens.append(int(top.tokens[index, at]))
                if index < len(drafts) and drafts[index] != tokens[-1]:
                    break
        except StepFailed as error:
            return SampledTokens(error=error)
        return SampledTokens(tuple(tokens))

    def add_tokens(self, tokens: Sequence[int]) -> None:
        """Append tokens that were not sampled here to the row's history."""
        if self._adjust is not None:
            for token in tokens:
                self._adjust.add_token(token)

    def _draw(self, x: Array, position: int) -> int:
        top = x.max()
        _check(float(top))
        with np.errstate(over="ignore"):  # a temperature near 0 gives -inf for all but the likeliest, as intended
            x = (x - top) / np.float32(max(self.params.temperature, MIN_TEMPERATURE))
        kept, x = apply_filters(self.params, x)
        at = sample_index(x, uniform(self.stream, position + self.offset))
        return at if kept is None else int(kept[at])


class Top(NamedTuple):
    """The likeliest tokens of some rows, likeliest first, as many per row as its sampler's `num_top`."""

    tokens: Array  # int32 [rows, K]; -1: the row has no valid distribution
    logits: Array  # float32 [rows, K]


class Task(NamedTuple):
    """A row to sample: its logits are rows `first`, `first` + 1, … of the step's."""

    sampler: Sampler
    first: int
    position: int  # of the first token to sample
    drafts: tuple[int, ...] = ()
    mask: Array | None = None  # uint32 [1 + drafts, words]: tokens that a grammar allows


def sample(logits: Array, tasks: Sequence[Task], top: Top | None = None) -> list[SampledTokens]:
    """Sample each row, from logits [L, vocab] of the whole step, or from `top` where that is enough.

    An error of one row does not affect the others.
    """
    results = []
    for task in tasks:
        rows = slice(task.first, task.first + 1 + len(task.drafts))
        if top is not None and task.sampler.num_top and task.mask is None:
            results.append(task.sampler.pick(Top(top.tokens[rows], top.logits[rows]), task.position, task.drafts))
        else:
            results.append(task.sampler.run(logits[rows], *task[2:]))
    return results


def _check(top: float) -> None:
    """Raise StepFailed unless the largest logit is finite. It is NaN if any logit is."""
    if not np.isfinite(top):
        raise no_choice(is_empty=top == float("-inf"))


def no_choice(is_empty: bool) -> StepFailed:
    """Return the error of a row without a token: all were ruled out, or the logits are not numbers."""
    if is_empty:
        return StepFailed("No token is left to sample: the request's parameters or its grammar rule out every token.")
    return StepFailed("The model's logits for this request are not valid numbers (NaN or infinity).")
