"""Encoders, and decoders that embed, against transformers: in the interpreter, and through the engine on the CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire import LLM
from quire.graph.interpret import Interpreter
from quire.models.draw import DrawnModel, draw
from quire.models.errors import UnsupportedModel
from quire.ops.batch import Batch, RowPart
from quire.runner.pooling import whole_pools
from quire.types.kinds import RequestKind
from quire.weights.checkpoint import open_checkpoint
from tests.models.encoders import CASES, CLASSIFIERS, make_encoder, some_ids
from tests.models.toys import ENCODERS

pytestmark = pytest.mark.device
LENGTHS = (1, 2, 19, 130)


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def assert_alike(actual: np.ndarray, expected: np.ndarray) -> None:
    assert cosine(actual.astype(np.float64), expected.astype(np.float64)) >= 0.99999
    assert np.abs(actual - expected).max() <= 1e-4 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("arch", ENCODERS, ids=lambda arch: arch.name)
def test_every_encoder_has_a_case(arch):
    assert arch.name in {case.kind for case in CASES.values()}, "add it to tests/models/encoders.py"


@pytest.mark.parametrize("name", CASES)
def test_vectors_of_texts_of_several_lengths_are_those_of_transformers(name):
    toy = make_encoder(name)
    texts = [some_ids(length) for length in LENGTHS]
    with LLM(toy.folder, pooling=toy.case.pooling, device="cpu", kv_dtype="f32") as llm:
        if name in CLASSIFIERS:
            found = [np.array(list(each.probs.values())) for each in llm.classify(texts)]
            wanted = [softmax(toy.expected(tokens)) for tokens in texts]
        else:
            found = [each.vector for each in llm.embed(texts, normalize=False)]
            wanted = [toy.expected(tokens) for tokens in texts]
        for actual, expected in zip(found, wanted, strict=True):
            assert_alike(actual, expected)


@pytest.mark.parametrize("name", ["bert", "modernbert", "mpnet", "embedding_gemma", "llama-mean", "qwen3"])
def test_a_text_has_the_same_bits_alone_and_beside_others(name):
    toy = make_encoder(name)
    texts = [some_ids(length, seed) for seed, length in enumerate((1, 3, 40, 17, 100, 64))]
    with LLM(toy.folder, pooling=toy.case.pooling, device="cpu") as llm:
        together = llm.embed(texts)
        for text, beside in zip(texts, together, strict=True):
            assert np.array_equal(llm.embed([text])[0].vector, beside.vector)


def pooled_by_references(model: DrawnModel, tokens: list[int]) -> np.ndarray:
    """The vector of one text, computed by the interpreter."""
    blocks = range(-(-len(tokens) // 16))
    batch = Batch.of([RowPart(tokens, 0, blocks, num_logits=0)], 16)
    pools = whole_pools(np.array([0, len(tokens)], np.int32), model.pool)
    batch = replace(batch, pools=pools, token_types=np.zeros(len(tokens), np.int32))
    return Interpreter(model.graph, model.weights, len(blocks)).run(batch)[0]


@pytest.mark.parametrize("name", ["bert", "distilbert-classifier", "nomic_bert"])
def test_the_references_compute_the_same(name):
    toy, tokens = make_encoder(name), some_ids(23)
    assert_alike(pooled_by_references(toy.draw(), tokens), toy.expected(tokens))


def test_the_second_of_two_texts_has_the_other_type():
    toy = make_encoder("bert-classifier")
    tokens, types = some_ids(20), [0] * 8 + [1] * 12
    with LLM(toy.folder, device="cpu") as llm:
        (found,) = run_requests(llm, [tokens], second_at=8)
    assert_alike(found, toy.expected(tokens, types))


def run_requests(llm: LLM, texts: list[list[int]], second_at: int) -> list[np.ndarray]:
    from quire.types.request import GenerateRequest, SamplingParams

    found = []
    for index, tokens in enumerate(texts):
        request = GenerateRequest(
            f"p{index}",
            tuple(tokens),
            SamplingParams(temperature=0, max_tokens=1),
            kind=RequestKind.CLASSIFY,
            second_at=second_at,
        )
        *_, last = llm.client.stream(request)
        found.append(np.frombuffer(last.vector, np.float32))
    return found


def test_a_decoder_generates_and_embeds_in_one_engine():
    toy = make_encoder("qwen3-causal")
    with LLM(toy.folder, pooling="last", device="cpu", kv_dtype="f32", max_step_tokens=256, max_rows=8) as llm:
        assert llm.client.ready.kinds == (RequestKind.GENERATE, RequestKind.EMBED, RequestKind.SCORE)
        from quire import SamplingParams

        tokens = some_ids(30)
        (answer,) = llm.generate([tokens], SamplingParams(temperature=0, max_tokens=4))
        assert len(answer.tokens) == 4
        assert_alike(llm.embed([tokens], normalize=False)[0].vector, toy.expected(tokens))


def test_a_text_of_several_chunks_has_the_mean_of_all_tokens():
    toy = make_encoder("llama-mean")
    tokens = some_ids(150)
    with LLM(toy.folder, pooling="mean", device="cpu", kv_dtype="f32", max_step_tokens=32, max_rows=4) as llm:
        assert_alike(llm.embed([tokens], normalize=False)[0].vector, toy.expected(tokens))


def test_a_folder_that_does_not_say_how_to_pool_needs_the_setting():
    with pytest.raises(UnsupportedModel, match="set pooling to mean, cls, last or weighted"):
        draw(open_checkpoint(make_encoder("bert").folder))


def softmax(numbers: np.ndarray) -> np.ndarray:
    if len(numbers) == 1:
        return 1 / (1 + np.exp(-numbers))
    shares = np.exp(numbers - numbers.max())
    return shares / shares.sum()
