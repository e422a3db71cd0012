"""A step of one recurrent op on the device and by its reference: outputs, and all states after it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from quire.devices._triton.rope import TokenPlacement
from quire.devices._triton.state_work import StateRows, StateSizes, cut_rows
from quire.devices.cuda.caches import Caches
from quire.devices.cuda.instructions import Run
from quire.devices.cuda.lower import Lowering
from quire.devices.cuda.tiles import Tiles
from quire.devices.cuda.weights import Placer
from quire.graph.graph import Graph, Node, Value
from quire.graph.weight import Weight
from quire.ops.batch import Batch, RowPart, StateSlots
from quire.ops.cache import State, StateCache
from quire.ops.registry import Op, find_op, round_to
from tests.ops.encoded_tensor import EncodedTensor

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
DELTA = State((2, 24, 40))  # heads, key_dim, value_dim; one key head
SCAN = State((2, 24, 20))  # heads, dim, size; two groups
MAMBA = State((70, 1, 16))  # every channel is a head
CONV = State((150, 3))


def step_of(rows: Sequence[tuple[int, int]], saved: Sequence[int] = ()) -> Batch:
    """A step of rows with (computed, new) tokens. Every second row writes to another slot than it reads from."""
    parts = [RowPart([0] * new, computed, [0] * ((computed + new) // 16 + 1)) for computed, new in rows]
    batch = Batch.of(parts, 16)
    own = np.arange(len(rows), dtype=np.int32)
    source = np.where([computed > 0 for computed, _ in rows], own, -1).astype(np.int32)
    target = np.where(own % 2, own + len(rows), own).astype(np.int32)
    saves = [(token, 2 * len(rows) + i) for i, token in enumerate(sorted(saved))]
    return replace(batch, states=StateSlots(source, target, np.array(saves, np.int32).reshape(-1, 2)))


def arguments(name: str, batch: Batch, dtype: str = "f32", seed: int = 0, spec: State | None = None) -> dict[str, Any]:
    """Random arguments of an op for a step. `name`: of the op, or one of OPS."""
    rng, num_tokens = np.random.default_rng(seed), len(batch.token_ids)
    assert batch.states is not None
    num_slots = 2 * len(batch.lengths) + len(batch.states.saves)

    def noise(*shape: int) -> np.ndarray:
        return round_to(rng.standard_normal(shape, np.float32), dtype)

    def cache(default: State) -> StateCache:
        shape = (spec or default).shape
        return StateCache(State(shape), rng.standard_normal((num_slots, *shape), np.float32))

    if name.endswith("short_conv"):
        dim, before = CONV.shape
        kind = {} if name == "short_conv" else {"kind": "silu"}
        return kind | {
            "x": noise(num_tokens, dim), "weight": noise(dim, before + 1), "bias": noise(dim), "cache": cache(CONV),
            "batch": batch,
        }  # fmt: skip
    if "delta" in name:
        heads, key_dim, value_dim = (spec or DELTA).shape
        num_heads = heads // 2
        width = heads * (key_dim if "channel" in name else 1)
        q, k = noise(num_tokens, num_heads * key_dim), noise(num_tokens, num_heads * key_dim)
        k[1:] = k[:-1] * 0.5 + k[1:]  # neighbours are alike: much of a change depends on the one before
        decay = -np.abs(noise(num_tokens, width)) * np.exp(3 * rng.standard_normal(width)).astype(np.float32)
        beta = rng.random((num_tokens, heads), np.float32)
        gates = {"rate": -np.exp(noise(heads)), "bias": noise(width)} if "gated" in name else {}
        return gates | {
            "q": q, "k": round_to(k, dtype), "v": noise(num_tokens, heads * value_dim),
            "decay": round_to(decay, dtype), "beta": round_to(beta, dtype),
            "cache": cache(DELTA), "batch": batch, "num_heads": num_heads, "scale": key_dim**-0.5, "eps": 1e-6,
        }  # fmt: skip
    heads, dim, size = (spec or (MAMBA if name == "mamba" else SCAN)).shape
    groups = 1 if name == "mamba" else 2
    return {
        "x": noise(num_tokens, heads * dim), "dt": noise(num_tokens, heads), "b": noise(num_tokens, groups * size),
        "c": noise(num_tokens, groups * size), "cache": cache(MAMBA if name == "mamba" else SCAN), "batch": batch,
        "rate": -np.exp(noise(heads, size) if name == "mamba" else noise(heads)), "bias": noise(heads),
        "skip": noise(heads), "low": 0.01, "high": 2.0,
    }  # fmt: skip


OPS = {"delta_channel": "delta_rule", "mamba": "state_scan", "gated_delta_channel": "gated_delta_rule"}


def op_of(name: str) -> Op:
    return find_op(OPS.get(name, name))


def expected(op: Op, args: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The output by the reference, and all states after it."""
    args = deepcopy(args)
    return op(**args), args["cache"].slots


def computed(
    op: Op, args: dict[str, Any], place: str, dtype: str = "f32", has_chunks: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """The output by the device's instruction, and all states after it."""
    weights: dict[str, Weight] = {}
    for name in op.weights:
        if args[name] is not None:
            tensor = EncodedTensor.of(name, args[name], "f32")
            weights[name] = Weight(name, tensor.shape, tensor.format, tensor)
    inputs = [Value(i, ("tokens", args[name].shape[1])) for i, name in enumerate(op.inputs)]
    spec, batch = args["cache"].spec, args["batch"]
    graph = Graph.over(weights)
    graph.caches.append(spec)
    width = args["x" if "x" in args else "v"].shape[1]
    attrs = {name: args[name] for name in op.attrs if name in args}
    bound = {name: name if name in weights else None for name in op.weights}
    output = Value(len(inputs), ("tokens", width))
    graph.nodes.append(Node(op, tuple(inputs), bound, attrs, (output,), 0))
    placer = Placer(weights, torch.device(place), DTYPES[dtype], Tiles(4, False))
    slots = torch.from_numpy(args["cache"].slots)
    caches = Caches(graph.caches, 16, DTYPES[dtype], placer.device, 0, num_states=len(slots))
    caches.states_of(0)[: len(slots)] = slots.to(place)
    run = _run(batch, place, has_chunks, len(slots))
    for value, name in zip(inputs, op.inputs, strict=True):
        run.values[value.id] = torch.from_numpy(args[name].copy()).to(place, DTYPES[dtype])
    (instruction, *_) = Lowering(graph, placer, caches, 1, None).walk()
    with np.errstate(over="ignore"):
        instruction(run)
    return run.values[output.id].float().cpu().numpy(), caches.states_of(0)[: len(slots)].cpu().numpy()


def _run(batch: Batch, place: str, has_chunks: bool, spare: int) -> Run:
    chunks = cut_rows(batch, has_chunks)
    sizes = StateSizes(len(batch.token_ids), len(batch.lengths), len(chunks.chunks), len(chunks.scans))
    numbers = np.zeros(4096, np.int32)
    host, used = StateRows.of(numbers, sizes)
    host.fill(batch, chunks, spare)
    states, _ = StateRows.of(torch.from_numpy(numbers[:used]).to(place), sizes)
    none = torch.zeros(0, dtype=torch.int32, device=place)
    run = Run(torch.from_numpy(batch.token_ids).to(place), TokenPlacement(none, none), none, {}, none, None)
    run.states, run.is_decode = states, sizes.tokens == sizes.rows
    return run
