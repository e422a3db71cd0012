"""Times the kernels of routing and of experts alone, and finds their fastest tiles.

Several layers of random experts are used in turn, so that weights come from memory. Each kernel is recorded as a CUDA
graph over all layers; what is reported is the time of one layer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.devices._triton.chain import compile_ahead
from quire.devices._triton.experts import ExpertTile, Inward, Sum, expert_in, expert_out
from quire.devices._triton.grouping import Grouping, group_pairs
from quire.devices._triton.norm import Norm
from quire.devices._triton.route import ExpertRouter, RoutingResult, route, route_few
from quire.devices._triton.route_one import route_one
from quire.graph.graph import ExpertChoice, Graph, Node, Value
from quire.graph.weight import StoredTensor, Weight
from quire.ops import experts as experts_op
from quire.weights.quantized_tensors import INT4
from quire.weights.random_weights import RandomTensor, random_int4

from .expert_tiles import ExpertKey, ExpertTiles
from .experts import ExpertLinears, lower_experts
from .tiles import Tiles
from .tune import GraphTimer, wall_clock
from .weights import Placer

logger = logging.getLogger(__name__)

SHARED_BYTES = 220 << 10  # of a program, at most
ROWS, COLUMNS, STAGES, WARPS = (16, 32, 64, 128), (64, 128, 256), (3, 4), (2, 4, 8)
MAX_SUMS = 128 * 256  # numbers that a program adds up, of gate and up together


class ExpertShape(NamedTuple):
    """The experts of a model's layers."""

    num_experts: int
    top: int
    dim: int
    ffn: int
    kind: str = "silu"


class RandomExperts(NamedTuple):
    """The experts that are timed."""

    shape: ExpertShape
    num_layers: int
    format: str = "bf16"  # as they are stored
    quantize: str | None = None
    place: str = "cuda"


@dataclass(slots=True, eq=False)
class TimedLayer:
    """One of the layers, and its choice for the tokens that are timed."""

    router: ExpertRouter
    norm: Norm
    linear: ExpertLinears
    x: Tensor
    choice: RoutingResult
    grouping: Grouping
    hidden: Tensor
    total: Tensor


class ExpertTimes:
    """Layers of random experts on a device."""

    def __init__(self, given: RandomExperts) -> None:
        shape, num_layers, format, device = given.shape, given.num_layers, given.format, _device(given.place)
        self.shape, self.device = shape, device
        self.tiles = ExpertTiles()
        num_processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
        weights = {}
        for layer in range(num_layers):
            sizes = {"gate": (shape.ffn, shape.dim), "up": (shape.ffn, shape.dim), "down": (shape.dim, shape.ffn)}
            for word, (rows, columns) in sizes.items():
                name, stack = f"{word}{layer}", (shape.num_experts, rows, columns)
                weights[name] = Weight(name, stack, format, _random(name, stack, columns**-0.5, format))
        self.placer = Placer(weights, device, torch.bfloat16, Tiles(num_processors), given.quantize)
        self.linears = [self._lower(Graph.over(weights), layer) for layer in range(num_layers)]
        self.routers = [self._router() for _ in range(num_layers)]
        self.stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._timer: Any = wall_clock if self.stream is None else GraphTimer(self.stream)

    def on_stream(self) -> Any:
        """Return the context in which kernels are timed."""
        return torch.no_grad() if self.stream is None else torch.cuda.stream(self.stream)

    def _lower(self, graph: Graph, layer: int) -> ExpertLinears:
        names = {word: f"{word}{layer}" for word in ("gate", "up", "down")}
        biases = dict.fromkeys(f"{word}_bias" for word in names)
        choice = ExpertChoice(*(Value(i, ("tokens", self.shape.top)) for i in (1, 2)))
        inputs = {"x": Value(0, ("tokens", self.shape.dim)), "weights": choice.weights, "chosen": choice.experts}
        node: Node = graph.node(experts_op.experts, inputs, {**names, **biases}, {"kind": self.shape.kind})
        return lower_experts(node, self.placer, self.tiles, copies=False).linear

    def _router(self) -> ExpertRouter:
        shape = self.shape
        weight = torch.randn((shape.num_experts, shape.dim), device=self.device).bfloat16()
        return ExpertRouter(weight, None, None, None, shape.top, "softmax", False, 1, 1, 1, True, 1.0, 0.0)

    def layers(self, num_tokens: int) -> list[TimedLayer]:
        """Return the layers with random tokens, routed."""
        norm, made = Norm(torch.ones(self.shape.dim, device=self.device), 1e-6), []
        for router, linear in zip(self.routers, self.linears, strict=True):
            x = torch.randn((num_tokens, self.shape.dim), device=self.device).bfloat16()
            if self._is_few(num_tokens):
                choice, _ = _few(num_tokens)(x, norm, router, self.placer.scratch, self._height(num_tokens))
            else:
                choice = route(x, router)
            grouping = choice.grouping or self._group(choice)
            tile = self._tile(linear, grouping, True)
            first = Inward(linear.inward.matrices, linear.activation)
            hidden = expert_in(x, choice.weights, first, grouping, tile)
            made.append(TimedLayer(router, norm, linear, x, choice, grouping, hidden, torch.zeros_like(x)))
        return made

    def _group(self, choice: RoutingResult) -> Grouping:
        assert choice.counts is not None
        return group_pairs(choice.chosen, choice.counts, self.shape.num_experts, self._height(len(choice.chosen)))

    def _is_few(self, num_tokens: int) -> bool:
        return self.tiles.is_few(num_tokens, self.shape.num_experts)

    def _height(self, num_tokens: int) -> int:
        return self.tiles.height(num_tokens, self.shape.top, self.shape.num_experts)

    def _tile(self, linear: ExpertLinears, grouping: Grouping, is_in: bool) -> ExpertTile:
        return self.tiles.find(linear.key(grouping.height, is_in))

    # --- kernels of one layer

    def route(self, layer: TimedLayer) -> None:
        """The norm, the choice and the grouping."""
        if self._is_few(len(layer.x)):
            kernel, height = _few(len(layer.x)), layer.grouping.height
            kernel(layer.x, layer.norm, layer.router, self.placer.scratch, height)
        else:
            self._group(route(layer.x, layer.router))

    def multiply_in(self, layer: TimedLayer, tile: ExpertTile | None = None) -> None:
        """Gate, up and the activation."""
        linear, tile = layer.linear, tile or self._tile(layer.linear, layer.grouping, True)
        first = Inward(linear.inward.matrices, linear.activation)
        expert_in(layer.x, layer.choice.weights, first, layer.grouping, tile)

    def multiply_out(self, layer: TimedLayer, tile: ExpertTile | None = None) -> None:
        """Down and the sum."""
        linear, tile = layer.linear, tile or self._tile(layer.linear, layer.grouping, False)
        to = Sum(layer.total, True, self.placer.scratch if self.tiles.is_summed(len(layer.x)) else None)
        weights = layer.choice.weights
        expert_out(layer.hidden, weights, weights.shape[1], linear.outward.matrices, layer.grouping, tile, to)

    def whole(self, layer: TimedLayer) -> None:
        """All of them."""
        self.route(layer)
        self.multiply_in(layer)
        self.multiply_out(layer)

    def seconds(self, layers: Sequence[TimedLayer], kernel: Callable[[TimedLayer], None]) -> float:
        """Return the time of a kernel for one layer."""

        def run() -> None:
            for layer in layers:
                kernel(layer)

        return float(self._timer(run)) / len(layers)

    # --- reports

    def report(self, num_tokens: int, bytes_per_s: float) -> list[str]:
        """Return the times of all kernels as the columns of a table; see HEADS."""
        self._compile(lambda: self.whole(self.layers(num_tokens)[0]))
        layers = self.layers(num_tokens)
        times = [self.seconds(layers, each) for each in (self.route, self.multiply_in, self.multiply_out, self.whole)]
        distinct = sum(len(layer.choice.chosen.unique()) for layer in layers) / len(layers)
        parts = [layers[0].linear.inward, layers[0].linear.outward]
        sizes = [part.memory.shape[1] * distinct for part in parts]
        products = [2.0 * num_tokens * self.shape.top * prod(part.matrices[2:4]) for part in parts]
        row = [f"{num_tokens}", f"{distinct:.1f}", f"{times[0] * 1e6:.1f}"]
        for seconds, size, count in zip(times[1:3], sizes, products, strict=True):
            row += [f"{seconds * 1e6:.1f}", f"{size / seconds / bytes_per_s:.0%}", f"{count / seconds / 1e12:.0f}"]
        return [*row, f"{times[3] * 1e6:.1f}", f"{sum(sizes) / times[3] / bytes_per_s:.0%}"]

    def tune(self, num_tokens: int) -> Iterator[str]:
        """Time all tiles for so many tokens; yield the fastest, as entries of the table of measured tiles."""
        for is_in, kernel in ((True, self.multiply_in), (False, self.multiply_out)):
            layers = self.layers(num_tokens)
            key = layers[0].linear.key(layers[0].grouping.height, is_in)
            tiles = list(expert_candidates(key, self._tile(layers[0].linear, layers[0].grouping, is_in)))
            self._compile(partial(_run_all, kernel, layers[0], tiles))
            times = {tile: self._timed(layers, partial(kernel, tile=tile)) for tile in tiles}
            best = sorted(times, key=lambda tile: times[tile])[:4]
            for tile in dict.fromkeys([*best, tiles[0]]):
                yield f"{num_tokens} tokens: {key}: {tile},  # {times[tile] * 1e6:.1f} µs"

    def _compile(self, run: Callable[[], None]) -> None:
        """Compile the kernels of a run in parallel. If one does not compile, they are compiled when they are timed."""
        if self.stream is None:
            return
        try:
            compile_ahead(run)
        except Exception as error:
            logger.debug("not all are compiled ahead: %s", error)

    def _timed(self, layers: Sequence[TimedLayer], kernel: Callable[[TimedLayer], None]) -> float:
        try:
            return self.seconds(layers, kernel)
        except Exception:  # any error of a compiler or driver: the tile is not used
            return math.inf


def _few(num_tokens: int) -> Callable[..., tuple[RoutingResult, Tensor]]:
    return route_one if num_tokens == 1 else route_few


def _random(name: str, shape: tuple[int, int, int], std: float, format: str) -> StoredTensor:
    return random_int4(name, shape, std, 128) if format == INT4 else RandomTensor(name, shape, std, format=format)


def _run_all(kernel: Callable[..., None], layer: TimedLayer, tiles: Sequence[ExpertTile]) -> None:
    for tile in tiles:
        kernel(layer, tile=tile)


HEADS = [
    "tokens", "experts", "route µs", "in µs", "of bandwidth", "TFLOPS", "out µs", "of bandwidth", "TFLOPS", "layer µs",
    "of bandwidth",
]  # fmt: skip


def expert_candidates(key: ExpertKey, current: ExpertTile) -> Iterator[ExpertTile]:
    """Yield the current tile, then others that fit."""
    yield current
    width = 2 if key.format in ("bf16", "f16") else 1
    for rows, columns, warps, stages in product(ROWS, COLUMNS, WARPS, STAGES):
        tile = ExpertTile(rows, columns, warps, stages)
        matrices = 2 if key.is_gated else 1
        shared = (stages - 1) * columns * (matrices * rows * width + 2 * key.height)
        sums = matrices * rows * key.height
        fits = shared <= SHARED_BYTES and shared + (16 << 10) >= 16 << 10 and sums <= MAX_SUMS
        is_balanced = 16 * 16 * warps <= max(sums, 16 * 64) * 4 and sums <= 4096 * warps
        if tile != current and fits and is_balanced and rows <= key.rows and key.supports(tile):
            yield tile


def time_experts(given: RandomExperts, counts: Sequence[int], bytes_per_s: float) -> Iterator[list[str]]:
    """Yield a row of the table for each number of tokens."""
    times = ExpertTimes(given)
    with times.on_stream():
        for count in counts:
            yield times.report(count, bytes_per_s)


def tune_experts(given: RandomExperts, counts: Sequence[int]) -> Iterator[str]:
    """Yield the fastest tiles for each number of tokens."""
    times = ExpertTimes(given)
    with times.on_stream():
        for count in counts:
            yield from times.tune(count)


def _device(place: str) -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if place == "cuda" else torch.device(place)
