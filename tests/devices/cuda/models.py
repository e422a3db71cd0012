"""Small models for a GPU, an engine around one, and steps launched by hand. On a CPU all is interpreted, and slow.

The shapes exercise every path: heads of 16, and matrices that a streamed product can divide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor

from quire.devices.base import Device, Limits, LoweringOptions
from quire.devices.cuda.caches import Caches
from quire.devices.cuda.device import CudaDevice
from quire.devices.cuda.program import CudaProgram
from quire.graph.weight import Weight
from quire.models.config import read_config
from quire.models.draw import DrawnModel
from quire.models.names import stored_shapes
from quire.models.registry import all_architectures
from quire.ops.batch import Batch, Draws, RowPart
from quire.ops.cache import State
from tests.engine.driver import Driver
from tests.models.toys import BLOCK, MemoryCheckpoint, Toy, as_tensors, toy_of
from tests.ops.encoded_tensor import EncodedTensor

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
    """Make a small model with transformers."""
    kind, different = KINDS[name]
    return toy_of(kind, {**SIZES, **different}, seed=len(name))


@dataclass(frozen=True)
class Placed(CudaDevice):
    """The device on any `place`, with `max_in_flight` steps."""

    max_in_flight: int = 2

    def lower(self, *args: Any) -> CudaProgram:
        program = super().lower(*args)
        program.max_in_flight = self.max_in_flight
        return program


def lowered(model: DrawnModel, place: str, limits: Limits = LIMITS, **wishes: Any) -> CudaProgram:
    """Lower with one number format for all, unless `wishes` has others."""
    wishes = {"dtype": "bf16", **wishes}
    limits = replace(limits, kv_dtype=wishes.pop("kv_dtype", wishes["dtype"]))
    return CudaDevice(place).lower(model.graph, model.weights, limits, LoweringOptions(**wishes))


class CudaDriver(Driver):
    """An engine over the device; in bfloat16 and deterministic by default."""

    def __init__(self, place: str, checkpoint: Any, max_in_flight: int = 2, **settings: Any) -> None:
        self._device = Placed(place, max_in_flight=max_in_flight)
        kind = settings.get("dtype", "bf16")
        settings = {"dtype": kind, "kv_dtype": kind, "deterministic": True, "max_rows": 8, **settings}
        super().__init__(checkpoint=checkpoint, **settings)

    def opened(self) -> Device:
        return self._device


def kv_tensor(caches: Caches) -> Tensor:
    """Return the tensor that has K and V of all layers: [layers, 2, blocks, kv_heads, block_tokens, dim]."""
    paged = [layer for layer, spec in enumerate(caches.specs) if not isinstance(spec, State)]
    tensor = caches.both_of(paged[0])
    assert tensor is not None and len(tensor) == len(paged)
    return tensor


@dataclass
class Texts:
    """Rows of a program, each in its own blocks, that grow by chunks."""

    program: CudaProgram
    num_blocks: int = 4  # of each

    def __post_init__(self) -> None:
        self.lengths: dict[int, int] = {}

    def blocks(self, row: int) -> list[int]:
        """Return the row's blocks: from the end of the cache, shuffled."""
        start = self.program.num_blocks - (row + 1) * self.num_blocks
        return (start + np.random.default_rng(row).permutation(self.num_blocks)).tolist()

    def step(self, chunks: dict[int, Sequence[int]], num_logits: int = 1, **more: Any) -> np.ndarray:
        """Return the logits [L, vocab] of the last tokens of each chunk."""
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
    """Draws of these rows of the device's table; greedy unless there is a temperature."""
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


def rms_error(logits: np.ndarray, exact: np.ndarray) -> float:
    """Return the root mean square of the differences."""
    return float(np.sqrt(np.mean((logits - exact) ** 2)))


def random_llama(hidden: int = 512, num_layers: int = 4, vocab: int = 1024, context: int = 1024) -> MemoryCheckpoint:
    """Make a Llama whose logits have a standard deviation of about 1, without transformers."""
    (arch,) = (each for each in all_architectures() if each.name == "LlamaForCausalLM")
    metadata = {
        "architectures": [arch.name], "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": 2 * hidden,
        "num_hidden_layers": num_layers, "num_attention_heads": hidden // 64, "num_key_value_heads": hidden // 128,
        "head_dim": 64, "max_position_embeddings": context, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    }  # fmt: skip
    config = read_config(MemoryCheckpoint("safetensors", metadata, {}), arch.keys)
    rng, arrays = np.random.default_rng(0), {}
    for name, shape in stored_shapes("safetensors", config, arch.names).items():
        noise = rng.standard_normal(shape, np.float32)
        arrays[name] = noise * np.float32(shape[-1] ** -0.5) if len(shape) == 2 else 1 + np.float32(0.1) * noise
    return MemoryCheckpoint("safetensors", metadata, as_tensors(arrays))


def in_format(weight: Weight, name: str, seed: int) -> Weight:
    """Return a random matrix of this format in place of the weight."""
    return replace(weight, format=name, source=EncodedTensor.random(weight.name, weight.shape, name, seed))
