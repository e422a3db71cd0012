"""A whole step of few rows in one kernel (`kernels/few_rows.cu`): its tiling and its launch."""

from __future__ import annotations

import ctypes
import logging
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_float, c_int, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.devices._triton.attention_work import AttentionKind
from quire.devices._triton.rope import RopeTables

from .caches import Caches
from .drafted import ROW_TOKENS
from .experts import Experts
from .few_rows_model import ACTIVATIONS, ALL_HEADS, HEAD_DIMS, ModelInstructions
from .instructions import Instruction, Run
from .nvrtc import CudaError, Kernel, LaunchConfig, compile_kernel, current_stream
from .tensor_map import BOX_BYTES, Box, tensor_map

logger = logging.getLogger("quire.devices.cuda")

HOPPER = 9
WARPS = 16  # that multiply; also tiles per slot
TILE_ROWS = 16
SLOT = WARPS * TILE_ROWS * BOX_BYTES
ROWS = (1, 8, 16)  # one kernel for each of these maximum numbers of rows
MAX_ROWS = ROWS[-1]
# The kernels: the most tokens of a step, and of a row.
KERNELS = (*((each, 1) for each in ROWS), *((each, ROW_TOKENS) for each in ROWS[1:]))
# shared memory for tokens, by ROWS, in order of preference
TOKEN_BYTES = {1: (9 << 10,), 8: (68 << 10, 52 << 10, 36 << 10), 16: (68 << 10, 52 << 10, 36 << 10)}
BARRIERS = 8 * 2 * 8  # bytes of barriers for tokens
ITEM = 4 * 64  # bytes of an attention item
MAX_SLOTS = 8
ENOUGH_SLOTS = 4  # with as many, shared memory is better spent on tokens than on more weights in flight
MIN_SLOTS = 3
ALIGNMENT = 1024
NO_WINDOW = (1 << 31) - 1
UNUSED_COST = 0.1  # cost of an unused part of a slot, relative to one more round


class ProductShape(NamedTuple):
    """Output rows and columns of a product, and the bytes of a weight."""

    rows: int
    columns: int
    width: int
    is_gate: bool = False


def tiles_of(shape: ProductShape, num_processors: int) -> int:
    """Return the tiles of a block's group that balance rows over processors and fill slots."""
    halves = 2 if shape.is_gate else 1
    units = -(-shape.rows // TILE_ROWS)

    def cost(unit: int) -> float:
        groups = -(-units // unit)
        longest = -(-groups // num_processors) * unit
        used = unit * halves * _parts(shape, unit * halves) / WARPS
        tokens = 0.25 / unit  # cost of reading the tokens, once per group
        return longest * (1 + tokens + UNUSED_COST * (1 - used))

    return halves * min(range(1, WARPS // halves + 1), key=cost)


def _parts(shape: ProductShape, tiles: int) -> int:
    """Return the boxes of a slot, as in the kernel."""
    boxes = shape.columns * shape.width // BOX_BYTES
    return next((parts for parts in (8, 4, 2) if parts * tiles <= WARPS and boxes % parts == 0), 1)


class _Work(ctypes.Structure):
    """The kernel's `Work`."""

    _fields_ = (
        *((name, c_void_p) for name in ("items", "num_items", "first_part", "num_parts", "slots", "cache")),
        ("cache_stride", c_uint64),
    )


class _Step(ctypes.Structure):
    """The kernel's `Step`."""

    _fields_ = (
        *((name, c_void_p) for name in ("maps", "layers", "table", "ids", "last_tokens", "normed", "squares", "qkv")),
        *((name, c_void_p) for name in ("attended", "activated", "logits")),
        ("works", _Work * 2),
        *((name, c_void_p) for name in ("positions", "tables")),
        ("ropes", c_void_p * 2 * 2),  # cosines, sines
        *((name, c_void_p) for name in ("partial_out", "partial_lse", "product_squares", "head_squares")),
        ("grid_barrier", c_void_p),
        ("num_tokens", c_int),
        ("windows", c_int * 2),
        *((name, c_float) for name in ("eps", "head_eps", "post_eps", "scale", "score_cap", "embedding_factor")),
        *((name, c_float) for name in ("residual_factor", "logit_factor", "logit_cap")),
    )


@dataclass(slots=True, eq=False)
class FewRows:
    """The kernel of one model, with its buffers."""

    model: ModelInstructions
    caches: Caches
    num_processors: int
    shared_memory: int  # bytes, of a block
    _definitions: dict[str, int] = field(init=False)  # compile-time constants that do not depend on the number of rows
    _maps: Tensor = field(init=False)
    _layers: Tensor = field(init=False)
    _buffers: dict[str, Tensor] = field(init=False)
    _ropes: list[tuple[Tensor, Tensor]] = field(init=False)  # cosines and sines
    _ones: Tensor = field(init=False)  # the norms' weight of blocks without a norm before them
    _kernels: dict[tuple[int, int], tuple[Kernel, LaunchConfig]] = field(default_factory=dict)

    @classmethod
    def of(cls, instructions: Sequence[Instruction], caches: Caches) -> FewRows | None:
        """Compile the kernels. None: the kernel does not support this model or this GPU."""
        model = ModelInstructions.of(instructions)
        if model is None:
            has_experts = any(isinstance(each, Experts) for each in instructions)
            logger.info(
                "steps of few rows run as several kernels: the one kernel does not support %s",
                "experts" if has_experts else "such layers",
            )
            return None
        reason = model.unsupported(caches)
        if reason is not None:
            logger.info("steps of few rows run as several kernels: the one kernel does not support %s", reason)
            return None
        facts = torch.cuda.get_device_properties(caches.device)
        if facts.major != HOPPER:
            return None
        shared_memory: int = facts.shared_memory_per_block_optin  # type: ignore[attr-defined]
        try:
            found = cls(model, caches, facts.multi_processor_count, shared_memory)
            if not all(found._fits(each, 1) for each in ROWS):
                return None
            kernels = [each for each in KERNELS if each[1] <= found.row_tokens]
            with ThreadPoolExecutor(len(kernels)) as threads:
                list(threads.map(found._kernel, *zip(*kernels, strict=True)))
        except (CudaError, OSError, AttributeError) as error:  # AttributeError: the driver is too old
            logger.warning("steps of few rows run as several kernels: %s", error)
            return None
        return found

    def __post_init__(self) -> None:
        self._definitions = definitions = self._constants()
        device, rows, dim = self.caches.device, MAX_ROWS, definitions["DIM"]
        self._ones = torch.ones(dim, device=device)
        self._ropes = [self._rope(each) for each in self.model.ropes]
        self._maps, self._layers = self._tensor_maps().to(device), self._pointers().to(device)
        qkv = definitions["HEADS"] + 2 * definitions["KV"]
        heads = definitions["HEADS"] * definitions["HEAD_DIM"]
        sizes = {"normed": dim, "attended": heads, "activated": definitions["FFN"]}
        self._buffers = {
            name: torch.zeros((rows, size), dtype=torch.bfloat16, device=device) for name, size in sizes.items()
        }
        parts = max(rows, -(-self.num_processors // definitions["KV"]))  # the most that `plan_work` makes of few rows
        tagged: dict[str, tuple[int, ...]] = {
            "qkv": (rows, qkv * definitions["HEAD_DIM"]),
            "partial_out": (parts, heads),
            "partial_lse": (parts, definitions["HEADS"]),
        }
        if self.model.post_norm is not None:
            tagged["product_squares"] = 2, rows, dim // TILE_ROWS
        if definitions["HEAD_NORM"] == ALL_HEADS:
            tagged["head_squares"] = rows, 2, qkv * definitions["HEAD_DIM"] // TILE_ROWS
        self._buffers |= {name: torch.zeros(shape, dtype=torch.int64, device=device) for name, shape in tagged.items()}
        self._buffers |= {
            "squares": torch.zeros((rows, dim), device=device),
            "grid_barrier": torch.zeros(3, dtype=torch.int32, device=device),
        }

    @property
    def max_rows(self) -> int:
        return MAX_ROWS

    @property
    def max_tokens(self) -> int:
        return MAX_ROWS

    @property
    def num_ctas(self) -> int:
        return self.num_processors

    @property
    def row_tokens(self) -> int:
        return ROW_TOKENS if all(self._fits(each, ROW_TOKENS) for each in ROWS[1:]) else 1

    def supports(self, run: Run) -> bool:
        """Return whether every item of attention has one token, and rows share no keys."""
        return run.is_few or run.is_single

    def __call__(self, run: Run) -> Tensor:
        """Launch the step; return its logits, in float32."""
        num_tokens = len(run.ids)
        kernel, config = self._kernel(num_tokens, 1 if run.is_decode else ROW_TOKENS)
        logits = torch.empty((num_tokens, self._definitions["VOCAB"]), device=run.ids.device)
        tensors = self._buffers | {
            "maps": self._maps,
            "layers": self._layers,
            "table": self.model.embed.table,
            "ids": run.ids,
            "last_tokens": run.last_tokens,
            "logits": logits,
            "positions": run.where.positions,
            "tables": run.tables,
        }
        step = _Step(**{name: tensor.data_ptr() for name, tensor in tensors.items()}, **self._numbers())
        step.num_tokens = num_tokens
        for i, (kind, layer) in enumerate(self.model.kinds.items()):
            step.works[i] = self._work(run, kind, layer)
            step.windows[i] = NO_WINDOW if kind.window is None else kind.window
        for i, rope in enumerate(self._ropes):
            step.ropes[i][:] = [each.data_ptr() for each in rope]
        kernel.launch(config, current_stream(run.ids.device), (step,))
        return logits

    def _work(self, run: Run, kind: AttentionKind, layer: int) -> _Work:
        """Return the work of a kind of attention, and the cache that its layers are in: that of this one."""
        work, cache = run.work[kind], self.caches.both_of(layer)
        assert cache is not None
        slots = run.where_in(self.caches.group_of(layer)).slots
        tensors = (work.narrow, work.counts, work.first_part, work.num_parts, slots, cache)
        return _Work(*(each.data_ptr() for each in tensors), cache.stride(1))

    def _rope(self, turns: RopeTables) -> tuple[Tensor, Tensor]:
        """Return cosines and sines; for layers without rope, such that nothing is rotated."""
        if turns.cos.shape[1]:
            return turns.cos, turns.sin
        shape = len(turns.cos), self.model.num_pairs
        return torch.ones(shape, device=turns.cos.device), torch.zeros(shape, device=turns.cos.device)

    def _numbers(self) -> dict[str, float]:
        """Return the numbers of the model that the kernel reads from its arguments."""
        embed, (first, *_), head = self.model
        assert head.norm is not None
        head_norm, post_norm = first.attend.head_norm, self.model.post_norm
        return {
            "eps": head.norm.eps,
            "head_eps": 0.0 if head_norm is None else head_norm.eps,
            "post_eps": 0.0 if post_norm is None else post_norm.eps,
            "scale": first.attend.scale,
            "score_cap": first.attend.softcap,
            "embedding_factor": embed.factor,
            "residual_factor": first.down.factor,
            "logit_factor": head.factor,
            "logit_cap": head.cap,
        }

    def _constants(self) -> dict[str, int]:
        layer = self.model.layers[0]
        head: Tensor = self.model.head.linear.weight  # type: ignore[attr-defined]
        qkv, _, gate, down = (each.weight for each in layer.linears)
        heads, width, halves = layer.attend.heads, qkv.element_size(), 2

        def tiles(weight: Tensor, is_gate: bool = False) -> int:
            rows = weight.shape[0] // halves if is_gate else weight.shape[0]
            return tiles_of(ProductShape(rows, weight.shape[1], weight.element_size(), is_gate), self.num_processors)

        return {
            "LAYERS": len(self.model.layers),
            "WIDTH": width,
            "FFN": down.shape[1],
            "VOCAB": head.shape[0],
            "DIM": down.shape[0],
            "HEADS": heads.num_heads,
            "KV": heads.kv_heads,
            "HEAD_DIM": heads.dim,
            "PAIRS": self.model.num_pairs,
            "BLOCK_TOKENS": self.caches.block_tokens,
            **self._properties(),
            "QKV_TILES": tiles(qkv),
            "OUT_PROJ_TILES": tiles(down),  # the same rows: their residual stays in the block
            "GATE_TILES": tiles(gate, is_gate=True),
            "DOWN_TILES": tiles(down),
            "HEAD_TILES": tiles(head),
        }

    def _properties(self) -> dict[str, int]:
        """Return what the model has of what a model may have."""
        model, first = self.model, self.model.layers[0]
        return {
            "HAS_BIAS": first.attend.linear.bias is not None,  # type: ignore[attr-defined]
            "HAS_PRE_NORM": first.attend.norm is not None,
            "HAS_POST_NORM": model.post_norm is not None,
            "HEAD_NORM": model.head_norm,
            "WORKS": len(model.kinds),
            "HAS_WINDOW": any(kind.window is not None for kind in model.kinds),
            "ROPES": len(model.ropes),
            "IS_INTERLEAVED": first.attend.turns.interleaved,
            "ACTIVATION": ACTIVATIONS.index(first.gate.kind),
            "HAS_LAYER_SCALES": len({layer.attend.scale for layer in model.layers}) > 1,
            "HAS_SCORE_CAP": bool(first.attend.softcap),
            "HAS_EMBEDDING_FACTOR": model.embed.factor != 1.0,
            "HAS_RESIDUAL_FACTOR": first.down.factor != 1.0,
            "HAS_LOGIT_FACTOR": model.head.factor != 1.0,
            "HAS_LOGIT_CAP": bool(model.head.cap),
        }

    def _fits(self, max_tokens: int, row_tokens: int) -> bool:
        """Return whether such a kernel has enough shared memory."""
        return self._memory_plan(max_tokens, row_tokens)["SLOTS"] >= MIN_SLOTS

    def _memory_plan(self, max_tokens: int, row_tokens: int) -> dict[str, int]:
        """Return the constants that depend on the numbers of tokens, and the division of shared memory."""
        tokens, definitions = max(max_tokens, ROWS[1]), self._definitions
        own_rows = definitions["DOWN_TILES"] * TILE_ROWS
        groups = -(-definitions["DIM"] // own_rows)
        residual = -(-groups // self.num_processors) * own_rows * tokens
        sums = WARPS * TILE_ROWS * tokens
        head_dim, group = definitions["HEAD_DIM"], definitions["HEADS"] // definitions["KV"]
        partials = (head_dim // 4 + 4) * 8 * -(-group // 2) if head_dim < HEAD_DIMS[-1] else group * head_dim
        attention = 6 * head_dim + 8 + 8 * WARPS + (row_tokens - 1) * (head_dim + 8) + WARPS // 2 * partials
        residuals = (3 if definitions["HAS_POST_NORM"] else 1) * residual
        fixed = ALIGNMENT + BARRIERS + definitions["WORKS"] * ITEM + 4 * (residuals + max(sums, attention))
        plans = [(size, (self.shared_memory - fixed - size) // (SLOT + 16)) for size in TOKEN_BYTES[max_tokens]]
        token_bytes, slots = next((each for each in plans if each[1] >= ENOUGH_SLOTS), plans[-1])
        slots = min(slots, MAX_SLOTS)
        return {
            "TOKENS": tokens,
            "MAX_TOKENS": max_tokens,
            "ROW_TOKENS": row_tokens,
            "TOKEN_BYTES": token_bytes,  # of what weights are multiplied with
            "RESIDUAL": residual,
            "SLOTS": slots,
            "shared": fixed + token_bytes + slots * (SLOT + 16),
        }

    def _kernel(self, num_tokens: int, row_tokens: int) -> tuple[Kernel, LaunchConfig]:
        key = next(each for each in KERNELS if num_tokens <= each[0] and row_tokens == each[1])
        if key not in self._kernels:
            plan = self._memory_plan(*key)
            shared = plan.pop("shared")
            code = compile_kernel("few_rows", self._definitions | plan, self.caches.device)
            launch = LaunchConfig(self.num_processors, 32 * (WARPS + 2), shared)
            self._kernels[key] = Kernel.load(code, "few_rows", shared, self.caches.device), launch
        return self._kernels[key]

    def _tensor_maps(self) -> Tensor:
        """Return the tensor maps of all matrices, for the copy engine."""
        definitions = self._definitions
        tiles = [definitions[f"{name}_TILES"] for name in ("QKV", "OUT_PROJ", "GATE", "DOWN")]
        maps = [_encode(each, tiles[i]) for layer in self.model.layers for i, each in enumerate(layer.linears)]
        maps.append(_encode(self.model.head.linear, definitions["HEAD_TILES"]))
        return torch.frombuffer(bytearray(b"".join(maps)), dtype=torch.uint8)

    def _pointers(self) -> Tensor:
        """Return the kernel's `Layer` structs, and one more for the norm before the head."""
        works, ropes = list(self.model.kinds), [id(each.cos) for each in self.model.ropes]
        rows = []
        for attend, out_proj, gate, down in self.model.layers:
            norms = [norm and norm.weight for norm in (attend.norm, gate.norm)]
            if norms == [None, None]:
                norms = [self._ones, self._ones]
            linears: tuple[Any, ...] = (attend.linear, out_proj.linear, gate.linear, down.linear)
            tensors = [*norms, *(each.scale for each in linears), linears[0].bias]
            tensors += [None, None] if attend.head_norm is None else attend.head_norm[:2]
            tensors += [each.post_norm and each.post_norm.weight for each in (out_proj, down)]
            kinds = works.index(attend.kind) | ropes.index(id(attend.turns.cos)) << 32
            (scale,) = struct.unpack("<I", struct.pack("<f", attend.scale))
            last = scale | self.caches.index_of(attend.layer) << 32
            rows.append([*(0 if each is None else each.data_ptr() for each in tensors), kinds, last])
        assert self.model.head.norm is not None
        rows.append([self.model.head.norm.weight.data_ptr(), *[0] * (len(rows[0]) - 1)])
        return torch.tensor(rows, dtype=torch.int64)


def _encode(linear: Any, tiles: int) -> bytes:
    """Return the tensor map of a matrix: boxes of all rows of a group (of half a gate's), several side by side."""
    weight, rows = linear.weight, tiles * TILE_ROWS // (2 if linear.is_gate else 1)
    shape = ProductShape(weight.shape[0], weight.shape[1], weight.element_size())
    return tensor_map(weight, weight.shape[1], Box(rows, _parts(shape, tiles)))
