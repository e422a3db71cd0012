"""One server with a chat model, an embedder and a reranker, by the public clients and in every dialect's form."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from quire.serve.http.app import all_dialects
from quire.serve.residency.shelf import ModelEntry
from tests.models.sentence_folders import WORDS, write_cross_encoder, write_embedder
from tests.serve.running import running

pytest.importorskip("sentence_transformers")
ollama = pytest.importorskip("ollama")
openai = pytest.importorskip("openai")
pytestmark = pytest.mark.e2e
TEXTS = ["the capital of the north", "cold river", "a deep museum"]


@pytest.fixture(scope="module")
def server(model_file, tmp_path_factory):
    embedder = write_embedder(tmp_path_factory.mktemp("embedder"))
    ranker = write_cross_encoder(tmp_path_factory.mktemp("ranker"))
    entries = [
        ModelEntry("chat", lambda: model_file, ()),
        ModelEntry("embedder", lambda: embedder, ()),
        ModelEntry("ranker", lambda: ranker, ()),
    ]
    with running(entries, all_dialects()) as made:
        yield made


def post(server, path, **body):
    return server.http.post(path, json=body)


def test_a_rag_client_is_served_end_to_end(server):
    """Embed 200 passages, retrieve, rerank, answer: all from one server."""
    rng = np.random.default_rng(3)
    passages = [f"number{n} {' '.join(rng.choice(WORDS, 6))}" for n in range(200)]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        found = client.embeddings.create(model="embedder", input=passages)
        vectors = np.array([each.embedding for each in found.data])
        assert vectors.shape == (200, 32) and found.usage.prompt_tokens > 200
        query = passages[37]
        (asked,) = client.embeddings.create(model="embedder", input=query).data
        best = np.argsort(-(vectors @ np.array(asked.embedding)))[:5]
        assert best[0] == 37
        body = {"model": "ranker", "query": query, "documents": [passages[n] for n in best], "top_n": 2}
        ranked = post(server, "/v1/rerank", **body).json()["results"]
        assert len(ranked) == 2 and ranked[0]["relevance_score"] >= ranked[1]["relevance_score"]
        prompt = f"{ranked[0]['document']['text']}\nWhich number is in this text?"
        answer = client.chat.completions.create(
            model="chat", messages=[{"role": "user", "content": prompt}], max_tokens=8, temperature=0
        )
        assert answer.choices[0].message.content


def test_floats_and_base64_are_the_same_numbers(server):
    floats = post(server, "/v1/embeddings", model="embedder", input=TEXTS, encoding_format="float").json()["data"]
    encoded = post(server, "/v1/embeddings", model="embedder", input=TEXTS, encoding_format="base64").json()["data"]
    for one, other in zip(floats, encoded, strict=True):
        numbers = np.frombuffer(base64.b64decode(other["embedding"]), np.float32)
        assert np.array_equal(np.array(one["embedding"], np.float32), numbers)


def test_token_ids_and_dimensions(server):
    found = post(server, "/v1/embeddings", model="embedder", input=[[2, 9, 3], [2, 10, 11, 3]], dimensions=4).json()
    assert [len(each["embedding"]) for each in found["data"]] == [4, 4] and found["usage"]["prompt_tokens"] == 7


def test_all_forms_have_the_same_vector(server):
    expected = np.array(post(server, "/v1/embeddings", model="embedder", input=TEXTS[0]).json()["data"][0]["embedding"])
    tei = post(server, "/embed", model="embedder", inputs=TEXTS[:1]).json()[0]
    llama_cpp = post(server, "/embedding", model="embedder", content=TEXTS[0]).json()[0]["embedding"][0]
    vllm = post(server, "/pooling", model="embedder", input=TEXTS[0]).json()["data"][0]["data"]
    old = post(server, "/api/embeddings", model="embedder", prompt=TEXTS[0]).json()["embedding"]
    with ollama.Client(server.url) as client:
        by_ollama = client.embed("embedder", TEXTS[0])["embeddings"][0]
    for other in (tei, llama_cpp, vllm, old, by_ollama):
        assert np.abs(np.array(other) - expected).max() < 1e-6


def test_rerankers_of_all_forms_agree(server):
    scores = [
        each["score"] for each in post(server, "/score", model="ranker", text_1=TEXTS[0], text_2=TEXTS).json()["data"]
    ]
    body = {"model": "ranker", "query": TEXTS[0], "documents": TEXTS}
    cohere = post(server, "/v2/rerank", **body).json()["results"]
    jina = post(server, "/v1/rerank", **body).json()["results"]
    tei = post(server, "/rerank", model="ranker", query=TEXTS[0], texts=TEXTS).json()
    order = sorted(range(len(TEXTS)), key=lambda index: -scores[index])
    assert [each["index"] for each in cohere] == [each["index"] for each in tei] == order
    assert all("document" not in each for each in cohere) and jina[0]["document"]["text"] == TEXTS[order[0]]
    assert [each["relevance_score"] for each in jina] == [scores[index] for index in order]
    classes = post(server, "/classify", model="ranker", input=TEXTS[0]).json()["data"][0]
    assert classes["num_classes"] == 1 and len(classes["probs"]) == 1


@pytest.mark.parametrize(
    "path, body, words",
    [
        ("/v1/embeddings", {"input": ""}, "A text is empty"),
        ("/v1/embeddings", {"input": []}, "input must be"),
        ("/v1/embeddings", {"input": ["a", 3]}, "input must be"),
        ("/v1/embeddings", {"input": "a", "dimensions": 4000}, "have 32"),
        ("/v1/embeddings", {"input": "the " * 100_000}, "reads at most 40"),
        ("/v1/embeddings", {"input": "a", "input_type": "nobody"}, "no prompt named 'nobody'"),
        ("/v1/embeddings", {"input": "a", "color": 1}, "color"),
        ("/classify", {"input": "a"}, "cannot classify: it can embed and score"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents is empty"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1 has 2 texts and text_2 3"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "cannot generate"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(server, path, body, words):
    answer = post(server, path, model="embedder", **body)
    assert answer.status_code == 400 and words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "model, path, body, field",
    [
        ("embedder", "/v1/embeddings", {"input": [2, 999]}, "input"),
        ("embedder", "/v1/embeddings", {"input": "the", "truncate_prompt_tokens": 2}, "truncate_prompt_tokens"),
        ("embedder", "/embed", {"inputs": ""}, "inputs"),
        ("embedder", "/embed", {"inputs": "the " * 50}, "inputs"),
        ("embedder", "/embedding", {"content": ""}, "content"),
        ("embedder", "/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("embedder", "/rerank", {"query": "a", "texts": ["a", ""]}, "texts"),
        ("ranker", "/rerank", {"query": "a", "texts": []}, "texts"),
        ("ranker", "/rerank", {"query": "a", "documents": ["the " * 90]}, "documents"),
        ("ranker", "/rerank", {"query": "a", "texts": ["a"], "top_n": 1}, "top_n"),
        ("ranker", "/rerank", {"query": "a", "documents": ["a"], "return_text": True}, "return_text"),
        ("ranker", "/v1/rerank", {"query": "a", "documents": ["a"], "truncate_prompt_tokens": 0},
         "truncate_prompt_tokens"),
        ("ranker", "/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("ranker", "/score", {"queries": ["a", "b"], "documents": ["a"]}, "queries"),
    ],
)  # fmt: skip
def test_errors_name_the_field_of_the_client(server, model, path, body, field):
    answer = post(server, path, model=model, **body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field, answer.text


@pytest.mark.parametrize("model", ["ranker", "embedder"])
def test_documents_are_cut_and_the_query_is_not(server, model):
    """Cohere's max_tokens_per_doc: the score is that of the first words of each document."""
    query, words = "the capital of the north", ["cold", "river", "near", "the", "old", "castle"]
    cut, short, long = (
        post(server, "/v2/rerank", model=model, query=query, documents=[" ".join(each)], **more).json()["results"]
        for each, more in ((words, {"max_tokens_per_doc": 2}), (words[:2], {}), (words, {}))
    )
    assert cut == short != long
    kept = post(server, "/v2/rerank", model=model, query=query, documents=["the " * 90], max_tokens_per_doc=4096)
    assert kept.status_code == 200  # cut to what the model reads


def test_llama_cpp_has_another_path_for_rerankers(server):
    body = {"model": "ranker", "query": TEXTS[0], "documents": TEXTS}
    found, wanted = (post(server, path, **body).json()["results"] for path in ("/reranking", "/v2/rerank"))
    assert found == wanted == post(server, "/v1/reranking", **body).json()["results"]


def test_ollama_cuts_long_texts_unless_told_not_to(server):
    with ollama.Client(server.url) as client:
        found = client.embed("embedder", "the " * 500)
        assert found["prompt_eval_count"] == 40
        assert 10**5 < found["total_duration"] < 60 * 10**9 and 0 < found["load_duration"] < found["total_duration"]
        with pytest.raises(ollama.ResponseError, match="reads at most 40"):
            client.embed("embedder", "the " * 500, truncate=False)


@pytest.mark.parametrize(
    "model, wanted", [("chat", ["completion"]), ("embedder", ["embedding"]), ("ranker", ["classification"])]
)
def test_ollama_shows_what_a_model_can_do(server, model, wanted):
    with ollama.Client(server.url) as client:
        assert client.show(model).capabilities == wanted


def test_a_chat_model_says_how_it_could_embed(server):
    answer = post(server, "/v1/embeddings", model="chat", input="a")
    assert answer.status_code == 400 and "loaded with --pooling" in answer.json()["error"]["message"]
    answer = post(server, "/classify", model="chat", input="a")
    assert answer.json()["error"]["message"] == "This model cannot classify: it can generate."


@pytest.mark.parametrize("model, can", [("chat", "generate"), ("embedder", "embed and score")])
def test_a_recording_for_another_model_is_refused_with_what_that_can_do(server, model, can):
    answer = server.http.post("/v1/audio/transcriptions", data={"model": model}, files={"file": ("a.wav", b"RIFF")})
    expected = f"This model cannot transcribe: it can {can}. Use a Whisper model."
    assert answer.status_code == 400 and answer.json()["error"]["message"] == expected
