"""The kernel for a whole step of few rows, compiled for the CPU over GPU instructions that fibers emulate."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.devices import base
from quire.devices.cuda.program import CudaProgram
from quire.ops.batch import Batch, RowPart
from tests.devices.cuda.emulated.rows import emulated
from tests.devices.cuda.models import kv_tensor, lowered, rms_error
from tests.models.toys import BLOCK, VOCAB, Toy, toy_of

pytestmark = pytest.mark.device
LIMITS = base.Limits(
    max_tokens=64, max_rows=16, max_logits=16, max_blocks=20, num_blocks=320, block_tokens=BLOCK, kv_dtype="bf16"
)
SIZES = {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "max_position_embeddings": 512}
NO_FARTHER = 3  # times the error of the step in several kernels: where scores are nearly tied, rounding matters a lot


def toy(heads: int, kv: int, dim: int, kind: str = "LlamaForCausalLM") -> Toy:
    different = {"num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim}
    width = 384 if heads % 3 == 0 else 256
    return toy_of(kind, {**SIZES, "hidden_size": width, **different}, seed=5)


def step_of(program: CudaProgram, batch: Batch, cache: Tensor) -> tuple[np.ndarray, Tensor]:
    """Return the logits, and which slots of the cache have changed."""
    kv_tensor(program.caches).copy_(cache)
    logits = program.launch(batch).result().logits
    assert logits is not None
    return logits, (kv_tensor(program.caches) != cache.to(kv_tensor(program.caches).dtype)).any(-1)


ONE, NINE = [200], [3, 40, 131, 1, 17, 280, 64, 33, 90]  # computed tokens; some rows are split over several blocks


def assert_as_close(made: Toy, quantize: str | None, rows: list[tuple[int, int]], place: str, folder: Path) -> None:
    """Rows with (computed, new) tokens, in two steps over random caches, by one kernel and by several."""
    model = made.draw()
    exactly, program, same = (
        lowered(model, place, LIMITS, dtype="f32"),
        *(lowered(model, place, LIMITS, quantize=quantize) for _ in range(2)),
    )
    few_rows = emulated(program, folder)
    program.variants = (few_rows,)
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    order = rng.permutation(LIMITS.num_blocks).reshape(-1, LIMITS.max_blocks).tolist()
    parts = [RowPart(rng.integers(0, VOCAB, new).tolist(), n, order[i], new) for i, (n, new) in enumerate(rows)]
    batch = Batch.of(parts, BLOCK)
    for num_steps in (1, 2):
        cache = torch.randn(kv_tensor(program.caches).shape).bfloat16()
        exact, _ = step_of(exactly, batch, cache)
        plain, there = step_of(same, batch, cache)
        found, here = step_of(program, batch, cache)
        assert rms_error(found, exact) <= NO_FARTHER * rms_error(plain, exact)
        assert torch.equal(here, there), "it writes only the keys and values of this step"
        assert few_rows._buffers["grid_barrier"].tolist() == [0, 0, num_steps], "counters are reset"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.parametrize(
    ("shape", "quantize", "lengths"),
    [
        pytest.param((8, 2, 64), None, NINE, id="four heads of 64 share a key", marks=pytest.mark.slow),
        pytest.param((4, 1, 128), None, ONE, id="four heads of 128 share a key, one row", marks=pytest.mark.slow),
        pytest.param((4, 1, 128), "fp8", NINE, id="four heads of 128 share a key, FP8", marks=pytest.mark.slow),
        pytest.param(
            (2, 2, 128, "Qwen2ForCausalLM"), None, NINE, id="heads of 128, with biases", marks=pytest.mark.slow
        ),
        pytest.param((3, 1, 128), "fp8", ONE, id="three heads of 128 share a key, FP8, one row"),
        pytest.param((8, 1, 64), None, NINE, id="eight heads of 64 share a key", marks=pytest.mark.slow),
    ],
)
def test_one_kernel_is_as_close_to_float32_as_several_kernels(shape, quantize, lengths, place, tmp_path):
    """Two steps over random caches: the second must not read state that the first one left."""
    if place != "cpu":
        pytest.skip("emulation is for the CPU")
    assert_as_close(toy(*shape), quantize, [(n, 1) for n in lengths], place, tmp_path)


# (computed, new) tokens; of some rows, the keys of this step are in two parts of a split row, or follow the first
DRAFTED = [(126, 5), (1, 3), (40, 1), (254, 4)]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.parametrize(
    ("shape", "quantize", "rows"),
    [
        pytest.param((8, 2, 64), None, DRAFTED, id="four heads of 64 share a key"),
        pytest.param((4, 1, 128), "fp8", [(200, 8)], id="four heads of 128 share a key, FP8", marks=pytest.mark.slow),
        pytest.param((2, 2, 128, "Qwen3ForCausalLM"), None, DRAFTED, id="norms of heads", marks=pytest.mark.slow),
    ],
)
def test_one_kernel_computes_several_tokens_of_a_row(shape, quantize, rows, place, tmp_path):
    if place != "cpu":
        pytest.skip("emulation is for the CPU")
    assert_as_close(toy(*shape), quantize, rows, place, tmp_path)
