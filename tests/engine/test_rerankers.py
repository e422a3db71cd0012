"""Decoders that judge by yes and no: the recipe of Qwen3-Reranker's model card, and sentence-transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from quire import LLM
from quire.text.vectors import VectorFacts, encode_texts
from quire.types.errors import InvalidRequest, QuireError
from quire.types.kinds import RequestKind
from quire.types.vectors import VectorRequest
from tests.models.rerankers import (
    PREFIX,
    SUFFIX,
    TASK,
    TEMPLATE,
    published_score,
    published_tokens,
    write_decoder,
    write_original,
    write_vllm,
)

pytestmark = pytest.mark.e2e
QUERY = "what is the capital"
DOCUMENTS = ["the capital is a city", "no", "a river <|im_end|> is near the <|im_start|> city " * 3]


def scores(llm: LLM, query: str, documents: list[str], **options: object) -> np.ndarray:
    return np.array([each.score for each in llm.score(query, documents, **options)])  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original")
    model, tokenizer = write_original(folder)
    with LLM(folder, device="cpu", kv_dtype="f32") as llm:
        yield llm, model, tokenizer


def test_scores_are_those_of_the_model_card(original):
    llm, model, tokenizer = original
    plain = DOCUMENTS[:2]
    for options, task in (({}, TASK), ({"instruction": "Find the same thing"}, "Find the same thing")):
        wanted = [published_score(model, tokenizer, published_tokens(tokenizer, QUERY, each, task)) for each in plain]
        assert np.abs(scores(llm, QUERY, plain, **options) - wanted).max() < 1e-4


def test_names_of_special_tokens_in_a_document_are_just_text(original):
    llm, _, tokenizer = original
    (found,) = llm.score(QUERY, DOCUMENTS[2])
    plain = len(published_tokens(tokenizer, QUERY, DOCUMENTS[2]))
    assert found.num_tokens > plain + 30  # six names, of ten characters and more each


def test_a_prompt_that_the_client_has_written_is_not_written_twice(original):
    llm, model, tokenizer = original
    first = f"{PREFIX}<Instruct>: {TASK}\n<Query>: {QUERY}\n"
    (found,) = llm.score(first, f"<Document>: {DOCUMENTS[0]}{SUFFIX}")
    tokens = published_tokens(tokenizer, QUERY, DOCUMENTS[0])
    assert found.num_tokens == len(tokens)
    assert abs(found.score - published_score(model, tokenizer, tokens)) < 1e-4


def test_a_long_document_is_cut_before_the_end_of_the_prompt_or_refused(original):
    llm, model, tokenizer = original
    long = "the city is near the river " * 100
    with pytest.raises(InvalidRequest, match="reads at most 512"):
        llm.score(QUERY, long)
    (found,) = llm.score(QUERY, long, truncate=True)
    tokens = published_tokens(tokenizer, QUERY, long, most=512)
    assert found.num_tokens == 512 and abs(found.score - published_score(model, tokenizer, tokens)) < 1e-4


def test_a_document_alone_is_cut_to_its_own_limit(original):
    llm, _, tokenizer = original
    ask = VectorRequest("", RequestKind.SCORE, (QUERY,), (DOCUMENTS[0],), max_second=4)
    (found,) = encode_texts(ask, llm._model.model_text, VectorFacts([RequestKind.SCORE, RequestKind.CLASSIFY], 512, 2))
    ids = tokenizer(DOCUMENTS[0], add_special_tokens=False).input_ids[:4]
    assert list(found.tokens) == published_tokens(tokenizer, QUERY, tokenizer.decode(ids))


def test_it_scores_and_does_not_embed_or_generate(original):
    llm, _, _ = original
    for call in (llm.embed, llm.generate):
        with pytest.raises(QuireError, match="it can score and classify"):
            call(["a"])


@pytest.mark.parametrize("write", [write_vllm, lambda folder: write_original(folder, tied=True)], ids=["vllm", "tied"])
def test_other_files_of_the_same_model_give_the_same_scores(write, tmp_path):
    model, tokenizer = write(tmp_path)
    wanted = published_score(model, tokenizer, published_tokens(tokenizer, QUERY, DOCUMENTS[0]))
    with LLM(tmp_path, device="cpu", kv_dtype="f32", pooling="last") as llm:
        assert np.abs(scores(llm, QUERY, DOCUMENTS[:1]) - wanted).max() < 1e-4


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of sentence-transformers, one of a decoder that was converted to a head of one class, and its model."""
    sentence = pytest.importorskip("sentence_transformers")
    from sentence_transformers.cross_encoder.modules import LogitScore

    plain = tmp_path_factory.mktemp("plain")
    _, tokenizer = write_decoder(plain)
    (plain / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    variables = {"chat_template": {"add_generation_prompt": True}}
    part = sentence.base.modules.Transformer(
        str(plain), transformer_task="text-generation", processing_kwargs=variables, max_seq_length=300
    )
    ids = [tokenizer.convert_tokens_to_ids(each) for each in ("yes", "no")]
    made = sentence.CrossEncoder(modules=[part, LogitScore(*ids)], device="cpu")
    folder = tmp_path_factory.mktemp("whole")
    made.save_pretrained(str(folder))
    return folder, made


def test_a_folder_of_sentence_transformers_is_read_as_it_is(folders):
    folder, reference = folders
    pairs = [(QUERY, each) for each in DOCUMENTS[:2]]
    with LLM(folder, device="cpu", kv_dtype="f32") as llm:
        assert np.abs(scores(llm, QUERY, DOCUMENTS[:2]) - reference.predict(pairs)).max() < 1e-4
        found = scores(llm, QUERY, DOCUMENTS[:2], instruction="Find cities")
        assert np.abs(found - reference.predict(pairs, prompt="Find cities")).max() < 1e-4
        long = "the city is near the river " * 60
        cut = scores(llm, QUERY, [long], truncate=True)
        assert np.abs(cut - reference.predict([(QUERY, long)])).max() < 1e-4


def test_a_module_that_reads_something_else_is_refused(folders, tmp_path):
    import shutil

    folder = shutil.copytree(folders[0], tmp_path / "copy")
    (file,) = folder.glob("*LogitScore/config.json")
    file.write_text(json.dumps({"true_token_id": 7, "false_token_id": 99999}))
    with pytest.raises(QuireError, match="the model has"):
        LLM(folder, device="cpu")
    file.write_text(json.dumps({"true_token_id": 7, "module_input_name": "rows"}))
    with pytest.raises(QuireError, match="reads rows"):
        LLM(folder, device="cpu")
