"""Steps of few rows with one token each: their attention kernel, and the one kernel for a whole step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from quire.devices import base
from quire.devices.cuda.device import CudaDevice
from quire.devices.cuda.few_rows import HOPPER, MAX_ROWS, TILE_ROWS, WARPS, ProductShape, tiles_of
from quire.devices.cuda.program import CudaProgram
from quire.ops.batch import Batch, RowPart
from quire.ops.registry import relative_error
from tests.devices.cpu.programs import session
from tests.devices.cuda.few_rows_toys import TOYS, property_toy
from tests.devices.cuda.models import draws_of, lowered, rms_error
from tests.models.toys import BLOCK, VOCAB, Session, Toy, make_toy, some_tokens, toy_of

pytestmark = pytest.mark.device
FLOATS = base.Limits(
    max_tokens=256, max_rows=20, max_logits=256, max_blocks=16, num_blocks=60, block_tokens=BLOCK, kv_dtype="f32"
)
ROOMY = base.Limits(
    max_tokens=4096, max_rows=MAX_ROWS, max_logits=64, max_blocks=24, num_blocks=24 * MAX_ROWS, block_tokens=BLOCK
)
SIZES = {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 3, "max_position_embeddings": 512}
HEADS: dict[str, tuple[str, dict[str, int]]] = {
    "four heads of 64 share a key": ("LlamaForCausalLM", {"heads": 8, "kv": 2, "dim": 64}),
    "four heads of 128 share a key": ("LlamaForCausalLM", {"heads": 4, "kv": 1, "dim": 128}),
    "heads of 128, with biases": ("Qwen2ForCausalLM", {"heads": 2, "kv": 2, "dim": 128}),
    "eight heads of 64 share a key": ("LlamaForCausalLM", {"heads": 8, "kv": 1, "dim": 64}),
}
NO_FARTHER = 3  # times the error of the step in several kernels: where scores are nearly tied, rounding matters a lot


@pytest.mark.gpu
def test_decoding_continues_a_prompt(place):
    """The prompt is too long for the interpreter."""
    model = make_toy("qwen3").draw()
    program = CudaDevice(place).lower(model.graph, model.weights, FLOATS, base.LoweringOptions(dtype="f32"))
    here, there = session(program, model, num_blocks=60), Session(model, 60)
    steps = [
        {"a": some_tokens(127), "b": some_tokens(15)},
        {"a": [3], "b": [5]},
        {"a": [7, 11], "b": [2]},  # more than one token per row
        {"a": [9], "b": [4], "c": [6]},  # in two parts, in one, and a text's first token
    ]
    for step in steps:
        actual, expected = here.step(step), there.step(step)
        for text in step:
            assert relative_error(actual[text], expected[text]) < 1e-4, (step.keys(), text)


def wide_toy(name: str) -> Toy:
    """Wide enough for the kernel's boxes of 128 bytes, FP8 too."""
    kind, heads = HEADS[name]
    words = {"heads": "num_attention_heads", "kv": "num_key_value_heads", "dim": "head_dim"}
    return toy_of(kind, {**SIZES, **{words[key]: value for key, value in heads.items()}}, seed=5)


class Rows:
    """Texts of different lengths, one for each row, and steps that add a token to each."""

    def __init__(self, program: CudaProgram, lengths: list[int]) -> None:
        self.program = program
        rng = np.random.default_rng(len(lengths))
        self.texts = [rng.integers(0, VOCAB, length).tolist() for length in lengths]
        order = rng.permutation(ROOMY.num_blocks).reshape(-1, ROOMY.max_blocks)
        self.blocks = [blocks.tolist() for blocks in order]
        program.launch(Batch.of([self._part(row, 0) for row in range(len(lengths))], BLOCK)).result()

    def _part(self, row: int, start: int) -> RowPart:
        return RowPart(self.texts[row][start:], start, self.blocks[row])

    def add(self) -> None:
        """Append a token to each text."""
        for row, text in enumerate(self.texts):
            text.append((7 * row + len(text)) % VOCAB)

    def logits(self) -> np.ndarray:
        """Compute the newest token of each text; return its logits."""
        batch = Batch.of([self._part(row, len(text) - 1) for row, text in enumerate(self.texts)], BLOCK)
        logits = self.program.launch(batch).result().logits
        assert logits is not None
        return logits


def with_one_kernel(toy: Toy, place: str, **wishes: Any) -> CudaProgram:
    program = lowered(toy.draw(), place, ROOMY, **wishes)
    if torch.cuda.get_device_capability()[0] != HOPPER:
        pytest.skip("the kernel for a whole step needs Hopper")
    assert program.variants
    return program


@pytest.mark.gpu
@pytest.mark.parametrize("quantize", [None, "fp8"])
@pytest.mark.parametrize("name", [*HEADS, *TOYS])
def test_one_kernel_is_as_close_to_transformers_as_several_kernels(name, quantize, place):
    toy = wide_toy(name) if name in HEADS else property_toy(name)
    program = with_one_kernel(toy, place, quantize=quantize, captures=False)
    variants = program.variants
    for lengths in ([1], [300], [5, 130, 31], [40 * row + 16 for row in range(8)], list(range(9, 329, 20))):
        rows = Rows(program, lengths)
        for _ in range(2):  # the second step reads what the first has written
            rows.add()
            program.variants = ()
            plain = rows.logits()
            program.variants = variants
            found = rows.logits()
            assert np.array_equal(found, rows.logits()), "its sums have one order"
            exact = np.stack([toy.expected_logits(text)[-1] for text in rows.texts])
            assert rms_error(found, exact) <= NO_FARTHER * rms_error(plain, exact), lengths


@pytest.mark.gpu
def test_one_kernel_is_captured_and_padded_like_any_other_step(place):
    toy = wide_toy("four heads of 64 share a key")
    eager, captured = (with_one_kernel(toy, place, captures=captures) for captures in (False, True))
    here, there = Rows(eager, [20] * 5), Rows(captured, [20] * 5)
    for _ in range(5):
        here.add()
        there.add()
        assert np.array_equal(here.logits(), there.logits())
    assert captured.num_padded > 0


@pytest.mark.gpu
def test_one_kernel_reads_tokens_sampled_on_the_device(place):
    program = with_one_kernel(wide_toy("four heads of 64 share a key"), place)
    rows = Rows(program, [18, 40])
    rows.add()
    batch = Batch.of([rows._part(row, len(text) - 1) for row, text in enumerate(rows.texts)], BLOCK)
    first = program.launch(replace(batch, draws=draws_of([3, 4]))).result().tokens
    assert first is not None
    for text, token in zip(rows.texts, first.tolist(), strict=True):
        text.append(token)
    known = Batch.of([rows._part(row, len(text) - 1) for row, text in enumerate(rows.texts)], BLOCK)
    unknown = replace(known, token_ids=np.array([-4, -5], np.int32))
    tokens = [program.launch(replace(each, draws=draws_of([5, 6]))).result().tokens for each in (unknown, known)]
    assert np.array_equal(*tokens)


@pytest.mark.parametrize("num_processors", [78, 114, 132])
@pytest.mark.parametrize(
    "shape",
    [
        ProductShape(6144, 4096, 2),
        ProductShape(4096, 14336, 1),
        ProductShape(14336, 4096, 2, is_gate=True),
        ProductShape(128256, 8192, 2),
        ProductShape(28672, 8192, 1, is_gate=True),
        ProductShape(131, 256, 2),
    ],
)
def test_rows_are_balanced_over_processors(shape, num_processors):
    tiles = tiles_of(shape, num_processors)
    assert tiles <= WARPS and tiles % (2 if shape.is_gate else 1) == 0
    rows = tiles * TILE_ROWS // (2 if shape.is_gate else 1)
    num_groups = -(shape.rows // -rows)
    most = -(num_groups // -num_processors) * rows
    assert most <= 1.25 * shape.rows / num_processors + TILE_ROWS


@pytest.mark.gpu
def test_in_deterministic_mode_a_program_has_no_other_variants(place):
    program = lowered(wide_toy("four heads of 64 share a key").draw(), place, ROOMY, deterministic=True)
    assert program.variants == ()
