"""Our own endpoints: tokenization, settings, metrics, the OpenAPI description, and the cache."""

from __future__ import annotations

import time

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_metrics

from quire import __version__
from quire.serve.admin.routes import OWN_ROUTES, header_of, method_of
from quire.serve.http.app import all_dialects
from tests.serve.plain_dialect import PLAIN
from tests.serve.running import running

pytestmark = pytest.mark.e2e

NUM_BLOCKS = 24
TEXT = "The quick brown fox jumps over the lazy dog while the cat looks on and the bird sings its long song. " * 3


@pytest.fixture(scope="module")
def server(model_file):
    with running(model_file, (PLAIN, *all_dialects()), num_blocks=NUM_BLOCKS, max_context=320) as made:
        yield made


def post(server, path, **body):
    response = server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def complete(server, prompt=TEXT, **more):
    body = {"prompts": [prompt], "max_tokens": 2, "temperature": 0}
    return server.http.post("/plain/complete", json=body | more).json()


def test_tokens_go_to_text_and_back(server):
    said = post(server, "/tokenize", prompt="Hello, wörld <|im_end|>")
    assert said["count"] == len(said["tokens"]) and said["max_model_len"] == 320
    assert post(server, "/detokenize", tokens=said["tokens"]) == {
        "prompt": "Hello, wörld <|im_end|>",
        "content": "Hello, wörld <|im_end|>",
    }
    assert post(server, "/tokenize", content="Hello, wörld <|im_end|>") == said
    assert post(server, "/tokenize", prompt=said["tokens"])["tokens"] == said["tokens"]


def test_messages_and_requests_of_any_dialect_are_tokenized_as_they_would_be_sent(server):
    messages = [{"role": "user", "content": "Hello"}]
    ours = post(server, "/tokenize", messages=messages)
    openai = {"path": "/v1/chat/completions", "body": {"model": "toy", "messages": messages}}
    assert post(server, "/tokenize", request=openai)["tokens"] == ours["tokens"]
    plain = {"path": "/plain/chat", "body": {"messages": [{"role": "user", "text": "Hello"}]}}
    assert post(server, "/tokenize", request=plain)["tokens"] == ours["tokens"]


@pytest.mark.parametrize(
    "path, body",
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "content": "b"}),
        ("/tokenize", {"prompt": "a", "unknown": 1}),
        ("/tokenize", {"request": {"path": "/nowhere", "body": {}}}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [10**9]}),
        ("/detokenize", {"tokens": "abc"}),
        ("/v1/cache/pin", {"prompt": "a", "rank": 1000}),
        ("/v1/cache/pin", {"prompt": ""}),
        ("/v1/cache/explain", {"prompt": [3, -4]}),
    ],
)
def test_invalid_bodies_are_refused(server, path, body):
    response = server.http.post(path, json=body)
    assert response.status_code == 400 and response.json()["error"]["code"] == "invalid_request", response.text


def test_life_and_version(server):
    assert server.http.get("/health").json() == {"status": "ok"}
    assert server.http.get("/ready").json() == {"status": "ready"}
    assert server.http.get("/version").json() == {"version": __version__}


def test_the_settings_are_shown_without_secrets(server):
    said = server.http.get("/props").json()
    assert said["settings"]["num_blocks"] == NUM_BLOCKS and "api_key" not in said["settings"]
    assert said["models"]["toy"]["num_blocks"] == NUM_BLOCKS and "openai" in said["dialects"]
    assert said["limits"]["max_n"] == 128


def test_the_cache_explains_why_a_prompt_hits_or_misses(server):
    before = post(server, "/v1/cache/explain", prompt=TEXT)
    assert before["num_hit"] == 0 and before["cause"] == "unseen"
    complete(server)
    known = post(server, "/v1/cache/explain", prompt=TEXT)
    assert known["cause"] == "whole" and known["num_hit"] == known["num_tokens"] > 50
    other = post(server, "/v1/cache/explain", prompt=TEXT.replace("long song", "short tune"))
    assert other["cause"] == "diverged" and 0 < other["num_hit"] < other["num_tokens"]
    assert "'" in other["explanation"] and str(other["num_hit"]) in other["explanation"]
    assert other["num_in_tree"] == other["num_hit"]
    foreign = post(server, "/v1/cache/explain", prompt=TEXT, salt="mine")
    assert foreign["cause"] == "other_salt" and foreign["num_hit"] == 0


def test_a_pinned_prefix_outlives_others_until_it_is_unpinned(server):
    post(server, "/v1/cache/flush")
    complete(server)
    pinned = post(server, "/v1/cache/pin", prompt=TEXT, seconds=600, rank=90)
    assert pinned["num_pinned"] == pinned["num_tokens"] > 50
    for place in range(3):  # more than the cache holds
        complete(server, [1000 + place] * 130, max_tokens=1)
    assert post(server, "/v1/cache/explain", prompt=TEXT)["cause"] == "whole"
    assert post(server, "/v1/cache/unpin", prompt=TEXT)["num_unpinned_blocks"] >= 3
    for place in range(3):
        complete(server, [2000 + place] * 130, max_tokens=1)
    assert post(server, "/v1/cache/explain", prompt=TEXT)["cause"] == "evicted"


def test_a_flush_forgets_everything(server):
    complete(server)
    assert server.http.get("/v1/cache").json()["models"]["toy"]["num_cached_blocks"] > 0
    assert post(server, "/v1/cache/flush", model="toy")["num_flushed_blocks"] > 0
    said = server.http.get("/v1/cache").json()["models"]["toy"]
    assert said["num_cached_blocks"] == 0 and said["num_free_blocks"] == said["num_blocks"] == NUM_BLOCKS
    assert said["num_states"] == said["num_checkpoints"] == said["num_window_blocks"] == 0


def test_every_path_is_described_once_and_with_a_schema_that_is_one(server):
    jsonschema = pytest.importorskip("jsonschema")
    said = server.http.get("/openapi.json").json()
    assert said["openapi"].startswith("3.1") and said["info"]["version"] == __version__
    endpoints = [each for dialect in (PLAIN, *all_dialects()) for each in dialect.endpoints]
    known = [
        (method_of(each), each.path) for each in endpoints if not header_of(each)
    ]  # the others have a second shape
    known += [(each.method, each.path) for each in OWN_ROUTES]
    assert len(known) == len(set(known)), "two handlers for one path"
    described = [(verb.upper(), path) for path, verbs in said["paths"].items() for verb in verbs]
    assert sorted(described) == sorted(known)
    ids = [operation["operationId"] for verbs in said["paths"].values() for operation in verbs.values()]
    assert len(ids) == len(set(ids))
    for path, verbs in said["paths"].items():
        for operation in verbs.values():
            assert operation["responses"]["200"]["description"] and operation["summary"]
            assert ("{" in path) == ("parameters" in operation)
            if "requestBody" in operation:
                schema = next(iter(operation["requestBody"]["content"].values()))["schema"]
                jsonschema.Draft202012Validator.check_schema(schema)
                assert schema.get("type") == "object" or "anyOf" in schema, path


def test_metrics_are_prometheus_text_under_our_names_and_vllms(server):
    complete(server)
    complete(server)
    complete(server, model="nobody")
    deadline = time.monotonic() + 5
    while True:
        response = server.http.get("/metrics")
        families = {family.name: family for family in parse_metrics(response.text)}
        if "quire_requests_refused" in families or time.monotonic() > deadline:
            break
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    for name in (
        *("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"),
        *("request_queue_time_seconds", "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
        *("prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens", "num_preemptions"),
        "request_success",
    ):
        family = families[f"vllm:{name}"]
        assert all(sample.labels["model_name"] == "toy" for sample in family.samples if sample.value), name
    first = {s.name: s.value for s in families["quire_first_token_seconds"].samples if "le" not in s.labels}
    assert first["quire_first_token_seconds_count"] >= 1 and first["quire_first_token_seconds_sum"] > 0
    parts = {s.labels["part"] for s in families["quire_step_seconds"].samples if s.name.endswith("_count") and s.value}
    assert parts == {"plan", "run", "commit"}
    sources = {s.labels["source"]: s.value for s in families["quire_prompt_tokens_by_source"].samples}
    assert sources["cached"] > 0 and sources["computed"] > 0
    refused = {s.labels["code"]: s.value for s in families["quire_requests_refused"].samples}
    assert refused["model_not_found"] >= 1
    blocks = {s.labels["state"]: s.value for s in families["quire_kv_blocks"].samples}
    assert sum(blocks.values()) == NUM_BLOCKS
    scraper = {"accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"}
    response = server.http.get("/metrics", headers=scraper)
    assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert families.keys() == {family.name for family in parse_openmetrics(response.text)}
