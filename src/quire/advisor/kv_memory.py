"""KV memory of a workload: what requests need when blocks are allocated as they grow, and when memory is reserved.

A cache of 6 GB holds 6 requests if each reserves 1 GB for its longest possible context. If a request takes only the
400 MB of blocks that it fills, it holds 15: 2.5 times as many.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.advisor.roofline import Roofline
from quire.advisor.workload import TraceWorkload
from quire.advisor.workload_summary import Distribution
from quire.config import SchedulerConfig

CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
MIN_RESERVED_CONTEXT = 2048
STEP_TOKENS = SchedulerConfig().max_step_tokens  # that window groups hold beside the windows of all requests


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
    token_bytes: float  # in the layers that keep all tokens
    num_blocks: int
    block_tokens: int
    capacity: RequestCapacity  # for the workload's mean request
    shared_capacity: RequestCapacity  # the same, with shared prefixes stored once
    waste: float  # share of the allocated blocks that is not filled
    fits: tuple[ContextFit, ...]
    window_bytes: tuple[
        tuple[int, float], ...
    ] = ()  # window of layers that keep only the last tokens, bytes of a token
    state_bytes: int = 0  # of recurrent layers, for each request and each checkpoint

    @property
    def by_group(self) -> str:
        """KV bytes of a token, by how long layers keep it, and of a state."""
        parts = [f"{self.token_bytes / 1e3:,.1f} kB per token"] if self.token_bytes else []
        parts += [f"{size / 1e3:,.1f} kB for each of the last {window:,} tokens" for window, size in self.window_bytes]
        parts += [f"{self.state_bytes / 1e6:,.1f} MB per state"] if self.state_bytes else []
        return ", ".join(parts)

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
    paged = sum(shape.request_bytes(count * block_tokens) for count in blocks) / max(1, len(blocks))
    unshared = 1 - shared * workload.num_prompt / max(1, workload.num_prompt + workload.num_output)
    reserved = shape.request_bytes(reserved_context(context, shape.max_context))
    contexts = [each for each in CONTEXTS if each <= shape.max_context]
    room = max(0.0, kv_bytes - sum(STEP_TOKENS * size for _, size in shape.window_bytes))
    fits = [ContextFit(each, int(room // shape.request_bytes(each))) for each in contexts]
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
        window_bytes=shape.window_bytes,
        state_bytes=shape.state_bytes,
    )
