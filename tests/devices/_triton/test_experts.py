"""Routing, grouping and the products of experts: choices by ties and groups, few and many tokens, formats, law 8."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from quire.devices._triton.grouping import Grouping, count_pairs, group_pairs
from quire.devices._triton.norm import Norm
from quire.devices._triton.route import ExpertRouter, route, route_few
from quire.devices._triton.route_one import route_one
from quire.devices._triton.stream import Scratch
from quire.devices.cuda.expert_tiles import ExpertTiles
from quire.devices.cuda.expert_weights import place_experts
from quire.devices.cuda.experts import Experts, lower_experts
from quire.devices.cuda.instructions import Run
from quire.devices.cuda.tiles import Tiles
from quire.devices.cuda.weights import Placer
from quire.graph.graph import Graph, Value
from quire.graph.weight import StackedTensor, Weight
from quire.ops.registry import find_op, relative_error
from quire.weights.quantized_tensors import ScaledTensor
from tests.devices.interpreted import in_interpreter, on_gpu
from tests.ops.encoded_tensor import EncodedTensor

pytestmark = pytest.mark.device

NUM_EXPERTS, TOP, DIM, FFN = 8, 3, 64, 48
COUNTS = [1, *in_interpreter(2, 7), 40, *on_gpu(64, 700)]
EXPERTS, ROUTE = find_op("experts"), find_op("route")


def choices(rng: np.random.Generator, num_tokens: int, num_experts: int = NUM_EXPERTS, top: int = TOP) -> np.ndarray:
    return np.array([rng.permutation(num_experts)[:top] for _ in range(num_tokens)], np.int32)


@pytest.mark.parametrize("height", [16, *in_interpreter(64)])
@pytest.mark.parametrize("num_tokens", COUNTS)
def test_every_pair_has_one_place_in_a_tile_of_its_expert(num_tokens, height, place):
    rng = np.random.default_rng(num_tokens)
    for chosen in (choices(rng, num_tokens), np.zeros((num_tokens, 1), np.int32)):  # the second: one expert for all
        top = chosen.shape[1]
        on_device = torch.from_numpy(chosen).to(place)
        found = group_pairs(on_device, count_pairs(on_device, NUM_EXPERTS), NUM_EXPERTS, height)
        used = int(found.used)
        assert used <= found.num_tiles
        seen = []
        for tile, expert, end in zip(range(used), found.experts.tolist(), found.ends.tolist(), strict=False):
            places = range(tile * height, min((tile + 1) * height, end))
            assert places
            pairs = found.pairs[places.start : places.stop].tolist()
            assert all(chosen[pair // top, pair % top] == expert for pair in pairs)
            seen += pairs
        assert sorted(seen) == list(range(num_tokens * top))


def tiles_of(found: Grouping, used: int) -> set[tuple[int, ...]]:
    """The expert and the pairs of each tile."""
    starts = range(0, used * found.height, found.height)
    ends = [min(start + found.height, end) for start, end in zip(starts, found.ends.tolist(), strict=False)]
    pairs = [found.pairs[start:end].tolist() for start, end in zip(starts, ends, strict=True)]
    return {(expert, *each) for expert, each in zip(found.experts.tolist(), pairs, strict=False)}


def router_of(rng: np.random.Generator, place: str, num_experts: int = 16, **attrs: Any) -> ExpertRouter:
    weight = torch.from_numpy(rng.standard_normal((num_experts, DIM), np.float32)).to(place)
    none = dict.fromkeys(("bias", "correction", "expert_scale"))
    defaults = {"top": 4, "scoring": "softmax", "scores_chosen": False, "groups": 1, "top_groups": 1, "group_top": 1}
    return ExpertRouter(weight, **{**none, **defaults, "renormalize": True, "factor": 1.0, "softcap": 0.0, **attrs})


@pytest.mark.parametrize("num_tokens", [1, 2, 40])
def test_few_and_many_tokens_are_routed_alike(num_tokens, place):
    rng, scratch = np.random.default_rng(num_tokens), Scratch(torch.device(place))
    x = torch.from_numpy(rng.standard_normal((num_tokens, DIM), np.float32)).to(place)
    norm = Norm(torch.from_numpy(rng.standard_normal(DIM, np.float32)).to(place), 1e-5)
    router = router_of(rng, place, groups=4, top_groups=2, group_top=2)
    few, normed = (route_one if num_tokens == 1 else route_few)(x, norm, router, scratch, 16)
    exact = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * norm.weight
    many = route(exact, router)
    assert torch.equal(few.chosen, many.chosen)
    assert relative_error(few.weights.cpu().numpy(), many.weights.cpu().numpy()) < 1e-5
    assert relative_error(normed.cpu().numpy(), exact.cpu().numpy()) < 1e-5
    assert few.grouping is not None and not scratch.arrived.any(), "the counter is reset for the next kernel"
    again = group_pairs(few.chosen, count_pairs(few.chosen, 16), 16, few.grouping.height)
    used = int(again.used)
    assert used == int(few.grouping.used)
    assert tiles_of(few.grouping, used) == tiles_of(again, used)


def test_experts_that_are_not_a_number_are_chosen_last_and_once(place):
    rng = np.random.default_rng(0)
    router = router_of(rng, place, num_experts=5, top=5, renormalize=False, scoring="none")
    router.weight[1:3] = float("nan")
    x = torch.from_numpy(rng.standard_normal((2, DIM), np.float32)).to(place)
    for choice in (route(x, router), route_few(x, None, router, Scratch(torch.device(place)), 16)[0]):
        assert all(sorted(row) == list(range(5)) and row[3:] == [1, 2] for row in choice.chosen.tolist())


class Layer:
    """The experts of a layer, as an instruction and as a reference."""

    def __init__(
        self, place: str, *, dtype: torch.dtype = torch.float32, format: str = "f32", is_fixed: bool = False,
        quantize: str | None = None, sizes: tuple[int, int] = (DIM, FFN), **attrs: Any,
    ) -> None:  # fmt: skip
        self.dim, ffn = sizes
        self.rng, self.place, self.attrs = np.random.default_rng(1), place, {"kind": "silu", **attrs}
        shapes = {"gate": (ffn, self.dim), "up": (ffn, self.dim), "down": (self.dim, ffn)}
        self.weights = {name: self._stack(name, (NUM_EXPERTS, *shape), format) for name, shape in shapes.items()}
        self.placer = Placer(self.weights, torch.device(place), dtype, Tiles(4, is_fixed), quantize)
        graph = Graph.over(self.weights)
        inputs = {name: Value(i, ("tokens", size)) for i, (name, size) in enumerate(self._inputs())}
        bound = {name: name if name in self.weights else None for name in EXPERTS.weights}
        node = graph.node(EXPERTS, inputs, bound, self.attrs, outputs=[Value(9, ("tokens", self.dim))])
        self.instruction: Experts = lower_experts(node, self.placer, ExpertTiles(is_fixed), copies=False)

    def _inputs(self) -> list[tuple[str, int]]:
        return [("x", self.dim), ("weights", TOP), ("chosen", TOP)]

    def _stack(self, name: str, shape: tuple[int, ...], format: str) -> Weight:
        if format == "f32":
            tensor: Any = EncodedTensor.of(name, self.rng.standard_normal(shape, np.float32) / np.float32(8), "f32")
            return Weight(name, shape, "f32", tensor)
        rows, columns = shape[1:]
        block = (128, 128) if format == "blocks" else None
        parts = []
        for expert in range(shape[0]):
            values = EncodedTensor.of(
                f"{name}{expert}", self.rng.standard_normal((rows, columns), np.float32), "f8_e4m3"
            )
            sizes = (-(-rows // 128), -(-columns // 128)) if block else (rows, 1)
            scales = self.rng.uniform(0.01, 0.02, sizes).astype(np.float32)
            parts.append(ScaledTensor(values, EncodedTensor.of("scales", scales, "f32"), block))
        return Weight(name, shape, "f8_e4m3", StackedTensor(name, tuple(parts)))

    def step(self, num_tokens: int, chosen: np.ndarray | None = None) -> dict[str, np.ndarray]:
        chosen = choices(self.rng, num_tokens) if chosen is None else chosen
        x = self.rng.standard_normal((num_tokens, self.dim), np.float32)
        return {"x": x, "weights": self.rng.random((num_tokens, TOP), np.float32), "chosen": chosen}

    def run(self, step: dict[str, np.ndarray]) -> torch.Tensor:
        none = torch.zeros(0, dtype=torch.int32, device=self.place)
        run = Run(none, (none, none), none, {}, none, None)  # type: ignore[arg-type]
        for value, (name, dtype) in enumerate(
            (("x", self.placer.dtype), ("weights", torch.float32), ("chosen", torch.int32))
        ):
            run.values[value] = torch.from_numpy(step[name]).to(self.place, dtype)
        self.instruction(run)
        out: torch.Tensor = run.values[9]
        return out

    def error(self, step: dict[str, np.ndarray]) -> float:
        arrays = {name: weight.float32() for name, weight in self.weights.items()}
        bound = {name: arrays.get(name) for name in EXPERTS.weights}
        return relative_error(self.run(step).float().cpu().numpy(), EXPERTS(**step, **bound, **self.attrs))


@pytest.mark.parametrize("num_tokens", [*in_interpreter(17), 40, 70, *on_gpu(1, 2, 7, 64, 700)])
def test_few_and_many_tokens_match_the_reference(num_tokens, place):
    layer = Layer(place)
    assert layer.error(layer.step(num_tokens)) < 2e-5
    assert not layer.placer.scratch.arrived.any(), "the counters are reset for the next product"


@pytest.mark.parametrize("num_tokens", [5, 40, 70])
def test_experts_that_nobody_chose_and_one_that_all_chose(num_tokens, place):
    layer = Layer(place)
    chosen = np.tile(np.array([5, 0, 7], np.int32), (num_tokens, 1))
    assert layer.error(layer.step(num_tokens, chosen)) < 2e-5


@pytest.mark.parametrize("format", ["rows", "blocks"])
@pytest.mark.parametrize("num_tokens", [3, *in_interpreter(70)])
def test_stored_fp8_is_multiplied_as_it_is(num_tokens, format, place):
    layer = Layer(place, dtype=torch.bfloat16, format=format, sizes=(192, 128))
    assert layer.instruction.linear.inward.matrices.format == f"fp8_{format}"
    assert layer.error(layer.step(num_tokens)) < 2e-2


def test_experts_are_converted_to_fp8_on_demand_and_back(place):
    to_fp8 = Layer(place, dtype=torch.bfloat16, quantize="fp8")
    assert to_fp8.instruction.linear.outward.matrices.format == "fp8_rows"
    assert to_fp8.error(to_fp8.step(3)) < 6e-2
    plain = Layer(place, dtype=torch.bfloat16, format="rows", quantize="plain")
    assert plain.instruction.linear.outward.matrices.format == "bf16"
    assert plain.error(plain.step(3)) < 2e-2


def test_in_deterministic_mode_a_token_does_not_depend_on_others(place):
    layer = Layer(place, dtype=torch.bfloat16, is_fixed=True)
    step = layer.step(40)
    whole = layer.run(step)
    for part in (slice(7, 8), slice(20, 31)):
        alone = layer.run({name: array[part].copy() for name, array in step.items()})
        assert torch.equal(alone, whole[part])


def test_an_address_in_the_table_is_all_that_says_where_an_expert_is(place):
    layer = Layer(place, dtype=torch.bfloat16)
    step = layer.step(4)
    before = layer.run(step)
    linear = layer.instruction.linear
    moved = linear.inward.memory.flip(0).contiguous()  # the last expert comes first
    matrices = linear.inward.matrices
    addresses = moved.data_ptr() + moved.shape[1] * torch.arange(NUM_EXPERTS - 1, -1, -1, device=place)
    linear.inward.memory.zero_()
    linear.inward = replace(linear.inward, matrices=matrices._replace(addresses=addresses), memory=moved)
    assert torch.equal(layer.run(step), before)


def test_stacks_are_placed_together_with_their_biases(place):
    layer = Layer(place)
    layer.weights["up.bias"] = Weight(
        "up.bias", (NUM_EXPERTS, FFN), "f32", EncodedTensor.of("b", np.ones((NUM_EXPERTS, FFN), np.float32), "f32")
    )
    placed = place_experts(layer.placer, ("gate", "up"), (None, "up.bias"))
    assert placed.matrices.num_rows == 2 * FFN and placed.num_weights == NUM_EXPERTS * 2 * FFN * DIM
    assert placed.matrices.bias is not None
    assert placed.matrices.bias.cpu().tolist() == [[0.0] * FFN + [1.0] * FFN] * NUM_EXPERTS
