"""The real model: greedy tokens equal those of the references in float32, and the quantized path is reproducible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quire.devices import base
from quire.graph.interpret import Interpreter
from quire.models.draw import DrawnModel, draw
from quire.ops.batch import Batch, RowPart
from quire.text.tokenizer import Tokenizer
from quire.weights.checkpoint import open_checkpoint
from tests.devices.cpu.programs import HAS_NATIVE, lower

pytestmark = [
    pytest.mark.device,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built"),
]

LIMITS = base.Limits(max_tokens=128, max_rows=33, max_logits=128, max_blocks=12, num_blocks=120)
PROMPT = [1, 4093, 198, 1780, 314, 260, 6376, 4461, 47, 2, 198, 1, 520, 9531, 198, 788, 6376, 4461]
BLOCKS = [9, 4, 30, 2, 17, 8, 11, 1]


@pytest.fixture(scope="module")
def model(model_file) -> DrawnModel:
    return draw(open_checkpoint(model_file))


def greedy(run, num_steps: int) -> list[int]:
    """Decode one row greedily by `run(batch) -> logits`."""
    tokens: list[int] = []
    for _ in range(num_steps):
        start = len(PROMPT) + len(tokens) - 1 if tokens else 0
        part = RowPart(tokens[-1:] or PROMPT, start, BLOCKS)
        tokens.append(int(run(Batch.of([part], LIMITS.block_tokens))[0].argmax()))
    return tokens


def test_16_greedy_tokens_are_those_of_the_references(model):
    interpreter = Interpreter(model.graph, model.weights, LIMITS.num_blocks, LIMITS.block_tokens)
    program = lower(model, replace(LIMITS, kv_dtype="f32"), precision="float")
    expected = greedy(interpreter.run, 16)
    assert greedy(lambda batch: program.launch(batch).result().logits, 16) == expected


def kl_divergence(logits: np.ndarray, expected: np.ndarray) -> float:
    """Mean over positions of KL(expected || logits), in nats."""
    p, q = (x.astype(np.float64) - x.max(1, keepdims=True) for x in (expected, logits))
    p, q = (x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (p, q))
    return float((np.exp(p) * (p - q)).sum(1).mean())


def test_the_quantized_path_is_close_to_the_float_path(model):
    tokens = np.random.default_rng(0).integers(300, 20000, 100).tolist()
    batch = Batch.of([RowPart(PROMPT + tokens, 0, BLOCKS, num_logits=len(tokens))], LIMITS.block_tokens)
    quantized, exact = (lower(model, LIMITS, precision=p).launch(batch).result().logits for p in ("native", "float"))
    assert kl_divergence(quantized, exact) < 0.02


def test_a_q8_0_cache_changes_the_distribution_little(model, model_file):
    """Over 500 positions of English, in float32: 8-bit activations would turn even the smallest change into 4e-3."""
    text = (Path(__file__).resolve().parents[3] / "LICENSE").read_text()
    tokens = Tokenizer.from_gguf(open_checkpoint(model_file).metadata).encode(text)[:512]
    limits = replace(LIMITS, max_tokens=512, max_logits=512, max_blocks=32)
    batch = Batch.of([RowPart(tokens, 0, range(32), num_logits=500)], LIMITS.block_tokens)
    exact, f16, q8_0 = (
        lower(model, replace(limits, kv_dtype=kv), precision="float").launch(batch).result().logits
        for kv in ("f32", "f16", "q8_0")
    )
    assert kl_divergence(f16, exact) < 1e-5
    assert kl_divergence(q8_0, exact) < 2e-3
    assert (q8_0.argmax(1) == exact.argmax(1)).mean() > 0.97


def test_a_row_is_the_same_alone_in_chunks_and_in_a_batch_of_32(model):
    program = lower(model, LIMITS)
    tokens = np.random.default_rng(0).integers(300, 20000, 60).tolist()
    whole = program.launch(Batch.of([RowPart(tokens, 0, BLOCKS, num_logits=60)], 16)).result().logits
    for chunk in (1, 7, 64):
        pieces = []
        for at in range(0, 60, chunk):
            part = RowPart(tokens[at : at + chunk], at, BLOCKS[::-1], num_logits=len(tokens[at : at + chunk]))
            pieces.append(program.launch(Batch.of([part], 16)).result().logits)
        assert np.array_equal(np.concatenate(pieces), whole), chunk
    others = [RowPart(tokens[i : i + 2], 0, [40 + i]) for i in range(31)]
    parts = [*others[:9], RowPart(tokens[-1:], 59, BLOCKS), *others[9:]]
    program.launch(Batch.of([RowPart(tokens[:-1], 0, BLOCKS)], 16))
    assert np.array_equal(program.launch(Batch.of(parts, 16)).result().logits[9], whole[-1])
