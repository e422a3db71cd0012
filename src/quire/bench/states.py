"""`quire bench states`: time of recurrent layers on a GPU.

`python -m quire.bench states [--shape qwen3.5-9b] [--deterministic]` lowers programs of one and of several layers of an
op alone, in the shapes of public models. The difference is the time of a layer. A step of decoding reads and writes
every row's state once; its share of the memory's bandwidth counts those bytes alone. Of prompts, `of the products` is
the time beside that of the matrix products of such a layer, feed-forward included, at the rate `--tflops`. Needs torch
and triton.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import NamedTuple

from quire.bench.latent import shortest_step
from quire.bench.page.text_table import align_columns
from quire.devices import base
from quire.devices.base import Limits, LoweringOptions
from quire.graph.graph import Graph, Value
from quire.graph.weight import Weight, Weights
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import State
from quire.weights.random_weights import RandomTensor

BLOCK, VOCAB = 16, 64
ROWS = (1, 8, 64, 256)
PROMPTS = ((1, 512), (1, 2048), (1, 8192), (8, 1024))  # rows, tokens of each
MORE_LAYERS = 4
BANDWIDTH, RATE = 4340, 700  # GB/s that an H200 reaches, and TFLOP/s of products in bfloat16


class OpShape(NamedTuple):
    """An op in the shape of a model's layer."""

    op: str
    state: State
    weights: int  # of the matrices of such a layer, its feed-forward block included
    groups: int = 1  # of keys, or of b and c
    by_channel: bool = False


SHAPES: dict[str, tuple[OpShape, ...]] = {
    "qwen3.5-9b": (
        OpShape("delta_rule", State((32, 128, 128)), 218_000_000, groups=16),
        OpShape("short_conv", State((8192, 3)), 218_000_000),
    ),
    "kimi-linear": (OpShape("delta_rule", State((32, 128, 128)), 110_000_000, groups=32, by_channel=True),),
    "nemotron-h-8b": (
        OpShape("state_scan", State((128, 64, 128)), 286_000_000, groups=8),
        OpShape("short_conv", State((10240, 3)), 286_000_000),
    ),
    "mamba": (OpShape("state_scan", State((8192, 1, 16)), 104_000_000),),
    "lfm2-1.2b": (OpShape("short_conv", State((2048, 2)), 67_000_000),),
}


class TimedStep(NamedTuple):
    """Rows with so many new tokens each, after `cached` ones."""

    num_rows: int
    cached: int
    new: int

    def batch(self) -> Batch:
        """Return the step; the last token of every row yields logits."""
        size = -(-(self.cached + self.new) // BLOCK)
        return Batch.of([RowPart([1] * self.new, self.cached, [0] * size) for _ in range(self.num_rows)], BLOCK)


def main(arguments: Namespace) -> None:
    """Parse the rest of the command line, measure and print a table."""
    parser = ArgumentParser(prog="quire bench states", description=__doc__)
    parser.add_argument("--shape", choices=tuple(SHAPES), help="one shape; without it, all")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--gb-per-s", type=float, default=BANDWIDTH, help="the memory's bandwidth")
    parser.add_argument("--tflops", type=float, default=RATE, help="the rate of matrix products")
    options = parser.parse_args(arguments.rest)
    heads = ["shape", "op", "rows", "new", "µs a layer", "states GB/s", "of the bandwidth", "of the products"]
    for name in [options.shape] if options.shape else SHAPES:
        for layer in SHAPES[name]:
            print(align_columns(heads, list(_rows(name, layer, options))), flush=True)


def _rows(name: str, layer: OpShape, options: Namespace) -> Iterator[list[str]]:
    few, many = (_program(layer, count, options.deterministic) for count in (1, 1 + MORE_LAYERS))
    for case in [*(TimedStep(rows, 40, 1) for rows in ROWS), *(TimedStep(rows, 0, new) for rows, new in PROMPTS)]:
        seconds = (shortest_step(many, case.batch()) - shortest_step(few, case.batch())) / MORE_LAYERS
        op = f"{layer.op}, by channel" if layer.by_channel else layer.op
        start = [name, op, str(case.num_rows), f"{case.new:,}", f"{seconds * 1e6:,.1f}"]
        if case.new == 1:
            rate = 2 * case.num_rows * layer.state.num_bytes / seconds / 1e9
            yield [*start, f"{rate:,.0f}", f"{rate / options.gb_per_s:.0%}", ""]
        else:
            products = 2 * case.num_rows * case.new * layer.weights / options.tflops / 1e12
            yield [*start, "", "", f"{seconds / products:.1%}"]


def _program(layer: OpShape, num_layers: int, deterministic: bool) -> base.Program:
    graph, weights = layer_graph(layer, num_layers)
    longest, most = max(new for _, new in PROMPTS), max(ROWS)
    limits = Limits(
        max_tokens=longest, max_rows=most, max_logits=most, max_blocks=longest // BLOCK, num_blocks=1,
        block_tokens=BLOCK, kv_dtype="bf16",
    )  # fmt: skip
    return base.open("cuda").lower(graph, weights, limits, LoweringOptions(deterministic=deterministic))


def _widths(layer: OpShape) -> dict[str, int]:
    """The inputs of an op, and their widths."""
    if layer.op == "short_conv":
        return {"x": layer.state.shape[0]}
    heads, first, second = layer.state.shape
    if layer.op == "delta_rule":
        keys = layer.groups * first
        decay = heads * first if layer.by_channel else heads
        return {"q": keys, "k": keys, "v": heads * second, "decay": decay, "beta": heads}
    return {"x": heads * first, "b": layer.groups * second, "c": layer.groups * second, "dt": heads}


def _shapes(layer: OpShape) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights: tables of the inputs, and what the op multiplies with."""
    widths, state = _widths(layer), layer.state.shape
    shapes: dict[str, tuple[int, ...]] = {f"table {name}": (VOCAB, width) for name, width in widths.items()}
    if layer.op == "short_conv":
        shapes["kernel"] = (state[0], state[1] + 1)
    elif layer.op == "delta_rule":
        shapes |= {"rate": (state[0],), "shift": (widths["decay"],)}
    else:
        shapes |= {"rate": (state[0],) if state[1] > 1 else (state[0], state[2]), "shift": (state[0],)}
    return {**shapes, "head": (VOCAB, widths.get("v", widths.get("x", 0)))}


def layer_graph(layer: OpShape, num_layers: int) -> tuple[Graph, Weights]:
    """Draw layers of the op that all read the same inputs."""
    weights = {name: _weight(name, shape) for name, shape in _shapes(layer).items()}
    graph = Graph.over(weights)
    inputs = {name: graph.embed(f"table {name}") for name in _widths(layer)}
    if layer.op == "delta_rule":
        inputs["decay"] = graph.log_decay(inputs["decay"], "rate", "shift")
    for _ in range(num_layers):
        out = _draw(graph, layer, inputs)
    graph.logits(out, "head")
    return graph, weights


def _draw(graph: Graph, layer: OpShape, inputs: dict[str, Value]) -> Value:
    if layer.op == "short_conv":
        return graph.short_conv(inputs["x"], "kernel")
    if layer.op == "delta_rule":
        qkv, scale = (inputs["q"], inputs["k"], inputs["v"]), layer.state.shape[1] ** -0.5
        attrs = {"num_heads": layer.groups, "scale": scale, "eps": 1e-6}
        return graph.delta_rule(qkv, inputs["decay"], inputs["beta"], layer.state, **attrs)
    xbc = inputs["x"], inputs["b"], inputs["c"]
    return graph.state_scan(xbc, inputs["dt"], layer.state, ("rate", "shift", None), low=0.0, high=float("inf"))


def _weight(name: str, shape: tuple[int, ...]) -> Weight:
    """Random numbers; rates of decay are around -1, and shares of a change around a half."""
    mean, std = {"rate": (-1.0, 0.1), "table beta": (0.5, 0.1)}.get(name, (0.0, shape[-1] ** -0.5))
    tensor = RandomTensor(name, shape, std, mean)
    return Weight(name, shape, tensor.format, tensor)
