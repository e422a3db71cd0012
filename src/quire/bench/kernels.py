"""Single ops of a device against what the machine could do at most.

A program is an embedding and many copies of one op, each with weights of its own, so that no cache holds them all. The
time of one copy is what they add to a program of the embedding alone. It is compared with the time that reading its
weights or its KV would take at the machine's measured rate, and with that of its multiply-adds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.bench.table import number
from quire.bench.terminal import aligned
from quire.devices import base
from quire.devices.base import Limits, Peaks
from quire.graph.graph import Defaults, Graph, Value
from quire.graph.weight import Weight
from quire.ops.batch import Batch, RowPart
from quire.quant.registry import all_formats

DIM, HEAD_DIM, KV_DIM, CONTEXT, VOCAB = 1536, 64, 512, 1024, 64
TOTAL_BYTES = 96e6  # of weights, more than a processor keeps
MAX_COPIES = 48
FORMATS = ("q4_0", "q8_0", "f16")
BLOCK = 16
DEFAULTS = Defaults(head_dim=HEAD_DIM, norm_eps=1e-5, attention_scale=HEAD_DIM**-0.5)

Array = NDArray[Any]
Draw = Callable[[Graph, Value, int], Value]  # one copy of the op, and its number


@dataclass(frozen=True, slots=True)
class Stored:
    """A weight that lies nowhere but here."""

    name: str
    shape: tuple[int, ...]
    format: str
    data: Array

    @property
    def num_bytes(self) -> int:
        """Of `data`."""
        return int(self.data.nbytes)

    def dequantize(self) -> Array:
        """Its numbers."""
        format = all_formats()[self.format]
        return format.dequantize(self.data.reshape(-1, format.block_bytes)).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Op:
    """What is measured. Bytes and multiply-adds are of one copy; those of a row are of each token's."""

    name: str
    draw: Draw
    weights: Callable[[int], dict[str, Weight]]  # of a copy
    num_copies: int
    num_bytes: float = 0.0
    row_bytes: float = 0.0
    token_products: float = 0.0
    is_decode: bool = False  # each token is a row of its own, behind a long context

    @property
    def tokens(self) -> tuple[int, ...]:
        """How many at once: one stream, some, and a piece of a prompt or many streams."""
        return (1, 4, 16) if self.is_decode else (1, 16, 128)


@dataclass(frozen=True, slots=True)
class Timed:
    """One op at one size."""

    op: Op
    num_tokens: int
    seconds: float

    @property
    def read_bytes(self) -> float:
        """A second."""
        return (self.op.num_bytes + self.op.row_bytes * self.num_tokens) / self.seconds

    @property
    def products(self) -> float:
        """A second."""
        return self.op.token_products * self.num_tokens / self.seconds


def told(device: str, seconds: float) -> str:
    """Everything as a table, with the machine's limits above it."""
    opened = base.open(device)
    peaks = opened.peaks(1.0)
    timed = [each for op in ops() for each in measure(opened, op, seconds)]
    heads = ["op", "tokens", "µs", "read GB/s", "of the limit", "G products/s", "of the limit"]
    return "\n".join([_limits(peaks), aligned(heads, [_row(each, peaks) for each in timed])])


def _limits(peaks: Peaks | None) -> str:
    if peaks is None:
        return "The device does not tell the machine's limits."
    rates = f"{peaks.read_bytes / 1e9:.1f} GB/s read, {peaks.multiply_adds / 1e9:,.0f} G 8-bit multiply-adds/s"
    return f"The machine's limits: {rates} ({peaks.num_threads} threads, {peaks.kernels})."


def _row(timed: Timed, peaks: Peaks | None) -> list[str]:
    def pair(rate: float, most: float | None) -> tuple[str, str]:
        if not rate:
            return "", ""
        return number(rate / 1e9), f"{rate / most:.0%}" if most else ""

    read = pair(timed.read_bytes, peaks.read_bytes if peaks else None)
    products = pair(timed.products, peaks.multiply_adds if peaks else None)
    return [timed.op.name, str(timed.num_tokens), number(timed.seconds * 1e6), *read, *products]


def ops() -> Iterator[Op]:
    """All of them."""
    for name in FORMATS:
        yield _linear(name)
    yield _norm()
    yield _attention()


def measure(device: base.Device, op: Op, seconds: float) -> Iterator[Timed]:
    """At each number of tokens."""
    bare, full = _program(device, op, 0), _program(device, op, op.num_copies)
    for num_tokens in op.tokens:
        batch = _batch(op, num_tokens)
        per_copy = (_seconds(full, batch, seconds) - _seconds(bare, batch, seconds / 10)) / op.num_copies
        yield Timed(op, num_tokens, max(per_copy, 1e-9))


def _program(device: base.Device, op: Op, num_copies: int) -> base.Program:
    weights = {"table": _weight("table", (VOCAB, DIM), "f32")}
    for copy in range(num_copies):
        weights |= op.weights(copy)
    graph = Graph(weights, DEFAULTS)
    x = graph.embed("table")
    for copy in range(num_copies):
        x = op.draw(graph, x, copy)
    most = max(op.tokens)
    limits = Limits(most, most, 1, CONTEXT // BLOCK, most * CONTEXT // BLOCK, BLOCK)
    return device.lower(graph, weights, limits)


def _batch(op: Op, num_tokens: int) -> Batch:
    """One row of so many tokens; or as many rows, each with a long context before its one token."""
    if not op.is_decode:
        blocks = range(-(-num_tokens // BLOCK))
        return Batch.of([RowPart([0] * num_tokens, 0, blocks, 0)], BLOCK)
    size = CONTEXT // BLOCK
    parts = [RowPart([0], CONTEXT - 1, range(row * size, (row + 1) * size), 0) for row in range(num_tokens)]
    return Batch.of(parts, BLOCK)


def _seconds(program: base.Program, batch: Batch, for_seconds: float) -> float:
    """The median of as many launches as fit, at least three."""
    program.launch(batch).result()
    taken: list[float] = []
    while len(taken) < 3 or sum(taken) < for_seconds:
        began = time.perf_counter()
        program.launch(batch).result()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


@cache
def _numbers(shape: tuple[int, ...], format: str) -> Array:
    drawn = np.random.default_rng(0).standard_normal(shape, dtype=np.float32) / np.float32(shape[-1]) ** 0.5
    blocks = drawn.reshape(-1, all_formats()[format].block_weights)
    return np.ascontiguousarray(all_formats()[format].quantize(blocks)).reshape(-1)


def _weight(name: str, shape: tuple[int, ...], format: str) -> Weight:
    return Weight(name, shape, format, Stored(name, shape, format, _numbers(shape, format)))


def _linear(format: str) -> Op:
    num_bytes = all_formats()[format].bytes_for(DIM * DIM)
    return Op(
        f"linear {DIM}×{DIM}, {format}",
        lambda graph, x, copy: graph.linear(x, f"w{copy}"),
        lambda copy: {f"w{copy}": _weight(f"w{copy}", (DIM, DIM), format)},
        min(MAX_COPIES, int(TOTAL_BYTES / num_bytes) + 1),
        num_bytes=num_bytes,
        token_products=DIM * DIM,
    )


def _norm() -> Op:
    return Op(
        f"rms_norm {DIM}",
        lambda graph, x, copy: graph.rms_norm(x, f"n{copy}"),
        lambda copy: {f"n{copy}": Weight(f"n{copy}", (DIM,), "f32", Stored(f"n{copy}", (DIM,), "f32", _ones()))},
        MAX_COPIES,
        row_bytes=4 * DIM,
    )


@cache
def _ones() -> Array:
    return np.ones(DIM, np.float32).view(np.uint8)


def _attention() -> Op:
    """Its inputs are embeddings: what it costs beside reading the cache is little."""

    def draw(graph: Graph, x: Value, copy: int) -> Value:
        (layer,) = [each for each in graph.layers(copy + 1) if each.index == copy]
        k, v = graph.embed(f"k{copy}"), graph.embed(f"v{copy}")
        return graph.attention(x, k, v, cache=layer)

    return Op(
        f"attention over {CONTEXT} tokens, {DIM // HEAD_DIM} heads on {KV_DIM // HEAD_DIM}",
        draw,
        lambda copy: {f"{part}{copy}": _weight(f"{part}{copy}", (VOCAB, KV_DIM), "f32") for part in "kv"},
        4,
        row_bytes=2 * 2 * CONTEXT * KV_DIM,
        token_products=2 * CONTEXT * DIM,
        is_decode=True,
    )
