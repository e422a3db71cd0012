"""Runs plans: `launch` starts a step on the device, `collect` waits for it and returns the result of each part.

They are separate so that an asynchronous device gets the next step while this one runs. Such a device samples tokens
itself and keeps those that the next step starts from. The host samples what the device cannot; a step that starts from
a host-sampled token waits for it. A failure ends only the parts that it concerns: a row without a valid distribution
fails alone, a step that runs out of device memory continues without its largest part, and any other failed launch fails
its own parts.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from quire.devices.base import (
    DraftCapacity,
    Limits,
    MovesBlocks,
    PadsSteps,
    PendingSampling,
    Program,
    ReleasesBlocks,
    SamplesTokens,
    StepOutput,
    UsesIdleTime,
)
from quire.ops.batch import StateSlots
from quire.runner.batch import FEW_ROWS, BatchBuilder, BuiltBatch, logits_of
from quire.runner.flight import Flight, Mask, Masks
from quire.runner.pooling import VectorSum, has_pool, vector_result
from quire.runner.rows import Row, Rows
from quire.runner.sources import SourcePrograms
from quire.runner.state_digests import StateDigests, TextDigest
from quire.runner.verify import NO_TOKEN, verify, verify_all
from quire.sampling.logprobs import score
from quire.sampling.mask import blank
from quire.sampling.sampler import Task, Top, sample
from quire.types.errors import OutOfDeviceMemory, QuireError, StepFailed
from quire.types.kinds import PoolKind
from quire.types.sampling_values import OFF
from quire.types.step import (
    Part,
    PartResult,
    StepPlan,
    StepResult,
    TokenLogprobs,
    one_token_result,
    one_token_results,
)

Array = NDArray[Any]
NO_LIMITS = DraftCapacity(1 << 20, 1 << 20)
logger = logging.getLogger(__name__)


class ExchangesRows(Protocol):
    """Takes the hidden rows of steps, and gives the rows that tokens bring along: see quire.spec."""

    def features(self, plan: StepPlan) -> Array | None: ...
    def keep(self, plan: StepPlan, hidden: Array) -> None: ...


class Runner:
    """One model on one device."""

    def __init__(
        self,
        program: Program | SamplesTokens,
        limits: Limits,
        vocab_size: int,
        checks_states: bool = False,
        pool: PoolKind | None = None,
        hidden: ExchangesRows | None = None,
    ) -> None:
        """`checks_states`: fail a part that reads a state computed from other tokens than its own. `pool`: how pooled
        requests are pooled; None: the program does not pool. `hidden`: keeps hidden rows, and provides features."""
        self._pool, self._hidden = pool, hidden
        self._program = program
        self._sampling_program = program if isinstance(program, SamplesTokens) else None
        self._vocab_size = vocab_size
        self._rows = Rows(limits, vocab_size)
        self._batches = BatchBuilder(limits, self._sampling_program is not None, pool)
        self._flights: deque[Flight] = deque()  # not collected
        self._collected_at = 0.0  # when the last step was collected
        self._digests = StateDigests() if checks_states and limits.num_states else None
        self.sources: SourcePrograms | None = None  # what encodes the inputs of the model's encoder

    @property
    def depth(self) -> int:
        """Steps that may be in flight at once."""
        return 1 if self._sampling_program is None else self._sampling_program.max_in_flight

    @property
    def draft_capacity(self) -> DraftCapacity | None:
        """The most drafts that a step may have; None: steps with drafts are slow."""
        return NO_LIMITS if self._sampling_program is None else self._sampling_program.draft_capacity

    def launch(self, plan: StepPlan, masks: Masks | None = None) -> Flight:
        """Start a step. Plans are launched in the order in which they were made; masks may still be computing."""
        if self._flights and self._needs_host(plan):
            self.collect(self._flights[-1])
        began = time.perf_counter()
        self._rows.update(plan)
        if self.depth > 1 and not self._flights and _continues(plan):
            began = self._collected_at  # the device has waited for this plan since then
        flight = Flight(plan, self._rows.of(plan), began, masks)
        self._flights.append(flight)
        if not plan.parts:
            return flight
        try:
            if self.sources is not None and plan.joins:
                self.sources.encode([join.source for join in plan.joins if join.source is not None], self._program)
            for row, part in zip(flight.rows, plan.parts, strict=True):
                if row.uses_history:
                    row.record_forced(part)
            self._start(flight)
        except Exception as error:
            flight.error = _step_failed(plan, error)
        return flight

    def collect(self, flight: Flight) -> StepResult:
        """Wait for a step and those before it. A second call returns the same result."""
        while flight.result is None:
            first = self._flights.popleft()
            results = self._collect_parts(first)
            if self._digests is not None:
                results = self._check_states(self._digests, first, results)
            parts = first.with_removed(results)
            began, self._collected_at = max(first.began, self._collected_at), time.perf_counter()
            seconds = self._collected_at - began
            busy = seconds if first.busy_seconds is None else first.busy_seconds
            first.result = StepResult(first.plan.number, parts, seconds, busy, first.is_typical)
            first.pending = first.masks = first.built = None
        return flight.result

    @property
    def block_mover(self) -> MovesBlocks | None:
        """What copies KV blocks out of and into the device's memory; None: this device or this model cannot."""
        program = self._program
        return program if isinstance(program, MovesBlocks) and program.block_layout else None

    @property
    def padded_tokens(self) -> int:
        """Padding tokens that the device has computed so far."""
        return self._program.num_padded if isinstance(self._program, PadsSteps) else 0

    def use_idle_time(self) -> bool:
        """Let the device prepare something, such as a captured graph. False: nothing is left to prepare."""
        return isinstance(self._program, UsesIdleTime) and self._program.use_idle_time()

    def release_blocks(self, blocks: Sequence[int]) -> None:
        """Return the memory of these blocks (ascending) to the system, if the device can do that."""
        if isinstance(self._program, ReleasesBlocks):
            self._program.release_blocks(np.array(blocks, np.int32))

    def _needs_host(self, plan: StepPlan) -> bool:
        """Does a part start from a token that the host has yet to sample?"""
        if self._sampling_program is None:
            return True
        host_sampled = {
            flight.plan.parts[i].row for flight in self._flights if flight.built for i in flight.built.host_sampled
        }
        return bool(host_sampled) and any(part.tokens is None and part.row in host_sampled for part in plan.parts)

    def _start(self, flight: Flight) -> None:
        """Launch the step, and pass the masks of what the device samples."""
        try:
            flight.pending = self._program.launch(self._build(flight).batch)
        except OutOfDeviceMemory:
            self._retry_start(flight)
        if flight.built is None:
            return
        flight.built.mark_launched(self._rows)
        draws = flight.built.batch.draws
        if flight.masks is not None and draws is not None and draws.masked.any():
            self._pass_masks(flight, flight.masks)

    def _retry_start(self, flight: Flight) -> None:
        """Launch a step again that ran out of memory: after the steps before it, then with one part less each time."""
        if len(self._flights) > 1:
            self.collect(self._flights[-2])
        while flight.plan.parts:
            try:
                flight.pending = self._program.launch(self._build(flight).batch)
                return
            except OutOfDeviceMemory as error:
                part = flight.remove_largest(error)
                message = "step %d ran out of device memory: request %s, with %d tokens in it, fails"
                logger.error(message, flight.plan.number, part.request_id, part.num_tokens)

    def _build(self, flight: Flight) -> BuiltBatch:
        flight.built = self._batches.build(flight.plan, self._rows, () if flight.masks is None else flight.masks.parts)
        if self._hidden is not None:
            features = self._hidden.features(flight.plan)
            is_drafted = any(row.join.sampling.speculate != OFF for row in flight.rows)
            if features is not None or not is_drafted:
                batch = replace(flight.built.batch, features=features, keeps_hidden=is_drafted)
                flight.built = flight.built._replace(batch=batch)
        states = flight.built.batch.states
        if self._digests is not None and states is not None:
            flight.states = StateSlots(states.source.copy(), states.target.copy())
        return flight.built

    def _check_states(
        self, digests: StateDigests, flight: Flight, results: tuple[PartResult, ...]
    ) -> tuple[PartResult, ...]:
        """Fail the parts of a collected step that read the state of other tokens."""
        if flight.states is None or not flight.plan.parts:
            return results
        for row in flight.rows:
            row.text = row.text or TextDigest(row.join.tokens)
        return digests.check(flight.plan, [row.text for row in flight.rows if row.text], flight.states, results)

    def _pass_masks(self, flight: Flight, masks: Masks) -> None:
        """Pass the masks of what the device samples. The device waits for them, so blank ones are passed on failure."""
        assert flight.built is not None and flight.built.batch.draws is not None
        host_sampled, parts = set(flight.built.host_sampled), flight.plan.parts
        indices = [index for index in masks.parts if index not in host_sampled]
        bits = blank(sum(parts[index].num_logits for index in indices), self._vocab_size)
        try:
            found, at = masks.wait(), 0
            for index in indices:
                mask, count = found[index], parts[index].num_logits
                if not isinstance(mask, QuireError):
                    bits[at : at + count] = mask
                at += count
        finally:
            cast(PendingSampling, flight.pending).mask(bits)

    def _collect_parts(self, flight: Flight) -> tuple[PartResult, ...]:
        if flight.pending is not None:
            try:
                output = flight.pending.result()
                flight.busy_seconds, flight.is_typical = output.seconds, output.is_typical
                if self._hidden is not None and output.hidden is not None:
                    self._hidden.keep(flight.plan, output.hidden)
                if flight.error is None:
                    results = self._take(flight, output)
                    if self.sources is not None and self.sources.alignment is not None and output.hidden is not None:
                        return self.sources.alignment.take(flight, output.hidden, results)
                    return results if output.pooled is None else self._with_vectors(flight, output.pooled, results)
            except Exception as error:
                flight.error = _step_failed(flight.plan, error)
        return tuple(PartResult(error=flight.error) for _ in flight.plan.parts)

    def _take(self, flight: Flight, output: StepOutput) -> tuple[PartResult, ...]:
        """Return every part's tokens, and the scores of its prompt."""
        assert flight.built is not None
        if output.logits is None:
            if any(map(logits_of, flight.plan.parts)):
                raise TypeError("the program returned no logits")
            return (NO_TOKEN,) * len(flight.plan.parts)
        masks = flight.masks.wait() if flight.masks is not None else {}
        if self._sampling_program is not None:
            return self._take_device_sampled(flight, output, masks)
        top = _top(output)
        if top is not None and flight.built.is_simple and not masks:
            found = self._take_likeliest(flight, flight.built, top)
            if found is not None:
                return found
        indices = range(len(flight.plan.parts))
        return tuple(self._sample(flight, indices, output.logits, top, masks))

    def _with_vectors(self, flight: Flight, pooled: Array, results: tuple[PartResult, ...]) -> tuple[PartResult, ...]:
        """Return the results with the vectors of the requests whose whole prompt is computed."""
        assert self._pool is not None
        found, vectors = list(results), iter(pooled)
        for index, (part, row) in enumerate(zip(flight.plan.parts, flight.rows, strict=True)):
            if not part.is_pooled:
                continue
            num_prompt = row.join.num_prompt
            row.vector = row.vector or VectorSum(self._pool)
            if has_pool(part, num_prompt, self._pool):
                row.vector.add(next(vectors))
            if part.start + part.num_tokens == num_prompt:
                found[index] = vector_result(row.vector.whole(num_prompt))
        return tuple(found)

    def _take_device_sampled(
        self, flight: Flight, output: StepOutput, masks: Mapping[int, Mask]
    ) -> tuple[PartResult, ...]:
        """Return the tokens that the device sampled, and sample the parts that are left to the host."""
        assert flight.built is not None and output.logits is not None
        if output.tokens is None:
            raise TypeError("the program returned no tokens")
        tokens = output.tokens.tolist()
        host_sampled = flight.built.host_sampled
        all_valid = not masks and min(tokens, default=0) >= 0  # without logits, inside a prompt, no token is sampled
        if all_valid and flight.built.is_simple:
            return one_token_results(tokens)
        if all_valid and not host_sampled:
            return verify_all(flight.plan.parts, tokens, self._rows.last_tokens)
        by_host = dict(zip(host_sampled, self._sample(flight, host_sampled, output.logits, None, masks), strict=True))
        results, at = [], 0
        for index, part in enumerate(flight.plan.parts):
            count = logits_of(part)
            if index in by_host:
                results.append(by_host[index])
            elif not count:
                results.append(NO_TOKEN)
            elif count > 1 or index in masks or tokens[at] < 0:
                results.append(verify(part, tokens[at : at + count], masks.get(index), self._rows.last_tokens))
            else:
                results.append(one_token_result(tokens[at]))
            at += count
        return tuple(results)

    def _sample(
        self, flight: Flight, indices: Sequence[int], logits: Array, top: Top | None, masks: Mapping[int, Mask]
    ) -> list[PartResult]:
        """Sample these parts on the host. `logits` has the entries of these parts alone."""
        tasks, places, results, at = [], [], [], 0
        for place, index in enumerate(indices):
            part, row, mask = flight.plan.parts[index], flight.rows[index], masks.get(index)
            count = logits_of(part)
            scores = _score(part, row, logits[at : at + count]) if part.scores_prompt else ()
            results.append(PartResult(prompt_logprobs=scores))
            if isinstance(mask, QuireError):
                results[place] = PartResult(error=mask)
            elif part.num_logits:
                end = part.start + (1 if part.tokens is None else len(part.tokens))
                first, position = at + count - part.num_logits, end - part.num_logits + 1
                tasks.append(Task(row.sampler, first, position, part.drafts, mask))
                places.append((place, part, row))
            at += count
        for (place, part, row), choice in zip(places, sample(logits, tasks, top), strict=True):
            if choice.error is not None:
                results[place] = PartResult(error=choice.error)
                continue
            self._rows.last_tokens[part.row] = choice.tokens[-1]
            row.num_recorded += len(choice.tokens)
            results[place] = PartResult(choice.tokens, choice.logprobs, None, results[place].prompt_logprobs)
        return results

    def _take_likeliest(self, flight: Flight, built: BuiltBatch, top: Top) -> tuple[PartResult, ...] | None:
        """Hot path: return each part's likeliest token. None: one of them has no valid distribution."""
        tokens = top.tokens[:, 0].tolist()
        if min(tokens) < 0:
            return None
        if len(tokens) <= FEW_ROWS:
            for part, token in zip(flight.plan.parts, tokens, strict=True):
                self._rows.last_tokens[part.row] = token
        else:
            self._rows.last_tokens[built.rows] = top.tokens[:, 0]
        return one_token_results(tokens)


def _continues(plan: StepPlan) -> bool:
    """Return whether a part continues a text with what was sampled last."""
    return any(part.tokens is None or part.num_logits > 1 for part in plan.parts)


def _top(output: StepOutput) -> Top | None:
    if output.top_tokens is None or output.top_logits is None:
        return None
    return Top(output.top_tokens, output.top_logits)


def _score(part: Part, row: Row, logits: Array) -> tuple[TokenLogprobs, ...]:
    """Log probabilities of the prompt tokens that follow each of the part's positions. The last token has none."""
    targets = row.join.tokens[part.start + 1 : min(part.start + len(logits) + 1, row.join.num_prompt)]
    return score(logits, targets, row.join.sampling.prompt_logprobs or 0)


def _step_failed(plan: StepPlan, error: Exception) -> StepFailed:
    """Log the error; return what a client may see of it."""
    logger.exception("step %d of %d parts failed", plan.number, len(plan.parts), exc_info=error)
    if isinstance(error, StepFailed):
        return error
    return StepFailed(f"The device failed to compute this step ({type(error).__name__}): the log has more.")
