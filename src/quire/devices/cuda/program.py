"""A model on a GPU: `launch` starts a step and returns before it has finished.

Everything runs on one stream, so steps take effect in order: a block that is freed and taken again while a step that
reads it is in flight is written after that. The host only waits when a result is collected. A step in which every row
has one token, or drafts, is replayed from the CUDA graph of its bucket; all others are launched kernel by kernel.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.devices._triton.attention import AttentionWork
from quire.devices._triton.attention_work import AttentionKind, WorkCounts, WorkLimits, aligned, work_size
from quire.devices._triton.chain import compile_ahead
from quire.devices._triton.rope import TokenPlacement
from quire.devices.base import DraftCapacity, Limits
from quire.ops.batch import Batch, Draws
from quire.types.errors import OutOfDeviceMemory

from . import FACTS
from .attention import AttendsWide
from .caches import Caches
from .capture import Buckets, CapturedStep, GraphKind, capture, idle_captures
from .drafted import ROW_TOKENS, SINGLY, TOGETHER, are_separate, has_drafts, max_tokens, with_drafts
from .experts import Experts
from .extra_rows import RowBuffers
from .host_experts import HostExperts
from .inputs import NO_MASK, NO_ROW, Inputs, StepSizes, StepSplit, fill, of_groups
from .instructions import AddProduct, Attend, Gate, Head, Instruction, Run
from .int4 import Int4Linear
from .latent import AttendLatent
from .linear import Linear
from .out_of_memory import convert_out_of_memory, state_failure
from .partials import allocate_partials
from .pending import CudaPending, HostLogits, Staging
from .plain import Multiply
from .sampler import DeviceSampler, sampling_mode
from .tune import GraphTimer, Tuner, wall_clock
from .tuned_table import TunedTable
from .variants import InstructionList, Variant, variant_within

logger = logging.getLogger("quire.devices.cuda")
Array = NDArray[Any]
CAPTURED_AT = 2  # uses: a kind of step that occurs once is not worth the time of a capture
IDLE_BYTES = 1 << 30  # free memory below which nothing more is captured in idle time


def _has_room() -> bool:
    """Return whether the device has memory for more graphs, and for steps after them."""
    return not torch.cuda.is_available() or torch.cuda.mem_get_info()[0] > IDLE_BYTES


def _format(weight: Tensor) -> str:
    return str(weight.dtype).removeprefix("torch.")


@dataclass(slots=True, eq=False)
class CudaProgram:
    """Owns the instructions, the KV cache and all buffers of one model."""

    instructions: list[Instruction]
    output: int  # the value that has the logits
    caches: Caches
    limits: Limits
    work: StepSplit
    sampler: DeviceSampler
    device: torch.device
    captures: bool
    variants: tuple[Variant, ...] = ()  # for some steps, the first that supports one; all others run the instructions
    wide: AttendsWide | None = None  # a kernel for attention of prompts
    table: TunedTable | None = None  # of the fastest tiles
    tunes: bool = False  # in idle time
    hosted: HostExperts | None = None  # experts in host memory
    rows: RowBuffers = field(default_factory=RowBuffers)  # features and hidden rows
    step_bytes: int = 0  # of the values that the largest step holds at once
    max_in_flight: int = FACTS.steps_in_flight
    _buckets: Buckets = field(init=False)
    _drafted_buckets: Buckets = field(init=False)
    num_padded: int = 0  # padding rows computed so far
    _captured: dict[tuple[int, GraphKind], CapturedStep | None] = field(
        default_factory=dict
    )  # None: there was no memory for it
    _uses: Counter[tuple[int, GraphKind]] = field(default_factory=Counter)
    _stream: Any = None
    _tuner: Tuner | None = None
    _pool: Any = None  # of the memory of all graphs
    _staging: list[Staging] = field(init=False)
    _next: int = 0
    _numbers: Tensor = field(init=False)
    _floats: Tensor = field(init=False)
    _partials: dict[AttentionKind, tuple[Tensor, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        limits, is_cuda = self.limits, self.device.type == "cuda"
        self._buckets = Buckets(limits.max_rows)
        self._drafted_buckets = Buckets(max_tokens(limits) if self.work.states is None else 1)
        num_groups = 1 + len(self.work.windows)
        fixed = (2 + num_groups) * aligned(limits.max_tokens) + 8 * aligned(limits.max_logits)
        drafted = sum(work_size(with_drafts(each, limits)) for each in self.work.attention.values())
        work = max(self.work.size(limits.max_tokens, limits.max_rows), drafted)
        size = fixed + work + num_groups * limits.max_rows * limits.max_blocks
        self._staging = [Staging.make(size, limits.max_logits, is_cuda) for _ in range(FACTS.steps_in_flight + 1)]
        self._numbers = torch.zeros(size, dtype=torch.int32, device=self.device)
        self._floats = self._numbers.view(torch.float32)
        self._partials = allocate_partials(self.work.attention, limits, self.device)
        if is_cuda:
            self._stream, self._pool = torch.cuda.Stream(self.device), torch.cuda.graph_pool_handle()

    @property
    def num_blocks(self) -> int:
        """Blocks of all tokens, without the one for padding."""
        return self.caches.num_blocks

    @property
    def draft_capacity(self) -> DraftCapacity | None:
        """Steps with drafts that are captured. Those that change states are not."""
        tokens = self._drafted_buckets.sizes[-1]
        return DraftCapacity(min(ROW_TOKENS, tokens) - 1, tokens) if self.work.states is None else None

    @property
    def formats(self) -> dict[str, int]:
        """Weights of all matrices, the head included, by the format in which they are multiplied."""
        found: Counter[str] = Counter()
        for each in self.instructions:
            linear = each.linear if isinstance(each, Attend | AddProduct | Gate | Head | Multiply) else None
            if isinstance(each, Experts):
                for part in (each.linear.inward, each.linear.outward):
                    found[part.format_name] += part.num_weights
            elif isinstance(linear, Int4Linear):
                found["int4"] += prod(linear.weight.shape)
            elif isinstance(linear, Linear):
                found[_format(linear.weight)] += linear.weight.numel()
            if isinstance(each, AttendLatent):
                found[_format(each.keys)] += each.keys.numel() + each.values.numel()
        return dict(found)

    def on_stream(self) -> Any:
        """Return the context in which all work is started."""
        return torch.cuda.stream(self._stream) if self._stream is not None else torch.no_grad()

    def launch(self, batch: Batch) -> CudaPending:
        """Start a step. The batch's arrays may change as soon as this returns."""
        return convert_out_of_memory(lambda: self._launch(batch))

    def _launch(self, batch: Batch) -> CudaPending:
        """Launch a step. All memory is allocated before sampling: until then the step can be launched again."""
        staging = self._staging[self._next]
        self._next = (self._next + 1) % len(self._staging)
        sizes = StepSizes(len(batch.token_ids), len(batch.lengths), len(batch.logits_at))
        if has_drafts(batch) and self.work.states is None:
            sizes = sizes._replace(drafts=self._drafts_of(sizes.tokens, are_separate(batch, self.limits.block_tokens)))
        if sizes.drafts == SINGLY and len(batch.groups):
            batch = replace(batch, groups=batch.groups[:0])
        mode = sampling_mode(batch.draws)
        with self.on_stream(), torch.no_grad():
            if self.hosted is not None:
                self.hosted.before_step()
            kind = GraphKind(bool(len(batch.groups)), "none" if mode == "masked" else mode, sizes.drafts)
            bucket = self._buckets_of(kind).find(sizes) if self.captures else None
            is_typical = bucket is None or (bucket, kind) in self._captured
            captured = None if bucket is None else self._captured_for(bucket, kind)
            if staging.began is not None:
                staging.began.record()
            padded = sizes if captured is None else captured.sizes
            self.num_padded += padded.tokens - sizes.tokens
            inputs, counts = self._send(batch, padded, staging)
            self.rows.give(batch)
            for group, copies in enumerate(of_groups(batch, "copies")):
                if len(copies):
                    self.caches.copy(copies, group)
            if captured is not None:
                host_logits = self._host_logits(batch, captured.logits)
                logits: Tensor | None = captured.replay()
                host_logits.fill()
            else:
                logits = self._forward_once(inputs, counts, sizes)
                host_logits = self._host_logits(batch, logits)
                host_logits.fill()
                if mode in ("greedy", "any") and logits is not None:
                    self.sampler.sample(logits, inputs, mode, None)
            pending = CudaPending(self, staging, sizes.logits, batch.draws, host_logits.copy, None, is_typical)
            pending.hidden = self.rows.take(sizes.tokens)
            if mode == "masked" and logits is not None:
                held, bits = logits, self._mask_buffer(batch.draws)
                pending.bits, pending.sample = bits, lambda: self.sampler.sample(held, inputs, mode, bits)
            else:
                self.send_back(pending)
            return pending

    def use_idle_time(self) -> bool:
        """Move experts; capture the next bucket, once a step could have used one; then tune, if tuning is on.

        Return False if nothing is left to do, or there is no memory for it.
        """
        if self.hosted is not None:
            with self.on_stream(), torch.no_grad():
                if self.hosted.advance():
                    return True
        if not self._uses or None in self._captured.values() or not _has_room():
            return False
        key = next((each for each in self._idle_captures() if each not in self._captured), None)
        with self.on_stream(), torch.no_grad():
            if key is None:
                return self._tune_a_bit()
            self._try_to_capture(*key)
        return True

    def _idle_captures(self) -> Iterator[tuple[int, GraphKind]]:
        return idle_captures(self._buckets, self._drafted_buckets, partial(self._drafts_of, is_separate=True))

    def tune(self) -> Iterator[str]:
        """Time all tuning candidates, and store the fastest for the next start."""
        if self.table is None:
            return
        tuner = self._new_tuner(self.table)
        steps = tuner.walk(tuner.keys(), compile_ahead if self.device.type == "cuda" else None)
        while True:
            with self.on_stream(), torch.no_grad():
                try:
                    result = next(steps)
                except StopIteration:
                    return
            if result is not None:
                yield str(result)

    def _tune_a_bit(self) -> bool:
        if self.table is None or not self.tunes:
            return False
        self._tuner = self._tuner or self._new_tuner(self.table)
        self.tunes = self._tuner.advance()
        if not self.tunes:
            self._tuner = None  # frees its memory
        return self.tunes

    def _new_tuner(self, table: TunedTable) -> Tuner:
        return Tuner(self.instructions, table, wall_clock if self._stream is None else GraphTimer(self._stream))

    def _send(
        self, batch: Batch, padded: StepSizes, staging: Staging
    ) -> tuple[Inputs, dict[AttentionKind, WorkCounts]]:
        """Send the step's inputs to the device, in one transfer."""
        work, chunks = self._work_of(padded), self.work.cut(batch)
        if chunks is not None:
            padded = padded._replace(chunks=len(chunks.chunks), scans=len(chunks.scans))
        numbers = staging.numbers.numpy()
        host = Inputs.of(numbers, numbers.view(np.float32), padded, work)
        counts, num_tables = fill(host, batch, work, chunks, self.caches.trash_slots)
        used = len(numbers) - len(host.tables) + num_tables
        self._numbers[:used].copy_(staging.numbers[:used], non_blocking=True)
        return Inputs.of(self._numbers, self._floats, padded, work), counts

    def _work_of(self, sizes: StepSizes) -> StepSplit:
        """Return how such a step is split. Enough rows to fill the GPU are not split: nothing to merge."""

        variant = variant_within(self.variants, sizes)

        def blocks(each: WorkLimits) -> int:
            if sizes.drafts == TOGETHER or (sizes.tokens != sizes.rows and not sizes.drafts) or each.fixed_chunk:
                return each.num_ctas
            if variant is not None:
                return variant.num_ctas
            return each.num_ctas if sizes.rows < each.narrow_budget else 0

        limits = {"max_tokens": sizes.tokens, "max_rows": sizes.rows, "split_tokens": ROW_TOKENS if sizes.drafts else 0}
        attention = {kind: replace(each, num_ctas=blocks(each), **limits) for kind, each in self.work.attention.items()}
        if sizes.drafts == SINGLY:
            attention = {kind: replace(each, narrow_queries=each.group) for kind, each in attention.items()}
        return self.work._replace(attention=attention, is_single=sizes.drafts == SINGLY)

    def send_back(self, pending: CudaPending) -> None:
        """Copy the step's tokens to the host after sampling."""
        staging = pending.staging
        if pending.draws is not None:
            staging.tokens[: pending.num_logits].copy_(self.sampler.tokens[: pending.num_logits], non_blocking=True)
        if staging.done is not None:
            staging.done.record()

    def _host_logits(self, batch: Batch, logits: Tensor | None) -> HostLogits:
        """Allocate the copy of the logits that the host samples from."""
        vocab, count = self.sampler.vocab_size, len(batch.logits_at)
        host_sampled = None if batch.draws is None else np.flatnonzero(batch.draws.rows < 0)
        if logits is None or (host_sampled is not None and not len(host_sampled)):
            return HostLogits(torch.empty((0, vocab)))
        if host_sampled is None:
            return HostLogits(logits.new_empty((count, vocab)), logits)
        return HostLogits(
            logits.new_empty((len(host_sampled), vocab)), logits, torch.from_numpy(host_sampled).to(self.device)
        )

    def _mask_buffer(self, draws: Draws | None) -> Tensor:
        """Allocate the masks [masks, words], uint32 as int32."""
        num_masks = 0 if draws is None else int(np.count_nonzero(draws.masked))
        return torch.empty((num_masks, -(-self.sampler.vocab_size // 32)), dtype=torch.int32, device=self.device)

    def _forward(self, inputs: Inputs, counts: Mapping[AttentionKind, WorkCounts], sizes: StepSizes) -> Tensor | None:
        """Compute a step with the first variant that supports it; return its logits, if it has any."""
        run, variant = self._run(inputs, counts, sizes), variant_within(self.variants, sizes)
        if variant is not None and sizes.logits == sizes.tokens and variant.supports(run):
            return variant(run)
        return InstructionList(self.instructions, self.output)(run, has_logits=sizes.logits > 0)

    def _forward_once(
        self, inputs: Inputs, counts: Mapping[AttentionKind, WorkCounts], sizes: StepSizes
    ) -> Tensor | None:
        """Compute a step. One that changes states cannot be launched again: its memory is reserved first."""
        if self.work.states is None:
            return self._forward(inputs, counts, sizes)
        torch.empty(self.step_bytes * sizes.tokens // self.limits.max_tokens, dtype=torch.uint8, device=self.device)
        return convert_out_of_memory(lambda: self._forward(inputs, counts, sizes), state_failure)

    def _run(self, inputs: Inputs, counts: Mapping[AttentionKind, WorkCounts], sizes: StepSizes) -> Run:
        work = {
            kind: AttentionWork.of(views, counts[kind].narrow, counts[kind].wide, self._partials[kind])
            for kind, views in inputs.work.items()
        }
        where, *windows = (TokenPlacement(inputs.positions, slots) for slots in inputs.slots)
        at = inputs.logits_at if sizes.logits != sizes.tokens else None
        run = Run(inputs.ids, where, inputs.tables, work, self.sampler.last_tokens, at, windows=tuple(windows))
        run.merges = any(each.partials for each in counts.values())
        run.is_decode, run.is_single = sizes.tokens == sizes.rows and not sizes.drafts, sizes.drafts == SINGLY
        run.expands = any(each.has_expanded for each in counts.values())
        run.wide, run.states = self.wide, inputs.states
        return run

    def _drafts_of(self, num_tokens: int, is_separate: bool) -> str:
        """Return how attention of a step with drafts is planned."""
        variant = variant_within(self.variants, StepSizes(num_tokens, 1, num_tokens)) if is_separate else None
        return SINGLY if variant is not None and variant.row_tokens >= ROW_TOKENS else TOGETHER

    def _buckets_of(self, kind: GraphKind) -> Buckets:
        return self._drafted_buckets if kind.drafts else self._buckets

    def _captured_for(self, bucket: int, kind: GraphKind) -> CapturedStep | None:
        """Return the graph of such a step. None: launch it kernel by kernel."""
        key = bucket, kind
        if key not in self._captured:
            self._uses[key] += 1
            if self._uses[key] < CAPTURED_AT and not kind.drafts:
                return None
            self._try_to_capture(bucket, kind)
        return self._captured[key]

    def _try_to_capture(self, bucket: int, kind: GraphKind) -> None:
        """Capture a graph. If there is no memory for it, its steps are launched kernel by kernel from now on."""
        began = time.perf_counter()
        try:
            self._captured[bucket, kind] = convert_out_of_memory(lambda: self._capture(bucket, kind))
            logger.debug("captured %d tokens, %s, in %.0f ms", bucket, kind, 1e3 * (time.perf_counter() - began))
        except OutOfDeviceMemory:
            self._captured[bucket, kind] = None
            logger.warning("no memory is left to capture steps of %d tokens: they run without a graph", bucket)

    def _capture(self, bucket: int, kind: GraphKind) -> CapturedStep:
        """Capture a step of padding only: it writes nothing that is read later."""
        padded = StepSizes(bucket, min(bucket, self.limits.max_rows), bucket, drafts=kind.drafts)
        work = self._work_of(padded)
        inputs = Inputs.of(self._numbers, self._floats, padded, work)
        self._numbers.zero_()
        for slots, trash in zip(inputs.slots, self.caches.trash_slots, strict=True):
            slots.fill_(trash)
        inputs.rows.fill_(NO_ROW)
        inputs.mask_at.fill_(NO_MASK)
        if inputs.states is not None:
            inputs.states.fill_padding(self.caches.num_states)
        most = {
            # without groups all items of a row with one token are narrow, except in deterministic mode, where none is
            attention: WorkCounts(
                len(views.narrow),
                len(views.wide) if kind.has_groups or not len(views.narrow) else 0,
                int(kind.has_groups or work.attention[attention].num_ctas > 0),
            )
            for attention, views in inputs.work.items()
        }

        def whole() -> Tensor:
            logits = self._forward(inputs, most, padded)
            assert logits is not None
            if kind.mode != "none":
                self.sampler.sample(logits, inputs, kind.mode, None)
            return logits

        return capture(whole, self._stream, self._pool, padded)
