"""Grammars of constrained requests: compiled beside the step loop; masks are computed while a step runs.

    Submit → `compile` → `take_compiled` → `start` → for each step `masks`, and for its outcomes `follow`

A grammar state accepts every token of its text once, in order. It survives a preemption, as the text does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.config import Config
from quire.grammar.compiler import Compiler, Job
from quire.grammar.grammar import Grammar, GrammarState
from quire.observe.log import error_origin
from quire.runner.flight import Mask, Masks
from quire.sampling.mask import WORD_BITS, blank
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.whole_texts import WholeTextScheduler
from quire.types.errors import Overloaded, QuireError, StepFailed
from quire.types.request import FinishReason, GenerateRequest
from quire.types.step import Outcome, StepPlan

Array = NDArray[Any]
logger = logging.getLogger(__name__)
Cancels = list[tuple[FinishReason, int | None]]  # reason, sample


@dataclass(slots=True, eq=False)
class PendingGrammar:
    """A request whose grammar is being compiled."""

    request: GenerateRequest
    job: Job
    cancels: Cancels = field(default_factory=list)  # of single samples, which do not exist yet


@dataclass(slots=True, eq=False)
class ConstrainedText:
    """One sample of a constrained request."""

    request: GenerateRequest
    sample: int
    state: GrammarState
    jumps: bool  # forced tokens skip sampling; not possible with log probabilities, which they would not have


class Grammars:
    """Used by the loop's thread. A thread of its own computes masks while a step runs."""

    def __init__(
        self, scheduler: Scheduler | WholeTextScheduler, compiler: Compiler, config: Config, vocab_size: int
    ) -> None:
        self._scheduler = scheduler
        self._compiler = compiler
        self._jumps = config.grammar.jump_forward
        self._max_compiling = config.scheduler.max_waiting
        self._vocab_size = vocab_size
        self._compiling: dict[str, PendingGrammar] = {}
        self._texts: dict[tuple[str, int], ConstrainedText] = {}
        self._of_part: dict[str, ConstrainedText] = {}  # the same by their ids in plans
        self._thread: ThreadPoolExecutor | None = None

    # ── compiling ──

    def __contains__(self, request_id: str) -> bool:
        """Is the grammar of this request being compiled?"""
        return request_id in self._compiling

    @property
    def num_compiling(self) -> int:
        """Requests whose grammars are being compiled."""
        return len(self._compiling)

    @property
    def has_texts(self) -> bool:
        """Does any running text have a grammar?"""
        return bool(self._texts)

    def compile(self, request: GenerateRequest) -> None:
        """Start compiling a request's grammar. Raises a QuireError, and keeps nothing, if that is refused."""
        assert request.constraint is not None
        if len(self._compiling) >= self._max_compiling and not request.resumed:
            raise Overloaded(
                f"The grammars of {len(self._compiling)} requests are being compiled; no more may wait.", 1.0
            )
        self._compiling[request.id] = PendingGrammar(request, self._compiler.submit(request.constraint))

    def take_compiled(self, now: float) -> Iterator[tuple[PendingGrammar, Grammar | QuireError]]:
        """Yield and forget the requests whose grammars are compiled, or failed to compile."""
        for each in list(self._compiling.values()):
            compiled = self._compiler.poll(each.job, now)
            if compiled is not None:
                del self._compiling[each.request.id]
                yield each, compiled

    def cancel(self, request_id: str, reason: FinishReason, sample: int | None) -> GenerateRequest | None:
        """Cancel a compiling request and return it; or, given a sample, record that for later and return None."""
        if sample is None:
            return self._compiling.pop(request_id).request
        self._compiling[request_id].cancels.append((reason, sample))
        return None

    def close(self) -> list[GenerateRequest]:
        """End the threads. Return the requests whose grammars were still compiling."""
        left = [each.request for each in self._compiling.values()]
        self._compiling.clear()
        self._compiler.close()
        if self._thread is not None:
            self._thread.shutdown()
        return left

    # ── texts ──

    def start(self, request: GenerateRequest, grammar: Grammar, now: float) -> None:
        """Start the grammar states of a queued request's samples, with the tokens that the grammar forces first."""
        sampling = request.sampling
        jumps = self._jumps and sampling.logprobs is None and sampling.prompt_logprobs is None
        for sample in request.unfinished_samples:
            text = ConstrainedText(request, sample, grammar.start(), jumps)
            text.state.accept(request.resumed_output(sample))
            self._texts[request.id, sample] = self._of_part[request.sample_id(sample)] = text
            if jumps:
                self._advance(text, now)

    def follow(self, outcomes: list[Outcome], now: float) -> list[Outcome]:
        """Advance the states by sampled tokens, which may force more. Return the outcomes, cut at complete texts."""
        return [self._follow(outcome, now) for outcome in outcomes] if self._texts else outcomes

    def _follow(self, outcome: Outcome, now: float) -> Outcome:
        text = self._texts.get((outcome.request_id, outcome.sample))
        if text is None:
            return outcome
        is_sampled = bool(outcome.tokens) and not outcome.num_forced  # forced tokens were accepted already
        if is_sampled and outcome.error is None:
            outcome = _accept_sampled(text.state, outcome)
        if outcome.finish is not None or outcome.error is not None:
            del self._texts[outcome.request_id, outcome.sample]
            del self._of_part[text.request.sample_id(text.sample)]
        elif is_sampled:
            self._advance(text, now)
        return outcome

    def _advance(self, text: ConstrainedText, now: float) -> None:
        """Pass forced tokens to the scheduler; end a complete text without a step for its end token."""
        forced = text.state.forced_tokens() if text.jumps else []
        if forced:
            text.state.accept(forced)
            self._scheduler.force(text.request.id, text.sample, tuple(forced), now)
        if text.state.must_stop:
            self._scheduler.cancel(text.request.id, now, FinishReason.STOP, text.sample)

    # ── masks ──

    def masks(self, plan: StepPlan) -> Masks | None:
        """Start computing the masks of a step. None: no part needs one."""
        if not self._texts:
            return None
        needed = [
            (index, text, part.drafts)
            for index, part in enumerate(plan.parts)
            if part.num_logits and (text := self._of_part.get(part.request_id)) is not None
        ]
        if not needed:
            return None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "quire-masks")
        return Masks(tuple(index for index, _, _ in needed), self._thread.submit(self._fill, needed).result)

    def _fill(self, needed: list[tuple[int, ConstrainedText, tuple[int, ...]]]) -> Mapping[int, Mask]:
        """Compute the masks. An error of one text concerns it alone."""
        return {index: self._mask_of(text, drafts) for index, text, drafts in needed}

    def _mask_of(self, text: ConstrainedText, drafts: tuple[int, ...]) -> Mask:
        bits = blank(1 + len(drafts), self._vocab_size)
        try:
            text.state.fill_mask(bits, drafts)
            if text.request.sampling.ignore_eos:
                _forbid_early_end(bits, text.request.eos_token_ids)
            return text.state.error or bits
        except Exception as error:
            logger.error("the grammar of request %s failed: %s", text.request.id, error_origin(error))
            return StepFailed(f"The grammar of this request failed ({type(error).__name__}): the log has more.")


def _accept_sampled(state: GrammarState, outcome: Outcome) -> Outcome:
    """Advance by the outcome's tokens. An end token that was sampled after accepted drafts is dropped if the text was
    already complete: without drafts the text ends there, with no step for an end token."""
    tokens = outcome.tokens
    if len(tokens) == 1:
        state.accept(tokens)
        return outcome
    for count, token in enumerate(tokens, 1):
        state.accept((token,))
        if state.must_stop and count < len(tokens):
            finish = None if outcome.finish is None else FinishReason.STOP
            return outcome._replace(tokens=tokens[:count], logprobs=outcome.logprobs[:count], finish=finish)
    return outcome


def _forbid_early_end(bits: Array, ends: tuple[int, ...]) -> None:
    """Forbid end tokens wherever another token is allowed."""
    without = bits.copy()
    for end in ends:
        without[:, end // WORD_BITS] &= ~np.uint32(1 << (end % WORD_BITS))
    has_others = without.any(axis=1)
    bits[has_others] = without[has_others]
