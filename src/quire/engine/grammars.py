"""The grammars of a core's requests: compiled beside the loop, masks made while a step runs, forced tokens handed on.

    Submit → `compile` → (`compiled`) → `start` → for each step `masks`, and for its outcomes `follow`

A state is told of every token that its text has, once, and in order. It outlives a preemption, since the text does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
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
from quire.types.errors import Overloaded, QuireError, StepFailed
from quire.types.request import FinishReason, GenerateRequest
from quire.types.step import Outcome, StepPlan

Array = NDArray[Any]
logger = logging.getLogger(__name__)
Cancels = list[tuple[FinishReason, int | None]]  # reason, sample


@dataclass(slots=True, eq=False)
class Compiling:
    """A request whose grammar is on its way."""

    request: GenerateRequest
    job: Job
    cancels: Cancels = field(default_factory=list)  # of single samples, which there are none of yet


@dataclass(slots=True, eq=False)
class Text:
    """One sample that a grammar follows."""

    request: GenerateRequest
    sample: int
    state: GrammarState
    jumps: bool  # forced tokens are not sampled, so they have no log probabilities


class Grammars:
    """Used by the loop's thread. While a step runs, one thread of its own makes the masks."""

    def __init__(self, scheduler: Scheduler, compiler: Compiler, config: Config, vocab_size: int) -> None:
        self._scheduler = scheduler
        self._compiler = compiler
        self._jumps = config.grammar.jump_forward
        self._max_compiling = config.scheduler.max_waiting
        self._vocab_size = vocab_size
        self._compiling: dict[str, Compiling] = {}
        self._texts: dict[tuple[str, int], Text] = {}
        self._of_part: dict[str, Text] = {}  # the same by their names in plans
        self._thread: ThreadPoolExecutor | None = None

    # ── compiling ──

    def __contains__(self, request_id: str) -> bool:
        """Is the grammar of such a request being compiled?"""
        return request_id in self._compiling

    @property
    def num_compiling(self) -> int:
        """Requests whose grammars are not ready."""
        return len(self._compiling)

    def compile(self, request: GenerateRequest) -> None:
        """Have a request's grammar compiled. Raises a QuireError, and keeps nothing, if it cannot be."""
        assert request.constraint is not None
        if len(self._compiling) >= self._max_compiling and not request.resumed:
            raise Overloaded(f"The grammars of {len(self._compiling)} requests are being compiled.", 1.0)
        self._compiling[request.id] = Compiling(request, self._compiler.submit(request.constraint))

    def compiled(self, now: float) -> Iterator[tuple[Compiling, Grammar | QuireError]]:
        """The requests whose grammars are ready, or cannot be had. They are the caller's then."""
        for each in list(self._compiling.values()):
            came = self._compiler.poll(each.job, now)
            if came is not None:
                del self._compiling[each.request.id]
                yield each, came

    def cancel(self, request_id: str, reason: FinishReason, sample: int | None) -> GenerateRequest | None:
        """Of one sample: remember it. Of all: the request, which is no longer waited for."""
        if sample is None:
            return self._compiling.pop(request_id).request
        self._compiling[request_id].cancels.append((reason, sample))
        return None

    def close(self) -> list[GenerateRequest]:
        """End the threads. Answers the requests whose grammars were still on their way."""
        left = [each.request for each in self._compiling.values()]
        self._compiling.clear()
        self._compiler.close()
        if self._thread is not None:
            self._thread.shutdown()
        return left

    # ── texts ──

    def start(self, request: GenerateRequest, grammar: Grammar, now: float) -> None:
        """A request is in the queue: its samples begin, or go on, with what their grammar forces there."""
        sampling = request.sampling
        jumps = self._jumps and sampling.logprobs is None and sampling.prompt_logprobs is None
        for sample in request.unfinished_samples:
            text = Text(request, sample, grammar.start(), jumps)
            text.state.accept(request.resumed_output(sample))
            self._texts[request.id, sample] = self._of_part[request.sample_id(sample)] = text
            if jumps:
                self._go_on(text, now)

    def follow(self, outcomes: Sequence[Outcome], now: float) -> None:
        """What became of requests. Forced tokens are known already; those that were sampled may force more."""
        if not self._texts:
            return
        for outcome in outcomes:
            text = self._texts.get((outcome.request_id, outcome.sample))
            if text is None:
                continue
            if outcome.finish is not None or outcome.error is not None:
                del self._texts[outcome.request_id, outcome.sample]
                del self._of_part[text.request.sample_id(text.sample)]
            elif outcome.tokens and not outcome.num_forced:
                text.state.accept(outcome.tokens)
                self._go_on(text, now)

    def _go_on(self, text: Text, now: float) -> None:
        """Hand on what is forced; end a text that is whole, without a step for its end token."""
        forced = text.state.forced_tokens() if text.jumps else []
        if forced:
            text.state.accept(forced)
            self._scheduler.force(text.request.id, text.sample, tuple(forced), now)
        if text.state.must_stop:
            self._scheduler.cancel(text.request.id, now, FinishReason.STOP, text.sample)

    # ── masks ──

    def masks(self, plan: StepPlan) -> Masks | None:
        """Begin with the masks of a step. None: no part needs one."""
        if not self._texts:
            return None
        wanted = [
            (index, text, part.drafts)
            for index, part in enumerate(plan.parts)
            if part.num_logits and (text := self._of_part.get(part.request_id)) is not None
        ]
        if not wanted:
            return None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "quire-masks")
        return Masks(tuple(index for index, _, _ in wanted), self._thread.submit(self._fill, wanted).result)

    def _fill(self, wanted: list[tuple[int, Text, tuple[int, ...]]]) -> Mapping[int, Mask]:
        """Whatever goes wrong with one text is said of it alone."""
        return {index: self._mask_of(text, drafts) for index, text, drafts in wanted}

    def _mask_of(self, text: Text, drafts: tuple[int, ...]) -> Mask:
        bits = blank(1 + len(drafts), self._vocab_size)
        try:
            text.state.fill_mask(bits, drafts)
            if text.request.sampling.ignore_eos:
                _put_off_the_end(bits, text.request.eos_token_ids)
            return text.state.error or bits
        except Exception as error:
            logger.error("the grammar of request %s failed: %s", text.request.id, error_origin(error))
            return StepFailed(f"The grammar of this request failed ({type(error).__name__}): the log has more.")


def _put_off_the_end(bits: Array, ends: tuple[int, ...]) -> None:
    """Rule out the end of the text wherever something else may come."""
    without = bits.copy()
    for end in ends:
        without[:, end // WORD_BITS] &= ~np.uint32(1 << (end % WORD_BITS))
    goes_on = without.any(axis=1)
    bits[goes_on] = without[goes_on]
