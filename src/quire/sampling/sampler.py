"""How a row chooses its next tokens.

Law: a row's choice depends on its own logits, parameters, text and seed, and on nothing else: not on other rows, not on
the order of the batch, not on whether drafts were tried. So each row is computed by itself. That costs a few
microseconds of Python for a row, beside 30 to 200 for its arithmetic, and keeps its numbers in the cache of a core.

Drafts are verified by drawing as if there were none and going on while the draft names the token drawn. For a draft
without probabilities of its own this *is* rejection sampling: draft d is kept with probability p(d), else the token
comes from p without d. And since the numbers of chance belong to positions, drafts never change the text.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.sampling.adjust import Adjustments
from quire.sampling.counter import stream_of, uniform
from quire.sampling.filters import draw, kept_by
from quire.sampling.logprobs import logprobs_of
from quire.sampling.mask import allowed_ids
from quire.types.errors import QuireError, StepFailed
from quire.types.step import Join, TokenLogprobs

Array = NDArray[Any]

COLDEST = float(np.finfo(np.float32).tiny)  # the least temperature that is not 0
MOST_WANTED = 256  # a larger top-k is looked for on the host
NOTHING = np.full(1, -np.inf, np.float32)  # logits where no token is left


class Choice(NamedTuple):
    """What came of one row: tokens, or why there are none."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    error: QuireError | None = None


class Sampler:
    """One row's. Made when a request joins, told of every token that it chose itself."""

    def __init__(self, join: Join, vocab_size: int) -> None:
        self.params = join.sampling
        self.is_greedy = join.sampling.is_greedy
        seed = join.sampling.seed
        if seed is None:
            seed = 0 if self.is_greedy else secrets.randbits(63)
        self.stream = stream_of(seed, join.sample)
        self._adjust = Adjustments(join, vocab_size) if Adjustments.wanted(join.sampling) else None
        # Tokens among which the choice is surely made, so that a device may look for those alone; 0: among all.
        self.num_wanted = 0
        if self._adjust is None and join.sampling.logprobs is None:
            top_k = 1 if self.is_greedy else join.sampling.top_k
            self.num_wanted = top_k if top_k <= MOST_WANTED and top_k < vocab_size else 0

    @property
    def remembers(self) -> bool:
        """Does its choice depend on the text? Then it is to be told of every token."""
        return self._adjust is not None

    @property
    def is_plain(self) -> bool:
        """Can a device choose in its place? By temperature, min-p, top-k and top-p, and without saying how likely."""
        return self._adjust is None and self.params.logprobs is None and self.params.typical_p >= 1.0

    def choose(self, logits: Array, position: int, bits: Array | None = None) -> int:
        """The token at `position`, by its logits [vocab] and a grammar's mask. Raises StepFailed if there is none."""
        x, ids = logits, None if bits is None else allowed_ids(bits, len(logits))
        if self._adjust is not None:
            x = self._adjust.apply(logits, position, ids)
            if self._adjust.allowed is not None:
                ids = self._adjust.allowed if ids is None else np.intersect1d(self._adjust.allowed, ids)
        if ids is not None:
            x = x[ids] if len(ids) else NOTHING
        if self.is_greedy:
            at = int(x.argmax())
            _check(float(x[at]))
        else:
            at = self._draw(x, position)
        token = at if ids is None else int(ids[at])
        if self._adjust is not None:
            self._adjust.told(token)
        return token

    def run(self, logits: Array, position: int, drafts: Sequence[int] = (), mask: Array | None = None) -> Choice:
        """The tokens from `position` on: logits [1 + drafts, vocab] go as far as the drafts hold, and one further.

        A grammar's mask [1 + drafts, words] goes along with them.
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
            return Choice(error=error)
        return Choice(tuple(tokens), tuple(logprobs))

    def pick(self, top: Top, position: int, drafts: Sequence[int] = ()) -> Choice:
        """The same as `run`, from the `num_wanted` likeliest tokens of each position."""
        tokens: list[int] = []
        try:
            for index in range(len(top.tokens)):
                if top.tokens[index, 0] < 0:
                    _check(float("nan"))
                at = 0 if self.is_greedy else self._draw(top.logits[index, : self.num_wanted], position + index)
                tokens.append(int(top.tokens[index, at]))
                if index < len(drafts) and drafts[index] != tokens[-1]:
                    break
        except StepFailed as error:
            return Choice(error=error)
        return Choice(tuple(tokens))

    def hear(self, tokens: Sequence[int]) -> None:
        """Tokens of the row's text that it did not choose."""
        if self._adjust is not None:
            for token in tokens:
                self._adjust.told(token)

    def _draw(self, x: Array, position: int) -> int:
        top = x.max()
        _check(float(top))
        with np.errstate(over="ignore"):  # a temperature near 0 makes -inf of all but the likeliest: as it should be
            x = (x - top) / np.float32(max(self.params.temperature, COLDEST))
        kept, x = kept_by(self.params, x)
        at = draw(x, uniform(self.stream, position))
        return at if kept is None else int(kept[at])


class Top(NamedTuple):
    """The likeliest tokens of some rows, likeliest first, each row with as many as were wanted of it."""

    tokens: Array  # int32 [rows, K]; -1: the row has no valid distribution
    logits: Array  # float32 [rows, K]


class Task(NamedTuple):
    """A row that needs tokens: its logits are `first`, `first` + 1, … of the step's."""

    sampler: Sampler
    first: int
    position: int  # of the first token that it chooses
    drafts: tuple[int, ...] = ()
    mask: Array | None = None  # uint32 [1 + drafts, words]: what a grammar leaves


def sample(logits: Array, tasks: Sequence[Task], top: Top | None = None) -> list[Choice]:
    """What each row chooses, by logits [L, vocab] of the whole step, or by `top` where that is enough.

    One row's failure is its own.
    """
    choices = []
    for task in tasks:
        rows = slice(task.first, task.first + 1 + len(task.drafts))
        if top is not None and task.sampler.num_wanted and task.mask is None:
            choices.append(task.sampler.pick(Top(top.tokens[rows], top.logits[rows]), task.position, task.drafts))
        else:
            choices.append(task.sampler.run(logits[rows], *task[2:]))
    return choices


def _check(top: float) -> None:
    """The largest of the logits: NaN if any is."""
    if not np.isfinite(top):
        raise no_choice(is_empty=top == float("-inf"))


def no_choice(is_empty: bool) -> StepFailed:
    """Why a row has no token: all were ruled out, or there is no distribution."""
    if is_empty:
        return StepFailed("No token is left to choose from: the request's parameters or its grammar rule out all.")
    return StepFailed("The model computed no valid distribution for this request (not a number).")
