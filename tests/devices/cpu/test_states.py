"""A state has the same bits however its text was cut into steps, whatever other rows do, and in every variant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from quire.devices import base
from quire.graph.graph import Graph, Node, Value
from quire.graph.weight import Weight
from quire.ops.batch import Batch, RowPart, StateSlots
from quire.ops.registry import find_op
from tests.devices.cpu.programs import HAS_NATIVE, VARIANTS
from tests.ops.encoded_tensor import EncodedTensor

pytestmark = [pytest.mark.device, pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")]

NUM_TOKENS, NUM_STATES = 90, 8
LIMITS = base.Limits(
    max_tokens=200, max_rows=4, max_logits=4, max_blocks=8, num_blocks=32, num_states=NUM_STATES, kv_dtype="f32"
)
# Which example of an op: the last ones have many tokens, heads that are no whole tiles, and a bias.
LAYERS: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "short_conv": ("short_conv", lambda args: args["weight"].shape == (130, 4)),
    "delta_rule": ("delta_rule", lambda args: args["v"].shape[1] == 120 and args["decay"].shape[1] == 3),
    "delta_rule_by_channel": ("delta_rule", lambda args: args["v"].shape[1] == 120 and args["decay"].shape[1] > 3),
    "mamba2": ("state_scan", lambda args: args["x"].shape[1] == 96),
    "mamba": ("state_scan", lambda args: args["rate"].ndim == 2),
}
EACH_LAYER = pytest.mark.parametrize("name", LAYERS)
EACH_VARIANT = pytest.mark.parametrize("variant", VARIANTS)
FUSED = [variant for variant in VARIANTS if variant != "baseline"]


@dataclass(frozen=True)
class Part:
    """Tokens of a text in one step."""

    text: int  # its numbers
    begin: int
    end: int
    source: int
    target: int
    saves: tuple[tuple[int, int], ...] = ()  # tokens of the text, and slots


class Layer:
    """A program of one recurrent layer. Texts are rows of random inputs."""

    def __init__(self, name: str, variant: str, limits: base.Limits = LIMITS) -> None:
        op_name, is_wanted = LAYERS[name]
        op = find_op(op_name)
        args = [args for args in op.example_args() if is_wanted(args)][-1]
        self.spec = args["cache"].spec
        self.inputs = [Value(i, ("tokens", args[each].shape[1])) for i, each in enumerate(op.inputs)]
        out = Value(len(self.inputs), ("tokens", args[op.inputs[2 if op_name == "delta_rule" else 0]].shape[1]))
        given = {each: args[each] for each in op.weights if args[each] is not None}
        weights = {}
        for parameter, array in given.items():
            tensor = EncodedTensor.of(parameter, array, "f32")
            weights[parameter] = Weight(parameter, array.shape, "f32", tensor)
        graph = Graph.over(weights)
        graph.caches.append(self.spec)
        bound = {each: each if each in given else None for each in op.weights}
        attrs = {each: args[each] for each in op.attrs if each in args}
        graph.nodes.append(Node(op, tuple(self.inputs), bound, attrs, (out,), 0))
        options = base.LoweringOptions(variant=variant, num_threads=2)
        self.program: Any = base.open("cpu").lower(graph, weights, limits, options)
        self.out = out
        rng = np.random.default_rng(1)
        self.texts = [
            [rng.standard_normal((NUM_TOKENS, value.dim), np.float32) / 2 for value in self.inputs] for _ in range(3)
        ]
        if op_name == "delta_rule":
            for text in self.texts:
                text[3], text[4] = -np.abs(text[3]), np.abs(text[4]) / 4  # decay, beta

    def run(self, parts: Sequence[Part]) -> list[np.ndarray]:
        """Run a step; return the outputs of each part."""
        rows = [RowPart([0] * (p.end - p.begin), p.begin, range(8 * i, 8 * i + 8)) for i, p in enumerate(parts)]
        batch = Batch.of(rows, 16)
        saves = [
            (batch.starts[i] + token - part.begin, slot) for i, part in enumerate(parts) for token, slot in part.saves
        ]
        slots = [np.array(each, np.int32) for each in zip(*((p.source, p.target) for p in parts), strict=True)]
        states = StateSlots(slots[0], slots[1], np.array(saves, np.int32).reshape(-1, 2))
        batch = replace(batch, states=states)
        batch.check(LIMITS.num_blocks, 16)
        for at, value in enumerate(self.inputs):
            self.program.feed(value.id, np.concatenate([self.texts[p.text][at][p.begin : p.end] for p in parts]))
        self.program.launch(batch)
        return np.split(self.program.fetch(self.out.id, len(batch.token_ids)), batch.starts[1:-1])

    def state(self, slot: int) -> np.ndarray:
        numbers = np.empty(self.spec.num_bytes // 4, np.float32)
        self.program.native.load_state(0, slot, numbers)
        return numbers


@cache
def layer(name: str, variant: str) -> Layer:
    return Layer(name, variant)


@cache
def alone(name: str, variant: str) -> tuple[np.ndarray, np.ndarray]:
    """The outputs of a text in one step, and its state at the end."""
    made = layer(name, variant)
    (out,) = made.run([Part(0, 0, NUM_TOKENS, -1, 5)])
    return out, made.state(5)


@EACH_VARIANT
@EACH_LAYER
@pytest.mark.parametrize("size", [1, 7, 64])
def test_steps_of_any_size_give_the_same_bits(name: str, variant: str, size: int):
    """The state moves to another slot with every third step."""
    made, (expected, state) = layer(name, variant), alone(name, variant)
    outputs, slot = [], -1
    for index, begin in enumerate(range(0, NUM_TOKENS, size)):
        target = index // 3 % 2
        outputs += made.run([Part(0, begin, min(begin + size, NUM_TOKENS), slot, target)])
        slot = target
    assert np.array_equal(np.concatenate(outputs), expected)
    assert np.array_equal(made.state(slot), state)


@EACH_VARIANT
@EACH_LAYER
def test_other_rows_and_saves_change_no_bit(name: str, variant: str):
    """Three texts in one step; two continue in the next one, and read what the first one left in other slots."""
    made, (expected, state) = layer(name, variant), alone(name, variant)
    first = [Part(1, 0, 3, -1, 2), Part(0, 0, 41, -1, 0, ((0, 6), (40, 7))), Part(2, 0, 60, -1, 1, ((1, 3), (2, 4)))]
    outputs = made.run(first)
    rest = made.run([Part(0, 41, NUM_TOKENS, 7, 3), Part(1, 3, 4, 2, 2)])
    assert np.array_equal(np.concatenate([outputs[1], rest[0]]), expected)
    assert np.array_equal(made.state(3), state)


@EACH_VARIANT
@EACH_LAYER
def test_a_saved_state_is_that_of_a_step_that_ends_there(name: str, variant: str):
    made = layer(name, variant)
    saves = ((0, 1), (1, 2), (6, 3), (63, 4), (NUM_TOKENS - 1, 5))
    made.run([Part(0, 0, NUM_TOKENS, -1, 0, saves)])
    saved = [made.state(slot) for _, slot in saves]
    assert np.array_equal(saved[-1], made.state(0))
    for (token, _), expected in zip(saves, saved, strict=True):
        made.run([Part(0, 0, token + 1, -1, 7)])
        assert np.array_equal(made.state(7), expected), token


@EACH_LAYER
@pytest.mark.skipif(len(FUSED) < 2, reason="one variant with fused sums")
def test_variants_that_round_alike_give_the_same_bits(name: str):
    expected, state = alone(name, FUSED[0])
    for variant in FUSED[1:]:
        assert np.array_equal(alone(name, variant)[0], expected), variant
        assert np.array_equal(alone(name, variant)[1], state), variant


def slots(source: list[int], target: list[int], saves: list[tuple[int, int]] = []) -> StateSlots:  # noqa: B006  # read only
    return StateSlots(np.array(source, np.int32), np.array(target, np.int32), np.array(saves, np.int32).reshape(-1, 2))


@pytest.mark.parametrize(
    "states, what",
    [
        (None, "need the slots"),
        (slots([-1], [0]), "a slot for each row"),
        (slots([-1, -1], [0, NUM_STATES]), "no such slot"),
        (slots([-1, NUM_STATES], [0, 1]), "no such slot"),
        (slots([-2, -1], [0, 1]), "no such slot"),
        (slots([-1, -1], [1, 1]), "written to one slot"),
        (slots([-1, 0], [0, 1]), "another row writes"),
        (slots([2, -1], [0, 1], [(0, 2)]), "another row writes"),
        (slots([-1, -1], [0, 1], [(0, 1)]), "written to one slot"),
        (slots([-1, -1], [0, 1], [(4, 2)]), "no such token"),
        (slots([-1, -1], [0, 1], [(3, 2), (1, 3)]), "do not ascend"),
    ],
)
def test_slots_that_cannot_be_are_refused(states: StateSlots | None, what: str):
    batch = Batch.of([RowPart([0, 0], 0, [0]), RowPart([0, 0], 0, [1])], 16)
    with pytest.raises(ValueError, match=what):
        layer("mamba", VARIANTS[0]).program.launch(replace(batch, states=states))


def test_without_a_number_of_slots_there_is_one_for_each_row():
    batch = Batch.of([RowPart([0], 0, [0])], 16)
    program = Layer("mamba", VARIANTS[0], replace(LIMITS, num_states=0)).program
    program.launch(replace(batch, states=slots([-1], [LIMITS.max_rows - 1])))
    with pytest.raises(ValueError, match="no such slot"):
        program.launch(replace(batch, states=slots([-1], [LIMITS.max_rows])))
