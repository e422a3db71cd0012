"""A whole step of few rows in one kernel (`kernels/few_rows.cu`): which models it supports, its tiling, its launch."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_float, c_int, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .caches import Caches
from .instructions import AddProduct, Attend, Embed, Forget, Gate, Head, Instruction, Run, Select
from .linear import Linear
from .nvrtc import CudaError, Kernel, LaunchConfig, compile_kernel, current_stream
from .tensor_map import BOX_BYTES, Box, tensor_map

logger = logging.getLogger("quire.devices.cuda")

MAX_GROUPED = 8  # heads that share a key head
HOPPER = 9
WARPS = 16  # that multiply; also tiles per slot
TILE_ROWS = 16
SLOT = WARPS * TILE_ROWS * BOX_BYTES
ROWS = (1, 8, 16)  # one kernel for each of these maximum numbers of rows
MAX_ROWS = ROWS[-1]
# shared memory for tokens, by ROWS, in order of preference
TOKEN_BYTES = {1: (9 << 10,), 8: (68 << 10, 52 << 10, 36 << 10), 16: (68 << 10, 52 << 10, 36 << 10)}
BARRIERS = 8 * 2 * 8 + 4 * 64  # bytes of barriers for tokens, and of an attention item
MAX_SLOTS = 8
ENOUGH_SLOTS = 4  # with as many, shared memory is better spent on tokens than on more weights in flight
MIN_SLOTS = 3
ALIGNMENT = 1024
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


class LayerInstructions(NamedTuple):
    """The four instructions of a layer."""

    attend: Attend
    out_proj: AddProduct
    gate: Gate
    down: AddProduct

    @property
    def linears(self) -> tuple[Any, Any, Any, Any]:
        return self.attend.linear, self.out_proj.linear, self.gate.linear, self.down.linear


class ModelInstructions(NamedTuple):
    """The instructions of a model, in the form that the kernel supports."""

    embed: Embed
    layers: list[LayerInstructions]
    head: Head

    @classmethod
    def of(cls, instructions: Sequence[Instruction]) -> ModelInstructions | None:
        """Group the instructions. None: they are not attention and gated feed-forward blocks, each after a norm."""
        steps = [each for each in instructions if not isinstance(each, Forget | Select)]
        kinds = [type(each) for each in steps]
        num_layers = (len(steps) - 2) // 4
        if kinds != [Embed, *[Attend, AddProduct, Gate, AddProduct] * num_layers, Head] or not num_layers:
            return None
        layers = [LayerInstructions(*steps[1 + 4 * i : 5 + 4 * i]) for i in range(num_layers)]  # type: ignore[arg-type]
        return cls(steps[0], layers, steps[-1])  # type: ignore[arg-type]

    def is_supported(self, cache: Tensor) -> bool:
        """Return whether the kernel supports all formats and shapes of the model."""
        linears = [linear for layer in self.layers for linear in layer.linears]
        if not all(isinstance(each, Linear) for each in [*linears, self.head.linear]):
            return False
        first, head = linears[0], self.head.linear
        assert isinstance(head, Linear)
        formats = {(each.weight.dtype, each.scale is None) for each in linears}
        attends = [layer.attend for layer in self.layers]
        norms = [norm for layer in self.layers for norm in (layer.attend.norm, layer.gate.norm)] + [self.head.norm]
        return (
            formats <= {(torch.bfloat16, True), (torch.float8_e4m3fn, False)}
            and len(formats) == 1
            and all(each.weight.shape[1] % (BOX_BYTES // each.weight.element_size()) == 0 for each in linears)
            and all(each.bias is None for layer in self.layers for each in layer.linears[1:])
            and self._is_plain
            and (head.weight.dtype, head.scale, head.bias) == (torch.bfloat16, None, None)
            and head.weight.shape[1] * 2 % BOX_BYTES == 0
            and all(norm is not None and norm.eps == self.head.norm.eps for norm in norms if self.head.norm)
            and None not in norms
            and all((each.head_norm, each.window, each.fixed_chunk) == (None, None, None) for each in attends)
            and all(each.chunk is None and each.terms.is_plain for each in attends)
            and all(each.turns.cos.shape[1] and not each.turns.interleaved for each in attends)
            and self._is_uniform
            and cache.dtype == self.embed.table.dtype == torch.bfloat16
            and attends[0].heads.dim in (64, 128)
            and attends[0].heads.num_heads <= MAX_GROUPED * attends[0].heads.kv_heads
            and cache.shape[4] % TILE_ROWS == 0
            and first.weight.device.type == "cuda"
        )

    @property
    def _is_plain(self) -> bool:
        """Whether there are no factors, norms after products, and activations but silu."""
        sums = [each for layer in self.layers for each in (layer.out_proj, layer.down)]
        return (
            (self.embed.factor, self.head.factor, self.head.cap) == (1.0, 1.0, 0.0)
            and all((each.post_norm, each.factor, each.copies) == (None, 1.0, False) for each in sums)
            and all(layer.gate.kind == "silu" for layer in self.layers)
        )

    @property
    def _is_uniform(self) -> bool:
        """Whether all layers agree in what the kernel reads from the first one."""
        kinds = {
            (
                id(layer.attend.turns.cos),
                layer.attend.scale,
                layer.attend.heads,
                layer.attend.linear.bias is None,  # type: ignore[attr-defined]
                *(each.weight.shape for each in layer.linears),
            )
            for layer in self.layers
        }
        return len(kinds) == 1


class _Step(ctypes.Structure):
    """The kernel's `Step`."""

    _fields_ = (
        *((name, c_void_p) for name in ("maps", "layers", "table", "ids", "last_tokens", "normed", "squares", "qkv")),
        *((name, c_void_p) for name in ("attended", "activated", "logits", "items", "num_items", "first_part")),
        *((name, c_void_p) for name in ("num_parts", "positions", "slots", "tables", "cosines", "sines", "cache")),
        *((name, c_void_p) for name in ("partial_out", "partial_lse", "grid_barrier")),
        ("cache_stride", c_uint64),
        ("num_tokens", c_int),
        ("eps", c_float),
        ("scale", c_float),
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
    _kernels: dict[int, tuple[Kernel, LaunchConfig]] = field(default_factory=dict)

    @classmethod
    def of(cls, instructions: Sequence[Instruction], caches: Caches) -> FewRows | None:
        """Compile the kernels. None: the kernel does not support this model or this GPU."""
        model = ModelInstructions.of(instructions)
        if model is None or not caches.is_uniform or not model.is_supported(caches.whole):
            return None
        facts = torch.cuda.get_device_properties(caches.whole.device)
        if facts.major != HOPPER:
            return None
        shared_memory: int = facts.shared_memory_per_block_optin  # type: ignore[attr-defined]
        try:
            found = cls(model, caches, facts.multi_processor_count, shared_memory)
            if min(found._memory_plan(each)["SLOTS"] for each in ROWS) < MIN_SLOTS:
                return None
            with ThreadPoolExecutor(len(ROWS)) as threads:
                list(threads.map(found._kernel, ROWS))
        except (CudaError, OSError, AttributeError) as error:  # AttributeError: the driver is too old
            logger.warning("steps of few rows run as several kernels: %s", error)
            return None
        return found

    def __post_init__(self) -> None:
        self._definitions = definitions = self._constants()
        device, rows, dim = self.caches.whole.device, MAX_ROWS, definitions["DIM"]
        self._maps, self._layers = self._tensor_maps().to(device), self._pointers().to(device)
        qkv = definitions["HEADS"] + 2 * definitions["KV"]
        heads = definitions["HEADS"] * definitions["HEAD_DIM"]
        sizes = {"normed": dim, "attended": heads, "activated": definitions["FFN"]}
        self._buffers = {
            name: torch.zeros((rows, size), dtype=torch.bfloat16, device=device) for name, size in sizes.items()
        }
        parts = max(rows, -(-self.num_processors // definitions["KV"]))  # the most that `plan_work` makes of few rows
        tagged = {
            "qkv": (rows, qkv * definitions["HEAD_DIM"]),
            "partial_out": (parts, heads),
            "partial_lse": (parts, definitions["HEADS"]),
        }
        self._buffers |= {name: torch.zeros(shape, dtype=torch.int64, device=device) for name, shape in tagged.items()}
        self._buffers |= {
            "squares": torch.zeros((rows, dim), device=device),
            "grid_barrier": torch.zeros(3, dtype=torch.int32, device=device),
        }

    def __call__(self, run: Run) -> Tensor:
        """Launch the step; return its logits, in float32."""
        num_tokens, first = len(run.ids), self.model.layers[0].attend
        kernel, config = self._kernel(num_tokens)
        logits = torch.empty((num_tokens, self._definitions["VOCAB"]), device=run.ids.device)
        work, whole, norm = run.work[first.kind], self.caches.whole, self.model.head.norm
        assert norm is not None
        tensors = self._buffers | {
            "maps": self._maps,
            "layers": self._layers,
            "table": self.model.embed.table,
            "ids": run.ids,
            "last_tokens": run.last_tokens,
            "logits": logits,
            "items": work.narrow,
            "num_items": work.counts,
            "first_part": work.first_part,
            "num_parts": work.num_parts,
            "positions": run.where.positions,
            "slots": run.where.slots,
            "tables": run.tables,
            "cosines": first.turns.cos,
            "sines": first.turns.sin,
            "cache": whole,
        }
        step = _Step(**{name: tensor.data_ptr() for name, tensor in tensors.items()})
        step.cache_stride, step.num_tokens = whole.stride(1), num_tokens
        step.eps, step.scale = norm.eps, first.scale
        kernel.launch(config, current_stream(run.ids.device), (step,))
        return logits

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
            "PAIRS": layer.attend.turns.cos.shape[1],
            "BLOCK_TOKENS": self.caches.whole.shape[4],
            "HAS_BIAS": layer.attend.linear.bias is not None,  # type: ignore[attr-defined]
            "QKV_TILES": tiles(qkv),
            "OUT_PROJ_TILES": tiles(down),  # the same rows: their residual stays in the block
            "GATE_TILES": tiles(gate, is_gate=True),
            "DOWN_TILES": tiles(down),
            "HEAD_TILES": tiles(head),
        }

    def _memory_plan(self, max_tokens: int) -> dict[str, int]:
        """Return the constants that depend on the number of rows, and the division of shared memory."""
        tokens, definitions = max(max_tokens, ROWS[1]), self._definitions
        own_rows = definitions["DOWN_TILES"] * TILE_ROWS
        groups = -(-definitions["DIM"] // own_rows)
        residual = -(-groups // self.num_processors) * own_rows * tokens
        sums = WARPS * TILE_ROWS * tokens
        head_dim, pairs = definitions["HEAD_DIM"], -(-definitions["HEADS"] // definitions["KV"] // 2)
        attention = 6 * head_dim + 8 + 8 * WARPS + WARPS // 2 * (head_dim // 4 + 4) * 8 * pairs
        fixed = ALIGNMENT + BARRIERS + 4 * (residual + max(sums, attention))
        plans = [(size, (self.shared_memory - fixed - size) // (SLOT + 16)) for size in TOKEN_BYTES[max_tokens]]
        token_bytes, slots = next((each for each in plans if each[1] >= ENOUGH_SLOTS), plans[-1])
        slots = min(slots, MAX_SLOTS)
        return {
            "TOKENS": tokens,
            "MAX_TOKENS": max_tokens,
            "TOKEN_BYTES": token_bytes,  # of what weights are multiplied with
            "RESIDUAL": residual,
            "SLOTS": slots,
            "shared": fixed + token_bytes + slots * (SLOT + 16),
        }

    def _kernel(self, num_tokens: int) -> tuple[Kernel, LaunchConfig]:
        max_tokens = next(each for each in ROWS if num_tokens <= each)
        if max_tokens not in self._kernels:
            plan = self._memory_plan(max_tokens)
            shared = plan.pop("shared")
            code = compile_kernel("few_rows", self._definitions | plan, self.caches.whole.device)
            launch = LaunchConfig(self.num_processors, 32 * (WARPS + 2), shared)
            self._kernels[max_tokens] = Kernel.load(code, "few_rows", shared, self.caches.whole.device), launch
        return self._kernels[max_tokens]

    def _tensor_maps(self) -> Tensor:
        """Return the tensor maps of all matrices, for the copy engine."""
        definitions = self._definitions
        tiles = [definitions[f"{name}_TILES"] for name in ("QKV", "OUT_PROJ", "GATE", "DOWN")]
        maps = [_encode(each, tiles[i]) for layer in self.model.layers for i, each in enumerate(layer.linears)]
        maps.append(_encode(self.model.head.linear, definitions["HEAD_TILES"]))
        return torch.frombuffer(bytearray(b"".join(maps)), dtype=torch.uint8)

    def _pointers(self) -> Tensor:
        """Return the kernel's `Layer` structs, and one more for the norm before the head."""
        rows = []
        for layer in self.model.layers:
            norms = layer.attend.norm, layer.gate.norm
            tensors = [norm.weight for norm in norms if norm] + [each.scale for each in layer.linears]
            tensors += [layer.attend.linear.bias]  # type: ignore[attr-defined]
            rows.append([0 if each is None else each.data_ptr() for each in tensors])
        assert self.model.head.norm is not None
        rows.append([self.model.head.norm.weight.data_ptr(), *[0] * 6])
        return torch.tensor(rows, dtype=torch.int64)


def _encode(linear: Any, tiles: int) -> bytes:
    """Return the tensor map of a matrix: boxes of all rows of a group (of half a gate's), several side by side."""
    weight, rows = linear.weight, tiles * TILE_ROWS // (2 if linear.is_gate else 1)
    shape = ProductShape(weight.shape[0], weight.shape[1], weight.element_size())
    return tensor_map(weight, weight.shape[1], Box(rows, _parts(shape, tiles)))
