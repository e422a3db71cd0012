"""A prefill server and a decode server behind a gateway: the text of one server, whatever happens to a transfer."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from quire.engine.launch import ChildEngine
from quire.serve.http.app import all_dialects
from tests.gateway.running_gateway import RunningGateway, running_gateway
from tests.serve.running import Running, running
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

SETTINGS: dict[str, Any] = {
    **{"transfer_secret": "a secret of the two servers", "max_context": 1024, "num_blocks": 300},
    **{"max_step_tokens": 64, "speculate": "off"},
}
PATH = "/v1/completions"


class Split(NamedTuple):
    prefill: Running
    decode: Running
    gateway: RunningGateway

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.gateway.http.post(PATH, json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def engine(self, server: Running) -> ChildEngine:
        link = server.client_of("toy")._link
        assert isinstance(link, ChildEngine)
        return link


def prompt(number: int, num_lines: int = 20) -> dict[str, Any]:
    text = f"Story {number}. " + "The fox went on through the old forest, and the river was cold. " * num_lines
    return {"model": "toy", "prompt": text, "temperature": 0, "max_tokens": 8, "ignore_eos": True}


def has_text(gateway: RunningGateway) -> bool:
    """Does the gateway encode prompts?"""
    answer = gateway.http.post("/v1/cache/explain", json={"model": "toy", "prompt": "a"})
    return answer.status_code == 200 and answer.json()["is_encoded"]


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["text"])


@pytest.fixture(scope="module")
def split(model_file: Path) -> Iterator[Split]:
    with ExitStack() as stack:
        prefill, decode = (
            stack.enter_context(running(model_file, all_dialects(), role=role, **SETTINGS))
            for role in ("prefill", "decode")
        )
        gateway = stack.enter_context(running_gateway([prefill.url, decode.url]))
        wait_until(lambda: has_text(gateway))
        wait_until(lambda: {each["role"] for each in gateway.upstreams().values()} == {"prefill", "decode"})
        yield Split(prefill, decode, gateway)


def test_prompts_are_computed_by_the_prefill_server_and_answered_by_the_other(split):
    before = split.prefill.counters(), split.decode.counters()
    answer = split.ask(prompt(0))
    after = split.prefill.counters(), split.decode.counters()
    direct = split.decode.http.post(PATH, json=prompt(0) | {"cache_salt": "alone"}).json()
    assert text_of(answer) == text_of(direct)
    num_fetched = after[1].fetched_tokens - before[1].fetched_tokens
    assert num_fetched == (answer["usage"]["prompt_tokens"] - 1) // 16 * 16
    assert after[0].sent_tokens - before[0].sent_tokens == num_fetched
    assert answer["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0) == 0
    assert split.gateway.http.post("/v1/cache/explain", json={"prompt": prompt(1)["prompt"]}).json()["prefix_source"]
    streamed = split.gateway.http.post(PATH, json=prompt(2) | {"stream": True}).text
    assert "[DONE]" in streamed
    assert 'quire_gateway_streams_total{model="",source="prefill"} 1' in split.gateway.http.get("/metrics").text


@pytest.mark.slow
def test_a_prefill_engine_that_is_killed_in_the_middle_of_a_transfer_changes_no_text(split):
    for number in range(10, 20):  # on a fast machine a transfer may be over before the kill
        body, answers = prompt(number, num_lines=45), list[dict[str, Any]]()
        before = split.decode.counters()
        thread = threading.Thread(target=lambda body=body, to=answers: to.append(split.ask(body)))
        thread.start()
        wait_until(lambda before=before: split.decode.counters().fetched_tokens > before.fetched_tokens)
        os.kill(split.engine(split.prefill).pid, signal.SIGKILL)
        thread.join()
        direct = split.decode.http.post(PATH, json=body | {"cache_salt": "alone"}).json()
        assert text_of(answers[0]) == text_of(direct)
        wait_until(lambda: split.prefill.client_of("toy").trouble is None)
        split.gateway.wait_ready(2)
        if split.decode.counters().num_failed_fetches > before.num_failed_fetches:
            return
    raise AssertionError("no kill came in the middle of a transfer")


@pytest.mark.slow
def test_a_decode_engine_that_is_killed_continues_its_requests(split):
    body = prompt(20, num_lines=45) | {"max_tokens": 30}
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(split.ask(body)))
    before = split.decode.counters().fetched_tokens
    thread.start()
    wait_until(lambda: split.decode.counters().fetched_tokens > before)
    os.kill(split.engine(split.decode).pid, signal.SIGKILL)
    thread.join()
    direct = split.prefill.http.post(PATH, json=body | {"cache_salt": "alone"}).json()
    assert text_of(answers[0]) == text_of(direct)
    split.gateway.wait_ready(2)


@pytest.mark.slow
def test_a_prefix_in_another_cache_is_fetched(model_file):
    with (
        running(model_file, all_dialects(), **SETTINGS) as one,
        running(model_file, all_dialects(), **SETTINGS) as two,
        running_gateway([one.url, two.url], balance="round_robin") as gateway,
    ):
        wait_until(lambda: has_text(gateway))
        wait_until(lambda: all(each["loads"] for each in gateway.upstreams().values()))
        answers = []
        for _ in range(2):
            answers.append(gateway.http.post(PATH, json=prompt(30)).json())
            wait_until(lambda: any(sum(u["cached_blocks"].values()) for u in gateway.upstreams().values()))
        assert text_of(answers[0]) == text_of(answers[1])
        assert one.counters().fetched_tokens + two.counters().fetched_tokens > 200


@pytest.mark.slow
def test_a_prefill_server_answers_if_it_is_alone(model_file):
    with (
        running(model_file, all_dialects(), role="prefill", **SETTINGS) as alone,
        running_gateway([alone.url]) as gateway,
    ):
        wait_until(lambda: next(iter(gateway.upstreams().values()))["role"] == "prefill")
        assert gateway.http.post(PATH, json=prompt(40)).status_code == 200
