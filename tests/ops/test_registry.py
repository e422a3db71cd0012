"""The contract of every op, and what the registry reads from a signature."""

from __future__ import annotations

import numpy as np
import pytest

from quire.ops.batch import Batch
from quire.ops.cache import CrossCache, LatentCache, PagedCache, StateCache
from quire.ops.registry import ShapeError, all_ops, expect, find_op, relative_error, round_to

pytestmark = pytest.mark.pure


def shapes_of(args):
    """Replace an example's arrays by their shapes, as a shape rule takes them."""
    if isinstance(args, dict):
        return {name: shapes_of(value) for name, value in args.items() if not isinstance(value, Batch)}
    if isinstance(args, tuple):
        return tuple(shapes_of(value) for value in args)
    if isinstance(args, PagedCache | LatentCache | StateCache | CrossCache):
        return args.spec
    return args.shape if isinstance(args, np.ndarray) else args


def outputs_of(op, args):
    out = op.reference(**args)
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize("op", all_ops(), ids=str)
def test_every_op_has_examples_that_its_reference_accepts(op):
    examples = list(op.example_args())
    assert len(examples) >= 4
    for args in examples:
        for out in outputs_of(op, args):
            assert out.dtype == np.float32 and np.isfinite(out).all()


@pytest.mark.parametrize("op", all_ops(), ids=str)
def test_every_shape_rule_returns_the_shapes_of_the_reference(op):
    for args in op.example_args():
        assert op.infer(**shapes_of(args)) == tuple(out.shape for out in outputs_of(op, args))


@pytest.mark.parametrize("op", all_ops(), ids=str)
def test_every_op_has_a_docstring_and_tolerances(op):
    assert op.reference.__doc__
    assert set(op.tolerance) == {"f32", "f16", "bf16"}


@pytest.mark.parametrize("op", all_ops(), ids=str)
def test_examples_are_the_same_every_time(op):
    """A kernel that writes a cache gets its own copy; both must start from the same values."""
    for ours, theirs in zip(op.example_args("bf16"), op.example_args("bf16"), strict=True):
        for a, b in zip(outputs_of(op, ours), outputs_of(op, theirs), strict=True):
            assert np.array_equal(a, b)


def test_a_signature_says_what_an_op_takes():
    rope, attention, linear = find_op("rope"), find_op("attention"), find_op("linear")
    assert (rope.inputs, rope.weights, rope.reads) == (("x",), ("frequencies",), ("positions",))
    assert rope.attrs == ("head_dim", "scaling", "interleaved")
    assert attention.inputs == ("q", "k", "v") and attention.uses_cache and attention.uses_batch
    assert linear.inputs == ("x",) and not linear.uses_cache and not linear.uses_batch


def test_a_shape_error_names_the_parameter_and_both_shapes():
    with pytest.raises(ShapeError, match=r"weight: expected \[\*, 64\], found \[8, 32\]"):
        find_op("linear").infer(x=("tokens", 64), weight=(8, 32), bias=None)
    with pytest.raises(ShapeError, match=r"expected \[3\], found \[3, 1\]"):
        expect("x", (3, 1), 3)


@pytest.mark.parametrize(
    "op, args, parameter",
    [
        ("rms_norm", {"x": ("tokens", 8), "weight": (9,), "eps": 1e-5}, "weight"),
        ("rms_norm", {"x": ("tokens", 10), "weight": (4,), "eps": 1e-5, "group": 4}, "x"),
        ("rope", {"x": ("tokens", 16), "frequencies": (5,), "positions": ("tokens",), "head_dim": 8}, "frequencies"),
        ("rope", {"x": ("tokens", 15), "frequencies": (4,), "positions": ("tokens",), "head_dim": 8}, "x"),
        ("linear", {"x": ("tokens", 4), "weight": (6, 4), "bias": (4,)}, "bias"),
        ("linear_split", {"x": ("tokens", 4), "weights": ((6, 4), (6, 5)), "biases": (None, None)}, "weights[1]"),
        (
            "gated_linear",
            {"x": ("t", 4), "gate": (6, 4), "up": (7, 4), "gate_bias": None, "up_bias": None, "kind": "silu"},
            "up",
        ),
        ("add", {"x": ("tokens", 4), "y": ("logits", 4)}, "y"),
        ("head", {"x": ("logits", 4), "weight": (9, 5), "bias": None}, "weight"),
        ("embed", {"token_ids": ("tokens",), "table": (9,)}, "table"),
    ],
)
def test_a_shape_rule_refuses_what_its_reference_could_not_compute(op, args, parameter):
    with pytest.raises(ShapeError) as error:
        find_op(op).infer(**args)
    assert error.value.parameter == parameter


def test_examples_can_be_held_exactly_in_a_narrow_format():
    x = np.random.default_rng(0).standard_normal(1000, dtype=np.float32)
    assert np.array_equal(round_to(x, "f16"), round_to(x, "f16").astype(np.float16).astype(np.float32))
    assert not (round_to(x, "bf16").view(np.uint32) & 0xFFFF).any()
    assert relative_error(round_to(x, "bf16"), x) < 2**-8
    assert round_to(np.float32([1 + 2**-8, 1 + 3 * 2**-8]), "bf16").tolist() == [1.0, 1 + 2**-6]  # ties to even
    with pytest.raises(ValueError, match="f32, f16 or bf16"):
        round_to(x, "f8")
