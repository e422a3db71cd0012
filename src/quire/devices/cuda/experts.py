"""The instructions that choose experts and multiply with them. Few and many tokens take different kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quire.devices._triton.expert_formats import bytes_of
from quire.devices._triton.experts import Activation, Inward, Sum, expert_in, expert_out
from quire.devices._triton.grouping import Grouping, count_pairs, count_reads, group_pairs
from quire.devices._triton.norm import Norm, add_norm
from quire.devices._triton.route import ExpertRouter, route, route_few
from quire.devices._triton.route_one import can_route_one, route_one
from quire.devices._triton.stream import Scratch
from quire.graph.graph import Node

from .expert_sizes import first_counts
from .expert_tiles import ExpertKey, ExpertTiles
from .expert_weights import ExpertMatrices, place_experts
from .instructions import Run
from .weights import Placer


@dataclass(slots=True, eq=False)
class RouterMatrix:
    """The matrix of a router, as an earlier product prefetches it."""

    router: ExpertRouter
    ahead: Tensor | None = field(default=None, init=False)

    @property
    def raw(self) -> Tensor:
        """The stored weights, as bytes."""
        return self.router.weight.view(-1).view(torch.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The choice of experts, after an RMS norm if it has one."""

    value: int
    norm: Norm | None
    linear: RouterMatrix
    scratch: Scratch
    tiles: ExpertTiles
    normed: int | None  # where the normed tokens go
    weights: int
    chosen: int

    @property
    def first_counts(self) -> list[int]:
        """The smallest number of tokens for each kernel of these experts."""
        return first_counts(self.linear.router.top, len(self.linear.router.weight))

    def __call__(self, run: Run) -> None:
        x: Tensor = run.values[self.value]
        delta, norm = run.pending.pop(self.value, None), self.norm
        router = self.linear.router
        is_few = self.tiles.is_few(len(x), len(router.weight))
        if norm is not None and (delta is not None or not is_few):
            x, norm = add_norm(x, delta, norm), None  # type: ignore[assignment]
        elif delta is not None:
            run.pending[self.value] = delta
            x = run.whole(self.value)
        if is_few:
            height = self.tiles.height(len(x), router.top, len(router.weight))
            if len(x) == 1 and can_route_one(router):
                choice, x = route_one(x, norm, router, self.scratch, height)
            else:
                choice, x = route_few(x, norm, router, self.scratch, height)
        else:
            choice = route(x, router)
        if self.normed is not None:
            run.values[self.normed] = x
        run.values[self.weights], run.values[self.chosen] = choice.weights, choice.chosen
        run.choices[self.chosen] = choice


@dataclass(slots=True, eq=False)
class ExpertLinears:
    """The matrices of a layer's experts."""

    inward: ExpertMatrices  # gate and up
    outward: ExpertMatrices  # down
    activation: Activation
    tiles: ExpertTiles
    scratch: Scratch
    ahead: Tensor | None = field(default=None, init=False)  # the first weights of the next product, as bytes
    reads: Tensor | None = field(default=None, init=False)  # int32 [experts]: counts how often each is read

    def __call__(self, x: Tensor, weights: Tensor, grouping: Grouping, total: Tensor, adds: bool) -> None:
        """Write the weighted sum of the experts' answers to `total` [T, dim], or add it to that."""
        top, activation = weights.shape[1], self.activation
        if self.reads is not None:
            count_reads(grouping, self.reads)
        is_summed = self.tiles.is_summed(len(x))
        inward, outward = self.inward.matrices, self.outward.matrices
        first = Inward(inward, activation)
        if is_summed and self.reads is None:  # all experts are on the GPU
            first = Inward(inward, activation, outward.addresses, bytes_of(outward.format, *outward[2:4]))
        hidden = expert_in(x, weights, first, grouping, self.tiles.find(self.key(grouping.height, True)))
        to = Sum(total, adds, self.scratch if is_summed else None, self.ahead)
        tile = self.tiles.find(self.key(grouping.height, False))
        expert_out(hidden, None if activation.on_input else weights, top, outward, grouping, tile, to)

    def key(self, height: int, is_in: bool) -> ExpertKey:
        """What the tile of the first or of the second product depends on."""
        matrices, is_gated = (self.inward if is_in else self.outward).matrices, is_in and self.activation.is_gated
        rows = matrices.num_rows // (2 if is_gated else 1)
        return ExpertKey(rows, matrices.num_columns, matrices.format, is_gated, height)

    @property
    def raw(self) -> Tensor:
        """Nothing: which experts will be chosen is not known ahead."""
        return self.inward.memory.view(-1)[:0]

    @property
    def num_experts(self) -> int:
        """Of the layer."""
        return len(self.inward.matrices.addresses)


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """The weighted sum of the chosen experts' answers; added to a residual in place, unless that is read again."""

    value: int
    weights: int
    chosen: int
    linear: ExpertLinears
    top: int  # experts of a token
    out: int
    residual: int | None = None
    copies: bool = False

    def __call__(self, run: Run) -> None:
        x, weights = run.whole(self.value), run.values[self.weights]
        if self.residual is None:
            total = torch.empty_like(x)
        else:
            total = run.whole(self.residual)
            total = total.clone() if self.copies else total
        self.linear(x, weights, self._grouping(run), total, self.residual is not None)
        run.values[self.out] = total

    def _grouping(self, run: Run) -> Grouping:
        chosen, choice, count = run.values[self.chosen], run.choices.get(self.chosen), self.linear.num_experts
        height = self.linear.tiles.height(len(chosen), chosen.shape[1], count)
        if choice is None:  # the tokens of a choice were selected
            return group_pairs(chosen, count_pairs(chosen, count), count, height)
        if choice.counts is not None:
            return group_pairs(chosen, choice.counts, count, height)
        assert choice.grouping is not None
        return choice.grouping


def lower_route(node: Node, placer: Placer, norm: Norm | None, tiles: ExpertTiles) -> Route:
    """Lower route or normed_route."""
    vectors = {name: node.weights[name] for name in ("bias", "correction", "expert_scale")}
    placed: dict[str, Any] = {
        word: None if name is None else placer.vector(str(name)) for word, name in vectors.items()
    }
    defaults = {
        "scores_chosen": False, "groups": 1, "top_groups": 1, "group_top": 1, "renormalize": False, "factor": 1.0,
        "softcap": 0.0,
    }  # fmt: skip
    attrs = {name: value for name, value in {**defaults, **node.attrs}.items() if name != "eps"}
    router = ExpertRouter(placer.router(str(node.weights["weight"])), **placed, **attrs)
    *normed, weights, chosen = (value.id for value in node.outputs)
    normed_id = normed[0] if normed else None
    return Route(node.inputs[0].id, norm, RouterMatrix(router), placer.scratch, tiles, normed_id, weights, chosen)


def stacks_of(node: Node) -> tuple[list[str], list[str]]:
    """The names of the stacks of experts or experts_add: gate, if there is one, and up; down."""
    return [str(name) for word in ("gate", "up") if (name := node.weights[word]) is not None], [
        str(node.weights["down"])
    ]


def lower_experts(node: Node, placer: Placer, tiles: ExpertTiles, copies: bool) -> Experts:
    """Lower experts or experts_add."""
    names = {word: node.weights[word] for word in ("gate", "up", "down")}
    biases = {word: node.weights[f"{word}_bias"] for word in names}
    first = [word for word in ("gate", "up") if names[word] is not None]
    inward, outward = (
        place_experts(placer, [str(names[word]) for word in words], [biases[word] for word in words])  # type: ignore[misc]
        for words in (first, ["down"])
    )
    activation = Activation(node.attrs["kind"], "gate" in first, **{k: v for k, v in node.attrs.items() if k != "kind"})
    linear = ExpertLinears(inward, outward, activation, tiles, placer.scratch)
    x, weights, chosen = (node.input(name).id for name in ("x", "weights", "chosen"))
    residual = node.input("residual").id if "residual" in node.op.inputs else None
    return Experts(x, weights, chosen, linear, node.input("weights").dim, node.output.id, residual, copies)
