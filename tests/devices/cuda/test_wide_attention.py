"""The kernel for wide items of attention: compiled for the CPU over GPU instructions that fibers emulate, and on a
GPU that supports it."""

from __future__ import annotations

import shutil
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.devices import base
from quire.devices._triton.attention_work import AttentionKind
from quire.devices._triton.rope import Heads
from quire.devices.cuda.attention import AttendsWide
from quire.devices.cuda.instructions import Run
from quire.devices.cuda.program import CudaProgram
from quire.devices.cuda.tensor_map import MAP_BYTES
from quire.devices.cuda.wide_attention import WideAttention, is_supported
from quire.ops.attention import attention
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import PagedKV
from tests.devices._triton.paged import Step, Text
from tests.devices.cuda.emulated.build import Emulated, built
from tests.devices.cuda.models import kv_tensor, lowered
from tests.devices.cuda.wide_steps import WideStep
from tests.models.toys import BLOCK, some_tokens, toy_of

pytestmark = pytest.mark.device
NUM_PROCESSORS = 3
SIZES = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 512,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip
LIMITS = base.Limits(
    max_tokens=32, max_rows=4, max_logits=4, max_blocks=4, num_blocks=8, block_tokens=BLOCK, kv_dtype="bf16"
)
NO_FARTHER = 2  # times the error against float32
SHARED_TEXT = [Text(703), *(Text(700 + 9 * n, 1 + n % 2, 37) for n in range(9)), Text(45), Text(720, 30, 37)]


@dataclass(slots=True, eq=False)
class EmulatedWide(WideAttention):
    """The same launches, on the CPU."""

    folder: str = ""

    def _kernel(self, shared: int) -> Any:
        return Emulated(built("wide_attention", tuple(self._definitions.items()), self.folder))

    def _encode(self, whole: Tensor) -> bytes:
        bytes_of_line = 2 * self.heads.dim
        fields = (whole.data_ptr(), whole.numel() // self.heads.dim, bytes_of_line, whole.shape[4], 1)
        return struct.pack("<5Q", *fields).ljust(MAP_BYTES, b"\0")


def step_of(heads: tuple[int, int, int], texts: list[Text], num_blocks: int, seed: int = 0) -> Step:
    """(kv_heads, group, dim)"""
    kv_heads, group, dim = heads
    step = Step.random(PagedKV(kv_heads, dim, dim), group, texts, num_blocks, seed)
    return step.rounded(torch.bfloat16, torch.bfloat16)


def largest_error(actual: np.ndarray, step: Step) -> float:
    """Return the largest relative error of a head of a token against the op's output."""
    dim = step.spec.key_dim
    expected, found = (each.reshape(-1, dim) for each in (step.reference(), actual))
    distances = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return float(distances.max())  # NaN if any is, which fails every comparison


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.parametrize(
    ("heads", "texts", "num_ctas"),
    [
        pytest.param((1, 4, 128), [Text(0, 150)], 2, id="a prompt that ends inside of a block"),
        pytest.param((2, 3, 64), [Text(70, 90), Text(0, 23), Text(300)], 2, id="chunks of prompts, three heads a key"),
        pytest.param((1, 4, 128), [Text(1100, 20)], 8, id="a few tokens behind a long text, in parts"),
        pytest.param((2, 8, 64), SHARED_TEXT, 4, id="rows that share a text"),
        pytest.param((1, 1, 128), [Text(0, 130), Text(128, 128)], 1, id="a head for each key"),
    ],
)
def test_the_emulated_kernel_matches_the_op(heads, texts, num_ctas, place, tmp_path):
    if place != "cpu":
        pytest.skip("emulation is for the CPU")
    wide = WideStep.of(step_of(heads, texts, 200), place, num_ctas)
    assert wide.counts.wide
    kernel = EmulatedWide(wide.caches, 0, wide.heads, NUM_PROCESSORS, folder=str(tmp_path))
    assert largest_error(wide.attend(kernel), wide.step) <= attention.tolerance["bf16"]


@dataclass(eq=False)
class RecordedCalls:
    """A kernel, and the layers that it was called for."""

    kernel: AttendsWide
    layers: list[int] = field(default_factory=list)

    @property
    def kind(self) -> AttentionKind:
        return self.kernel.kind

    def __call__(self, run: Run, layer: int, q: Tensor, out: Tensor, scale: float) -> None:
        self.layers.append(layer)
        self.kernel(run, layer, q, out, scale)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_prompts_of_a_program_are_as_close_to_float32_as_with_triton(place, tmp_path):
    if place != "cpu":
        pytest.skip("emulation is for the CPU")
    model = toy_of("LlamaForCausalLM", SIZES, seed=5).draw()
    batch = Batch.of([RowPart(some_tokens(20), 0, [7, 3]), RowPart([1], 20, [2, 4])], BLOCK)

    def logits(program: CudaProgram) -> np.ndarray:
        found = program.launch(batch).result().logits
        assert found is not None
        return found

    exact = logits(lowered(model, place, LIMITS, dtype="f32"))
    program = lowered(model, place, LIMITS)
    plain = np.linalg.norm(logits(program) - exact)
    emulated = EmulatedWide(program.caches, 0, Heads(8, 2, 64), NUM_PROCESSORS, folder=str(tmp_path))
    program.wide = recorded = RecordedCalls(emulated)
    assert np.linalg.norm(logits(program) - exact) <= NO_FARTHER * plain
    assert recorded.layers == [0, 1]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "texts",
    [
        [Text(0, 700), Text(300, 64), Text(900)],
        [Text(2000, 40), Text(0, 17), Text(0, 1000)],
        [Text(2100), *(Text(2050 + n, 1 + n % 2, 128) for n in range(40))],
    ],
    ids=["prompts", "in parts", "shared"],
)
@pytest.mark.parametrize("heads", [(8, 4, 128), (2, 7, 128), (4, 8, 64)])
def test_it_matches_at_the_sizes_of_real_models(heads, texts, place):
    wide = WideStep.of(step_of(heads, texts, 600), place, 132)
    kernel = WideAttention.of(wide.caches, 0, wide.heads)
    if kernel is None:
        pytest.skip("it needs Hopper")
    for _ in range(2):  # the second launch must not read state of the first
        assert largest_error(wide.attend(kernel), wide.step) <= attention.tolerance["bf16"]


def test_other_caches_and_heads_run_in_triton():
    step = WideStep.of(step_of((1, 4, 128), [Text(0, 20)], 4), "cpu", 1)
    cache, heads = kv_tensor(step.caches), step.heads
    assert is_supported(cache, heads)
    assert not is_supported(cache.float(), heads)
    assert not is_supported(cache.to(torch.float8_e4m3fn), heads)
    assert not is_supported(cache, heads._replace(dim=80))
    assert not is_supported(cache, heads._replace(num_heads=129))
    assert WideAttention.of(step.caches, 0, heads) is None, "it is not on a GPU"
