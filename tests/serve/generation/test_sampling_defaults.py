"""A server samples as the model's authors say where a request says nothing, in every dialect, and tells so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.serve.http.app import all_dialects
from quire.text.preset import FILES
from tests.serve.running import Running, running

pytestmark = pytest.mark.e2e

TALK = {"model": "toy", "messages": [{"role": "user", "content": "Say a word."}]}
PATHS = {
    "/v1/chat/completions": TALK,
    "/v1/completions": {"model": "toy", "prompt": "One two"},
    "/v1/responses": {"model": "toy", "input": "Say a word."},
    "/v1/messages": TALK | {"max_tokens": 6},
    "/api/chat": TALK | {"stream": False},
    "/api/generate": {"model": "toy", "prompt": "One two", "stream": False},
}


@pytest.fixture(scope="module")
def server(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.gguf").symlink_to(model_file)
    (folder / "generation_config.json").write_text('{"temperature": 0.31, "top_k": 11, "max_new_tokens": 6}')
    (folder / FILES["params"]).write_text(json.dumps({"top_k": 12, "num_ctx": 256}))
    with running(folder / "model.gguf", all_dialects(), max_context=None) as started:
        yield started


@pytest.mark.parametrize("path", PATHS)
def test_parameters_that_a_request_does_not_give_are_the_models(server, path):
    answer = server.http.post(path, json=PATHS[path])
    assert answer.status_code == 200, answer.text
    sampling = server.records[-1].sampling
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (0.31, 12, 6)
    if path == "/v1/responses":
        assert answer.json()["temperature"] == 0.31


def test_parameters_of_a_request_win(server):
    server.http.post("/v1/chat/completions", json=TALK | {"temperature": 1, "top_k": -1, "max_tokens": 2})
    sampling = server.records[-1].sampling
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (1.0, 0, 2)


def test_the_server_shows_its_defaults_and_their_sources(server):
    (told,) = server.http.get("/props").json()["models"].values()
    assert told["sampling_defaults"] == {
        "temperature": {"value": 0.31, "source": "generation_config.json"},
        "top_k": {"value": 12, "source": "Modelfile"},
        "max_tokens": {"value": 6, "source": "generation_config.json"},
    }
    assert told["max_context"] == 256  # the Modelfile's num_ctx
    shown = server.http.post("/api/show", json={"model": "toy"}).json()
    assert shown["sampling_defaults"] == {"temperature": 0.31, "top_k": 12, "max_tokens": 6}


def test_num_ctx_of_a_request_limits_prompt_and_answer_together(server):
    def ask(prompt: str, **options: int) -> object:
        body = {
            "model": "toy",
            "prompt": prompt,
            "raw": True,
            "stream": False,
            "options": {"num_predict": -1, **options},
        }
        return server.http.post("/api/generate", json=body)

    told = ask("one " * 20, num_ctx=32, temperature=0).json()
    assert told["prompt_eval_count"] + told["eval_count"] <= 32 and told["done_reason"] == "length"
    refused = ask("one " * 60, num_ctx=32)
    assert refused.status_code == 400 and "32" in refused.json()["error"] and "num_ctx" in refused.json()["error"]
    larger = ask("one " * 20, num_ctx=100_000, num_predict=2)  # more than the model has: the model's
    assert larger.status_code == 200 and larger.json()["eval_count"] == 2
    assert "256" in ask("one " * 300, num_ctx=100_000).json()["error"]
