"""Decides when a drafter that is a model drafts, for which texts, and how many tokens.

Its steps take time, which is measured and added to the time of the step that verifies the drafts. The model must read a
text before it can draft for it. A long text is read in chunks, one a step, if drafts are expected to save more time in
the next tokens than reading costs. Where nothing pays, a draft is tried now and then within a small share of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from quire.scheduler.acceptance import RequestDrafts, Source
from quire.scheduler.plain_step import PlainStep
from quire.scheduler.proposals import MIN_GAIN, DraftLimits, ProposesByModel
from quire.scheduler.request_state import RequestState
from quire.scheduler.step_costs import StepCosts

READY = 32  # tokens of a backlog that is read in the step of the draft
CHUNK = 256  # tokens of backlogs that are read in one step
HORIZON = 64  # tokens in which drafts have to pay for the reading
FIRST_TRIALS = 3  # drafts that are made before anything is known
TRIAL_TOKENS = 2
MIN_STEPS = 16  # of the target, until its times are trusted: the first ones are slow
MIN_FIRST_GAIN = 0.25  # expected of the first drafted token: a text with less is left out
FIRST_PATIENCE, MAX_PATIENCE = 16, 512  # steps that a text is left out, until it is tried again
MOST_PROBE_SECONDS = 1.0


class DraftedText(NamedTuple):
    """A text, and the expected gain of each token of a draft (see `DraftCandidate`)."""

    state: RequestState
    request: RequestDrafts
    gains: list[float]


class ModelChoice(NamedTuple):
    """What the model does in this step."""

    drafted: Sequence[RequestState] = ()
    num_drafts: int = 0  # tokens for each of them
    read: Sequence[RequestState] = ()  # texts whose backlog is shortened
    is_trial: bool = False  # the drafts are verified even if they are not expected to pay

    @property
    def does_something(self) -> bool:
        """Does the model run at all?"""
        return bool(self.drafted or self.read)


NOTHING = ModelChoice()


class ModelDrafts:
    """A drafter that is a model, the measured seconds of its steps, and when to try it."""

    def __init__(self, drafter: ProposesByModel, limits: DraftLimits) -> None:
        self._drafter, self._limits = drafter, limits
        self.source: Source = (drafter.name, 0)
        self.max_drafts = min(drafter.max_drafts, limits.row_drafts)
        self._costs = StepCosts()
        self._num_trials = self._num_steps = 0
        self._probe_seconds = 0.0
        self.spent_seconds = 0.0  # by its steps since `begin_step`

    def begin_step(self) -> None:
        """A new step is planned."""
        self.spent_seconds = 0.0

    def choose(
        self, texts: Sequence[DraftedText], step: PlainStep, plain: float, drafted: Callable[[int, float], float]
    ) -> ModelChoice:
        """Return the fastest choice. `plain`: seconds of the step without drafts; `drafted`: with so many drafts, and
        after which so many tokens are computed again."""
        backlogs = self._drafter.backlogs([text.state for text in texts])
        known = [(text, backlog) for text, backlog in zip(texts, backlogs, strict=True) if backlog is not None]
        if not known:
            return NOTHING
        if self._num_trials < FIRST_TRIALS or not self._costs.has_measurements:
            first = min(known, key=lambda each: each[1])[0]
            return ModelChoice((first.state,), min(TRIAL_TOKENS, self.max_drafts), is_trial=True)
        if self._num_steps < MIN_STEPS:
            return NOTHING
        hopeful = [each for each in known if self._is_hopeful(each[0])]
        ready = [each for each in hopeful if each[1] <= READY]
        num_drafts, ratio = self._best(hopeful, step, plain, drafted)
        saved = HORIZON * plain * (1.0 - 1.0 / ratio) / max(1, len(hopeful))
        late = [text.state for text, backlog in hopeful if backlog > READY and self._costs.seconds(backlog) < saved]
        if ready and len(ready) < len(hopeful):
            num_drafts, ratio = self._best(ready, step, plain, drafted)
        chosen = [text.state for text, _ in ready] if num_drafts else []
        if chosen or late:
            return ModelChoice(chosen, num_drafts if chosen else 0, late)
        return self._probe(known, drafted(1, 0.0) - plain)

    def share_of_step(self, plain: float, num_texts: int) -> float:
        """Return the plain step's share of a step with model drafts, by time. Other drafters cost nothing."""
        return plain / (plain + self.max_drafts * self._costs.seconds(num_texts)) if self._num_trials else 1.0

    def prepare(self, choice: ModelChoice) -> Sequence[RequestState]:
        """Shorten the chosen backlogs; return the texts to draft for."""
        if choice.read:
            self._drafter.read(choice.read, CHUNK)
            self._learn_times()
        return choice.drafted

    def propose(self, choice: ModelChoice) -> list[Sequence[int]]:
        """Return the drafts of the chosen texts."""
        drafts = [draft.tokens for draft in self._drafter.propose(choice.drafted, choice.num_drafts)]
        seconds = self._learn_times()
        if choice.is_trial:
            self._num_trials += 1
            self._probe_seconds = max(0.0, self._probe_seconds - seconds)
        return drafts

    def count_left_out(self, texts: Sequence[DraftedText], choice: ModelChoice) -> None:
        """Count a skipped step for texts that are left out; reset the count of drafted texts with a small gain."""
        drafted = {id(state) for state in choice.drafted}
        for state, request, gains in texts:
            if id(state) not in drafted:
                request.model_skipped += 1
            elif gains[:1] < [MIN_FIRST_GAIN]:
                request.model_skipped = 0
                request.model_patience = min(2 * (request.model_patience or FIRST_PATIENCE), MAX_PATIENCE)

    def add_probe_seconds(self, seconds: float) -> None:
        """Allow more time for drafts that are not expected to pay: a step of the target is over."""
        self._num_steps += 1
        self._probe_seconds = min(self._probe_seconds + seconds, MOST_PROBE_SECONDS)

    def forget(self, sample_id: str) -> None:
        """Drop the records of a text that has ended."""
        self._drafter.forget(sample_id)

    def _is_hopeful(self, text: DraftedText) -> bool:
        request = text.request
        return text.gains[:1] >= [MIN_FIRST_GAIN] or request.model_skipped >= (request.model_patience or FIRST_PATIENCE)

    def _best(
        self,
        texts: Sequence[tuple[DraftedText, int]],
        step: PlainStep,
        plain: float,
        drafted: Callable[[int, float], float],
    ) -> tuple[int, float]:
        """Return how many tokens to draft for each text, and how much faster that is; 0 and 1: nothing pays."""
        best, best_ratio, num_texts = 0, MIN_GAIN, len(texts)
        if not num_texts:
            return 0, 1.0
        most = min(self._limits.step_drafts, self._limits.step_tokens - step.num_tokens) // num_texts
        expected, again = float(step.num_texts), 0.0
        reading = self._costs.seconds(num_texts + sum(min(backlog, READY) - 1 for _, backlog in texts))
        for count in range(1, min(self.max_drafts, most) + 1):
            expected += sum(text.gains[count - 1] for text, _ in texts if len(text.gains) >= count)
            if self._limits.has_states:
                again += count * sum(_gain(text, count - 1) - _gain(text, count) for text, _ in texts)
            verifying = drafted(count * num_texts, again)
            seconds = verifying + reading + (count - 1) * self._costs.seconds(num_texts)
            ratio = expected * plain / (step.num_texts * seconds)
            if ratio > best_ratio:
                best, best_ratio = count, ratio
        return best, best_ratio if best else 1.0

    def _probe(self, known: Sequence[tuple[DraftedText, int]], loss: float) -> ModelChoice:
        """Return a draft that is not expected to pay, if there is time for it."""
        text, backlog = min(known, key=lambda each: each[1])
        if self._costs.seconds(backlog) + max(0.0, loss) > self._probe_seconds:
            return NOTHING
        return ModelChoice((text.state,), 1, is_trial=True)

    def _learn_times(self) -> float:
        """Record the times of the model's steps since the last call; return their sum in seconds."""
        spent = 0.0
        for step in self._drafter.take_times():
            self._costs.record(step.num_tokens, step.seconds)
            spent += step.seconds
        self.spent_seconds += spent
        return spent


def _gain(text: DraftedText, number: int) -> float:
    """Return the gain of a draft's token, from 1; before the first one, 1."""
    return 1.0 if not number else text.gains[number - 1] if number <= len(text.gains) else 0.0
