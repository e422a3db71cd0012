"""`llm.embed`, `llm.score` and `llm.classify` against sentence-transformers on its own folders."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from quire import LLM, AsyncLLM
from quire.types.errors import InvalidRequest, QuireError
from tests.models.sentence_folders import VOCAB, write_cross_encoder, write_embedder

sentence_transformers = pytest.importorskip("sentence_transformers")
pytestmark = pytest.mark.e2e
TEXTS = [
    "the capital of the north",
    "a",
    "cold river near the old castle !",
    "unknownword",
    "the red bridge is tall " * 4,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_embedder(tmp_path_factory.mktemp("embedder"))


@pytest.fixture(scope="module")
def embedder(folder):
    with LLM(folder, device="cpu") as llm:
        yield llm, sentence_transformers.SentenceTransformer(str(folder), device="cpu")


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory):
    folder = write_cross_encoder(tmp_path_factory.mktemp("cross"))
    with LLM(folder, device="cpu") as llm:
        yield llm, sentence_transformers.CrossEncoder(str(folder), device="cpu")


def test_vectors_are_those_of_sentence_transformers(embedder):
    llm, reference = embedder
    found = np.stack([each.vector for each in llm.embed(TEXTS)])
    assert np.abs(found - reference.encode(TEXTS)).max() < 1e-4 and found.shape == (len(TEXTS), 32)


@pytest.mark.parametrize("options", [{"dense": False, "pooling": "cls"}, {"pooling": "mean", "normalizes": False}])
def test_modules_are_read_as_they_are(options, tmp_path):
    folder = write_embedder(tmp_path, **options)
    reference = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    with LLM(folder, device="cpu") as llm:
        found = np.stack([each.vector for each in llm.embed(TEXTS)])
    assert np.abs(found - reference).max() < 1e-4 * max(1.0, np.abs(reference).max())


def test_a_stored_model_has_the_same_vectors(embedder, folder, tmp_path):
    from quire.store.model_files import files_at
    from quire.store.store import Store

    store = Store(tmp_path, [])
    store.create("mine", files_at(folder))
    with LLM(store.find("mine"), device="cpu") as llm:
        found = np.stack([each.vector for each in llm.embed(TEXTS, prompt_name="query")])
    assert np.array_equal(found, np.stack([each.vector for each in embedder[0].embed(TEXTS, prompt_name="query")]))


def test_a_module_that_is_not_known_is_refused_by_name(tmp_path):
    folder = write_embedder(tmp_path)
    file = folder / "modules.json"
    file.write_text(file.read_text().replace("Normalize", "WordWeights"))
    with pytest.raises(QuireError, match="WordWeights"):
        LLM(folder, device="cpu")


def test_prompts_and_dimensions_are_those_of_sentence_transformers(embedder):
    llm, reference = embedder
    found = llm.embed(TEXTS, prompt_name="query", dimensions=8)
    expected = reference.encode(TEXTS, prompt_name="query", truncate_dim=8)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.abs(np.stack([each.vector for each in found]) - expected).max() < 1e-4


def test_a_long_text_is_refused_or_cut_as_sentence_transformers_cuts_it(embedder):
    llm, reference = embedder
    text = "the old city " * 40
    with pytest.raises(InvalidRequest, match="122 tokens, and the model reads at most 40"):
        llm.embed([text])
    (found,) = llm.embed([text], truncate=True)
    assert found.num_tokens == 40 and np.abs(found.vector - reference.encode([text])[0]).max() < 1e-4


def test_async_calls_give_the_same(embedder, folder):
    async def run() -> tuple[list, list]:
        async with AsyncLLM(folder, device="cpu", in_process=True) as llm:
            return await llm.embed(TEXTS, dimensions=8), await llm.score(TEXTS[0], TEXTS[1:])

    vectors, scores = asyncio.run(run())
    assert all(
        np.array_equal(each.vector, other.vector)
        for each, other in zip(vectors, embedder[0].embed(TEXTS, dimensions=8), strict=True)
    )
    assert scores == embedder[0].score(TEXTS[0], TEXTS[1:])


def test_bad_input_is_refused_with_the_field(embedder):
    llm, _ = embedder
    with pytest.raises(InvalidRequest, match="A text is empty"):
        llm.embed(["a", ""])
    with pytest.raises(InvalidRequest, match="dimensions is 33, and the model's vectors have 32"):
        llm.embed(["a"], dimensions=33)
    with pytest.raises(InvalidRequest, match="no prompt named 'nobody': it has document, query"):
        llm.embed(["a"], prompt_name="nobody")
    with pytest.raises(InvalidRequest, match="the model has tokens 0 to"):
        llm.embed([[len(VOCAB)]])
    with pytest.raises(InvalidRequest, match="reads at most 40"):
        llm.embed([[7] * 100_000])
    with pytest.raises(InvalidRequest, match="cannot classify: it can embed and score"):
        llm.classify(["a"])
    with pytest.raises(QuireError, match="cannot generate: it can embed and score"):
        llm.generate(["a"])


def test_an_embedder_scores_by_cosine(embedder):
    llm, reference = embedder
    first, others = TEXTS[0], TEXTS[1:]
    expected = reference.encode([first]) @ reference.encode(others).T
    found = [each.score for each in llm.score(first, others)]
    assert np.abs(np.array(found) - expected[0]).max() < 1e-4


def test_scores_of_pairs_are_those_of_the_cross_encoder(cross_encoder):
    llm, reference = cross_encoder
    pairs = [(TEXTS[0], text) for text in TEXTS]
    found = [each.score for each in llm.score(TEXTS[0], TEXTS)]
    assert np.abs(np.array(found) - reference.predict(pairs)).max() < 1e-4
    long = "the old city " * 40
    (cut,) = llm.score(TEXTS[0], long, truncate=True)
    assert abs(cut.score - reference.predict([(TEXTS[0], long)])[0]) < 1e-4


def test_a_cross_encoder_cannot_embed(cross_encoder):
    with pytest.raises(InvalidRequest, match="cannot embed: it can score and classify"):
        cross_encoder[0].embed(["a"])
