"""Decides in each step which running texts get drafts, and how many drafted tokens each gets.

A step with drafts takes longer and yields more tokens. From acceptance rates and measured step times, drafted tokens
are added while the expected tokens per second grow; if none does that, the step has no drafts. What a token adds to the
time depends on all that the step computes: newest tokens, forced ones, prompts. Where drafts do not pay, a single one
is tried at growing intervals, within a small share of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from quire.scheduler.acceptance import LATER_PLACES, Acceptance, RequestDrafts, Source
from quire.scheduler.model_drafts import DraftedText, ModelChoice, ModelDrafts
from quire.scheduler.plain_step import PlainStep
from quire.scheduler.proposals import MAX_DRAFTS, MIN_GAIN, DraftLimits, ProposesByModel, ProposesDrafts
from quire.scheduler.request_state import RequestState
from quire.scheduler.stats import DraftStats
from quire.scheduler.step_costs import WITHOUT_LOGITS, StepCosts, size_of_step
from quire.types.step import DraftCount, Part

MAX_ROWS = 64  # rows of a step; larger steps are bound by arithmetic, and drafters are not called
FEW_WITHOUT = 8  # consecutive steps without drafts; after them drafters are called every LOOK_EVERY steps, and one step
LOOK_EVERY, TEXTS_A_STEP = 4, 8  # later for each TEXTS_A_STEP running texts, since that takes time; and for each
STEPS_A_STEP, MOST_LATER = 16, 8  # STEPS_A_STEP steps without drafts, up to MOST_LATER
MAX_PATIENCE = 256  # most opportunities skipped between two drafts that are tried although they are not expected to pay
PROBE_TOKENS = 1
MAX_COMPARED = 48  # at most this many counts of drafted tokens are compared
PROBE_SHARE = 0.003  # of the time of all steps: the most that drafts which are not expected to pay may cost
MOST_PROBE_LOSS = 0.9  # of a step: the budget holds one step, so a cell that was measured too slow is tried again
MOST_IN_ROW = 128  # steps with drafts; the next one has none, so that the time without drafts is measured again
SUSPENDED_TOKENS = 64  # of a text whose drafts were dropped, until it gets some again
MIN_PROBABILITY = 0.05  # that a drafted token is reached and accepted; less likely tokens are dropped


class DraftCandidate(NamedTuple):
    """The best draft of one text, with the expected gain of each drafted token.

    The gain of a token is the probability that it is reached and accepted, times the probability that the text's
    grammar would not have forced it anyway.
    """

    state: RequestState
    request: RequestDrafts
    source: Source
    tokens: Sequence[int]
    gains: list[float]  # expected tokens, one for each of `tokens`; may be shorter, the rest is too unlikely
    is_trial: bool = False  # verified even if it is not expected to pay


NO_LIMITS = DraftLimits()


class Speculation:
    """The drafters of one engine, and what is known about their success."""

    most_in_row = MOST_IN_ROW

    def __init__(
        self,
        drafters: Sequence[ProposesDrafts],
        limits: DraftLimits = NO_LIMITS,
        model: ProposesByModel | None = None,
    ) -> None:
        """`model`: a drafter whose drafts take time. It drafts for texts without a better draft from the others."""
        self._drafters = drafters
        self._limits = limits
        every: Sequence[ProposesDrafts] = (*drafters, *([] if model is None else [model]))
        priors = {(each.name, strength): prior for each in every for strength, prior in enumerate(each.priors)}
        self._acceptance = Acceptance(priors)
        self._costs = StepCosts()
        self._model = None if model is None else ModelDrafts(model, limits)
        self._requests: dict[str, RequestDrafts] = {}
        self._pending: dict[str, Source] = {}  # sources of the drafts in the step in flight
        self._other_drafts: dict[str, DraftCandidate] = {}  # drafts that those of the model replaced in that step
        self.num_drafted: Counter[str] = Counter({each.name: 0 for each in every})
        self.num_accepted: Counter[str] = Counter({each.name: 0 for each in every})
        self._suspended_until: dict[str, int] = {}  # tokens of a text from which it gets drafts again
        self._num_running = 0  # at the last plan
        self._num_without = 0  # steps without drafts since then, or since the number of running requests changed
        self._num_in_row = 0  # steps with drafts
        self._probe_seconds = 0.0  # budget for drafts that are not expected to pay
        self._num_drafts = 0
        self._num_by_length = [0] * (MAX_DRAFTS + 1)  # drafts, by how many of their tokens were accepted

    # ── planning ──

    def suggest(self, running: Sequence[RequestState], has_newcomers: bool = False) -> None:
        """Set the drafts of the next step. `has_newcomers`: it will also admit texts."""
        num_running = len(running)
        self._suspend_dropped(running)
        num_in_row, self._num_in_row = self._num_in_row, 0
        if num_in_row == self.most_in_row or not self._can_pay(num_running):
            return
        self._num_without = self._num_without + 1 if num_running == self._num_running else 0
        self._num_running = num_running
        if self._num_without > FEW_WITHOUT and self._num_without % self._look_interval(num_running):
            return
        can_draft = [state for state in running if state.can_draft]
        states = self._not_suspended(can_draft)
        if not states:
            return
        are_all = len(can_draft) == num_running and not has_newcomers
        is_plain = are_all and all(state.remaining == 1 for state in running)  # nothing else is due
        step = PlainStep(num_running) if is_plain else PlainStep.of(running, has_newcomers, self._limits.budget)
        candidates = self._candidates(states)
        if self._model is not None:
            candidates = self._with_model(self._model, states, candidates, step)
        if not candidates:
            return
        counts = self._best_counts(candidates, step)
        num_drafts, most = sum(counts), self._most_drafts(step)
        for candidate, count in zip(candidates, counts, strict=True):
            if candidate.is_trial:
                num_more = min(len(candidate.tokens) - count, most - num_drafts)
                count, num_drafts = count + num_more, num_drafts + num_more
            if count:
                self._num_without = 0
            elif num_drafts < most:
                count = self._probe(candidate, step.size + num_drafts)
                num_drafts += count
            if count:
                candidate.request.num_skipped = 0
                candidate.state.suggest(tuple(candidate.tokens[:count]))
                self._pending[candidate.state.sample_id] = candidate.source
        if num_drafts:
            self._num_in_row = num_in_row + 1

    def _suspend_dropped(self, running: Sequence[RequestState]) -> None:
        """Suspend drafts of texts whose last drafts were dropped: memory was short, or the step was full."""
        if not (self._pending or self._other_drafts) or any(state.num_in_flight for state in running):
            return
        for state in running:
            if state.sample_id in self._pending:
                self._suspended_until[state.sample_id] = len(state.tokens) + SUSPENDED_TOKENS
        self._pending.clear()
        self._other_drafts.clear()

    def _not_suspended(self, states: list[RequestState]) -> list[RequestState]:
        """Return the texts whose drafts are not suspended."""
        if not self._suspended_until:
            return states
        return [state for state in states if len(state.tokens) >= self._suspended_until.get(state.sample_id, 0)]

    def wants_results(self, running: Sequence[RequestState], has_newcomers: bool) -> bool:
        """Return whether the steps in flight must be collected before the next is planned. Here none is in flight."""
        return False

    def _can_pay(self, num_running: int) -> bool:
        """Return whether drafts could pay with this many running texts."""
        has_drafters = bool(self._drafters) or self._model is not None
        return has_drafters and 0 < num_running <= MAX_ROWS and self._costs.has_measurements

    def _look_interval(self, num_running: int) -> int:
        """Return how many steps without drafts there are for each one in which drafters are called."""
        return LOOK_EVERY + num_running // TEXTS_A_STEP + min(self._num_without // STEPS_A_STEP, MOST_LATER)

    def _candidates(self, states: list[RequestState]) -> list[DraftCandidate]:
        """Return the best draft of each text that has one."""
        best: list[DraftCandidate | None] = [None] * len(states)
        requests = [self._request(state.sample_id) for state in states]
        limit = min(self._limits.row_drafts, 1 + 2 * self._limits.step_drafts // len(states))
        for drafter in self._drafters:
            for place, draft in enumerate(drafter.propose(states, limit)):
                state, request = states[place], requests[place]
                tokens = draft.tokens[: max(0, self._limits.row_drafts + 1 - state.remaining)]
                if not tokens:
                    continue
                source = (drafter.name, draft.strength)
                gains = self._gains(state, request, source, len(tokens))
                found = best[place]
                if found is None or sum(gains) > sum(found.gains):
                    best[place] = DraftCandidate(state, request, source, tokens, gains)
        return [each for each in best if each is not None]

    def _with_model(
        self, model: ModelDrafts, states: Sequence[RequestState], found: list[DraftCandidate], step: PlainStep
    ) -> list[DraftCandidate]:
        """Add the model's drafts for texts where they are expected to gain more than those found and to pay."""
        model.begin_step()
        texts = self._texts_for_model(model, states, found)
        choice = self._model_choice(model, texts, step)
        model.count_left_out(texts, choice)
        chosen = model.prepare(choice)
        if not chosen:
            return found
        drafts = dict(zip([state.sample_id for state in chosen], model.propose(choice), strict=True))
        kept = [each for each in found if not drafts.get(each.state.sample_id)]
        self._other_drafts = {each.state.sample_id: each for each in found if drafts.get(each.state.sample_id)}
        for state in chosen:
            request, tokens = self._request(state.sample_id), drafts[state.sample_id]
            if tokens:
                gains = self._gains(state, request, model.source, len(tokens))
                kept.append(DraftCandidate(state, request, model.source, tokens, gains, choice.is_trial))
        return kept

    def _texts_for_model(
        self, model: ModelDrafts, states: Sequence[RequestState], found: Sequence[DraftCandidate]
    ) -> list[DraftedText]:
        """Return the texts for which the model's drafts are expected to gain more than the drafts that were found."""
        expected = {each.state.sample_id: 1.0 + sum(each.gains) for each in found}
        share = model.share_of_step(self._costs.seconds(len(states)), len(states))
        texts = []
        for state in states:
            request = self._request(state.sample_id)
            gains = self._gains(state, request, model.source, model.max_drafts)
            if (1.0 + sum(gains)) * share > expected.get(state.sample_id, 0.0):
                texts.append(DraftedText(state, request, gains))
        return texts

    def _model_choice(self, model: ModelDrafts, texts: Sequence[DraftedText], step: PlainStep) -> ModelChoice:
        """Return the model's best action in this step."""
        plain = self._costs.seconds(step.num_texts)
        return model.choose(texts, step, plain, partial(self._drafted_seconds, step))

    def _gains(self, state: RequestState, request: RequestDrafts, source: Source, count: int) -> list[float]:
        """Return the expected gain of each drafted token. A token that the grammar forces anyway is no gain."""
        chances = self._chances(request, source, count)
        if not state.num_forced:
            return chances
        sampled_share = 1.0 - state.num_forced / state.num_output
        return [chance * sampled_share for chance in chances]

    def _chances(self, request: RequestDrafts, source: Source, count: int) -> list[float]:
        reached, *later = self._acceptance.probabilities(request, source)
        chances: list[float] = []
        for probability, (begin, end) in zip(later, LATER_PLACES, strict=True):
            for _ in range(begin, min(end, count + 1)):
                if reached < MIN_PROBABILITY:
                    return chances
                chances.append(reached)
                reached *= probability
        return chances

    def _best_counts(self, candidates: list[DraftCandidate], step: PlainStep) -> list[int]:
        """Return the number of tokens of each draft that maximizes the step's expected tokens per second."""
        if sum(sum(each.gains) for each in candidates) < (MIN_GAIN - 1.0) * step.num_texts:
            return [0] * len(candidates)  # too little even if drafts took no time
        order = sorted(
            ((gain, place) for place, each in enumerate(candidates) for gain in each.gains), reverse=True
        )  # the gains of a draft never rise, so its tokens stay in order
        del order[self._most_drafts(step) :]
        expected = list(accumulate((gain for gain, _ in order), initial=float(step.num_texts)))
        again = self._recomputed(candidates, order)
        plain = best_rate = step.num_texts / self._costs.seconds(step.num_texts)
        num_best, stride = 0, 1 + len(order) // MAX_COMPARED
        for index in range(stride, len(expected), stride):
            rate = expected[index] / self._drafted_seconds(step, index, again[index])
            if rate > best_rate:
                best_rate, num_best = rate, index
        if best_rate < MIN_GAIN * plain:
            num_best = 0
        counts = [0] * len(candidates)
        for _, place in order[:num_best]:
            counts[place] += 1
        return counts

    def _most_drafts(self, step: PlainStep) -> int:
        """Return the most drafted tokens that the device verifies in this step."""
        return max(0, min(self._limits.step_drafts, self._limits.step_tokens - step.num_tokens))

    def _recomputed(self, candidates: list[DraftCandidate], order: list[tuple[float, int]]) -> list[float]:
        """Return how many tokens are expected to be computed again after so many drafted tokens of `order`."""
        if not self._limits.has_states:
            return [0.0] * (1 + len(order))
        counts, last, more = [0] * len(candidates), [1.0] * len(candidates), list[float]()
        for gain, place in order:  # if a draft's token number n is the first wrong one, n tokens are computed again
            counts[place] += 1
            more.append(counts[place] * (last[place] - gain))
            last[place] = gain
        return list(accumulate(more, initial=0.0))

    def _drafted_seconds(self, step: PlainStep, num_drafts: int, num_again: float = 0.0) -> float:
        """Return the expected seconds of a step with drafts, less those of other tokens; then of `num_again` tokens.

        The others must be computed anyway, so their time is no part of the choice. But drafts beside them cost more.
        `num_again`: those that are computed again, in a later step.
        """
        costs = self._costs_with_drafts(step.num_texts)
        seconds = costs.seconds(step.size + num_drafts)
        if step.num_others:
            plain = costs.seconds(step.num_texts)
            seconds = max(plain, seconds + plain - costs.seconds(step.size))
        if num_again:
            later = self._costs.seconds(step.size + WITHOUT_LOGITS * num_again) - self._costs.seconds(step.size)
            return seconds + max(0.0, later)
        return seconds

    def _costs_with_drafts(self, num_texts: int) -> StepCosts:
        """Return the times of steps in which so many texts decode, some of them with drafts."""
        return self._costs

    def _probe(self, candidate: DraftCandidate, size: float) -> int:
        """Return how many tokens to try of a draft that is not expected to pay. `size`: of the step so far."""
        request = candidate.request
        request.num_skipped += 1
        if request.num_skipped < request.patience:
            return 0
        estimates = (self._costs.seconds, self._costs.tile_seconds)
        loss = max(0.0, *(seconds(size + PROBE_TOKENS) - seconds(size) for seconds in estimates))
        loss = min(loss, MOST_PROBE_LOSS * self._costs.seconds(size))
        if loss > self._probe_seconds:
            return 0
        self._probe_seconds -= loss
        request.patience = min(2 * request.patience, MAX_PATIENCE)
        return PROBE_TOKENS

    def _request(self, sample_id: str) -> RequestDrafts:
        found = self._requests.get(sample_id)
        if found is None:
            found = self._requests[sample_id] = RequestDrafts()
        return found

    # ── results ──

    def record(self, sample_id: str, num_drafts: int, tokens: Sequence[int], num_output: int) -> tuple[DraftCount, ...]:
        """Record how many drafts of a text were accepted: all of its new tokens but one. Return the counts.

        `num_output`: the tokens that became output. Those after a stop did not.
        """
        if num_drafts <= 0:
            return ()  # if it had some, they were dropped: `_suspend_dropped` needs to know that
        source = self._pending.pop(sample_id, None)
        other = self._other_drafts.pop(sample_id, None) if self._other_drafts else None
        if source is None or not tokens:
            return ()
        if other is not None:  # the new tokens show how many of its tokens would have been accepted
            known = other.tokens[: len(tokens)]
            right = next((at for at, token in enumerate(known) if token != tokens[at]), len(known))
            self._learn(other.request, other.source, len(known), right)
        num_accepted = len(tokens) - 1
        self._learn(self._request(sample_id), source, num_drafts, num_accepted)
        num_accepted = min(num_accepted, num_output)
        self.num_drafted[source[0]] += num_drafts
        self.num_accepted[source[0]] += num_accepted
        self._num_drafts += 1
        self._num_by_length[num_accepted] += 1
        return (DraftCount(source[0], num_drafts, num_accepted),)

    def _learn(self, request: RequestDrafts, source: Source, num_drafts: int, num_accepted: int) -> None:
        self._acceptance.record(request, source, num_drafts, num_accepted)

    def record_step(self, parts: Sequence[Part], num_tokens: int, seconds: float, is_usual: bool) -> None:
        """Record the time of a step. `is_usual`: the device waited for its plan no longer than for plain steps."""
        if self._drafters or self._model is not None:
            size, is_decoding = size_of_step(parts, num_tokens)
            self._costs.record(size, seconds, is_decoding)
            self._add_probe_seconds(seconds)

    def _add_probe_seconds(self, seconds: float) -> None:
        self._probe_seconds = min(self._probe_seconds + PROBE_SHARE * seconds, seconds)
        if self._model is not None:
            self._model.add_probe_seconds(PROBE_SHARE * seconds)

    def stats(self) -> DraftStats:
        """Return figures for metrics."""
        at_least = list(accumulate(reversed(self._num_by_length)))[::-1]  # drafts with so many accepted tokens or more
        return DraftStats(dict(self.num_drafted), dict(self.num_accepted), self._num_drafts, at_least[1:])

    def forget(self, sample_id: str) -> None:
        """Drop the records of a text that has ended."""
        for kept in (self._requests, self._pending, self._other_drafts, self._suspended_until):
            kept.pop(sample_id, None)
        for drafter in self._drafters:
            drafter.forget(sample_id)
        if self._model is not None:
            self._model.forget(sample_id)
