"""Aliases in a server: who answers, what is told of it, what happens when the one that is meant cannot."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.gateway.policy import RequestFacts
from quire.gateway.split import Split
from quire.serve.http.app import all_dialects
from quire.serve.residency.shelf import ModelEntry
from tests.serve.processes.test_process import SMALL, command, serving
from tests.serve.running import Running, link_or_copy, running
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

ROUTES = r"""
routes:
  assistant:
    rules:
      - name: long
        when: {prompt_chars: {at_least: 400}}
        use: large
      - name: paying
        when: {tier: paying}
        use: large
      - name: legal
        when: {matches: '(?i)\bcontract\b'}
        use: large
      - name: draft
        when: {metadata: {stage: draft}}
        use: large
      - name: code
        when: {topic: {classifier: subjects, is: code, at_least: 0.7}}
        use: large
      - name: rest
        use: small
  trial:
    rules:
      - use: {small: 1, large: 1}
        seed: summer
  careful:
    rules:
      - name: first
        use: broken
    fallback: [small]
  busy:
    rules: [{name: only, use: large}]
    fallback: [small]
  hopeless:
    rules: [{name: only, use: broken}]
tiers: {paying: [key-2]}
classifiers:
  subjects:
    code: [Fix this Python function, My loop never ends, Add unit tests to this class]
    prose: [Write a poem about the sea, Tell me a story, Make this letter warmer]
"""


class BrokenShelf:
    """One more model, whose file is not whole."""

    def __init__(self, path: Path) -> None:
        self._entry = ModelEntry("broken", lambda: path)

    def find(self, text: str) -> ModelEntry | None:
        return self._entry if text == "broken" else None

    def all(self) -> list[ModelEntry]:
        return [self._entry]


@pytest.fixture(scope="module")
def server(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("routes")
    (folder / "broken.gguf").write_bytes(model_file.read_bytes()[:5000])
    (folder / "routes.yaml").write_text(ROUTES)
    link_or_copy(model_file, folder / "large.gguf")  # names of one file would share an engine
    entries = [ModelEntry("small", lambda: model_file), ModelEntry("large", lambda: folder / "large.gguf")]
    settings: dict[str, Any] = {"max_rows": 1, "max_step_tokens": 64, "max_waiting": 1, "api_key": "one,two"}
    settings |= {"num_blocks": 64, "max_context": 512, "routes": str(folder / "routes.yaml")}
    with running(entries, all_dialects(), shelf=BrokenShelf(folder / "broken.gguf"), **settings) as started:
        started.http.headers["authorization"] = "Bearer one"
        yield started


def chat(server: Running, model: str, text: str = "Hello", **more: Any) -> httpx.Response:
    headers = more.pop("headers", {})
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 2, "temperature": 0}
    return server.http.post("/v1/chat/completions", json=body | more, headers=headers)


def told(answer: httpx.Response) -> tuple[str, str, str]:
    """The rule, the model by the header, the model by the body."""
    assert answer.status_code == 200, answer.text
    return answer.headers["x-quire-route"], answer.headers["x-quire-model"], answer.json()["model"]


def test_aliases_are_listed_and_shown_beside_the_models(server: Running) -> None:
    listed = [each["id"] for each in server.http.get("/v1/models").json()["data"]]
    assert listed[:2] == ["small", "large"] and {"assistant", "trial", "careful", "busy"} <= set(listed)
    assert len(listed) == len(set(listed))
    assert "assistant" in {each["name"] for each in server.http.get("/api/tags").json()["models"]}
    assert server.http.get("/v1/models/assistant").json()["id"] == "assistant"
    shown = server.http.post("/api/show", json={"model": "assistant"}).json()
    assert shown["template"] == server.http.post("/api/show", json={"model": "small"}).json()["template"] != ""
    assert {each["name"] for each in server.http.get("/api/ps").json()["models"]} == {"small", "large"}


def test_a_model_that_is_not_served_is_told_the_one_that_was_meant(server: Running) -> None:
    refused = chat(server, "larg")
    assert refused.status_code == 404 and refused.json()["error"]["message"].endswith("Did you mean large?")


@pytest.mark.parametrize(
    "rule, model, asked",
    [
        ("rest", "small", {}),
        ("long", "large", {"text": "word " * 80}),
        ("paying", "large", {"headers": {"authorization": "Bearer two"}}),
        ("legal", "large", {"text": "What does this Contract say?"}),
        ("draft", "large", {"metadata": {"stage": "draft"}}),
        ("rest", "small", {"metadata": {"stage": "final"}}),
        ("code", "large", {"text": "Fix this loop in my function"}),
    ],
)
def test_an_alias_leads_to_a_model_by_its_rules(server: Running, rule: str, model: str, asked: dict[str, Any]) -> None:
    assert told(chat(server, "assistant", **asked)) == (f"assistant/{rule}", model, model)


def test_a_model_by_its_own_name_is_not_routed(server: Running) -> None:
    answer = chat(server, "large")
    assert answer.json()["model"] == "large" and "x-quire-route" not in answer.headers
    refused = chat(server, "nobody")
    assert refused.status_code == 404 and "x-quire-route" not in refused.headers


def test_a_split_gives_each_user_one_model_in_exact_proportions(server: Running) -> None:
    split = Split({"small": 1, "large": 1}, "summer")
    users = [f"user-{n}" for n in range(12)]
    expected = {user: split.choose(RequestFacts(user=user)) for user in users}
    assert Counter(expected.values()) == {"small": 6, "large": 6}
    for user in users:
        assert told(chat(server, "trial", user=user))[1] == expected[user]
    for user in users[:3]:
        assert told(chat(server, "trial", "Something else", user=user))[1] == expected[user]


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_cannot_be_loaded_falls_back_to_the_next(server: Running, stream: bool) -> None:
    answer = chat(server, "careful", stream=stream)
    assert answer.status_code == 200 and answer.headers["x-quire-route"] == "careful/first"
    assert answer.headers["x-quire-model"] == "small"
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    assert {json.loads(text)["model"] for text in (lines or [answer.text])} == {"small"}
    assert server.records[-1].model == "small"


def test_if_no_model_can_answer_the_error_is_that_of_the_preferred_one(server: Running) -> None:
    answer = chat(server, "hopeless")
    assert answer.status_code >= 400 and "gguf" in answer.text
    assert answer.headers["x-quire-route"] == "hopeless/only" and "x-quire-model" not in answer.headers


def test_a_model_with_a_full_queue_falls_back_to_the_next(server: Running) -> None:
    """One request runs in the large model, one waits: a third would be refused."""
    long: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True, "stream": True}
    messages = [{"role": "user", "content": "Count"}]
    body = {"model": "large", "messages": messages, "temperature": 0, **long}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as first:
        lines = first.iter_lines()  # kept: its end would be that of the request
        next(lines)
        waiting = threading.Thread(target=lambda: chat(server, "large", max_tokens=1))
        waiting.start()
        deadline = time.monotonic() + 30
        while 'quire_requests_waiting{model="large"} 1.0\n' not in server.http.get("/metrics").text:
            assert time.monotonic() < deadline
        assert told(chat(server, "busy")) == ("busy/only", "small", "small")
        assert chat(server, "large").status_code == 503
    waiting.join()
    assert told(chat(server, "busy")) == ("busy/only", "large", "large")


def test_a_bad_request_is_not_tried_again_elsewhere(server: Running) -> None:
    answer = chat(server, "busy", logit_bias={"999999": 1})
    assert answer.status_code == 400 and answer.headers["x-quire-model"] == "large"


def test_other_dialects_are_routed_too(server: Running) -> None:
    messages = [{"role": "user", "content": "What does this contract say?"}]
    body = {"model": "assistant", "messages": messages}
    anthropic = server.http.post("/v1/messages", json=body | {"max_tokens": 2})
    assert told(anthropic) == ("assistant/legal", "large", "large")
    counted = server.http.post("/v1/messages/count_tokens", json=body)
    assert counted.json()["input_tokens"] > 5 and counted.headers["x-quire-model"] == "large"
    ollama = server.http.post("/api/chat", json=body | {"stream": False, "options": {"num_predict": 2}})
    assert told(ollama) == ("assistant/legal", "large", "large")


def test_props_show_the_rules(server: Running) -> None:
    said = server.http.get("/props").json()["routes"]
    assert said["file"].endswith("routes.yaml") and said["problem"] is None and said["num_reloads"] == 0
    assert list(said["aliases"]) == ["assistant", "trial", "careful", "busy", "hopeless"]
    assert said["aliases"]["careful"] == [{"rule": "first", "use": "broken", "fallback": ["small"]}]
    assert said["aliases"]["assistant"][0]["when"] == {"prompt_chars": {"at_least": "400"}}
    assert said["classifiers"]["subjects"]["classes"] == {"code": 3, "prose": 3}


def ask(url: str, model: str) -> httpx.Response:
    body = {"model": model, "prompt": "Once", "max_tokens": 1}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60, trust_env=False)


@pytest.mark.parametrize("fronts", ["1", "2"])
def test_rules_are_reloaded_at_sighup_and_an_invalid_file_changes_nothing(
    model_file: Path, tmp_path: Path, fronts: str
) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text("routes: {old: {rules: [{use: mine}]}}")
    with serving(f"mine={model_file}", *SMALL, "--routes", file, "--fronts", fronts) as server:
        assert ask(server.url, "old").headers["x-quire-route"] == "old/1"
        file.write_text("routes: {new: {rules: [{name: it, use: mine}]}}")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: all(ask(server.url, "new").status_code == 200 for _ in range(4)))
        assert ask(server.url, "new").headers["x-quire-route"] == "new/it"
        wait_until(lambda: ask(server.url, "old").status_code == 404)
        file.write_text("routes:\n  worse: {rules: [{use: nobody}]}")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any("line 2: there is no model 'nobody' here" in line for line in server.lines))
        assert ask(server.url, "new").status_code == 200
        if fronts == "1":
            said = server.get("/props").json()["routes"]
            assert "line 2" in said["problem"] and said["num_reloads"] == 1


@pytest.mark.parametrize("fronts", ["1", "2"])
def test_a_bad_file_keeps_the_server_from_starting(model_file: Path, tmp_path: Path, fronts: str) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text("routes:\n  a:\n    rules: [{use: nobody}]")
    done = subprocess.run(
        command(f"mine={model_file}", *SMALL, "--routes", file, "--fronts", fronts),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "error: routes.yaml, line 3: there is no model 'nobody' here." in done.stderr
