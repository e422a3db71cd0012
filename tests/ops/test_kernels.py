"""Every native kernel, in every variant that runs here, against its op's reference on the op's examples."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire.devices import base
from quire.devices.cpu import FACTS, QUANTIZED
from quire.devices.cpu.bindings import native
from quire.devices.cpu.lower import KERNELS
from quire.devices.cpu.recurrence import RECURRENT
from quire.graph.graph import Graph, Node, Value
from quire.graph.weight import Weight
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import CrossCache, Latent, LatentCache, PagedCache, PagedKV, StateCache
from quire.ops.registry import Op, all_ops, find_op, relative_error
from quire.quant.registry import all_formats, gguf_formats
from tests.ops.encoded_tensor import EncodedTensor
from tests.quant.blocks import put_scales, random_blocks

pytestmark = pytest.mark.device

VARIANTS = native().variants() if native() else []
LIMITS = base.Limits(max_tokens=700, max_rows=65, max_logits=65, max_blocks=300, num_blocks=48, num_source_blocks=48)
# Attributes that examples may leave out.
DEFAULTS = {"rms_norm": {"group": 0}, "layer_norm": {"group": 0}}
EACH_VARIANT = pytest.mark.parametrize("variant", VARIANTS)
EACH_FORMAT = pytest.mark.parametrize("fmt", sorted(QUANTIZED))


class OneOp:
    """A graph of one node with an example's arguments, lowered and run. Weights may be arrays, which are encoded in the
    given format, or encoded already."""

    def __init__(self, op: Op, args: dict[str, Any], fmt: str = "f32") -> None:
        self.op, self.args, self.fmt = op, args, fmt
        self.states: np.ndarray | None = None  # after a run
        self.weights: dict[str, Weight] = {}
        bound = {parameter: self._bind(parameter, args[parameter]) for parameter in op.weights}
        rows = "logits" if op.name == "head" else "tokens"
        self.inputs = [Value(i, (rows, args[name].shape[1])) for i, name in enumerate(op.inputs)]
        attrs = {**DEFAULTS.get(op.name, {}), **{name: args[name] for name in op.attrs if name in args}}
        self.graph = Graph.over(self.weights)
        if op.uses_cache:
            self.graph.caches.append(args["cache"].spec)
        self.expected, self.cache_after = self.reference_with_cache()
        shapes = [x.shape for x in (self.expected if isinstance(self.expected, tuple) else (self.expected,))]
        rows = {"head": "logits", "select": "logits", "pool": "pooled"}.get(op.name, "tokens")
        outputs = tuple(Value(len(self.inputs) + i, (rows, shape[1])) for i, shape in enumerate(shapes))
        cache = 0 if op.uses_cache else None
        self.graph.nodes.append(Node(op, tuple(self.inputs), bound, attrs, outputs, cache))
        if op.name in ("head", "pool"):
            self.graph.outputs["logits" if op.name == "head" else "pooled"] = outputs[0]

    def _bind(self, parameter: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._bind(f"{parameter}{i}", item) for i, item in enumerate(value))
        if value is None:
            return None
        if not isinstance(value, EncodedTensor):
            value = EncodedTensor.of(parameter, value, self.fmt if value.ndim > 1 else "f32")
        self.weights[parameter] = Weight(parameter, value.shape, value.format, value)
        return parameter

    def reference(self) -> Any:
        """Run the reference, on a copy of the cache, since attention writes to it."""
        return self.reference_with_cache()[0]

    def reference_with_cache(self) -> tuple[Any, Any]:
        """Run the reference; return its output and the cache after it."""
        args = {name: as_numbers(value) for name, value in self.args.items()}
        if self.op.uses_cache:
            args["cache"] = deepcopy(args["cache"])
        return self.op.reference(**args), args.get("cache")

    def batch(self) -> Batch:
        """Return a batch with the arrays that the op reads."""
        if "batch" in self.args:
            return self.args["batch"]
        if "features" in self.args:
            rows = self.args["features"]
            return replace(Batch.of([RowPart([0] * len(rows), 0, [0] * 300)], LIMITS.block_tokens), features=rows)
        if "positions" in self.args:
            parts = [RowPart([0], int(p), [0] * 300) for p in self.args["positions"]]
            batch = Batch.of(parts, LIMITS.block_tokens)
            return replace(batch, pools=self.args.get("pools", batch.pools))
        if "token_types" in self.args:
            types = self.args["token_types"]
            return replace(Batch.of([RowPart([0] * len(types), 0, [0])], LIMITS.block_tokens), token_types=types)
        ids = self.args.get("token_ids", np.zeros(len(self.args[self.op.inputs[0]]) if self.op.inputs else 0, np.int32))
        num_logits = len(ids) if self.op.name == "head" else 1
        blocks = list(range(-(-len(ids) // LIMITS.block_tokens)))
        batch = Batch.of([RowPart(ids.tolist(), 0, blocks, num_logits)], LIMITS.block_tokens)
        return replace(batch, logits_at=self.args.get("logits_at", batch.logits_at))

    def run(self, variant: str, kv_dtype: str) -> tuple[np.ndarray, ...]:
        limits = replace(LIMITS, kv_dtype=kv_dtype)
        program = base.open("cpu").lower(self.graph, self.weights, limits, base.LoweringOptions(variant=variant))
        for value, name in zip(self.inputs, self.op.inputs, strict=True):
            program.feed(value.id, self.args[name])
        if self.op.uses_cache:
            fill_cache(program.native, self.args["cache"])
        batch = self.batch()
        if self.op.name == "head":
            output = program.launch(replace(batch, num_top=np.ones(len(batch.logits_at), np.int32))).result()
            assert np.array_equal(output.top_tokens[:, :1].ravel(), output.logits.argmax(1))
            return (output.logits,)
        output = program.launch(batch).result()
        if self.op.name == "pool":
            return (output.pooled,)
        if isinstance(self.args.get("cache"), StateCache):
            self.states = np.empty_like(self.args["cache"].slots)
            for slot, state in enumerate(self.states):
                program.native.load_state(0, slot, state.reshape(-1))
        num_rows = len(batch.logits_at if self.op.name == "select" else batch.token_ids)
        return tuple(program.fetch(value.id, num_rows) for value in self.graph.nodes[0].outputs)


def fill_cache(program: Any, cache: PagedCache | LatentCache | StateCache) -> None:
    """Store the numbers of a reference's cache in a native program."""
    if isinstance(cache, StateCache):
        for slot, state in enumerate(cache.slots):
            program.store_state(0, slot, np.ascontiguousarray(state).reshape(-1))
    else:
        flat = stored_numbers(cache.pages if isinstance(cache, CrossCache) else cache)
        program.store_kv(0, np.arange(len(flat[0]), dtype=np.int32), *flat)


def stored_numbers(cache: PagedCache | LatentCache) -> list[np.ndarray]:
    """K and V of all slots, or latents and rotated keys: [slots, width] each."""
    if isinstance(cache, LatentCache):
        rows = cache.rows.reshape(-1, cache.spec.values_per_token)
        parts = [rows[:, : cache.spec.dim], rows[:, cache.spec.dim :]]
    else:
        parts = [x.reshape(-1, x.shape[2] * x.shape[3]) for x in (cache.keys, cache.values)]
    return list(map(np.ascontiguousarray, parts))


def as_numbers(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(as_numbers(item) for item in value)
    return value.dequantize() if isinstance(value, EncodedTensor) else value


def assert_matches(one: OneOp, variant: str, kv_dtype: str, tolerance: float) -> None:
    actual, expected = one.run(variant, kv_dtype), one.expected
    for ours, theirs in zip(actual, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert relative_error(ours, theirs) <= tolerance
    if one.states is not None:  # also those that no row writes
        assert relative_error(one.states, one.cache_after.slots) <= tolerance


@EACH_VARIANT
@pytest.mark.parametrize(
    "name, dtype",
    # Recurrent ops have float32 states and no matrices: their kernels do not depend on a format.
    [(name, dtype) for name in KERNELS for dtype in (("f32",) if name in RECURRENT else ("f32", "f16", "bf16"))],
)
def test_a_kernel_matches_its_reference(name, dtype, variant):
    op = find_op(name)
    for args in op.example_args(dtype):
        assert_matches(OneOp(op, args, dtype), variant, dtype, op.tolerance[dtype])


def test_every_plain_op_and_every_fused_op_of_the_device_has_a_kernel():
    plain = {op.name for op in all_ops() if not op.reference.__module__.startswith("quire.ops.fused")}
    assert set(KERNELS) == plain | FACTS.fused_ops


def as_q8_0(x: np.ndarray) -> np.ndarray:
    """Round as an 8-bit KV cache does: 32 neighbours of a head share a scale."""
    return EncodedTensor.of("", x, "q8_0").dequantize()


@EACH_VARIANT
def test_a_kernel_reads_a_q8_0_cache_exactly_as_it_was_rounded(variant):
    op = find_op("attention")
    for args in op.example_args():
        cache = args["cache"]
        if cache.spec.key_dim % 32 or cache.spec.value_dim % 32:
            continue
        rounded = PagedCache(cache.spec, as_q8_0(cache.keys), as_q8_0(cache.values))
        args |= {"cache": rounded, "k": as_q8_0(args["k"]), "v": as_q8_0(args["v"])}
        assert_matches(OneOp(op, args, "f32"), variant, "q8_0", op.tolerance["f32"])


@EACH_VARIANT
def test_a_kernel_reads_q8_0_latents_exactly_as_they_were_rounded(variant):
    op = find_op("attention_latent")
    for args in op.example_args():
        rounded = {name: as_q8_0(args[name]) for name in ("latent", "k_rope")}
        args |= {"cache": replace(args["cache"], rows=as_q8_0(args["cache"].rows)), **rounded}
        assert_matches(OneOp(op, args, "f32"), variant, "q8_0", op.tolerance["f32"])


@EACH_VARIANT
@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "bf16", "q8_0"])
def test_a_token_of_latent_attention_is_the_same_in_any_chunk_and_group(kv_dtype, variant):
    """Law 8: all rows together, in a group or not; then one token at a time."""
    op, rng, spec, heads = find_op("attention_latent"), np.random.default_rng(3), Latent(64, 32), 5
    parts = [RowPart([0] * new, 128 + n, (*range(8), 9 + n)) for n, new in enumerate((1, 5, 3))]
    batch = Batch.of(parts, 16)
    widths = {"q": heads * 24, "q_rope": heads * 32, "latent": 64, "k_rope": 32}
    args = {name: rng.standard_normal((len(batch.positions), width), np.float32) for name, width in widths.items()}
    args |= {name: rng.standard_normal((heads, 24, 64), np.float32) for name in ("keys", "values")}
    cache = LatentCache(spec, rng.standard_normal((LIMITS.num_blocks, 16, 96), np.float32))
    args |= {"cache": cache, "batch": batch, "scale": 0.2}
    (whole,) = OneOp(op, args).run(variant, kv_dtype)
    groups = np.array([(0, row, 8) for row in range(3)], np.int32)
    (grouped,) = OneOp(op, {**args, "batch": replace(batch, groups=groups)}).run(variant, kv_dtype)
    assert np.array_equal(grouped, whole)
    written = deepcopy(cache)
    written.write(batch.slots, args["latent"], args["k_rope"])
    for token, row in enumerate(batch.row_of_token):
        alone = Batch.of([RowPart([0], int(batch.positions[token]), parts[row].blocks)], 16)
        one = {**args, **{name: args[name][token : token + 1] for name in widths}, "batch": alone, "cache": written}
        assert np.array_equal(OneOp(op, one).run(variant, kv_dtype)[0][0], whole[token])


@EACH_VARIANT
@pytest.mark.parametrize("kv_dtype", ["f16", "bf16", "q8_0"])
@pytest.mark.parametrize("window", [None, 21])
def test_a_token_of_attention_is_the_same_in_any_chunk_even_before_an_infinite_value(window, kv_dtype, variant):
    """Law 8: a value that a token does not see changes nothing, whatever it is."""
    op, rng, spec = find_op("attention"), np.random.default_rng(4), PagedKV(1, 32, 32, window)
    table = (5, 1, 6, 3, 0, 2)
    batch = Batch.of([RowPart([0] * 23, 61, table)], 16)
    args = {name: rng.standard_normal((23, width), np.float32) for name, width in (("q", 96), ("k", 32), ("v", 32))}
    if kv_dtype != "q8_0":  # whose scales are finite
        args["v"][9, 5] = np.inf
    cache = PagedCache(spec, *rng.standard_normal((2, LIMITS.num_blocks, 16, 1, 32), np.float32))
    args |= {"cache": cache, "batch": batch, "scale": 0.2, "softcap": 0.0, **dict.fromkeys(op.weights)}
    (whole,) = OneOp(op, args).run(variant, kv_dtype)
    assert np.isfinite(whole[:9]).all()
    written = deepcopy(cache)
    written.write(batch.slots, args["k"], args["v"])
    for token in range(23):
        alone = Batch.of([RowPart([0], 61 + token, table)], 16)
        one = {**args, **{name: args[name][token : token + 1] for name in "qkv"}, "batch": alone, "cache": written}
        assert np.array_equal(OneOp(op, one).run(variant, kv_dtype)[0][0], whole[token], equal_nan=True)


@EACH_VARIANT
@pytest.mark.parametrize("kv_dtype, tolerance", [("f32", "f32"), ("f16", "f16"), ("bf16", "bf16"), ("q8_0", "bf16")])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
def test_a_kernel_that_reads_groups_matches_the_reference_that_ignores_them(head_dim, kv_dtype, tolerance, variant):
    op, rng = find_op("attention"), np.random.default_rng(head_dim)
    for num_heads, group, window in ((2, 3, None), (1, 5, None), (2, 2, 21)):
        spec = PagedKV(num_heads, head_dim, head_dim, window)
        cache = PagedCache(spec, *rng.standard_normal((2, LIMITS.num_blocks, 16, num_heads, head_dim), np.float32))
        ends = [(n + 8, n + 16) for n in range(6)]  # two private blocks per row, after three shared ones
        parts = [RowPart([0] * new, 48 + n, (3, 1, 6, *ends[n])) for n, new in enumerate((1, 1, 7, 1, 20, 1))]
        batch = replace(Batch.of(parts, 16), groups=np.array([(0, row, 3) for row in (4, 0, 2, 5, 1)], np.int32))
        batch.check(LIMITS.num_blocks, 16)
        k, v = rng.standard_normal((2, len(batch.token_ids), num_heads * head_dim), np.float32)
        q = rng.standard_normal((len(batch.token_ids), num_heads * group * head_dim), np.float32)
        args = {"q": q, "k": k, "v": v, "cache": cache, "batch": batch, "scale": head_dim**-0.5, "softcap": 0.0}
        args |= dict.fromkeys(op.weights)
        assert_matches(OneOp(op, args, "f32"), variant, kv_dtype, op.tolerance[tolerance])


def round_activations(x: np.ndarray) -> np.ndarray:
    """Round activations as a quantized product does: 8 bits and a scale for every 32."""
    blocks = x.reshape(-1, 32)
    extreme = np.abs(blocks).max(1, keepdims=True)
    factor = np.divide(np.float32(127), extreme, out=np.zeros_like(extreme), where=extreme > 0)
    return (np.rint(blocks * factor) * (extreme / np.float32(127))).astype(np.float32).reshape(x.shape)


def quantized_examples(op: Op, fmt: str) -> Iterator[dict[str, Any]]:
    """Examples widened to whole blocks of the format, with matrices of random bytes."""
    step, rng = all_formats()[fmt].block_weights, np.random.default_rng(4)

    def widened(name: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(widened(name, item) for item in value)
        if getattr(value, "ndim", 0) != 2 or name == "residual":
            return value
        rows, width = value.shape[0], -(-value.shape[1] // step) * step
        if name in op.weights:
            return EncodedTensor.random(name, (rows, width), fmt, seed=int(rng.integers(1 << 30)))
        return rng.standard_normal((rows, width), dtype=np.float32)

    for args in op.example_args():
        yield {name: widened(name, value) for name, value in args.items()}


def assert_exact_up_to_the_input(one: OneOp, variant: str) -> None:
    actual = one.run(variant, "f32")
    one.args["x"] = round_activations(one.args["x"])
    expected = one.reference()
    for ours, theirs in zip(actual, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert relative_error(ours, theirs) <= one.op.tolerance["f32"]


@EACH_VARIANT
@EACH_FORMAT
@pytest.mark.parametrize("name", ["linear", "linear_split", "linear_add", "gated_linear", "activated_linear", "head"])
def test_a_quantized_product_is_exact_up_to_the_rounding_of_its_input(name, fmt, variant):
    for args in quantized_examples(find_op(name), fmt):
        assert_exact_up_to_the_input(OneOp(find_op(name), args), variant)


@EACH_VARIANT
@EACH_FORMAT
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
def test_a_quantized_product_of_extremes_does_not_overflow(byte, fmt, variant):
    """The largest quants and scales times the largest activations: kernels sum in 16 bits."""
    form = all_formats()[fmt]
    raw = np.full((9 * 512 // form.block_weights, form.block_bytes), byte, np.uint8)
    if fmt == "mxfp4":
        raw[:, 0] = 122
    else:
        put_scales(form, raw, np.full(len(raw), 0.01))
    weight = EncodedTensor("weight", (9, 512), fmt, raw.reshape(-1))
    x = np.repeat(np.array([[1], [-1], [3], [-3], [1]], np.float32), 512, axis=1)
    assert_exact_up_to_the_input(OneOp(find_op("linear"), {"x": x, "weight": weight, "bias": None}), variant)


@EACH_VARIANT
@EACH_FORMAT
def test_a_quantized_product_of_up_to_9_tokens_and_odd_rows_is_the_same_in_any_batch(fmt, variant):
    rng = np.random.default_rng(5)
    x, weight = rng.standard_normal((9, 512), dtype=np.float32), EncodedTensor.random("weight", (13, 512), fmt, seed=6)
    together = OneOp(find_op("linear"), {"x": x, "weight": weight, "bias": None})
    (expected,) = together.run(variant, "f32")
    for size in range(1, 9):
        for first in (0, 9 - size):
            args = {"x": x[first : first + size], "weight": weight, "bias": None}
            (actual,) = OneOp(find_op("linear"), args).run(variant, "f32")
            assert np.array_equal(actual, expected[first : first + size]), (first, size)


@EACH_VARIANT
@EACH_FORMAT
def test_rows_of_a_quantized_table_are_dequantized_exactly(fmt, variant):
    """Scales of every magnitude; those of mxfp4 are powers of two, below 2 ** 128, which float32 cannot hold."""
    form, ids = all_formats()[fmt], np.array([0, 12, 5, 7, 8], np.int32)
    raw = random_blocks(form, 13 * 512 // form.block_weights, seed=7)
    if fmt == "mxfp4":
        raw[:, 0] = np.arange(len(raw)) % 252
    table = EncodedTensor("table", (13, 512), fmt, raw.reshape(-1))
    assert_matches(OneOp(find_op("embed"), {"token_ids": ids, "table": table}), variant, "f32", 0.0)


@EACH_VARIANT
@EACH_FORMAT
def test_a_matrix_whose_rows_are_not_whole_blocks_is_multiplied_in_floats(fmt, variant):
    step = all_formats()[fmt].block_weights
    weight = EncodedTensor.random("weight", (8, step * 3 // 4), fmt, seed=8)
    x = np.random.default_rng(9).standard_normal((3, step * 3 // 4), dtype=np.float32)
    one = OneOp(find_op("linear"), {"x": x, "weight": weight, "bias": None})
    assert_matches(one, variant, "f32", one.op.tolerance["f32"])


def test_every_gguf_block_format_has_kernels():
    assert {fmt.name for fmt in gguf_formats().values() if fmt.block_weights > 1} == set(QUANTIZED)
