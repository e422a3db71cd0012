"""A model on a GPU: `launch` starts a step and returns before it has finished.

Everything runs on one stream, so steps take effect in order: a block that is freed and taken again while a step that
reads it is in flight is written after that. The host only waits when a result is collected. A step in which every row
decodes, with one token or a few, is replayed from the CUDA graph of its bucket; all others are launched kernel by
kernel.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.devices._triton.attention import AttentionWork
from quire.devices._triton.attention_work import AttentionKind, WorkCounts, WorkLimits, aligned
from quire.devices._triton.chain import compile_ahead
from quire.devices._triton.rope import TokenPlacement
from quire.devices.base import DraftCapacity, Limits, Program
from quire.ops.batch import Batch
from quire.types.errors import OutOfDeviceMemory

from . import FACTS
from .attention import AttendsWide
from .caches import Caches
from .capture import CAPTURED_AT, Buckets, CapturedStep, GraphKind, capture, idle_captures
from .drafted import ROW_TOKENS, SINGLY, TOGETHER, are_separate, continues_all, max_tokens, with_drafts
from .extra_rows import RowBuffers
from .formats import matrix_formats
from .host_experts import HostExperts
from .inputs import NO_MASK, NO_ROW, Inputs, StepLayout, StepSizes, StepSplit, fill, of_groups
from .instructions import Instruction, Run
from .moved_blocks import BlockCopies, MovesCudaBlocks
from .out_of_memory import convert_out_of_memory, state_failure
from .partials import allocate_partials
from .pending import CudaPending, HostLogits, Staging, mask_buffer
from .sampler import DeviceSampler, sampling_mode
from .sources import BEYOND, compute_pairs, source_blocks, store_pairs
from .tune import GraphTimer, Tuner, wall_clock
from .tuned_table import TunedTable
from .variants import InstructionList, OutputValues, Variant, variant_within

logger = logging.getLogger("quire.devices.cuda")
Array = NDArray[Any]
IDLE_BYTES = 1 << 30  # free memory below which nothing more is captured in idle time


def _has_room() -> bool:
    """Return whether the device has memory for more graphs, and for steps after them."""
    return not torch.cuda.is_available() or torch.cuda.mem_get_info()[0] > IDLE_BYTES


@dataclass(slots=True, eq=False)
class CudaProgram(MovesCudaBlocks):
    """Owns the instructions, the KV cache and all buffers of one model."""

    instructions: list[Instruction]
    outputs: OutputValues
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
    layout: str = ""  # what the bytes of KV blocks depend on; set by the device
    _buckets: Buckets = field(init=False)
    _drafted_buckets: Buckets = field(init=False)
    num_padded: int = 0  # padding rows computed so far
    _captured: dict[tuple[int, GraphKind], CapturedStep | None] = field(
        default_factory=dict
    )  # None: there was no memory for it
    _uses: Counter[tuple[int, GraphKind]] = field(default_factory=Counter)
    _stream: Any = None
    _copies: BlockCopies | None = None
    _tuner: Tuner | None = None
    _pool: Any = None  # of the memory of all graphs
    _staging: list[Staging] = field(init=False)
    _next: int = 0
    _numbers: Tensor = field(init=False)
    _floats: Tensor = field(init=False)
    _partials: dict[AttentionKind, tuple[Tensor, Tensor]] = field(init=False)
    _beyond: Tensor = field(init=False)  # int32 [max_tokens] positions behind every source, which hide none of its keys

    def __post_init__(self) -> None:
        limits, is_cuda = self.limits, self.device.type == "cuda"
        self._buckets = Buckets(limits.max_rows)
        self._drafted_buckets = Buckets(max_tokens(limits))
        num_groups = 1 + len(self.work.windows)
        fixed = (2 + num_groups) * aligned(limits.max_tokens) + 8 * aligned(limits.max_logits)
        drafted = self.work._replace(attention={k: with_drafts(v, limits) for k, v in self.work.attention.items()})
        drafted_size = drafted.size(max_tokens(limits), limits.max_rows)
        work = max(self.work.size(limits.max_tokens, limits.max_rows), drafted_size)
        tables = num_groups * limits.max_blocks + source_blocks(limits)
        size = fixed + work + limits.max_rows * tables
        self._staging = [Staging.make(size, limits.max_logits, is_cuda) for _ in range(FACTS.steps_in_flight + 1)]
        self._numbers = torch.zeros(size, dtype=torch.int32, device=self.device)
        self._floats = self._numbers.view(torch.float32)
        self._partials = allocate_partials(self.work.attention, limits, self.device)
        self._beyond = torch.full((limits.max_tokens,), BEYOND, dtype=torch.int32, device=self.device)
        if is_cuda:
            self._stream, self._pool = torch.cuda.Stream(self.device), torch.cuda.graph_pool_handle()

    @property
    def num_blocks(self) -> int:
        """Blocks of all tokens, without the one for padding."""
        return self.caches.num_blocks

    @property
    def draft_capacity(self) -> DraftCapacity | None:
        """Steps with drafts that are captured."""
        tokens = self._drafted_buckets.sizes[-1]
        return DraftCapacity(min(ROW_TOKENS, tokens) - 1, tokens)

    @property
    def formats(self) -> dict[str, int]:
        """Weights of all matrices, the head included, by the format in which they are multiplied."""
        return matrix_formats(self.instructions)

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
        has_drafts = sizes.tokens == sizes.logits > sizes.rows
        if continues_all(batch, self._drafted_buckets.sizes[-1]):
            is_separate = partial(are_separate, batch, self.limits.block_tokens)
            sizes = sizes._replace(drafts=self._drafts_of(sizes.tokens, is_separate) if has_drafts else TOGETHER)
        if sizes.drafts == SINGLY and len(batch.groups):
            batch = replace(batch, groups=batch.groups[:0])
        mode = sampling_mode(batch.draws)
        with self.on_stream(), torch.no_grad():
            if self.hosted is not None:
                self.hosted.before_step()
            kind = GraphKind(bool(len(batch.groups)), "none" if mode == "masked" else mode, sizes.drafts)
            bucket = self._buckets_of(kind).find(sizes) if self.captures and not len(batch.pools) else None
            is_typical = bucket is None or (bucket, kind) in self._captured
            captured = None if bucket is None else self._captured_for(bucket, kind, has_drafts)
            if staging.began is not None:
                staging.began.record()
            padded = sizes if captured is None else captured.layout.sizes
            self.num_padded += padded.tokens - sizes.tokens
            inputs, counts = self._send(batch, padded, staging, None if captured is None else captured.layout)
            self.rows.give(batch)
            for group, copies in enumerate(of_groups(batch, "copies")):
                if len(copies):
                    self.caches.copy(copies, group)
            pooled: Tensor | None = None
            if captured is not None:
                host_logits = HostLogits.of(batch, captured.logits, self.sampler.vocab_size)
                logits: Tensor | None = captured.replay()
                host_logits.fill()
            else:
                logits, pooled = self._forward_once(inputs, counts, sizes, batch)
                host_logits = HostLogits.of(batch, logits, self.sampler.vocab_size)
                host_logits.fill()
                if mode in ("greedy", "any") and logits is not None:
                    self.sampler.sample(logits, inputs, mode, None)
            pending = CudaPending(self, staging, sizes.logits, batch.draws, host_logits.copy, None, is_typical)
            pending.hidden = self.rows.take(sizes.tokens) if batch.keeps_hidden else None
            pending.pooled = pooled if pooled is not None else self.outputs.no_vectors
            if mode == "masked" and logits is not None:
                held, bits = logits, mask_buffer(batch.draws, self.sampler.vocab_size, self.device)
                pending.bits, pending.sample = bits, lambda: self.sampler.sample(held, inputs, mode, bits)
            else:
                self.send_back(pending)
            return pending

    def store_source(self, slots: Array, pairs: Array) -> None:
        """Store keys and values of some tokens of sources."""
        with self.on_stream(), torch.no_grad():
            store_pairs(self.caches, slots, torch.from_numpy(pairs).to(self.device))

    def compute_source(self, batch: Batch, slots: Array, encoder: Program, pairs: Program) -> None:
        """Run the encoder, then the pairs of its output, and store them: all on the device, before the next step."""
        with self.on_stream(), torch.no_grad():
            convert_out_of_memory(lambda: compute_pairs(self.caches, batch, slots, (encoder, pairs)))

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
        return idle_captures(self._buckets, self._drafted_buckets, self._drafts_of)

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
        self, batch: Batch, padded: StepSizes, staging: Staging, layout: StepLayout | None
    ) -> tuple[Inputs, dict[AttentionKind, WorkCounts]]:
        """Send the step's inputs to the device, in one transfer. `layout`: of a captured step."""
        work, chunks = self._work_of(padded) if layout is None else layout.work, self.work.cut(batch)
        if chunks is not None:
            padded = padded._replace(chunks=len(chunks.chunks), scans=len(chunks.scans))
        host = staging.views.get(padded)
        if host is None:
            numbers = staging.numbers.numpy()
            host = Inputs.of(numbers, numbers.view(np.float32), padded, work)
            if layout is not None:  # steps like it will follow
                staging.views[padded] = host
        counts, num_tables = fill(host, batch, work, chunks, self.caches.trash_slots)
        used = len(staging.numbers) - len(host.tables) + num_tables
        self._numbers[:used].copy_(staging.numbers[:used], non_blocking=True)
        return Inputs.of(self._numbers, self._floats, padded, work) if layout is None else layout.inputs, counts

    def _work_of(self, sizes: StepSizes) -> StepSplit:
        """Return how such a step is split. Enough rows to fill the GPU are not split: nothing to merge."""

        variant = variant_within(self.variants, sizes)

        def blocks(each: WorkLimits) -> int:
            if sizes.drafts == TOGETHER or (sizes.tokens != sizes.rows and not sizes.drafts) or each.fixed_chunk:
                return each.num_ctas
            if variant is not None:
                return variant.num_ctas
            return each.num_ctas if sizes.rows < each.narrow_budget else 0

        split = ROW_TOKENS if sizes.drafts else 0
        limits: dict[str, Any] = {"max_tokens": sizes.tokens, "max_rows": sizes.rows, "split_tokens": split}
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

    def _forward(
        self, inputs: Inputs, counts: Mapping[AttentionKind, WorkCounts], sizes: StepSizes, batch: Batch | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Compute a step with the first variant that supports it; return its logits and vectors, if it has any."""
        run, variant = self._run(inputs, counts, sizes), variant_within(self.variants, sizes)
        if batch is not None and len(batch.pools):
            run.pools = torch.from_numpy(batch.pools).to(self.device)
        elif variant is not None and sizes.logits == sizes.tokens and variant.supports(run):
            return variant(run), None
        return InstructionList(self.instructions, self.outputs)(run, has_logits=sizes.logits > 0)

    def _forward_once(
        self, inputs: Inputs, counts: Mapping[AttentionKind, WorkCounts], sizes: StepSizes, batch: Batch
    ) -> tuple[Tensor | None, Tensor | None]:
        """Compute a step. One that changes states cannot be launched again: its memory is reserved first."""
        if self.work.states is None:
            return self._forward(inputs, counts, sizes, batch)
        torch.empty(self.step_bytes * sizes.tokens // self.limits.max_tokens, dtype=torch.uint8, device=self.device)
        return convert_out_of_memory(lambda: self._forward(inputs, counts, sizes, batch), state_failure)

    def _run(self, inputs: Inputs, counts: Mapping[AttentionKind, WorkCounts], sizes: StepSizes) -> Run:
        work = {
            kind: AttentionWork.of(views, counts[kind].narrow, counts[kind].wide, self._partials[kind])
            for kind, views in inputs.work.items()
        }
        where, *windows = (TokenPlacement(inputs.positions, slots) for slots in inputs.slots)
        every = sizes.logits == sizes.tokens and sizes.drafts != TOGETHER  # such a graph has any number of logits
        at = None if every else inputs.logits_at
        run = Run(inputs.ids, where, inputs.tables, work, self.sampler.last_tokens, at, windows=tuple(windows))
        run.merges = any(each.partials for each in counts.values())
        run.is_decode, run.is_single = sizes.tokens == sizes.rows and not sizes.drafts, sizes.drafts == SINGLY
        run.expands = any(each.has_expanded for each in counts.values())
        run.wide, run.states, run.beyond = self.wide, inputs.states, self._beyond
        return run

    def _drafts_of(self, num_tokens: int, is_separate: Callable[[], bool] = lambda: True) -> str:
        """Return how attention of a step with drafts is planned. `is_separate` is asked only if it matters."""
        variant = variant_within(self.variants, StepSizes(num_tokens, 1, num_tokens))
        return SINGLY if variant is not None and variant.row_tokens >= ROW_TOKENS and is_separate() else TOGETHER

    def _buckets_of(self, kind: GraphKind) -> Buckets:
        return self._drafted_buckets if kind.drafts else self._buckets

    def _captured_for(self, bucket: int, kind: GraphKind, is_frequent: bool) -> CapturedStep | None:
        """Return the graph of such a step. None: launch it kernel by kernel. `is_frequent`: it will occur again."""
        key = bucket, kind
        if key not in self._captured:
            self._uses[key] += 1
            if self._uses[key] < CAPTURED_AT and not is_frequent:
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
            logits, _ = self._forward(inputs, most, padded)
            assert logits is not None
            if kind.mode != "none":
                self.sampler.sample(logits, inputs, kind.mode, None)
            return logits

        return capture(whole, self._stream, self._pool, StepLayout(padded, work, inputs))
