"""Wide items of paged attention in a kernel for Hopper (`kernels/wide_attention.cu`): what it supports, its launch."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from ctypes import c_float, c_int, c_ubyte, c_void_p
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quire.devices._triton.attention import LOG2_E
from quire.devices._triton.attention_work import AttentionKind
from quire.devices._triton.rope import Heads

from .attention import AttendCache
from .caches import Caches
from .instructions import Attend, Instruction, Run
from .nvrtc import CHAINED, CudaError, Kernel, LaunchConfig, compile_kernel, current_stream
from .tensor_map import MAP_BYTES, Box, tensor_map

logger = logging.getLogger("quire.devices.cuda")

HOPPER = 9
ROWS = 128  # queries of an item, over all its members
TILE_KEYS = 128
DIMS = (64, 128)
THREADS = 384
STAGES = 2
BUFFERED_ITEMS = 4
ALIGNMENT = 1024
BARRIERS = 3 * 2 * STAGES * 8  # bytes
ITEM_BYTES = (3 * ROWS + 4) * 4  # of an item's metadata


class _Wide(ctypes.Structure):
    """The kernel's `Wide`."""

    _fields_ = (
        ("cache", c_ubyte * MAP_BYTES),
        *((name, c_void_p) for name in ("q", "out", "items", "num_items", "members", "first_part", "num_parts")),
        *((name, c_void_p) for name in ("positions", "tables", "partial_out", "partial_lse")),
        *((name, c_int) for name in ("keys_at", "values_at", "q_stride", "out_stride")),
        ("scale", c_float),
    )


@dataclass(slots=True, eq=False)
class WideAttention:
    """The kernel for one cache, and heads of one shape."""

    caches: Caches
    layer: int  # any that the kernel computes: the KV of all of them is in one tensor
    heads: Heads
    num_processors: int
    _wide: _Wide = field(init=False)  # of the last launch
    _launch: Any = field(init=False)
    _encoded: tuple[int, int] = (0, 0)  # address and size of the cache that the tensor map describes

    @classmethod
    def for_instructions(cls, instructions: Sequence[Instruction], caches: Caches) -> WideAttention | None:
        """Build the kernel for attention that sees all keys, with scaled scores, without fixed chunks.

        None: there is none, or heads differ.
        """
        attends = [each for each in instructions if isinstance(each, Attend | AttendCache)]
        attends = [each for each in attends if not each.kind.is_source]
        plain = [each for each in attends if each.fixed_chunk is None and each.terms.is_plain]
        kinds = {each.kind: each.layer for each in plain if each.kind.reach is None}
        if len(kinds) != 1:
            return None
        (((kv_heads, group, dim, *_), layer),) = kinds.items()
        return cls.of(caches, layer, Heads(kv_heads * group, kv_heads, dim))

    @classmethod
    def of(cls, caches: Caches, layer: int, heads: Heads) -> WideAttention | None:
        """Build the kernel. None: it does not support these heads, this layer's cache or this GPU."""
        device, cache = caches.device, caches.both_of(layer)
        if device.type != "cuda" or cache is None or not is_supported(cache, heads):
            return None
        facts = torch.cuda.get_device_properties(device)
        if facts.major != HOPPER:
            return None
        try:
            return cls(caches, layer, heads, facts.multi_processor_count)
        except (CudaError, OSError, AttributeError) as error:  # AttributeError: the driver is too old
            logger.warning("attention of prompts runs in Triton: %s", error)
            return None

    def __post_init__(self) -> None:
        tile = TILE_KEYS * self.heads.dim * 2
        shared = ALIGNMENT + 3 * STAGES * tile + BARRIERS + BUFFERED_ITEMS * ITEM_BYTES
        self._wide = _Wide()
        self._launch = self._kernel(shared).prepare(
            LaunchConfig(self.num_processors, THREADS, shared, CHAINED), (self._wide,)
        )

    @property
    def kind(self) -> AttentionKind:
        """The kind of layers that it computes."""
        num_heads, kv_heads, dim = self.heads
        return AttentionKind(kv_heads, num_heads // kv_heads, dim, dim)

    def _kernel(self, shared: int) -> Any:
        device = self.caches.device
        code = compile_kernel("wide_attention", self._definitions, device, arch_specific=True)
        return Kernel.load(code, "wide_attention", shared, device)

    @property
    def _definitions(self) -> dict[str, int]:
        num_heads, kv_heads, dim = self.heads
        return {"DIM": dim, "KV": kv_heads, "GROUP": num_heads // kv_heads, "BLOCK_TOKENS": self.caches.block_tokens}

    def __call__(self, run: Run, layer: int, q: Tensor, out: Tensor, scale: float) -> None:
        """Compute all wide items of a layer. q and out [T, heads, dim] are those of `attend`."""
        wide, whole, work = self._wide, self.caches.both_of(self.layer), run.work[self.kind]
        assert whole is not None
        if self._encoded != (whole.data_ptr(), whole.numel()):
            ctypes.memmove(ctypes.byref(wide), self._encode(whole), MAP_BYTES)
            self._encoded = whole.data_ptr(), whole.numel()
        lines = whole.stride(1) // self.heads.dim
        wide.q, wide.out, wide.items = q.data_ptr(), out.data_ptr(), work.wide.data_ptr()
        wide.num_items = work.counts.data_ptr() + work.counts.element_size()
        wide.members, wide.positions = work.members.data_ptr(), run.where.positions.data_ptr()
        wide.first_part, wide.num_parts = work.first_part.data_ptr(), work.num_parts.data_ptr()
        wide.partial_out, wide.partial_lse = work.partial_out.data_ptr(), work.partial_lse.data_ptr()
        wide.tables = run.tables.data_ptr()
        index = self.caches.index_of(layer)
        wide.keys_at, wide.values_at = 2 * index * lines, (2 * index + 1) * lines
        wide.q_stride, wide.out_stride, wide.scale = q.stride(0), out.stride(0), scale * LOG2_E
        self._launch.start(current_stream(q.device))

    def _encode(self, whole: Tensor) -> bytes:
        return tensor_map(whole, self.heads.dim, Box(whole.shape[4]))


def is_supported(cache: Tensor, heads: Heads) -> bool:
    """Return whether the kernel supports these heads and this cache."""
    return (
        cache.dtype == torch.bfloat16
        and heads.dim in DIMS
        and heads.num_heads <= ROWS * heads.kv_heads
        and cache.shape[4] % 8 == 0
        and TILE_KEYS % cache.shape[4] == 0
        and cache.numel() // heads.dim < 1 << 31
    )
