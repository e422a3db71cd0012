"""`quire bench kernels`: single ops of a device against the machine's peak rates.

A program is an embedding and many copies of one op, each with its own weights, so that they exceed the CPU caches. The
time of one copy is the program's time less that of the embedding alone, divided by the number of copies. Its rates of
reading weights or KV and of multiply-adds are compared with the machine's measured peaks.
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

from quire.bench.figures.table import format_number
from quire.bench.page.text_table import align_columns
from quire.devices import base
from quire.devices.base import Limits, Peaks
from quire.graph.graph import Graph, Value
from quire.graph.weight import Weight
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import PagedKV
from quire.quant.registry import all_formats

DIM, HEAD_DIM, KV_DIM, CONTEXT, VOCAB = 1536, 64, 512, 1024, 64
TOTAL_BYTES = 96e6  # of weights: more than the CPU caches
MAX_COPIES = 48
FORMATS = ("q4_0", "q8_0", "f16")
BLOCK = 16

Array = NDArray[Any]
Draw = Callable[[Graph, Value, int], Value]  # graph, input, number of the copy -> output


@dataclass(frozen=True, slots=True)
class InMemoryTensor:
    """The data of a weight, in memory."""

    name: str
    shape: tuple[int, ...]
    format: str
    data: Array

    @property
    def num_bytes(self) -> int:
        """Size of `data`."""
        return int(self.data.nbytes)

    def dequantize(self) -> Array:
        """Return the values as float32."""
        format = all_formats()[self.format]
        return format.dequantize(self.data.reshape(-1, format.block_bytes)).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class OpBenchmark:
    """An op to measure. Bytes and multiply-adds are of one copy; `row_bytes` and `token_products` of each token."""

    name: str
    draw: Draw
    weights: Callable[[int], dict[str, Weight]]  # number of the copy -> its weights
    num_copies: int
    num_bytes: float = 0.0
    row_bytes: float = 0.0
    token_products: float = 0.0
    is_decode: bool = False  # each token is one row with a long context

    @property
    def tokens(self) -> tuple[int, ...]:
        """The numbers of tokens to measure: one stream, some, and a prompt chunk or many streams."""
        return (1, 4, 16) if self.is_decode else (1, 16, 128)


@dataclass(frozen=True, slots=True)
class OpTime:
    """The time of one op at one size."""

    op: OpBenchmark
    num_tokens: int
    seconds: float

    @property
    def read_bytes(self) -> float:
        """Bytes read a second."""
        return (self.op.num_bytes + self.op.row_bytes * self.num_tokens) / self.seconds

    @property
    def products(self) -> float:
        """Multiply-adds a second."""
        return self.op.token_products * self.num_tokens / self.seconds


def kernel_table(device: str, seconds: float) -> str:
    """Measure all ops, each for this long. Return a table below the machine's peak rates."""
    opened = base.open(device)
    peaks = opened.peaks(1.0)
    times = [each for op in op_benchmarks() for each in measure_op(opened, op, seconds)]
    heads = ["op", "tokens", "µs", "read GB/s", "of the peak", "G products/s", "of the peak"]
    return "\n".join([_peak_line(peaks), align_columns(heads, [_row(each, peaks) for each in times])])


def _peak_line(peaks: Peaks | None) -> str:
    if peaks is None:
        return "The device cannot measure the machine's peak rates."
    rates = f"{peaks.read_bytes / 1e9:.1f} GB/s read, {peaks.multiply_adds / 1e9:,.0f} G 8-bit multiply-adds/s"
    return f"The machine's peak rates: {rates} ({peaks.num_threads} threads, {peaks.kernels})."


def _row(time: OpTime, peaks: Peaks | None) -> list[str]:
    def pair(rate: float, peak: float | None) -> tuple[str, str]:
        if not rate:
            return "", ""
        return format_number(rate / 1e9), f"{rate / peak:.0%}" if peak else ""

    read = pair(time.read_bytes, peaks.read_bytes if peaks else None)
    products = pair(time.products, peaks.multiply_adds if peaks else None)
    return [time.op.name, str(time.num_tokens), format_number(time.seconds * 1e6), *read, *products]


def op_benchmarks() -> Iterator[OpBenchmark]:
    """Yield all ops to measure."""
    for name in FORMATS:
        yield _linear(name)
    yield _norm()
    yield _attention()


def measure_op(device: base.Device, op: OpBenchmark, seconds: float) -> Iterator[OpTime]:
    """Measure an op at each of its numbers of tokens."""
    bare, full = _program(device, op, 0), _program(device, op, op.num_copies)
    for num_tokens in op.tokens:
        batch = _batch(op, num_tokens)
        per_copy = (_seconds(full, batch, seconds) - _seconds(bare, batch, seconds / 10)) / op.num_copies
        yield OpTime(op, num_tokens, max(per_copy, 1e-9))


def _program(device: base.Device, op: OpBenchmark, num_copies: int) -> base.Program:
    weights = {"table": _weight("table", (VOCAB, DIM), "f32")}
    for copy in range(num_copies):
        weights |= op.weights(copy)
    graph = Graph.over(weights)
    x = graph.embed("table")
    for copy in range(num_copies):
        x = op.draw(graph, x, copy)
    max_tokens = max(op.tokens)
    limits = Limits(max_tokens, max_tokens, 1, CONTEXT // BLOCK, max_tokens * CONTEXT // BLOCK, BLOCK)
    return device.lower(graph, weights, limits)


def _batch(op: OpBenchmark, num_tokens: int) -> Batch:
    """Return one row of this many tokens; for a decode op as many rows of one token, each with a long context."""
    if not op.is_decode:
        blocks = range(-(-num_tokens // BLOCK))
        return Batch.of([RowPart([0] * num_tokens, 0, blocks, 0)], BLOCK)
    size = CONTEXT // BLOCK
    parts = [RowPart([0], CONTEXT - 1, range(row * size, (row + 1) * size), 0) for row in range(num_tokens)]
    return Batch.of(parts, BLOCK)


def _seconds(program: base.Program, batch: Batch, budget: float) -> float:
    """Return the median time of a launch, over as many as fit the budget in seconds, at least three."""
    program.launch(batch).result()
    times: list[float] = []
    while len(times) < 3 or sum(times) < budget:
        began = time.perf_counter()
        program.launch(batch).result()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


@cache
def _random_data(shape: tuple[int, ...], format: str) -> Array:
    values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32) / np.float32(shape[-1]) ** 0.5
    blocks = values.reshape(-1, all_formats()[format].block_weights)
    return np.ascontiguousarray(all_formats()[format].quantize(blocks)).reshape(-1)


def _weight(name: str, shape: tuple[int, ...], format: str) -> Weight:
    return Weight(name, shape, format, InMemoryTensor(name, shape, format, _random_data(shape, format)))


def _linear(format: str) -> OpBenchmark:
    num_bytes = all_formats()[format].bytes_for(DIM * DIM)
    return OpBenchmark(
        f"linear {DIM}×{DIM}, {format}",
        lambda graph, x, copy: graph.linear(x, f"w{copy}"),
        lambda copy: {f"w{copy}": _weight(f"w{copy}", (DIM, DIM), format)},
        min(MAX_COPIES, int(TOTAL_BYTES / num_bytes) + 1),
        num_bytes=num_bytes,
        token_products=DIM * DIM,
    )


def _norm() -> OpBenchmark:
    return OpBenchmark(
        f"rms_norm {DIM}",
        lambda graph, x, copy: graph.rms_norm(x, f"n{copy}", eps=1e-5),
        lambda copy: {f"n{copy}": _norm_weight(f"n{copy}")},
        MAX_COPIES,
        row_bytes=4 * DIM,
    )


def _norm_weight(name: str) -> Weight:
    return Weight(name, (DIM,), "f32", InMemoryTensor(name, (DIM,), "f32", _ones()))


@cache
def _ones() -> Array:
    return np.ones(DIM, np.float32).view(np.uint8)


def _attention() -> OpBenchmark:
    """Attention over a long context. K and V are embeddings, which cost little beside reading the cache."""

    def draw(graph: Graph, x: Value, copy: int) -> Value:
        k, v = graph.embed(f"k{copy}"), graph.embed(f"v{copy}")
        cache = graph.cache(PagedKV(KV_DIM // HEAD_DIM, HEAD_DIM, HEAD_DIM))
        return graph.attention(x, k, v, cache, scale=HEAD_DIM**-0.5)

    return OpBenchmark(
        f"attention over {CONTEXT} tokens, {DIM // HEAD_DIM} heads on {KV_DIM // HEAD_DIM}",
        draw,
        lambda copy: {f"{part}{copy}": _weight(f"{part}{copy}", (VOCAB, KV_DIM), "f32") for part in "kv"},
        4,
        row_bytes=2 * 2 * CONTEXT * KV_DIM,
        token_products=2 * CONTEXT * DIM,
        is_decode=True,
    )
