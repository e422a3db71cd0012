"""KV memory: what a request needs of it when blocks are given as it grows, and what an engine loses that reserves.

A cache of 6 GB has room for 6 requests if each reserves 1 GB for the longest that it might become; if a request takes
the 400 MB of blocks that it fills, for 15, which is 2.5 times as many.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.advisor.describe import Spread
from quire.advisor.roofline import Roofline
from quire.advisor.workload import Workload

CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
LEAST_CONTEXT = 2048  # nobody reserves less


@dataclass(frozen=True, slots=True)
class Slots:
    """How many requests fit at once, by two ways of giving memory."""

    cache_bytes: float
    reserved_bytes: float  # of a request, if its whole context is set aside
    paged_bytes: float  # if it gets blocks as it grows

    @property
    def reserved(self) -> int:
        """Requests that fit when each reserves."""
        return int(self.cache_bytes // self.reserved_bytes) if self.reserved_bytes else 0

    @property
    def paged(self) -> int:
        """Requests that fit when each takes what it fills."""
        return int(self.cache_bytes // self.paged_bytes) if self.paged_bytes else 0

    @property
    def ratio(self) -> float:
        """How many times as many."""
        return self.reserved_bytes / self.paged_bytes if self.paged_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Fit:
    """How many requests of a length have room."""

    context: int
    num_requests: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one model on one device, for one workload."""

    device_bytes: float
    model_bytes: float  # weights, buffers and the process
    kv_bytes: float  # what is left
    token_bytes: float
    num_blocks: int
    block_tokens: int
    slots: Slots  # of the workload's mean request
    shared_slots: Slots  # the same when shared beginnings are held once
    waste: float  # share of the blocks' room that is not filled, with whole blocks
    fits: tuple[Fit, ...]

    @property
    def is_enough(self) -> bool:
        """Does the model fit, with KV for at least one request?"""
        return self.slots.paged >= 1


def reserved_context(context: Spread, most: int) -> int:
    """What an engine that reserves would be set to: the next power of two above the longest request."""
    wanted = LEAST_CONTEXT
    while wanted < context.high and wanted < most:
        wanted *= 2
    return min(wanted, most)


def memory_of(workload: Workload, context: Spread, roofline: Roofline, block_tokens: int, shared: float) -> Memory:
    """`shared`: the share of prompt tokens that another request has too."""
    shape, hardware = roofline.shape, roofline.hardware
    kv_bytes = max(0.0, roofline.kv_bytes())
    lengths = [call.num_prompt + call.num_output for call in workload.calls]
    blocks = [-(-length // block_tokens) for length in lengths]
    paged = sum(blocks) * block_tokens / max(1, len(blocks)) * shape.kv_token_bytes
    own = 1 - shared * workload.num_prompt / max(1, workload.num_prompt + workload.num_output)
    reserved = reserved_context(context, shape.max_context) * shape.kv_token_bytes
    fits = [Fit(each, int(kv_bytes // (each * shape.kv_token_bytes))) for each in CONTEXTS if each <= shape.max_context]
    return Memory(
        device_bytes=hardware.memory_bytes,
        model_bytes=shape.memory_besides_kv(hardware.memory_kind),
        kv_bytes=kv_bytes,
        token_bytes=shape.kv_token_bytes,
        num_blocks=roofline.num_blocks(block_tokens),
        block_tokens=block_tokens,
        slots=Slots(kv_bytes, reserved, paged),
        shared_slots=Slots(kv_bytes, reserved, paged * own),
        waste=1 - sum(lengths) / max(1, sum(blocks) * block_tokens),
        fits=tuple(fits),
    )
