"""Graphs drawn by hand, with random weights that are made as they are named, and ways to run them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from quire.devices.base import Device, Limits, LoweringOptions
from quire.graph.graph import Cache, Graph, Value
from quire.graph.interpret import Interpreter
from quire.graph.weight import Weight, computed_weight
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import Latent, PagedKV
from quire.ops.registry import relative_error

VOCAB, DIM, HEAD, HEADS, KV_HEADS, FFN, LATENT = 48, 64, 16, 4, 2, 96, 32
BLOCK = 16
LIMITS = Limits(
    max_tokens=64, max_rows=4, max_logits=16, max_blocks=4, num_blocks=12, block_tokens=BLOCK, kv_dtype="f32"
)
MAX_ERROR = 1e-4


@dataclass
class Sketch:
    """A graph with its weights. Names count up; equal names are the same weight."""

    seed: int = 0
    weights: dict[str, Weight] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._rng = np.random.default_rng(self.seed)
        self.graph = Graph(self._shapes)

    def weight(self, *shape: int, name: str = "", mean: float = 0.0, spread: float | None = None) -> str:
        """Make a random weight; return its name."""
        name = name or f"w{len(self.weights)}"
        spread = (shape[-1] ** -0.5 if len(shape) == 2 else 0.3) if spread is None else spread
        self._add(name, (mean + spread * self._rng.standard_normal(shape)).astype(np.float32))
        return name

    def matrix(self, rows: int, columns: int, *, bias: bool = False) -> str:
        """The name of a new matrix, with a bias or without."""
        name = self.weight(rows, columns)
        if bias:
            self.weight(rows, name=f"{name}.bias")
        return name

    def scales(self, size: int = DIM) -> str:
        """The name of the weight of a norm."""
        return self.weight(size, mean=1.0)

    def frequencies(self, pairs: int = HEAD // 2, theta: float = 100.0) -> str:
        """The name of a table of rope."""
        name = f"rope{len(self.weights)}"
        self._add(name, (theta ** -(np.arange(pairs) / pairs)).astype(np.float32))
        return name

    def _add(self, name: str, array: np.ndarray) -> None:
        self.weights[name] = computed_weight(name, array)
        self._shapes[name] = tuple(array.shape)

    # --- parts that most graphs share

    def linear(self, x: Value, rows: int, *, bias: bool = False) -> Value:
        return self.graph.linear(x, self.matrix(rows, x.dim, bias=bias))

    def norm(self, x: Value, eps: float = 1e-5) -> Value:
        return self.graph.rms_norm(x, self.scales(x.dim), eps=eps)

    def embed(self) -> Value:
        return self.graph.embed(self.weight(VOCAB, DIM, spread=1.0))

    def qkv(self, h: Value) -> tuple[Value, Value, Value]:
        return self.linear(h, HEADS * HEAD), self.linear(h, KV_HEADS * HEAD), self.linear(h, KV_HEADS * HEAD)

    def rope(self, x: Value, table: str, **attrs: Any) -> Value:
        return self.graph.rope(x, table, **{"head_dim": HEAD, **attrs})

    def cache(self, **attrs: Any) -> Cache:
        return self.graph.cache(PagedKV(**{"num_heads": KV_HEADS, "key_dim": HEAD, "value_dim": HEAD, **attrs}))

    def attend(self, q: Value, k: Value, v: Value, cache: Cache | None = None, **extras: Any) -> Value:
        cache = self.cache() if cache is None else cache
        return self.graph.attention(q, k, v, cache, **{"scale": HEAD**-0.5, **extras})

    def attend_latent(self, q: Value, q_rope: Value, latent: Value, k_rope: Value, value_dim: int = HEAD) -> Value:
        """Latent attention with new matrices of heads; the sizes of rotated heads are those of k_rope."""
        spec, heads = Latent(latent.dim, k_rope.dim), q_rope.dim // k_rope.dim
        names = [self.weight(heads, dim, latent.dim, spread=latent.dim**-0.5) for dim in (q.dim // heads, value_dim)]
        keys, values = names
        return self.graph.attention_latent((q, q_rope), (latent, k_rope), self.graph.cache(spec), (keys, values), 0.25)

    def latent_attention(self, h: Value, table: str) -> Value:
        """The usual latent attention of a layer, with the product after it."""
        q, q_rope, latent, k_rope = (self.linear(h, size) for size in (HEADS * HEAD, HEADS * HEAD, LATENT, HEAD))
        rotated = self.rope(q_rope, table), self.norm(latent), self.rope(k_rope, table)
        return self.linear(self.attend_latent(q, *rotated), DIM)

    def attention(self, h: Value, table: str) -> Value:
        """The usual attention of a layer, with the product after it."""
        q, k, v = self.qkv(h)
        return self.linear(self.attend(self.rope(q, table), self.rope(k, table), v), DIM)

    def mlp(self, h: Value, kind: str = "silu") -> Value:
        """The usual gated block."""
        gate = self.graph.activation(self.linear(h, FFN), kind)
        return self.linear(self.graph.multiply(gate, self.linear(h, FFN)), DIM)

    def layer(self, x: Value, table: str) -> Value:
        """The usual layer."""
        x = self.graph.add(x, self.attention(self.norm(x), table))
        return self.graph.add(x, self.mlp(self.norm(x)))

    def logits(self, x: Value, **attrs: Any) -> Value:
        return self.graph.logits(self.norm(x), self.matrix(VOCAB, x.dim), **attrs)


@dataclass(frozen=True)
class Lengths:
    """The tokens of two prompts in the first step; of the second and of a third prompt in the second step."""

    first: int = 21
    second: int = 5
    chunk: int = 3
    third: int = 7


def steps(lengths: Lengths = Lengths(), seed: int = 0) -> list[Batch]:  # a value
    """Two prompts; then a token of the first, a chunk of the second, and a third prompt."""
    rng, n = np.random.default_rng(seed), lengths

    def part(count: int, start: int, blocks: list[int], num_logits: int) -> RowPart:
        return RowPart(rng.integers(0, VOCAB, count).tolist(), start, blocks, min(count, num_logits))

    return [
        Batch.of([part(n.first, 0, [7, 2], 3), part(n.second, 0, [4], 1)], BLOCK),
        Batch.of([part(1, n.first, [7, 2], 1), part(n.chunk, n.second, [4], 2), part(n.third, 0, [9], 1)], BLOCK),
    ]


Run = Callable[[Batch], np.ndarray]


def interpreted(graph: Graph, sketch: Sketch) -> Run:
    return Interpreter(graph, sketch.weights, LIMITS.num_blocks, BLOCK).run


def lowered(device: Device, sketch: Sketch, *, fuse: bool) -> Run:
    """The program of a device, in float32."""
    options = LoweringOptions(dtype="f32", fuse=fuse, captures=False)
    program = device.lower(sketch.graph, sketch.weights, LIMITS, options)

    def run(batch: Batch) -> np.ndarray:
        logits = program.launch(replace(batch)).result().logits
        assert logits is not None
        return logits

    return run


def logits_of(run: Run, lengths: Lengths = Lengths()) -> np.ndarray:  # a value
    """The logits of both steps, [L, vocab]."""
    return np.concatenate([run(batch) for batch in steps(lengths)])


def error_of(run: Run, sketch: Sketch, lengths: Lengths = Lengths()) -> float:  # a value
    """The relative error against the graph as it was drawn, in the interpreter."""
    return relative_error(logits_of(run, lengths), logits_of(interpreted(sketch.graph, sketch), lengths))
