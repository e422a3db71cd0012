"""Graphs of layers of experts without attention, whose matrices are in any number format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quire.devices.base import Limits
from quire.graph.graph import Graph
from quire.graph.weight import StackedTensor, StoredTensor, Weight, computed_weight
from quire.ops.batch import Batch, RowPart
from quire.quant.int4 import Int4
from quire.quant.registry import all_formats
from quire.weights.container import Tensor
from quire.weights.quantized_tensors import INT4, GroupedInt4
from tests.quant.blocks import weight_blocks

VOCAB = 48
LIMITS = Limits(max_tokens=128, max_rows=4, max_logits=128, max_blocks=8, num_blocks=8, block_tokens=16, kv_dtype="f32")
CLAMPED = {"kind": "silu", "limit": 7.0, "alpha": 1.702, "shift": 1.0}  # of gpt-oss


@dataclass
class ExpertModel:
    """Layers that choose experts: x + experts(norm(x))."""

    formats: tuple[str, str] = ("q4_k", "q6_k")  # of gate and up, and of down
    dim: int = 256
    ffn: int = 256
    num_experts: int = 6
    top: int = 2
    num_layers: int = 1
    attrs: dict[str, Any] = field(default_factory=lambda: {"kind": "silu"})
    has_bias: bool = False

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.weights: dict[str, Weight] = {}
        self._float("embed", VOCAB, self.dim, spread=1.0)
        self._float("head", VOCAB, self.dim)
        for layer in range(self.num_layers):
            self._float(f"{layer}.norm", self.dim, spread=0.1, mean=1.0)
            self._float(f"{layer}.router", self.num_experts, self.dim)
            of_in, of_down = self.formats
            shapes = {"gate": (self.ffn, self.dim), "up": (self.ffn, self.dim), "down": (self.dim, self.ffn)}
            for word, shape in shapes.items():
                self._stack(f"{layer}.{word}", of_down if word == "down" else of_in, *shape)
                if self.has_bias:
                    self._float(f"{layer}.{word}.bias", self.num_experts, shape[0], spread=0.1)

    def _float(self, name: str, *shape: int, spread: float | None = None, mean: float = 0.0) -> None:
        spread = shape[-1] ** -0.5 if spread is None else spread
        numbers = mean + spread * self.rng.standard_normal(shape)
        self.weights[name] = computed_weight(name, numbers.astype(np.float32))

    def _stack(self, name: str, format: str, rows: int, columns: int) -> None:
        shape = (self.num_experts, rows, columns)
        source: StoredTensor
        if format == INT4:
            source = StackedTensor(name, tuple(int4(name, rows, columns, seed) for seed in range(self.num_experts)))
        else:
            kind, seed = all_formats()[format], int(self.rng.integers(1000))
            if format in ("bf16", "f32"):
                numbers = self.rng.standard_normal((rows * columns * self.num_experts, 1)).astype(np.float32)
                data = kind.quantize(numbers * np.float32(columns**-0.5))
            else:
                data = weight_blocks(kind, int(np.prod(shape)) // kind.block_weights, seed)
            source = Tensor(name, shape, format, np.ascontiguousarray(data).reshape(-1))
        self.weights[name] = Weight(name, shape, format, source)

    def draw(self) -> Graph:
        g = Graph.over(self.weights)
        x = g.embed("embed")
        for layer in range(self.num_layers):
            h = g.rms_norm(x, f"{layer}.norm", eps=1e-5)
            choice = g.route(h, f"{layer}.router", top=self.top, scoring="softmax", renormalize=True)
            names = (f"{layer}.gate", f"{layer}.up", f"{layer}.down")
            x = g.add(x, g.experts(h, choice, names, **self.attrs))
        g.logits(x, "head")
        return g


def int4(name: str, rows: int, columns: int, seed: int, group: int = 64) -> GroupedInt4:
    """A random matrix as AWQ has them: a scale and a zero for each group."""
    rng = np.random.default_rng(seed)
    packed = rng.integers(0, 256, (rows, columns // 2), np.uint8)
    scales = rng.uniform(0.005, 0.01, (rows, columns // group)).astype(np.float16).astype(np.float32)
    zeros = scales * rng.integers(6, 10, scales.shape).astype(np.float32)
    return GroupedInt4(name, (rows, columns), group, lambda: Int4(packed, scales, zeros))


def batch_of(num_tokens: int, seed: int = 0) -> Batch:
    """One row of random tokens, all of which yield logits."""
    tokens = np.random.default_rng(seed).integers(0, VOCAB, num_tokens).tolist()
    return Batch.of([RowPart(tokens, 0, list(range(8)), num_tokens)], LIMITS.block_tokens)
