"""Small models for a GPU, an engine around one, and steps of it by hand. On a CPU all of it is interpreted, and slow.

The shapes are such that every path is taken: heads of 16, and matrices that a streamed product can divide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from quire.devices.base import Device, Limits
from quire.devices.cuda.device import CudaDevice
from quire.devices.cuda.program import CudaProgram
from quire.graph.weight import Weight
from quire.models.config import read_config
from quire.models.draw import DrawnModel
from quire.models.registry import all_architectures
from quire.ops.batch import Batch, Draws, RowPart
from quire.quant.registry import all_formats
from tests.engine.driver import Driver
from tests.models.toys import BLOCK, MemoryCheckpoint, Toy, as_tensors, toy_of
from tests.quant.blocks import weight_blocks

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
TWO_WINDOWS = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {"num_hidden_layers": 2}),
    "llama-tied-biased": ("LlamaForCausalLM", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "mistral-window": ("MistralForCausalLM", {"sliding_window": 11}),
    "qwen2-windows": ("Qwen2ForCausalLM", {**TWO_WINDOWS, "num_hidden_layers": 2}),
    "qwen3": ("Qwen3ForCausalLM", {"tie_word_embeddings": True}),
}
LIMITS = Limits(max_tokens=320, max_rows=12, max_logits=32, max_blocks=16, num_blocks=48, block_tokens=BLOCK)


@cache
def small(name: str) -> Toy:
    """A model of transformers."""
    kind, different = KINDS[name]
    return toy_of(kind, {**SIZES, **different}, seed=len(name))


@dataclass(frozen=True)
class Placed(CudaDevice):
    """The device on any `place`, with so many steps in flight."""

    max_in_flight: int = 2

    def lower(self, *args: Any, **wishes: Any) -> CudaProgram:
        program = super().lower(*args, **wishes)
        program.max_in_flight = self.max_in_flight
        return program


def lowered(model: DrawnModel, place: str, limits: Limits = LIMITS, **wishes: Any) -> CudaProgram:
    """In number formats that are all the same, unless said otherwise."""
    wishes = {"dtype": "bf16", **wishes}
    limits = replace(limits, kv_dtype=wishes.pop("kv_dtype", wishes["dtype"]))
    return CudaDevice(place).lower(model.graph, model.weights, limits, **wishes)


class CudaDriver(Driver):
    """An engine over the device; in bfloat16 and deterministic unless it is told otherwise."""

    def __init__(self, place: str, checkpoint: Any, max_in_flight: int = 2, **settings: Any) -> None:
        self._device = Placed(place, max_in_flight=max_in_flight)
        kind = settings.get("dtype", "bf16")
        settings = {"dtype": kind, "kv_dtype": kind, "deterministic": True, "max_rows": 8, **settings}
        super().__init__(checkpoint=checkpoint, **settings)

    def opened(self) -> Device:
        return self._device


@dataclass
class Texts:
    """Rows of a program, each in blocks of its own, that grow by what they are given."""

    program: CudaProgram
    num_blocks: int = 4  # of each

    def __post_init__(self) -> None:
        self.lengths: dict[int, int] = {}

    def blocks(self, row: int) -> list[int]:
        """From the end of the cache, and not in order."""
        start = self.program.num_blocks - (row + 1) * self.num_blocks
        return (start + np.random.default_rng(row).permutation(self.num_blocks)).tolist()

    def step(self, chunks: dict[int, Sequence[int]], num_logits: int = 1, **more: Any) -> np.ndarray:
        """Logits [L, vocab] of the last tokens of each chunk."""
        logits = self.program.launch(self.batch(chunks, num_logits, **more)).result().logits
        assert logits is not None
        return logits

    def batch(self, chunks: dict[int, Sequence[int]], num_logits: int = 1, **more: Any) -> Batch:
        parts = []
        for row, chunk in chunks.items():
            start = self.lengths.get(row, 0)
            parts.append(RowPart(chunk, start, self.blocks(row), min(num_logits, len(chunk))))
            self.lengths[row] = start + len(chunk)
        batch = replace(Batch.of(parts, BLOCK), **more)
        batch.check(self.program.num_blocks, BLOCK)
        return batch


def draws_of(rows: Sequence[int], masked: Sequence[bool] | None = None, temperature: float = 0.0) -> Draws:
    """Of the likeliest, for these rows of the device's table."""
    numbers = np.zeros(len(rows), np.float32)
    return Draws(
        rows=np.array(rows, np.int32),
        temperature=numbers + np.float32(temperature),
        top_k=np.zeros(len(rows), np.int32),
        top_p=numbers + 1,
        min_p=numbers,
        chance=numbers + np.float32(0.4),
        masked=np.array(masked or [False] * len(rows), np.bool_),
    )


def random_llama(hidden: int = 512, num_layers: int = 4, vocab: int = 1024, context: int = 1024) -> MemoryCheckpoint:
    """A Llama whose logits spread about as wide as 1, made without transformers."""
    (arch,) = (each for each in all_architectures() if each.name == "LlamaForCausalLM")
    metadata = {
        "architectures": [arch.name], "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": 2 * hidden,
        "num_hidden_layers": num_layers, "num_attention_heads": hidden // 64, "num_key_value_heads": hidden // 128,
        "head_dim": 64, "max_position_embeddings": context, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    }  # fmt: skip
    config = read_config(MemoryCheckpoint("safetensors", metadata, {}), arch.keys)
    sizes, rng, arrays = config.sizes(), np.random.default_rng(0), {}
    for word, entry in arch.names.items():
        shape = tuple(sizes[size] for size in entry.shape)
        for layer in range(num_layers) if "." in word else (None,):
            noise = rng.standard_normal(shape, np.float32)
            numbers = noise * np.float32(shape[-1] ** -0.5) if len(shape) == 2 else 1 + np.float32(0.1) * noise
            arrays[entry.tensor("safetensors", layer, "weight")] = numbers
    return MemoryCheckpoint("safetensors", metadata, as_tensors(arrays))


@dataclass(frozen=True)
class BlockTensor:
    """A tensor of a GGUF file, in memory."""

    name: str
    shape: tuple[int, ...]
    format: str
    data: np.ndarray

    @property
    def num_bytes(self) -> int:
        return self.data.nbytes

    def dequantize(self) -> np.ndarray:
        fmt = all_formats()[self.format]
        return fmt.dequantize(self.data.reshape(-1, fmt.block_bytes)).reshape(self.shape)


def in_format(weight: Weight, name: str, seed: int) -> Weight:
    """Another matrix in its place, in blocks of this format."""
    fmt = all_formats()[name]
    blocks = weight_blocks(fmt, weight.shape[0] * weight.shape[1] // fmt.block_weights, seed)
    return replace(weight, format=name, source=BlockTensor(weight.name, weight.shape, name, blocks.reshape(-1)))
