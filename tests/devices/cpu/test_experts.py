"""Experts on the CPU: equal, to the bit, to dense products with each expert's matrices, in any batch (law 8)."""

from __future__ import annotations

import ctypes
import mmap
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire.devices import base
from quire.devices.cpu import FLOATS, QUANTIZED, pack
from quire.devices.cpu.pack import packed_rows
from quire.devices.cpu.variant_choice import KEY
from quire.graph.graph import Graph
from quire.graph.weight import Weight
from quire.ops.batch import Batch, RowPart
from quire.ops.registry import find_op, relative_error
from quire.quant.registry import all_formats
from tests.devices.cpu.programs import HAS_NATIVE
from tests.ops.encoded_tensor import EncodedTensor
from tests.ops.test_kernels import EACH_VARIANT, LIMITS, VARIANTS, OneOp

pytestmark = [pytest.mark.device, pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")]

Args = dict[str, Any]
NUM_EXPERTS, UNUSED, COMMON = 6, 2, 4  # an expert that no token chooses, and one that all choose
STACKS = {"gate": "gate_bias", "up": "up_bias", "down": "down_bias"}


def encoded(name: str, shape: tuple[int, ...], fmt: str) -> EncodedTensor:
    if fmt in FLOATS:
        return EncodedTensor.of(name, np.random.default_rng(2).standard_normal(shape, np.float32), fmt)
    return EncodedTensor.random(name, shape, fmt, seed=len(name))


def example(num_tokens: int, fmt: str, *, dim: int = 256, ffn: int = 256, biased: bool = False) -> Args:
    rng = np.random.default_rng(num_tokens)
    others = [i for i in range(NUM_EXPERTS) if i not in (UNUSED, COMMON)]
    chosen = [rng.permutation([COMMON, *rng.permutation(others)[:2]]) for _ in range(num_tokens)]
    shapes = {"gate": (NUM_EXPERTS, ffn, dim), "up": (NUM_EXPERTS, ffn, dim), "down": (NUM_EXPERTS, dim, ffn)}
    stacks = {name: encoded(name, shape, fmt) for name, shape in shapes.items()}
    biases = {STACKS[name]: rng.standard_normal(shape[:2], np.float32) for name, shape in shapes.items()}
    return {
        "x": rng.standard_normal((num_tokens, dim), np.float32),
        "weights": rng.random((num_tokens, 3), np.float32),
        "chosen": np.array(chosen, np.float32),
        **stacks,
        **(biases if biased else dict.fromkeys(biases)),
        "kind": "silu",
    }


def some(args: Args, tokens: slice) -> Args:
    """The same experts for some of the tokens."""
    return args | {name: args[name][tokens] for name in ("x", "weights", "chosen")}


def run(args: Args, variant: str) -> np.ndarray:
    (out,) = OneOp(find_op("experts"), args).run(variant, "f32")
    return out


def by_dense_products(args: Args, variant: str) -> np.ndarray:
    """Each expert by itself, with the kernels of gated_linear and linear."""

    def linear(name: str, **operands: Any) -> np.ndarray:
        (out,) = OneOp(find_op(name), operands).run(variant, "f32")
        return out

    answers = np.zeros((*args["chosen"].shape, args["down"].shape[1]), np.float32)
    for expert in np.unique(args["chosen"]).astype(int):
        tokens, ranks = np.nonzero(args["chosen"] == expert)
        gate, up, down = (args[name].matrix(expert) for name in STACKS)
        of_gate, of_up, of_down = (None if args[name] is None else args[name][expert] for name in STACKS.values())
        both = {"gate": gate, "up": up, "gate_bias": of_gate, "up_bias": of_up}
        hidden = linear("gated_linear", x=args["x"][tokens], **both, kind=args["kind"])
        answer = linear("linear", x=hidden, weight=down, bias=of_down)
        answers[tokens, ranks] = answer * args["weights"][tokens, ranks][:, None]
    total = answers[:, 0]
    for rank in range(1, answers.shape[1]):
        total = total + answers[:, rank]
    return total


@EACH_VARIANT
@pytest.mark.parametrize("fmt", sorted((*QUANTIZED, *FLOATS)))
def test_experts_are_dense_products_to_the_bit(fmt, variant):
    args = example(7, fmt, biased=fmt in ("q4_0", "bf16"))
    assert np.array_equal(run(args, variant), by_dense_products(args, variant))


@EACH_VARIANT
@pytest.mark.parametrize("fmt", ["q4_0", "q6_k", "bf16"])
def test_a_token_does_not_depend_on_the_others(fmt, variant):
    args = example(700, fmt)
    together = run(args, variant)
    for first, size in ((699, 1), (3, 2), (130, 7), (600, 64)):
        part = slice(first, first + size)
        assert np.array_equal(run(some(args, part), variant), together[part]), (first, size)


@EACH_VARIANT
def test_widths_that_are_no_whole_panels_or_blocks(variant):
    """40 columns of q8_0 are no whole block, so they become f32; 44 rows are no whole panels."""
    rng, op = np.random.default_rng(3), find_op("experts")
    shapes = {"gate": (5, 44, 40), "up": (5, 44, 40), "down": (5, 40, 44)}
    args = example(9, "f32", dim=40, ffn=44) | {"chosen": rng.integers(0, 5, (9, 3)).astype(np.float32)}
    for fmt in ("f32", "f16"):
        stacks = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        one = OneOp(op, args | {name: EncodedTensor.of(name, x, fmt) for name, x in stacks.items()})
        (actual,) = one.run(variant, "f32")
        assert relative_error(actual, one.reference()) <= op.tolerance["f32"]


@pytest.mark.parametrize("number", [-1.0, float(NUM_EXPERTS), float("nan")])
def test_a_number_that_is_no_expert_is_refused(number):
    one = OneOp(find_op("experts"), example(3, "q4_0"))
    one.args["chosen"][1, 2] = number
    with pytest.raises(ValueError, match="no such expert"):
        one.run(VARIANTS[0], "f32")


# --- memory


class ProtectedCache:
    """Keeps panels in pages of its own, which can be made unreadable."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}

    def find(self, recipe: str) -> dict[str, np.ndarray]:
        return self.arrays

    def keep(self, recipe: str, arrays: dict[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            if name != KEY:
                self.arrays[name] = np.frombuffer(mmap.mmap(-1, array.nbytes), np.uint8)
                self.arrays[name][:] = array

    def protect(self, expert: int) -> None:
        """Make the matrices of one expert unreadable."""
        for array in self.arrays.values():
            size = array.nbytes // NUM_EXPERTS
            assert size % mmap.PAGESIZE == 0
            place = ctypes.c_void_p(array.ctypes.data + size * expert)
            assert ctypes.CDLL(None).mprotect(place, size, 0) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")
def test_nothing_is_read_of_an_expert_that_no_token_chose():
    args, kept = example(5, "q8_0", dim=512, ffn=512), ProtectedCache()
    one = OneOp(find_op("experts"), args)
    options = base.LoweringOptions(variant=VARIANTS[0], kept=kept)

    def answer() -> np.ndarray:
        program = base.open("cpu").lower(one.graph, one.weights, LIMITS, options)
        for value, name in zip(one.inputs, one.op.inputs, strict=True):
            program.feed(value.id, args[name])
        program.launch(one.batch())
        return program.fetch(one.graph.nodes[0].output.id, 5)

    expected = answer()
    kept.protect(UNUSED)
    assert np.array_equal(answer(), expected)


def test_a_stack_is_packed_one_matrix_at_a_time(monkeypatch):
    args, packed = example(2, "q4_0"), []

    def recorded(weight: Weight, target: str) -> np.ndarray:
        packed.append(weight.shape)
        return packed_rows(weight, target)

    monkeypatch.setattr(pack, "packed_rows", recorded)
    run(args, VARIANTS[0])
    assert packed == [(256, 256)] * (3 * NUM_EXPERTS)


# --- routers


@pytest.mark.parametrize("fmt", sorted((*QUANTIZED, *FLOATS)))
def test_a_router_multiplies_float32_activations_in_every_format(fmt):
    rng, op = np.random.default_rng(1), find_op("route")
    step = max(64, all_formats()[fmt].block_weights)
    args = {"x": rng.standard_normal((33, step), np.float32), **dict.fromkeys(op.weights)}
    args |= {"weight": encoded("weight", (12, step), fmt), "top": 3, "scoring": "softmax"}
    for variant in VARIANTS:
        one = OneOp(op, args)
        together = one.run(variant, "f32")
        for ours, theirs in zip(together, one.reference(), strict=True):
            assert relative_error(ours, theirs) <= op.tolerance["f32"]
        alone = OneOp(op, args | {"x": args["x"][20:21]}).run(variant, "f32")
        assert all(np.array_equal(a, b[20:21]) for a, b in zip(alone, together, strict=True))


@EACH_VARIANT
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "sqrt_softplus", "none"])
def test_equal_scores_go_to_the_smaller_index(scoring, variant):
    """Of experts and of groups; logits that are not numbers are chosen last."""
    op, weight = find_op("route"), np.zeros((8, 32), np.float32)
    weight[[2, 5, 6]] = 1.0
    x = np.ones((2, 32), np.float32)
    args = {"x": x, **dict.fromkeys(op.weights), "weight": weight, "scoring": scoring}
    (_, chosen) = OneOp(op, args | {"top": 5}).run(variant, "f32")
    assert chosen.tolist() == [[2, 5, 6, 0, 1]] * 2
    groups = {"groups": 4, "top_groups": 2, "group_top": 1}
    (_, chosen) = OneOp(op, args | {"top": 3, **groups}).run(variant, "f32")
    assert chosen.tolist() == [[2, 5, 3]] * 2


# --- a whole graph


def test_experts_after_the_last_attention_run_for_the_selected_tokens_alone():
    rng = np.random.default_rng(5)
    shapes = {"embed": (50, 64), "router": (4, 64), "gate": (4, 96, 64), "up": (4, 96, 64), "down": (4, 64, 96)}
    tensors = {name: EncodedTensor.of(name, rng.standard_normal(s, np.float32), "q8_0") for name, s in shapes.items()}
    weights = {name: Weight(name, tensor.shape, tensor.format, tensor) for name, tensor in tensors.items()}
    graph = Graph.over(weights)
    x = graph.embed("embed")
    choice = graph.route(x, "router", top=2, scoring="softmax", renormalize=True)
    x = graph.add(x, graph.experts(x, choice, ("gate", "up", "down"), kind="silu"))
    graph.logits(x, "embed")
    batch = Batch.of([RowPart([3, 9, 4], 0, [0], 1), RowPart([7], 0, [1], 1)], LIMITS.block_tokens)
    options = [base.LoweringOptions(fuse=fuse) for fuse in (True, False)]
    programs = [base.open("cpu").lower(graph, weights, LIMITS, each) for each in options]
    logits = [program.launch(batch).result().logits for program in programs]
    alone = Batch.of([RowPart([4], 2, [0], 1)], LIMITS.block_tokens)
    assert np.array_equal(programs[0].launch(alone).result().logits, logits[0][:1])
    assert relative_error(logits[0], logits[1]) <= 1e-5
    assert programs[0].launch(replace(batch, logits_at=batch.logits_at[:0])).result().logits.shape == (0, 50)
