"""Attention within the rows of a step, against the op's reference, and the KV write of plain attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quire.devices._triton.attention import ScoreTerms
from quire.devices._triton.bidirectional import RowBounds, attend_rows
from quire.devices._triton.kv_write import write_kv
from quire.ops.attention import attention, attention_bidirectional
from quire.ops.batch import Batch, RowPart
from quire.ops.registry import relative_error
from tests.devices._triton.paged import random_extras
from tests.devices.interpreted import in_interpreter

pytestmark = pytest.mark.device
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
EXTRAS = ("softcap", "sinks", "slopes", "distances")


def run(args: dict[str, Any], place: str, dtype: torch.dtype) -> np.ndarray:
    """Attend with an example's arguments: float32 [T, heads * value_dim]."""
    kv_heads = args["num_heads"]
    k, v = (torch.from_numpy(args[name]).to(place, dtype).view(len(args["k"]), kv_heads, -1) for name in "kv")
    q = torch.from_numpy(args["q"]).to(place, dtype).view(len(k), -1, k.shape[2])
    positions = torch.from_numpy(args["batch"].positions).to(place)
    tensors = {name: torch.from_numpy(args[name]).to(place) for name in EXTRAS[1:] if args[name] is not None}
    out = torch.full((*q.shape[:2], v.shape[2]), torch.nan, device=place, dtype=dtype)
    terms = ScoreTerms(args["softcap"], **tensors)
    attend_rows(q, k, v, RowBounds.of(positions), out, scale=args["scale"], terms=terms, window=args["window"])
    return out.float().cpu().numpy().reshape(len(q), -1)


@pytest.mark.parametrize("dtype", ["f32", *in_interpreter("bf16")])
def test_it_matches_the_reference_on_the_ops_examples(dtype, place):
    for args in attention_bidirectional.example_args(dtype):
        expected = attention_bidirectional.reference(**args)
        assert relative_error(run(args, place, DTYPES[dtype]), expected) <= attention.tolerance[dtype]


def rows_of(counts: list[int], seed: int = 0) -> dict[str, Any]:
    """Make arguments for rows of these numbers of tokens: 2 key heads of 20, values of 10, 2 queries for each."""
    rng, total = np.random.default_rng(seed), sum(counts)
    sizes = {"q": 4 * 20, "k": 2 * 20, "v": 2 * 10}
    arrays = {name: rng.standard_normal((total, size), np.float32) for name, size in sizes.items()}
    extras = random_extras(rng, 4, EXTRAS)
    batch = Batch.of([RowPart([0] * n, 0, [*range(-(-n // 16))]) for n in counts], 16)
    return {**arrays, **extras, "batch": batch, "num_heads": 2, "scale": 0.3, "window": None}


@pytest.mark.parametrize("window", [None, *in_interpreter(0, 37)])
def test_rows_longer_than_a_tile_match_and_do_not_depend_on_other_rows(window, place):
    counts = [3, 150, 1, 70, 9]
    args = {**rows_of(counts), "window": window}
    together = run(args, place, torch.float32)
    assert relative_error(together, attention_bidirectional.reference(**args)) <= attention.tolerance["f32"]
    ends = np.cumsum(counts)
    for count, end in zip(counts, ends, strict=True):
        own = rows_of([count])
        for name in "qkv":
            own[name] = args[name][end - count : end]
        own |= {name: args[name] for name in (*EXTRAS, "window")}
        assert np.array_equal(run(own, place, torch.float32), together[end - count : end])


@pytest.mark.parametrize("cache_dtype", [torch.float32, *in_interpreter(torch.float8_e4m3fn)])
@pytest.mark.parametrize("dims", [(20, 10), (1200, 64)], ids=str)
def test_keys_and_values_are_written_to_their_slots_alone(dims, cache_dtype, place):
    rng, heads, slots = np.random.default_rng(0), 2, [37, 3, 16, 79]
    whole = torch.from_numpy(rng.standard_normal((4, heads * sum(dims) + 5), np.float32)).to(place)
    k, v = whole[:, : heads * dims[0]], whole[:, heads * dims[0] : heads * sum(dims)]  # columns of one product
    caches = [torch.full((5, heads, 16, dim), 7.0, device=place).to(cache_dtype) for dim in dims]
    write_kv(k, v, torch.tensor(slots, dtype=torch.int32, device=place), *caches)
    for numbers, cache in zip((k, v), caches, strict=True):
        by_slot = cache.float().transpose(1, 2).reshape(80, -1)
        assert torch.equal(by_slot[slots], numbers.to(cache_dtype).float())
        by_slot[slots] = 7.0
        assert (by_slot == 7.0).all()
