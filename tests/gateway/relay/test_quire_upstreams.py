"""Two real servers behind a gateway: a stream goes on when one dies, a prompt is encoded once, caches are known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest

from quire.serve.http.app import all_dialects
from tests.gateway.cut_proxy import CutProxy, cut_proxy
from tests.gateway.running_gateway import RunningGateway, running_gateway
from tests.gateway.stub_upstream import WORDS, stub
from tests.serve.running import Running, running
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

TOPICS = ("the sea", "two foxes", "a map", "winter")
PATH = "/v1/chat/completions"


def chat(topic: str, max_tokens: int = 24, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Tell a story about {topic}."}]
    return {"model": "toy", "messages": messages, "temperature": 0, "max_tokens": max_tokens, "stream": True, **more}


class Fleet:
    """Two servers, each behind a proxy, and the gateway."""

    def __init__(self, servers: list[Running], proxies: list[CutProxy], gateway: RunningGateway) -> None:
        self.servers = servers
        self.proxies = proxies
        self.gateway = gateway
        self.http = gateway.http

    def proxy_of(self, upstream: str) -> CutProxy:
        return next(proxy for proxy in self.proxies if proxy.url.endswith(upstream))

    def revive(self) -> None:
        for proxy in self.proxies:
            proxy.is_dead, proxy.cut_after = False, None
        self.gateway.wait_ready(2)


@pytest.fixture(scope="module")
def whole(model_file: Path, tmp_path_factory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("gateway")
    with (
        running(model_file, dialects=all_dialects()) as one,
        running(model_file, dialects=all_dialects()) as two,
        cut_proxy(one.url) as first,
        cut_proxy(two.url) as second,
        running_gateway([first.url, second.url], audit_log=str(folder / "audit.jsonl")) as gateway,
    ):
        wait_until(lambda: gateway.service.texts.get("toy") is not None)
        yield Fleet([one, two], [first, second], gateway)


@pytest.fixture
def fleet(whole: Fleet) -> Fleet:
    whole.revive()
    for each in whole.gateway.service.upstreams:
        each.breaker.succeed()
    whole.gateway.service.outliers._histories.clear()
    return whole


def deltas(lines: list[str]) -> str:
    found = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert not any("error" in each for each in found), lines
    assert lines[-2] == "data: [DONE]", lines
    assert len({each["id"] for each in found}) == 1
    return "".join(each["choices"][0]["delta"].get("content") or "" for each in found if each["choices"])


def stream(fleet: Fleet, body: dict[str, Any]) -> str:
    with fleet.http.stream("POST", PATH, json=body) as response:
        assert response.status_code == 200
        return deltas(list(response.iter_lines()))


def chosen(fleet: Fleet, body: dict[str, Any]) -> CutProxy:
    """The proxy of the server that this request will go to."""
    question = {"model": "toy", "messages": body["messages"]}
    return fleet.proxy_of(fleet.http.post("/v1/cache/explain", json=question).json()["chosen"])


def test_a_stream_whose_server_dies_goes_on_at_another_with_the_same_text(fleet):
    undisturbed = {topic: stream(fleet, chat(topic)) for topic in TOPICS}
    victim = chosen(fleet, chat(TOPICS[0]))
    num_cuts, victim.cut_after = victim.num_cuts, 900  # bytes: in the middle of a frame
    with ThreadPoolExecutor(len(TOPICS)) as pool:
        texts = dict(zip(TOPICS, pool.map(lambda topic: stream(fleet, chat(topic)), TOPICS), strict=True))
    assert texts == undisturbed and victim.num_cuts == num_cuts + 1
    assert sum(each["num_resumed"] for each in fleet.gateway.upstreams().values()) > 0


def test_an_answer_that_is_no_stream_is_given_by_another_server(fleet):
    body = chat("a bridge", stream=False)
    expected = fleet.http.post(PATH, json=body).json()["choices"]
    chosen(fleet, body).kill()
    assert fleet.http.post(PATH, json=body).json()["choices"] == expected


def test_if_no_server_is_left_the_stream_ends_with_an_error(fleet):
    for proxy in fleet.proxies:
        proxy.cut_after = 900
    with fleet.http.stream("POST", PATH, json=chat("the end", 60)) as response:
        lines = list(response.iter_lines())
    assert "event: error" in lines and "stream_lost" in "".join(lines) and "data: [DONE]" not in lines


def test_prompts_are_encoded_by_the_gateway_and_not_again(fleet, monkeypatch):
    from quire.serve import service as served

    def fail(*arguments: Any) -> Any:
        raise AssertionError("the server encoded the prompt again")

    monkeypatch.setattr(served, "encode_prompts", fail)
    for body in (chat("rain"), chat("rain", stream=False)):
        assert fleet.http.post(PATH, json=body).status_code == 200
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    called = fleet.http.post(PATH, json=chat("x", stream=False, tools=[tool], tool_choice="required")).json()
    assert called["choices"][0]["message"]["tool_calls"]
    completed = fleet.http.post("/v1/completions", json={"model": "toy", "prompt": ["a", "b"], "max_tokens": 2})
    assert len(completed.json()["choices"]) == 2


def test_a_prompt_goes_where_its_prefix_is_cached(fleet):
    long = "All work and no play makes Jack a dull boy. " * 65  # most of the context: the cache decides
    body = chat("x", 4, stream=False) | {"messages": [{"role": "user", "content": long}]}
    fleet.http.post(PATH, json=body)
    question = {"model": "toy", "messages": [{"role": "user", "content": long}]}

    def explained() -> tuple[dict[str, Any], str]:
        """What the gateway says, and which upstream has the prompt in its cache."""
        told = fleet.http.post("/v1/cache/explain", json=question).json()
        return told, next((each["name"] for each in told["upstreams"] if each["num_cached"] > 100), "")

    def goes_to_the_cache() -> bool:
        told, holder = explained()
        return bool(holder) and told["chosen"] == holder

    wait_until(goes_to_the_cache)  # estimates follow measured times: on a busy machine not in every moment
    told, _ = explained()
    assert told["reason"] and told["is_encoded"]
    assert {each["name"] for each in told["upstreams"]} == {proxy.url[7:] for proxy in fleet.proxies}
    usages = [fleet.http.post(PATH, json=body).json()["usage"] for _ in range(3)]
    assert max(each["prompt_tokens_details"]["cached_tokens"] for each in usages) > 100


@pytest.mark.parametrize("streams", [False, True])
def test_the_public_clients_of_all_dialects_work(fleet, streams):
    url, say = fleet.gateway.url, [{"role": "user", "content": "Say hi."}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        made: Any = client.chat.completions.create(model="toy", messages=say, max_tokens=5, stream=streams)
        assert [chunk.choices for chunk in made] if streams else made.choices[0].message.content
        response: Any = client.responses.create(model="toy", input="Say hi.", max_output_tokens=16, stream=streams)
        ends = ("response.incomplete", "response.completed")
        assert [event.type for event in response][-1] in ends if streams else response.output_text
    with anthropic.Anthropic(base_url=url, api_key="x") as claude:
        message: Any = claude.messages.create(model="toy", messages=say, max_tokens=5, stream=streams)
        assert [event.type for event in message][-1] == "message_stop" if streams else message.content[0].text
        assert claude.models.list().data[0].id == "toy"
        assert claude.messages.count_tokens(model="toy", messages=say).input_tokens > 0
    llama = ollama.Client(host=url)
    with closing(llama._client):
        talked: Any = llama.chat(model="toy", messages=say, stream=streams, options={"num_predict": 5})
        assert [part.done for part in talked][-1] if streams else talked.message.content
        assert llama.list().models[0].model and llama.show("toy").details is not None


def test_own_endpoints_of_a_server_are_relayed_by_their_model(fleet):
    tokens = fleet.http.post("/tokenize", json={"model": "toy", "prompt": "hello"}).json()["tokens"]
    assert fleet.http.post("/detokenize", json={"model": "toy", "tokens": tokens}).json()["prompt"] == "hello"
    assert fleet.http.get("/v1/models/toy").json()["id"] == "toy"
    pinned = fleet.http.post("/v1/cache/pin", json={"model": "toy", "prompt": "hello there", "seconds": 1})
    assert pinned.status_code == 200
    assert set(fleet.http.get("/v1/cache").json()["upstreams"]) == {proxy.url[7:] for proxy in fleet.proxies}
    assert fleet.http.post("/v1/cache/flush", json={"model": "toy"}).status_code == 200


def test_invalid_requests_get_the_servers_own_error(fleet):
    wrong = (({"temperature": -1}, "temperature"), ({"nonsense": 1}, "nonsense"), ({"messages": 3}, "messages"))
    for fields, named in wrong:
        answer = fleet.http.post(PATH, json=chat("x") | fields)
        assert answer.status_code == 400 and named in answer.text
    assert fleet.http.post(PATH, content=b"{").status_code == 400


def test_a_model_may_be_named_without_its_tag_or_not_at_all(fleet):
    body = chat("x", 2, stream=False)
    del body["model"]
    assert fleet.http.post(PATH, json=body).status_code == 200


def test_the_audit_log_names_upstreams_and_tokens(fleet):
    answer = fleet.http.post(PATH, json=chat("a secret", 3, stream=False))
    log = Path(fleet.gateway.service.config.gateway.audit_log)
    request_id = answer.headers["x-request-id"]
    wait_until(lambda: request_id in log.read_text())
    line = next(line for line in log.read_text().splitlines() if request_id in line)
    entry = json.loads(line)
    assert entry["model"] == "toy" and entry["status"] == 200 and len(entry["upstreams"]) == 1
    assert entry["prompt_tokens"] > 0 and entry["output_tokens"] == 3 and "secret" not in line


def test_metrics_name_the_upstreams(fleet):
    fleet.http.post(PATH, json=chat("x", 2, stream=False))
    text = fleet.http.get("/metrics").text
    assert f'quire_gateway_upstream_ready{{model="",upstream="{fleet.proxies[0].url[7:]}"}} 1' in text
    assert "quire_gateway_resumed_total" in text and 'quire_output_tokens_total{model="toy"}' in text


def test_in_a_mixed_fleet_all_answer_and_a_stream_of_quire_goes_on_at_quire(fleet):
    with stub(models=("toy",)) as vllm, stub(models=("toy",), owner="llamacpp") as llama:
        urls = [*(proxy.url for proxy in fleet.proxies), vllm.url, llama.url]
        with running_gateway(urls, balance="round_robin") as mixed:
            kinds = sorted(each["kind"] for each in mixed.upstreams().values())
            assert kinds == ["llama-server", "quire", "quire", "vllm"]
            for _ in range(8):
                assert mixed.http.post(PATH, json=chat("x", 2, stream=False)).status_code == 200
            assert len(vllm.requests) == len(llama.requests) == 2
            expected = stream(fleet, chat("a mixed fleet"))
            fleet.proxies[0].cut_after = 900
            texts = []
            for _ in range(4):
                with mixed.http.stream("POST", PATH, json=chat("a mixed fleet")) as response:
                    texts.append(deltas(list(response.iter_lines())))
            assert fleet.proxies[0].is_dead and set(texts) == {expected, "".join(WORDS)}
