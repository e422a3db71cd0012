"""KV memory of a workload: what requests need when blocks are allocated as they grow, and when memory is reserved.

A cache of 6 GB holds 6 requests if each reserves 1 GB for its longest possible context. If a request takes only the
400 MB of blocks that it fills, it holds 15: 2.5 times as many.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.advisor.roofline import Roofline
from quire.advisor.workload import TraceWorkload
from quire.advisor.workload_summary import Distribution

CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
MIN_RESERVED_CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class RequestCapacity:
    """Number of requests that fit at the same time, with reserved and with paged KV memory."""

    cache_bytes: float
    reserved_bytes: float  # per request, if its whole context is reserved
    paged_bytes: float  # per request, if blocks are allocated as it grows

    @property
    def reserved(self) -> int:
        """Requests that fit with reserved memory."""
        return int(self.cache_bytes // self.reserved_bytes) if self.reserved_bytes else 0

    @property
    def paged(self) -> int:
        """Requests that fit with paged memory."""
        return int(self.cache_bytes // self.paged_bytes) if self.paged_bytes else 0

    @property
    def ratio(self) -> float:
        """Paged requests for each reserved one."""
        return self.reserved_bytes / self.paged_bytes if self.paged_bytes else 0.0


@dataclass(frozen=True, slots=True)
class ContextFit:
    """Number of requests of one length that fit at the same time."""

    context: int
    num_requests: int


@dataclass(frozen=True, slots=True)
class KVMemory:
    """KV memory of one model on one device for one workload."""

    device_bytes: float
    model_bytes: float  # weights, buffers and the process
    kv_bytes: float  # the rest
    token_bytes: float
    num_blocks: int
    block_tokens: int
    capacity: RequestCapacity  # for the workload's mean request
    shared_capacity: RequestCapacity  # the same, with shared prefixes stored once
    waste: float  # share of the allocated blocks that is not filled
    fits: tuple[ContextFit, ...]

    @property
    def is_enough(self) -> bool:
        """Does the model fit, with KV for at least one request?"""
        return self.capacity.paged >= 1


def reserved_context(context: Distribution, max_context: int) -> int:
    """Return the context that an engine with reserved memory needs: the next power of two above the longest request."""
    length = MIN_RESERVED_CONTEXT
    while length < context.high and length < max_context:
        length *= 2
    return min(length, max_context)


def estimate_kv_memory(
    workload: TraceWorkload, context: Distribution, roofline: Roofline, block_tokens: int, shared: float
) -> KVMemory:
    """Estimate the KV memory. `shared`: the share of prompt tokens that another request has too."""
    shape, hardware = roofline.shape, roofline.hardware
    kv_bytes = max(0.0, roofline.kv_bytes())
    lengths = [call.num_prompt + call.num_output for call in workload.calls]
    blocks = [-(-length // block_tokens) for length in lengths]
    paged = sum(blocks) * block_tokens / max(1, len(blocks)) * shape.kv_token_bytes
    unshared = 1 - shared * workload.num_prompt / max(1, workload.num_prompt + workload.num_output)
    reserved = reserved_context(context, shape.max_context) * shape.kv_token_bytes
    contexts = [each for each in CONTEXTS if each <= shape.max_context]
    fits = [ContextFit(each, int(kv_bytes // (each * shape.kv_token_bytes))) for each in contexts]
    return KVMemory(
        device_bytes=hardware.memory_bytes,
        model_bytes=shape.memory_besides_kv(hardware.memory_kind),
        kv_bytes=kv_bytes,
        token_bytes=shape.kv_token_bytes,
        num_blocks=roofline.num_blocks(block_tokens),
        block_tokens=block_tokens,
        capacity=RequestCapacity(kv_bytes, reserved, paged),
        shared_capacity=RequestCapacity(kv_bytes, reserved, paged * unshared),
        waste=1 - sum(lengths) / max(1, sum(blocks) * block_tokens),
        fits=tuple(fits),
    )
