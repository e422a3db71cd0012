"""The one-kernel step for few rows, emulated, for each property that a model may have."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire.devices import base
from quire.devices.cuda.instructions import Attend, Gate, Instruction
from quire.devices.cuda.program import CudaProgram
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import window_sizes
from tests.devices.cuda.emulated.reference import Reference
from tests.devices.cuda.emulated.rows import emulated
from tests.devices.cuda.few_rows_toys import property_toy
from tests.devices.cuda.models import kv_tensor, lowered, rms_error
from tests.models.toys import BLOCK, VOCAB

pytestmark = pytest.mark.device
LIMITS = base.Limits(
    max_tokens=64, max_rows=16, max_logits=16, max_blocks=20, num_blocks=320, block_tokens=BLOCK, kv_dtype="bf16"
)
ONE, FOUR = [200], [3, 40, 131, 280]  # computed tokens; some rows are split over several blocks
NO_FARTHER = 2  # times the error of a step whose values between instructions are rounded
EMULATED: list[tuple[str, str | None, list[int]]] = [
    ("norms of heads", None, FOUR),
    ("norms of heads of 128", "fp8", ONE),
    ("a window", None, FOUR),
    ("a window of one token", None, ONE),
    ("layers with and without a window", "fp8", FOUR),
    ("rope of a part of each head", None, ONE),
    ("layers with and without rope", None, ONE),
    ("rope of adjacent numbers, norms after blocks", "fp8", ONE),
    ("factors", "fp8", FOUR),
    ("softcaps, norms after blocks, heads of 256", None, FOUR),
    ("two ropes, norms after blocks, heads of 256", None, FOUR),
    ("norms after blocks only, and of all heads", None, FOUR),
    ("norms after blocks only, and of all heads", "fp8", ONE),
]
OFTEN = (0, 5, 12)  # each compiles a kernel
Change = Callable[[Any, int], dict[str, Any]]  # new fields of an instruction of a layer


def _activation(kind: str) -> Change:
    return lambda each, layer: {"kind": kind, "linear": replace(each.linear, kind=kind)}


# properties that no architecture has yet, as changes of a Llama's instructions
CHANGES: dict[str, tuple[type, Change]] = {
    "gelu": (Gate, _activation("gelu")),
    "relu2": (Gate, _activation("relu2")),
    "different scales of scores": (Attend, lambda each, layer: {"scale": (0.1, 0.3)[layer]}),
}


def check(program: CudaProgram, lengths: list[int], folder: Path, others: list[Instruction] | None = None) -> None:
    """Compare a step with the references. If given, other instructions must give other numbers.

    A step of one row is repeated: the second must not read state that the first one left.
    """
    program.variants = (emulated(program, folder),)
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    order = rng.permutation(LIMITS.num_blocks).reshape(-1, LIMITS.max_blocks).tolist()
    batch = Batch.of([RowPart([int(rng.integers(VOCAB))], n, order[i]) for i, n in enumerate(lengths)], BLOCK)
    for _ in range(2 if lengths == ONE else 1):
        cache = torch.randn(kv_tensor(program.caches).shape).bfloat16()
        kv_tensor(program.caches).copy_(cache)
        found = program.launch(batch).result().logits
        reference = Reference(cache.clone(), batch)
        exact = reference.run(program.instructions)
        error = rms_error(Reference(cache.clone(), batch, rounds=True).run(program.instructions), exact)
        assert found is not None and rms_error(found, exact) <= NO_FARTHER * error
        if others is not None:
            assert rms_error(Reference(cache.clone(), batch).run(others), exact) > NO_FARTHER * error
        written, expected = (each != cache for each in (kv_tensor(program.caches), reference.cache))
        assert torch.equal(written.any(-1), expected.any(-1)), "it writes only the newest keys and values"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.parametrize(
    ("name", "quantize", "lengths"),
    [pytest.param(*each, marks=() if number in OFTEN else pytest.mark.slow) for number, each in enumerate(EMULATED)],
)
def test_one_kernel_supports(name, quantize, lengths, place, tmp_path):
    if place != "cpu":
        pytest.skip("emulation is for the CPU")
    check(lowered(property_toy(name).draw(), place, LIMITS, quantize=quantize), lengths, tmp_path)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if number else ()) for number, name in enumerate(CHANGES)]
)
def test_one_kernel_supports_changed_instructions(name, place, tmp_path):
    if place != "cpu":
        pytest.skip("emulation is for the CPU")
    program = lowered(property_toy("heads of 64").draw(), place, LIMITS)
    (kind, change), unchanged, layers = CHANGES[name], program.instructions, iter(range(2))
    program.instructions = [
        replace(each, **change(each, next(layers))) if isinstance(each, kind) else each  # type: ignore[type-var]
        for each in unchanged
    ]
    check(program, ONE, tmp_path, unchanged)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.parametrize(
    "name",
    ["layers with and without a window", pytest.param("a window", marks=pytest.mark.slow)],
)
def test_one_kernel_has_the_same_bits_with_window_groups(name, place, tmp_path):
    """Each layer reads the tables, the slots and the cache of its group. What is behind a window is NaN."""
    if place != "cpu":
        pytest.skip("emulation is for the CPU")
    model, rng, found = property_toy(name).draw(), np.random.default_rng(1), []
    (window,) = window_sizes(model.graph.caches, 1000)
    tables, groups = (rng.permutation(n).reshape(len(FOUR), -1) for n in (4 * LIMITS.max_blocks, 4 * 24))
    tokens = [int(rng.integers(VOCAB)) for _ in FOUR]
    texts = torch.randn(len(model.graph.caches), len(FOUR), 2, LIMITS.max_blocks, 2, BLOCK, 64).bfloat16()
    for windows in ((), (base.WindowLimits(window, 4 * 24),)):
        program = lowered(model, place, replace(LIMITS, windows=windows))
        program.variants = (emulated(program, tmp_path),)
        for layer, of_layer in enumerate(texts):
            is_grouped = program.caches.group_of(layer) > 0
            for cache, which in zip(program.caches.of(layer), (0, 1), strict=True):
                cache.fill_(torch.nan)
                for row, length in enumerate(FOUR):
                    first = max(0, length + 1 - window) // BLOCK if is_grouped else 0
                    for at in range(first, -(-length // BLOCK)):
                        cache[(groups if is_grouped else tables)[row][at]] = of_layer[row, which, at]
        parts = [
            RowPart([tokens[row]], length, tables[row].tolist(), windows=[groups[row].tolist() for _ in windows])
            for row, length in enumerate(FOUR)
        ]
        found.append(program.launch(Batch.of(parts, BLOCK)).result().logits)
        for row, length in enumerate(FOUR):
            for layer in range(len(texts)):
                table = groups[row] if program.caches.group_of(layer) else tables[row]
                newest = [each[table[length // BLOCK], :, length % BLOCK] for each in program.caches.of(layer)]
                assert all(torch.isfinite(each).all() for each in newest), "the newest key is in its group's slot"
    assert np.isfinite(found[0]).all() and np.array_equal(*found)
