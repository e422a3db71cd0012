"""`quire bench latent`: time of latent attention on a GPU, and its share of the memory's bandwidth.

`python -m quire.bench latent [--kv-dtype bf16] [--gb-per-s 4340]` lowers programs of one and of several layers of
latent attention alone, in the shapes of DeepSeek-V2-Lite and DeepSeek-V3. The difference is the time of a layer: the
cache write, queries, attention and values. A step of decoding reads every latent of every row once; the share counts
those bytes alone. Prompts are rows of their own, with and without a cached prefix. Needs torch and triton.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import NamedTuple

from quire.bench.page.text_table import align_columns
from quire.devices import base
from quire.devices.base import Limits, LoweringOptions
from quire.graph.graph import Graph
from quire.graph.weight import Weight
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import Latent
from quire.types.formats import KV_FORMATS
from quire.weights.random_weights import RandomTensor

BLOCK, VOCAB = 16, 64
SPEC, NOPE_DIM, VALUE_DIM = Latent(512, 64), 128, 128
HEADS = {"DeepSeek-V2-Lite": 16, "DeepSeek-V3": 128}
CONTEXTS, ROWS = (1024, 8192, 32768), (1, 8, 64)
PROMPTS = ((0, 512), (0, 2048), (8192, 2048))  # cached tokens, tokens of the step
MORE_LAYERS = 4
REPEATS = 9
BANDWIDTH = 4340  # GB/s: what an H200 reaches


class Case(NamedTuple):
    """Rows of `cached` tokens in the cache and `new` tokens in the step."""

    num_rows: int
    cached: int
    new: int

    def batch(self) -> Batch:
        """Return the step; the last token of every row yields logits."""
        size = -(-(self.cached + self.new) // BLOCK)
        rows = range(self.num_rows)
        parts = [RowPart([1] * self.new, self.cached, range(row * size, (row + 1) * size), 1) for row in rows]
        return Batch.of(parts, BLOCK)


def main(arguments: Namespace) -> None:
    """Parse the rest of the command line, measure and print a table."""
    parser = ArgumentParser(prog="quire bench latent", description=__doc__)
    parser.add_argument("--kv-dtype", default="bf16", choices=("bf16", "f8_e4m3"))
    parser.add_argument("--gb-per-s", type=float, default=BANDWIDTH, help="the memory's bandwidth")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--model", choices=tuple(HEADS), help="one shape; without it, all")
    options = parser.parse_args(arguments.rest)
    heads = ["shape", "rows", "cached", "new", "µs a layer", "latents GB/s", "of the bandwidth"]
    for name in [options.model] if options.model else HEADS:
        print(align_columns(heads, list(_rows(name, options))), flush=True)


def _rows(name: str, options: Namespace) -> Iterator[list[str]]:
    cases = [Case(rows, context - 1, 1) for context in CONTEXTS for rows in ROWS]
    cases += [Case(1, cached, new) for cached, new in PROMPTS]
    few, many = (_program(HEADS[name], layers, options) for layers in (1, 1 + MORE_LAYERS))
    token_bytes = SPEC.values_per_token * KV_FORMATS[options.kv_dtype].value_bytes
    for case in cases:
        seconds = (shortest_step(many, case.batch()) - shortest_step(few, case.batch())) / MORE_LAYERS
        start = [name, str(case.num_rows), f"{case.cached:,}", f"{case.new:,}", f"{seconds * 1e6:,.1f}"]
        rate = case.num_rows * (case.cached + 1) * token_bytes / seconds / 1e9
        yield [*start, *((f"{rate:,.0f}", f"{rate / options.gb_per_s:.0%}") if case.new == 1 else ("", ""))]


def _program(num_heads: int, num_layers: int, options: Namespace) -> base.Program:
    widths = {"q": num_heads * NOPE_DIM, "q_rope": num_heads * SPEC.rope_dim, "latent": SPEC.dim, "k": SPEC.rope_dim}
    shapes: dict[str, tuple[int, ...]] = {name: (VOCAB, width) for name, width in widths.items()}
    shapes["head"] = (VOCAB, num_heads * VALUE_DIM)
    for layer in range(num_layers):
        shapes |= {f"keys{layer}": (num_heads, NOPE_DIM, SPEC.dim), f"values{layer}": (num_heads, VALUE_DIM, SPEC.dim)}
    weights = {name: _weight(name, shape) for name, shape in shapes.items()}
    graph = Graph.over(weights)
    q, q_rope, latent, k_rope = map(graph.embed, widths)
    for layer in range(num_layers):
        names = f"keys{layer}", f"values{layer}"
        seen = graph.attention_latent((q, q_rope), (latent, k_rope), graph.cache(SPEC), names, 192**-0.5)
    graph.logits(seen, "head")
    longest, most = max(CONTEXTS), max(ROWS)
    limits = Limits(
        max_tokens=max(new for _, new in PROMPTS), max_rows=most, max_logits=most, max_blocks=longest // BLOCK,
        num_blocks=most * longest // BLOCK, block_tokens=BLOCK, kv_dtype=options.kv_dtype,
    )  # fmt: skip
    return base.open("cuda").lower(graph, weights, limits, LoweringOptions(deterministic=options.deterministic))


def _weight(name: str, shape: tuple[int, ...]) -> Weight:
    tensor = RandomTensor(name, shape, shape[-1] ** -0.5)
    return Weight(name, shape, tensor.format, tensor)


def shortest_step(program: base.Program, batch: Batch) -> float:
    """Return the shortest time of a step on the device, in seconds."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        output = program.launch(batch).result()
        times.append(time.perf_counter() - began if output.seconds is None else output.seconds)
    return min(times)
