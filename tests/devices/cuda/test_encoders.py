"""Encoders on the GPU: their vectors are those of transformers, and a text's do not depend on those beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.config import CacheConfig, Config, DeviceConfig, SchedulerConfig
from quire.devices.base import Limits, LoweringOptions
from quire.devices.cuda.device import CudaDevice
from quire.devices.cuda.encoder import EncoderInputs
from quire.engine.load import build_engine
from quire.engine.messages import Submit
from quire.ops.batch import Batch, RowPart
from quire.ops.pool import SUM
from quire.runner.pooling import whole_pools
from quire.runner.whole_texts import WholeTextRunner
from quire.types.embedding_settings import EmbeddingConfig
from quire.types.kinds import PoolKind, RequestKind
from quire.types.output import Finished
from quire.types.request import FinishReason, GenerateRequest, SamplingParams
from quire.types.step import Part, StepPlan
from quire.weights.checkpoint import open_checkpoint
from tests.models.encoders import make_encoder, some_ids

pytestmark = pytest.mark.device
LIMITS = Limits(max_tokens=256, max_rows=8, max_logits=8, max_blocks=16, num_blocks=1, kv_dtype="f32")
QUICK = ("bert", "xlm-roberta-classifier", "modernbert-mean")
CASES = [
    pytest.param(name, fuse, marks=() if name in QUICK and fuse else pytest.mark.slow)
    for name in (*QUICK, "bert-weighted", "mpnet", "gte", "nomic_bert", "embedding_gemma", "distilbert-classifier")
    for fuse in (True, False)
]


def vectors_of(name: str, place: str, texts: list[list[int]], fuse: bool) -> list[np.ndarray]:
    toy = make_encoder(name)
    model = toy.draw()
    options = LoweringOptions(dtype="f32", fuse=fuse, captures=False)
    runner = WholeTextRunner(CudaDevice(place).lower(model.graph, model.weights, LIMITS, options), LIMITS, model.pool)
    parts = [Part(str(n), n, 0, tuple(text), 0, (), is_pooled=True) for n, text in enumerate(texts)]
    result = runner.collect(runner.launch(StepPlan(1, tuple(parts), num_tokens=sum(map(len, texts)))))
    return [np.frombuffer(part.vector, np.float32) for part in result.parts]


@pytest.mark.interpreted
@pytest.mark.parametrize("name, fuse", CASES)
def test_vectors_are_those_of_transformers(name, fuse, place):
    texts = [some_ids(length) for length in (1, 7, 24)]
    for text, found in zip(texts, vectors_of(name, place, texts, fuse), strict=True):
        expected = make_encoder(name).expected(text)
        assert np.abs(found - expected).max() <= 1e-4 * max(1.0, np.abs(expected).max())


POOLED = ("qwen3-causal", "qwen2-classifier", "mistral", "llama-mean")


@pytest.mark.parametrize("name", [POOLED[0], *(pytest.param(each, marks=pytest.mark.slow) for each in POOLED[1:])])
def test_a_decoder_embeds_and_generates_in_one_step(name, place):
    """Row 0 is pooled, in two steps; row 1 yields logits in the first one; the second one has no logits at all."""
    toy = make_encoder(name)
    model = toy.draw()
    limits = replace(LIMITS, num_blocks=8)
    program = CudaDevice(place).lower(model.graph, model.weights, limits, LoweringOptions(dtype="f32"))
    text, has_logits = some_ids(19), "logits" in model.graph.outputs
    other = RowPart(text[:3], 0, [2], 1) if has_logits else RowPart(text[:3], 0, [2], 0)
    steps = [[RowPart(text[:12], 0, [0, 1], 0), other], [RowPart(text[12:], 12, [0, 1], 0)]]
    total, outputs = 0.0, []
    for parts, count in zip(steps, (12, 7), strict=True):
        is_last = model.pool is PoolKind.LAST
        pools = np.array([(count - 1 if is_last else 0, count, SUM)], np.int32)
        outputs.append(program.launch(replace(Batch.of(parts, 16), pools=pools)).result())
        total = outputs[-1].pooled[0] + (0.0 if is_last else total)
    found = total if model.pool is PoolKind.LAST else total / len(text)
    wanted = toy.expected(text)
    assert np.abs(found - wanted).max() <= 1e-4 * max(1.0, np.abs(wanted).max())
    if has_logits:
        alone = program.launch(Batch.of([other], 16)).result()
        assert np.abs(alone.logits - outputs[0].logits).max() <= 1e-4 * np.abs(alone.logits).max()
        assert alone.pooled.shape == (0, len(wanted)) and len(outputs[1].logits) == 0


@pytest.mark.slow
def test_an_engine_embeds_in_chunks_beside_a_stream(place):
    toy, text = make_encoder("qwen3-causal"), some_ids(19)
    scheduler = SchedulerConfig(max_rows=4, max_step_tokens=8, max_context=48, max_scored_tokens=4)
    config = Config(
        scheduler=scheduler, cache=CacheConfig(num_blocks=12, kv_dtype="f32"), device=DeviceConfig(dtype="f32"),
        embedding=EmbeddingConfig(pooling="last"),
    )  # fmt: skip
    core = build_engine(open_checkpoint(toy.folder), CudaDevice(place), config).core
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    core.handle(Submit(GenerateRequest("text", tuple(text[:3]), greedy)))
    core.handle(Submit(GenerateRequest("vector", tuple(text), kind=RequestKind.EMBED)))
    ended = {}
    while core.step():
        ended |= {each.request_id: each for each in core.take() if isinstance(each, Finished)}
    found, expected = np.frombuffer(ended["vector"].vector, np.float32), toy.expected(text)
    assert np.abs(found - expected).max() <= 1e-4 * max(1.0, np.abs(expected).max())
    assert ended["text"].reason is FinishReason.LENGTH


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["bert", "modernbert-mean", "xlm-roberta-classifier"])
def test_captured_steps_have_the_vectors_of_transformers(name):
    """Of one size three times, the last ones from a graph, with other texts each time and padding behind them."""
    toy = make_encoder(name)
    model = toy.draw()
    program = CudaDevice().lower(model.graph, model.weights, LIMITS, LoweringOptions(dtype="f32"))
    runner = WholeTextRunner(program, LIMITS, model.pool)
    assert runner.depth == 2
    for seed in range(3):
        texts = [some_ids(length, seed) for length in (5 + seed, 1, 30)]
        parts = [Part(str(n), n, 0, tuple(text), 0, (), is_pooled=True) for n, text in enumerate(texts)]
        result = runner.collect(runner.launch(StepPlan(1, tuple(parts), num_tokens=sum(map(len, texts)))))
        for text, part in zip(texts, result.parts, strict=True):
            expected = toy.expected(text)
            found = np.frombuffer(part.vector, np.float32)
            assert np.abs(found - expected).max() <= 1e-3 * max(1.0, np.abs(expected).max())
    assert len(program._captured) == 1


@pytest.mark.gpu
def test_two_steps_in_flight_return_their_own_vectors():
    toy = make_encoder("bert")
    model = toy.draw()
    program = CudaDevice().lower(model.graph, model.weights, LIMITS, LoweringOptions(dtype="f32"))
    runner = WholeTextRunner(program, LIMITS, model.pool)
    texts = [some_ids(20, seed) for seed in range(6)]
    plans = [StepPlan(n, (Part(str(n), 0, 0, tuple(text), 0, (), is_pooled=True),)) for n, text in enumerate(texts)]
    for first, second in ((0, 1), (2, 3), (4, 5)):
        flights = [runner.launch(plans[first]), runner.launch(plans[second])]
        for index, flight in zip((first, second), flights, strict=True):
            found, expected = runner.collect(flight).parts[0].vector, toy.expected(texts[index])
            assert np.abs(np.frombuffer(found, np.float32) - expected).max() <= 1e-3 * np.abs(expected).max()


def test_padding_changes_no_vector(place):
    """Tokens of padding, which captured steps have, are rows of their own; pools of padding are of the first token."""
    model = make_encoder("bert").draw()
    encoder = CudaDevice(place).lower(model.graph, model.weights, LIMITS, LoweringOptions(dtype="f32", captures=False))
    batch = Batch.of([RowPart(some_ids(length), 0, [0], 0) for length in (3, 5)], 16)
    batch = replace(batch, pools=whole_pools(batch.starts, model.pool), token_types=np.zeros(8, np.int32))
    plain = encoder.run(batch)
    buffer = torch.zeros(EncoderInputs.size(16, 0, 4), dtype=torch.int32, device=place)
    padded = encoder._finish(encoder._send(batch, (16, 0, 4), buffer), is_whole=True)
    assert torch.allclose(padded[:2], plain, atol=1e-5)
