"""Sizes of a model, from its files or from a table: operations per token, bytes read per step, KV bytes per token."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from quire.config import Config
from quire.devices.facts import DeviceFacts, MemoryKind
from quire.engine.need import need_of
from quire.models.describe import describe
from quire.models.draw import draw
from quire.ops.cache import CacheSpec, Cross, State
from quire.quant.registry import all_formats
from quire.runner.cache_plan import CacheBytes, WindowBytes
from quire.types.errors import InvalidRequest
from quire.types.formats import KV_FORMATS
from quire.weights.checkpoint import open_checkpoint

# Formats whose scales are separate tensors: bits per weight, scales included.
SCALED_BITS = {"fp8": 8.0, "int8": 8.0, "int4": 4.25}
PRECISIONS = ("f32", "bf16", "f16", *SCALED_BITS, "q8_0", "q6_k", "q5_k", "q4_k", "q4_0", "q4_1", "q3_k")
GPU_FIXED_BYTES = 3e9  # on a GPU, beside the weights: CUDA context, activations, captured graphs
HOST_FIXED_BYTES = 2e8


class AttentionLayers(NamedTuple):
    """Layers whose queries read equally far back."""

    window: int | None  # tokens; None: all of them
    num_layers: int
    values: int  # numbers stored of each token, over these layers


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of one model in one precision."""

    name: str
    precision: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    num_weights: float  # multiplied with each token, the output head included
    weight_bytes: float  # read by each step
    kv_dtype: str = "f16"
    fixed_bytes: float | None = None  # all memory except KV, if known exactly
    source: str = ""
    attention: tuple[AttentionLayers, ...] | None = None  # None: all layers have it, and read all tokens
    state_bytes: int = 0  # of the recurrent layers, for each request
    frees_windows: bool = True  # does the device free blocks behind the windows of layers?

    @property
    def layers(self) -> tuple[AttentionLayers, ...]:
        """The layers with attention, by how far back they read."""
        if self.attention is not None:
            return self.attention
        return (AttentionLayers(None, self.num_layers, 2 * self.num_layers * self.num_kv_heads * self.head_dim),)

    @property
    def kv_token_bytes(self) -> float:
        """KV bytes of one token in the layers that keep all tokens."""
        return sum(each.values for each in self.layers if not self._frees(each)) * self._value_bytes

    @property
    def window_bytes(self) -> tuple[tuple[int, float], ...]:
        """Windows of layers that keep only the last tokens, and the KV bytes of one token in those layers."""
        return tuple((each.window or 0, each.values * self._value_bytes) for each in self.layers if self._frees(each))

    def request_bytes(self, context: float) -> float:
        """Return the KV and state bytes of a running request with this many tokens."""
        windows = sum(min(context, window) * size for window, size in self.window_bytes)
        return context * self.kv_token_bytes + windows + self.state_bytes

    def read_bytes(self, num_tokens: float, num_rows: float) -> float:
        """Return the bytes that attention and recurrent layers read and write for rows with so many tokens together."""
        read = sum(min(num_tokens, num_rows * (each.window or num_tokens)) * each.values for each in self.layers)
        return read * self._value_bytes + 2 * num_rows * self.state_bytes

    def cache_bytes(self, block_tokens: int) -> CacheBytes:
        """Return the bytes of blocks and states, for the engine's plan of its memory."""
        windows = tuple(WindowBytes(window, int(size * block_tokens)) for window, size in self.window_bytes)
        return CacheBytes(int(self.kv_token_bytes * block_tokens), windows, self.state_bytes)

    @property
    def _value_bytes(self) -> float:
        return KV_FORMATS[self.kv_dtype].value_bytes

    def _frees(self, layers: AttentionLayers) -> bool:
        return layers.window is not None and self.frees_windows

    @property
    def token_operations(self) -> float:
        """Operations of one token in the matrix products with weights."""
        return 2.0 * self.num_weights

    def attention_operations(self, attended: float, num_tokens: float) -> float:
        """Return the attention operations of `num_tokens` tokens that together attend to `attended` ones."""
        pairs = sum(each.num_layers * min(attended, num_tokens * (each.window or attended)) for each in self.layers)
        return 4.0 * pairs * self.num_heads * self.head_dim

    @property
    def arithmetic(self) -> str:
        """Precision of the products: on a GPU, 4-bit weights are multiplied as bf16."""
        stored = all_formats().get(self.precision)
        if stored is not None and stored.block_weights > 1:
            return "block"
        return "bf16" if self.precision == "int4" else self.precision

    def in_precision(self, precision: str) -> ModelShape:
        """Return the same model with weights in another precision."""
        if precision not in PRECISIONS:
            raise InvalidRequest(
                f"Unknown precision {precision!r}. Choose from {', '.join(PRECISIONS)}.", field="precision"
            )
        num_bytes = self.num_weights * weight_bits(precision) / 8
        fixed = None if self.fixed_bytes is None else self.fixed_bytes + num_bytes - self.weight_bytes
        return replace(self, precision=precision, weight_bytes=num_bytes, fixed_bytes=fixed)

    def with_kv(self, kv_dtype: str) -> ModelShape:
        """Return the same model with KV in another format."""
        return replace(self, kv_dtype=kv_dtype)

    def on(self, facts: DeviceFacts) -> ModelShape:
        """Return the same model on a device that frees blocks behind windows, or keeps them."""
        return replace(self, frees_windows=facts.frees_windows)

    def memory_besides_kv(self, kind: MemoryKind) -> float:
        """Return the bytes that the model needs on a device with this kind of memory, without KV."""
        if self.fixed_bytes is not None:
            return self.fixed_bytes
        return self.weight_bytes + (GPU_FIXED_BYTES if kind is MemoryKind.OWN else HOST_FIXED_BYTES)


def weight_bits(precision: str) -> float:
    """Bits of a weight, with its share of the scales."""
    if precision in SCALED_BITS:
        return SCALED_BITS[precision]
    stored = all_formats()[precision]
    return 8 * stored.block_bytes / stored.block_weights


def _published(
    name: str, sizes: tuple[int, int, int, int, int, int], vocab: int, context: int, tied: bool
) -> ModelShape:
    layers, hidden, ffn, heads, kv_heads, head_dim = sizes
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    count = layers * (attention + 3 * hidden * ffn) + vocab * hidden
    embedding = 0 if tied else vocab * hidden
    shape = ModelShape(
        name, "bf16", layers, hidden, heads, kv_heads, head_dim, vocab, context, count, 2.0 * count,
        source="its published config.json",
    )  # fmt: skip
    return replace(shape, fixed_bytes=None if tied else 2.0 * (count + embedding) + GPU_FIXED_BYTES)


def _with_windows(shape: ModelShape, window: int, every: int) -> ModelShape:
    """Return the model with a window in all layers but each `every`th."""
    num_full, values = shape.num_layers // every, 2 * shape.num_kv_heads * shape.head_dim
    num_windows = shape.num_layers - num_full
    full = AttentionLayers(None, num_full, num_full * values)
    return replace(shape, attention=(full, AttentionLayers(window, num_windows, num_windows * values)))


# layers, hidden, feed-forward, heads, KV heads, head size; from their config.json
PUBLISHED = {
    each.name: each
    for each in (
        _published("smollm2-135m", (30, 576, 1536, 9, 3, 64), 49152, 8192, True),
        _published("llama-3.2-1b", (16, 2048, 8192, 32, 8, 64), 128256, 131072, True),
        _published("llama-3.2-3b", (28, 3072, 8192, 24, 8, 128), 128256, 131072, True),
        _published("llama-3.1-8b", (32, 4096, 14336, 32, 8, 128), 128256, 131072, False),
        _published("llama-3.3-70b", (80, 8192, 28672, 64, 8, 128), 128256, 131072, False),
        _published("mistral-7b", (32, 4096, 14336, 32, 8, 128), 32768, 32768, False),
        _published("qwen2.5-7b", (28, 3584, 18944, 28, 4, 128), 152064, 131072, False),
        _published("qwen2.5-32b", (64, 5120, 27648, 40, 8, 128), 152064, 131072, False),
        _published("qwen3-8b", (36, 4096, 12288, 32, 8, 128), 151936, 40960, False),
        _published("qwen3-32b", (64, 5120, 25600, 64, 8, 128), 151936, 40960, False),
        _with_windows(_published("gemma-3-27b", (62, 5376, 21504, 32, 16, 128), 262208, 131072, True), 1024, every=6),
    )
}
DEFAULT_SHAPE = "llama-3.1-8b"
SAME_SHAPES = {"llama-3-8b": "llama-3.1-8b", "llama-3-70b": "llama-3.3-70b", "llama-3.1-70b": "llama-3.3-70b"}


def published_shape(name: str) -> ModelShape | None:
    """Find a well-known model by any spelling of its name. None: not in the table."""
    plain = re.sub(r"[^a-z0-9.]+", "-", name.lower().rsplit("/", 1)[-1].replace(":", "-")).replace("meta-", "")
    plain = re.sub(
        r"^(llama|gemma|qwen)-?(\d)", lambda match: f"{match[1]}{'' if match[1] == 'qwen' else '-'}{match[2]}", plain
    )
    known = {**{key: key for key in PUBLISHED}, **SAME_SHAPES}
    key = next((known[key] for key in sorted(known, key=len, reverse=True) if plain.startswith(key)), None)
    return PUBLISHED[key] if key else None


def checkpoint_shape(path: Path, config: Config, facts: DeviceFacts) -> ModelShape:
    """Read the sizes of a checkpoint from its header. The memory beside KV is what Quire's engine plans."""
    checkpoint, _, sizes = describe(open_checkpoint(path))
    caches = draw(open_checkpoint(path)).graph.caches
    stored = {name: each for name, each in checkpoint.tensors.items() if len(each.shape) > 1}
    embeds = [name for name in stored if "embd" in name or "embed" in name]
    read = [each for name, each in stored.items() if sizes.tied or name not in embeds]
    formats = [each.format for each in read]
    return ModelShape(
        path.stem,
        max(set(formats), key=lambda kind: sum(e.data.nbytes for e in read if e.format == kind)),
        *(sizes.num_layers, sizes.hidden, sizes.num_heads, sizes.num_kv_heads, sizes.head_dim),
        vocab_size=sizes.vocab_size,
        max_context=sizes.max_context,
        num_weights=float(sum(_size(each.shape) for each in read)),
        weight_bytes=float(sum(each.data.nbytes for each in read)),
        kv_dtype=facts.kv_format(config.cache.kv_dtype),
        fixed_bytes=float(need_of(path, config, facts).fixed_bytes),
        source=f"the header of {path.name}",
        attention=_attention(caches),
        state_bytes=sum(each.num_bytes for each in caches if isinstance(each, State)),
        frees_windows=facts.frees_windows,
    )


def _attention(caches: Sequence[CacheSpec]) -> tuple[AttentionLayers, ...]:
    """Group the layers that store tokens by how far back they read."""
    layers: dict[int | None, list[int]] = {}
    for spec in caches:
        if not isinstance(spec, State | Cross):
            layers.setdefault(spec.reach, []).append(spec.values_per_token)
    return tuple(AttentionLayers(reach, len(values), sum(values)) for reach, values in layers.items())


def _size(shape: tuple[int, ...]) -> int:
    product = 1
    for side in shape:
        product *= side
    return product
