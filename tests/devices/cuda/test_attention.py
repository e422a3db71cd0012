"""Plain attention ops in a program: layers with caches of different shapes, against the ops' references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from quire.devices._triton.attention_work import AttentionKind
from quire.devices.base import Limits
from quire.devices.cuda.attention import AttendCache, AttendRows, lower_attention, lower_bidirectional
from quire.devices.cuda.caches import Caches
from quire.devices.cuda.device import _work
from quire.devices.cuda.instructions import Run, Select
from quire.devices.cuda.program import CudaProgram
from quire.devices.cuda.sampler import DeviceSampler
from quire.devices.cuda.variants import InstructionList, OutputValues
from quire.graph.graph import Graph, Node, Value
from quire.ops import attention as ops
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import PagedCache, PagedKV
from quire.ops.registry import relative_error
from tests.devices.cuda.models import kv_tensor

pytestmark = pytest.mark.device

BLOCK, NUM_BLOCKS, SCALE = 16, 40, 0.2
LIMITS = Limits(
    max_tokens=160, max_rows=6, max_logits=160, max_blocks=20, num_blocks=NUM_BLOCKS, block_tokens=BLOCK, kv_dtype="f32"
)
CACHES = (PagedKV(2, 32, 32, 50), PagedKV(1, 48, 16, None, 70), PagedKV(2, 32, 32))
# op, cache, query heads, softcap, names of the other extras
LAYERS: tuple[tuple[Any, int, int, float, tuple[str, ...]], ...] = (
    (ops.attention, 0, 4, 2.0, ()),
    (ops.attention, 1, 3, 0.0, ("sinks", "slopes")),
    (ops.attention, 2, 40, 0.0, ()),
    (ops.attention_shared, 0, 8, 0.0, ("distances",)),
)


@dataclass
class Feed:
    """An instruction that provides the values which other ops would compute."""

    values: dict[int, torch.Tensor] = field(default_factory=dict)

    def __call__(self, run: Run) -> None:
        run.values.update(self.values)


@dataclass
class Concatenate:
    """An instruction that makes all outputs one value."""

    inputs: Sequence[int]
    out: int

    def __call__(self, run: Run) -> None:
        run.values[self.out] = torch.cat([run.values[value] for value in self.inputs], 1).float()


@dataclass
class Layers:
    """A program of attention ops alone, and the same ops over reference caches."""

    place: str
    layers: tuple[tuple[Any, int, int, float, tuple[str, ...]], ...] = LAYERS
    fixed_chunk: int | None = None

    def __post_init__(self) -> None:
        self.rng, device = np.random.default_rng(0), torch.device(self.place)
        self.weights: dict[str, np.ndarray] = {}
        self.caches = [PagedCache.empty(spec, NUM_BLOCKS, BLOCK) for spec in CACHES]
        placed = Caches(CACHES, BLOCK, torch.float32, device, NUM_BLOCKS)
        placer: Any = SimpleNamespace(vector=lambda name: torch.from_numpy(self.weights[name]).to(device))
        self.nodes = [self._node(*layer) for layer in self.layers]
        self.feed = Feed()
        attends: list[Any] = [
            lower_bidirectional(node, placer)
            if node.cache is None
            else lower_attention(node, CACHES[node.cache], placer, placed, self.fixed_chunk)
            for node in self.nodes
        ]
        outputs = [node.output for node in self.nodes]
        whole = [Concatenate([value.id for value in outputs], 1000), Select(1000, 1001)]
        sampler = DeviceSampler(LIMITS.max_rows, LIMITS.max_logits, sum(value.dim for value in outputs), device)
        work = _work(attends, placed, LIMITS, self.fixed_chunk is not None)
        attention = {kind: replace(each, fixed_chunk=self.fixed_chunk) for kind, each in work.attention.items()}
        work = work._replace(attention=attention)
        instructions = [self.feed, *attends, *whole]
        self.program = CudaProgram(
            instructions, OutputValues(1001), placed, LIMITS, work, sampler, device, captures=False
        )

    def _node(self, op: Any, cache: int, heads: int, softcap: float, extras: tuple[str, ...]) -> Node:
        spec, first = CACHES[cache], 10 * len(self.weights) + 100 * cache + heads
        shapes = {"q": heads * spec.key_dim, "k": spec.num_heads * spec.key_dim, "v": spec.num_heads * spec.value_dim}
        inputs = {name: Value(first + i, ("tokens", shapes[name])) for i, name in enumerate(op.inputs)}
        names = {name: f"{first}.{name}" if name in extras else None for name in ("sinks", "slopes", "distances")}
        for name in extras:
            shape = (heads, 31) if name == "distances" else (heads,)
            self.weights[f"{first}.{name}"] = np.abs(self.rng.standard_normal(shape, np.float32)) / 2
        graph = Graph({name: array.shape for name, array in self.weights.items()}, caches=list(CACHES))
        attrs: dict[str, Any] = {"scale": SCALE, "softcap": softcap}
        if op is ops.attention_bidirectional:
            attrs |= {"num_heads": spec.num_heads, "window": spec.window}
        output = [Value(first + 9, ("tokens", heads * spec.value_dim))]
        return graph.node(op, inputs, names, attrs, cache=cache if op.uses_cache else None, outputs=output)

    def step(self, *rows: tuple[int, int, list[int]], **more: Any) -> tuple[np.ndarray, np.ndarray]:
        """Run rows of (tokens computed, new tokens, blocks). Return what the device and the references compute."""
        parts = [RowPart([0] * new, computed, blocks, new) for computed, new, blocks in rows]
        batch = replace(Batch.of(parts, BLOCK), **more)
        arrays = {
            value.id: self.rng.standard_normal((len(batch.token_ids), value.dim), np.float32)
            for node in self.nodes
            for value in node.inputs
        }
        return self.given(arrays, batch), self.expected(arrays, batch)

    def given(self, arrays: dict[int, np.ndarray], batch: Batch) -> np.ndarray:
        self.feed.values = {value: torch.from_numpy(array).to(self.place) for value, array in arrays.items()}
        logits = self.program.launch(batch).result().logits
        assert logits is not None
        return logits

    def expected(self, arrays: dict[int, np.ndarray], batch: Batch) -> np.ndarray:
        for cache in self.caches:
            cache.copy(batch.copies)
        outputs = []
        for node in self.nodes:
            given: dict[str, Any] = {
                name: arrays[value.id] for name, value in zip(node.op.inputs, node.inputs, strict=True)
            }
            given |= {name: None if bound is None else self.weights[str(bound)] for name, bound in node.weights.items()}
            if node.cache is not None:
                given["cache"] = self.caches[node.cache]
            outputs.append(node.op.reference(**given, batch=batch, **node.attrs))
        return np.concatenate(outputs, 1)


def test_layers_with_different_caches_match_the_references_in_every_step(place):
    """A prompt; a prompt beside one token of a row of several parts; a copy of a block; single tokens."""
    layers = Layers(place)
    long, short = [*range(20)], [30, 25, 31]
    steps = [
        [(0, 150, long)],
        [(150, 1, long), (0, 37, short)],
        [(151, 2, long), (37, 1, short)],
        [(153, 1, long), (38, 1, short)],
    ]
    for rows in steps:
        assert relative_error(*layers.step(*rows)) <= ops.TOLERANCE["f32"]
    copies = np.array([(25, 35, 5)], np.int32)
    assert relative_error(*layers.step((21, 1, [30, 35]), copies=copies)) <= ops.TOLERANCE["f32"]


def test_layers_of_one_kind_share_a_plan_and_all_kinds_share_partial_results(place):
    program = Layers(place).program
    assert list(program.work.attention) == [
        AttentionKind(2, 2, 32, 32, 50),
        AttentionKind(1, 3, 48, 16, None, 70),
        AttentionKind(2, 20, 32, 32),
        AttentionKind(2, 4, 32, 32, 50),
    ]
    assert len({out.data_ptr() for out, _ in program._partials.values()}) == 1


def test_a_step_without_logits_ends_with_the_last_write(place):
    """The layer that only reads comes after it."""
    layers = Layers(place)
    tail = InstructionList(layers.program.instructions, layers.program.outputs)._tail
    assert tail == 4 and isinstance(layers.program.instructions[tail - 1], AttendCache)
    parts = [RowPart([0] * 5, 0, [3], 0)]
    arrays = {value.id: np.zeros((5, value.dim), np.float32) for node in layers.nodes for value in node.inputs}
    layers.feed.values = {value: torch.from_numpy(array).to(place) for value, array in arrays.items()}
    logits = layers.program.launch(Batch.of(parts, BLOCK)).result().logits
    assert logits is not None and len(logits) == 0


@pytest.mark.slow
def test_with_fixed_chunks_a_token_does_not_depend_on_other_rows(place):
    together, alone = (Layers(place, fixed_chunk=128) for _ in range(2))
    first, second = [*range(20)], [30, 25, 31]
    arrays = {
        value.id: together.rng.standard_normal((152, value.dim), np.float32)
        for node in together.nodes
        for value in node.inputs
    }
    batch = Batch.of([RowPart([0] * 12, 0, second, 12), RowPart([0] * 140, 0, first, 140)], BLOCK)
    rows = together.given(arrays, batch)
    for begin, end in ((12, 120), (120, 152)):  # the second row in two chunks, without the first
        some = {value: array[begin:end] for value, array in arrays.items()}
        part = RowPart([0] * (end - begin), begin - 12, first, end - begin)
        assert np.array_equal(alone.given(some, Batch.of([part], BLOCK)), rows[begin:end])


@dataclass
class RecordedLayers:
    """A kernel for wide items that computes nothing."""

    kind: AttentionKind
    layers: list[tuple[int, float]] = field(default_factory=list)

    def __call__(self, run: Run, layer: int, q: torch.Tensor, out: torch.Tensor, scale: float) -> None:
        self.layers.append((layer, scale))


@pytest.mark.parametrize("fixed_chunk, expected", [(None, [(2, SCALE)]), (128, [])])
def test_another_kernel_computes_wide_items_of_its_kind_with_scaled_scores_alone(fixed_chunk, expected, place):
    """Not those of a layer with a softcap, of other heads or of another window, and none with fixed chunks."""
    of_one_kind = [(ops.attention, 2, 4, 0.0, ()), (ops.attention_shared, 2, 4, 1.0, ())]
    others = [(ops.attention_shared, 2, 8, 0.0, ()), (ops.attention, 0, 4, 0.0, ())]
    layers = Layers(place, (*of_one_kind, *others), fixed_chunk)
    layers.program.wide = recorded = RecordedLayers(AttentionKind(2, 2, 32, 32))
    layers.step((0, 40, [1, 2, 3]))
    assert recorded.layers == expected


def test_attention_without_a_cache_matches_the_reference(place):
    layers = Layers(place, ((ops.attention_bidirectional, 1, 3, 2.0, ("sinks", "distances")),))
    assert isinstance(layers.program.instructions[1], AttendRows)
    assert InstructionList(layers.program.instructions, layers.program.outputs)._tail == 0
    assert relative_error(*layers.step((0, 90, [*range(6)]), (0, 1, [7]), (0, 30, [8, 9]))) <= ops.TOLERANCE["f32"]


@pytest.mark.parametrize("specs, is_uniform", [(CACHES[:1] * 3, True), (CACHES, False), (CACHES[1:2], False)])
def test_caches_of_one_shape_are_one_tensor(specs, is_uniform, place):
    caches = Caches(specs, BLOCK, torch.bfloat16, torch.device(place), 4)
    per_token = sum(spec.values_per_token for spec in specs)
    assert caches.num_bytes == 5 * BLOCK * per_token * 2
    caches.resize(9)
    assert caches.num_blocks == 9 and caches.num_bytes == 10 * BLOCK * per_token * 2
    for layer, spec in enumerate(specs):
        k, v = caches.of(layer)
        assert tuple(k.shape) == (10, spec.num_heads, BLOCK, spec.key_dim)
        assert tuple(v.shape) == (10, spec.num_heads, BLOCK, spec.value_dim)
        k.fill_(layer + 1), v.fill_(-layer - 1)
    for layer in range(len(specs)):  # no layer is written by another
        k, v = caches.of(layer)
        assert (k == layer + 1).all() and (v == -layer - 1).all()
    if is_uniform:
        assert tuple(kv_tensor(caches).shape) == (3, 2, 10, 2, BLOCK, 32)
