"""Encoders on the GPU: their vectors are those of transformers, and a text's do not depend on those beside it."""

from __future__ import annotations

import numpy as np
import pytest

from quire.devices.base import Limits, LoweringOptions
from quire.devices.cuda.device import CudaDevice
from quire.devices.facts import DeviceUnavailable
from quire.models.draw import draw
from quire.runner.whole_texts import WholeTextRunner
from quire.types.step import Part, StepPlan
from quire.weights.checkpoint import open_checkpoint
from tests.models.encoders import make_encoder, some_ids

pytestmark = [pytest.mark.device, pytest.mark.interpreted]
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


@pytest.mark.parametrize("name, fuse", CASES)
def test_vectors_are_those_of_transformers(name, fuse, place):
    texts = [some_ids(length) for length in (1, 7, 24)]
    for text, found in zip(texts, vectors_of(name, place, texts, fuse), strict=True):
        expected = make_encoder(name).expected(text)
        assert np.abs(found - expected).max() <= 1e-4 * max(1.0, np.abs(expected).max())


def test_a_decoder_that_is_to_embed_is_refused_with_what_to_do(place):
    model = draw(open_checkpoint(make_encoder("qwen3").folder), pooling="last")
    with pytest.raises(DeviceUnavailable, match="run it on the CPU"):
        CudaDevice(place).lower(model.graph, model.weights, LIMITS)
