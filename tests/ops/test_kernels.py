"""Every native kernel, in every variant that runs here, against its op's reference on the op's own examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from quire.devices import base
from quire.devices.cpu.bindings import native
from quire.devices.cpu.lower import KERNELS
from quire.graph.graph import Defaults, Graph, Node, Value
from quire.graph.weight import Weight
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import CacheSpec, PagedCache
from quire.ops.registry import Op, find_op, relative_error
from quire.quant.registry import all_formats

pytestmark = pytest.mark.device

VARIANTS = native().variants() if native() else []
LIMITS = base.Limits(max_tokens=65, max_rows=65, max_logits=65, max_blocks=300, num_blocks=24)
EACH_VARIANT = pytest.mark.parametrize("variant", VARIANTS)


@dataclass(frozen=True)
class Stored:
    """A tensor in a number format that is not in a file."""

    name: str
    shape: tuple[int, ...]
    format: str
    data: np.ndarray

    @classmethod
    def of(cls, name: str, array: np.ndarray, fmt: str) -> Stored:
        blocks = np.ascontiguousarray(array, np.float32).reshape(-1, all_formats()[fmt].block_weights)
        return cls(name, array.shape, fmt, np.ascontiguousarray(all_formats()[fmt].quantize(blocks)).reshape(-1))

    def dequantize(self) -> np.ndarray:
        fmt = all_formats()[self.format]
        return fmt.dequantize(self.data.reshape(-1, fmt.block_bytes)).reshape(self.shape)


class OneOp:
    """A graph of one node around an example's arguments, lowered and run."""

    def __init__(self, op: Op, args: dict[str, Any], fmt: str) -> None:
        self.op, self.args, self.fmt = op, args, fmt
        self.weights: dict[str, Weight] = {}
        bound = {parameter: self._bind(parameter, args[parameter]) for parameter in op.weights}
        self.inputs = [Value(i, ("tokens", args[name].shape[1])) for i, name in enumerate(op.inputs)]
        attrs = {name: args[name] for name in op.attrs}
        self.graph = Graph(self.weights, Defaults(head_dim=1, norm_eps=0.0, attention_scale=1.0))
        if op.uses_cache:
            self.graph.caches.append(args["cache"].spec)
        expected = self.reference()
        shapes = [x.shape for x in (expected if isinstance(expected, tuple) else (expected,))]
        outputs = tuple(Value(len(self.inputs) + i, ("tokens", shape[1])) for i, shape in enumerate(shapes))
        cache = 0 if op.uses_cache else None
        self.graph.nodes.append(Node(op, tuple(self.inputs), bound, attrs, outputs, cache))

    def _bind(self, parameter: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._bind(f"{parameter}{i}", item) for i, item in enumerate(value))
        if value is None:
            return None
        fmt = self.fmt if value.ndim == 2 else "f32"
        self.weights[parameter] = Weight(parameter, value.shape, fmt, Stored.of(parameter, value, fmt))
        return parameter

    def reference(self) -> Any:
        """What the reference answers; on a cache of its own, since attention writes to it."""
        args = dict(self.args)
        if self.op.uses_cache:
            cache = args["cache"]
            args["cache"] = PagedCache(cache.spec, cache.keys.copy(), cache.values.copy())
        return self.op.reference(**args)

    def batch(self) -> Batch:
        """One that has the arrays that the op reads."""
        if "batch" in self.args:
            return self.args["batch"]
        if "positions" in self.args:
            return Batch.of([RowPart([0], int(p), [0] * 300) for p in self.args["positions"]], LIMITS.block_tokens)
        ids = self.args.get("token_ids", np.zeros(len(self.args[self.op.inputs[0]]) if self.op.inputs else 0, np.int32))
        batch = Batch.of([RowPart(ids.tolist(), 0, list(range(8)))], LIMITS.block_tokens)
        return replace(batch, logits_at=self.args.get("logits_at", batch.logits_at))

    def run(self, variant: str, kv_dtype: str) -> tuple[np.ndarray, ...]:
        limits = replace(LIMITS, kv_dtype=kv_dtype)
        program = base.open("cpu").lower(self.graph, self.weights, limits, variant=variant)  # type: ignore[call-arg]
        for value, name in zip(self.inputs, self.op.inputs, strict=True):
            program.feed(value.id, self.args[name])
        if self.op.uses_cache:
            cache = self.args["cache"]
            flat = [np.ascontiguousarray(x.reshape(-1, x.shape[2] * x.shape[3])) for x in (cache.keys, cache.values)]
            program.native.store_kv(0, np.arange(len(flat[0]), dtype=np.int32), *flat)
        batch = self.batch()
        if self.op.name == "logits":
            output = program.launch(replace(batch, wanted=np.ones(len(batch.logits_at), np.int32))).result()
            assert np.array_equal(output.top_tokens[:, :1].ravel(), output.logits.argmax(1))
            return (output.logits,)
        program.launch(batch)
        return tuple(program.fetch(value.id, len(batch.token_ids)) for value in self.graph.nodes[0].outputs)


def assert_matches(one: OneOp, variant: str, kv_dtype: str, tolerance: float) -> None:
    actual, expected = one.run(variant, kv_dtype), one.reference()
    for mine, theirs in zip(actual, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert relative_error(mine, theirs) <= tolerance


@EACH_VARIANT
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_matches_its_reference(name, dtype, variant):
    op = find_op(name)
    for args in op.example_args(dtype):
        assert_matches(OneOp(op, args, dtype), variant, dtype, op.tolerance[dtype])


def as_q8_0(x: np.ndarray) -> np.ndarray:
    """What a KV cache of 8 bits keeps: 32 neighbours of a head share a scale."""
    return Stored.of("", x, "q8_0").dequantize()


@EACH_VARIANT
def test_a_kernel_reads_a_q8_0_cache_exactly_as_it_was_rounded(variant):
    op = find_op("attention")
    for args in op.example_args():
        cache = args["cache"]
        rounded = PagedCache(cache.spec, as_q8_0(cache.keys), as_q8_0(cache.values))
        args |= {"cache": rounded, "k": as_q8_0(args["k"]), "v": as_q8_0(args["v"])}
        assert_matches(OneOp(op, args, "f32"), variant, "q8_0", op.tolerance["f32"])


@EACH_VARIANT
@pytest.mark.parametrize("kv_dtype, tolerance", [("f32", "f32"), ("f16", "f16"), ("bf16", "bf16"), ("q8_0", "bf16")])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
def test_a_kernel_that_is_told_of_groups_matches_the_reference_that_is_not(head_dim, kv_dtype, tolerance, variant):
    op, rng = find_op("attention"), np.random.default_rng(head_dim)
    for num_heads, group, window in ((2, 3, None), (1, 5, None), (2, 2, 21)):
        spec = CacheSpec("paged" if window is None else "window", num_heads, head_dim, window)
        cache = PagedCache(spec, *rng.standard_normal((2, LIMITS.num_blocks, 16, num_heads, head_dim), np.float32))
        ends = [(n + 8, n + 16) for n in range(6)]  # two blocks of each row's own, after three in common
        parts = [RowPart([0] * new, 48 + n, (3, 1, 6, *ends[n])) for n, new in enumerate((1, 1, 7, 1, 20, 1))]
        batch = replace(Batch.of(parts, 16), groups=np.array([(0, row, 3) for row in (4, 0, 2, 5, 1)], np.int32))
        batch.check(LIMITS.num_blocks, 16)
        k, v = rng.standard_normal((2, len(batch.token_ids), num_heads * head_dim), np.float32)
        q = rng.standard_normal((len(batch.token_ids), num_heads * group * head_dim), np.float32)
        args = {"q": q, "k": k, "v": v, "cache": cache, "batch": batch, "scale": head_dim**-0.5}
        assert_matches(OneOp(op, args, "f32"), variant, kv_dtype, op.tolerance[tolerance])


def in_blocks(x: np.ndarray) -> np.ndarray:
    """Activations as a quantized product sees them: 8 bits and a scale for every 32."""
    blocks = x.reshape(-1, 32)
    extreme = np.abs(blocks).max(1, keepdims=True)
    factor = np.divide(np.float32(127), extreme, out=np.zeros_like(extreme), where=extreme > 0)
    return (np.rint(blocks * factor) * (extreme / np.float32(127))).astype(np.float32).reshape(x.shape)


def quantized_examples(op: Op, fmt: str) -> Iterator[dict[str, Any]]:
    """Examples whose matrices are what the format can hold, whose columns fill whole blocks."""
    for args in op.example_args():
        matrices = [name for name in op.weights if getattr(args[name], "ndim", 2) == 2 and args[name] is not None]
        changed = {name: _rounded(args[name], fmt) for name in matrices if not name.startswith("bias")}
        yield {**args, **changed}


def _rounded(value: Any, fmt: str) -> Any:
    if isinstance(value, tuple):
        return tuple(_rounded(item, fmt) for item in value)
    return Stored.of("", value, fmt).dequantize()


@EACH_VARIANT
@pytest.mark.parametrize("fmt", ["q8_0", "q4_0", "q4_1"])
@pytest.mark.parametrize("name", ["linear", "linear_split", "silu_gate", "logits"])
def test_a_quantized_product_is_exact_up_to_the_rounding_of_its_input(name, fmt, variant):
    op = find_op(name)
    for args in quantized_examples(op, fmt):
        one = OneOp(op, args, fmt)
        actual = one.run(variant, "f32")
        args["x"] = in_blocks(args["x"])
        expected = one.reference()
        for mine, theirs in zip(actual, expected if isinstance(expected, tuple) else (expected,), strict=True):
            assert relative_error(mine, theirs) <= op.tolerance["f32"]


@EACH_VARIANT
@pytest.mark.parametrize("fmt", ["q8_0", "q4_0", "q4_1"])
def test_rows_of_a_quantized_table_are_its_numbers_to_the_bit(fmt, variant):
    op = find_op("embed")
    for args in quantized_examples(op, fmt):
        assert_matches(OneOp(op, args, fmt), variant, "f32", 0.0)


@EACH_VARIANT
@pytest.mark.parametrize("fmt", ["q5_0", "q5_1", "q6_k", "q4_k", "q2_k", "mxfp4", "iq4_nl"])
def test_a_format_without_a_kernel_is_close_through_another(fmt, variant):
    """Random bytes are weights too; scales and minima are given, or most of them would be infinite."""
    form, rng = all_formats()[fmt], np.random.default_rng(3)
    raw = rng.integers(0, 256, (40 * 256 // form.block_weights, form.block_bytes), np.uint8)
    places = {"q6_k": (208,), "q4_k": (0, 2), "q2_k": (80, 82), "q5_1": (0, 2), "mxfp4": ()}.get(fmt, (0,))
    for at in places:
        raw[:, at : at + 2] = np.float16(0.03).reshape(1).view(np.uint8)
    if fmt == "mxfp4":
        raw[:, 0] = 120
    stored = Stored("weight", (40, 256), fmt, raw.reshape(-1))
    x = rng.standard_normal((5, 256), dtype=np.float32)
    one = OneOp(find_op("linear"), {"x": x, "weight": stored.dequantize(), "bias": None}, "f32")
    one.weights["weight"] = Weight("weight", (40, 256), fmt, stored)
    (actual,) = one.run(variant, "f32")
    assert relative_error(actual, one.reference()) < 1.5e-2
