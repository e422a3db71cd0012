"""Keys, quotas, budgets, aliases, reloads, TLS, discovery and registration, with stub upstreams."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
import zmq

from quire.gateway.http.errors import UpstreamFailed
from quire.gateway.http.pool import ConnectionPool, TlsFiles
from quire.gateway.upstreams.declared import UpstreamSpec
from quire.serve.access.keys import hash_of
from quire.serve.http.app import all_dialects
from quire.text.model_text import ModelText
from tests.gateway.certificates import make_certificates
from tests.gateway.running_gateway import running_gateway
from tests.gateway.stub_upstream import refuse, stub
from tests.serve.running import running
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Count"}]}
PRICED = "upstreams: [{url: URL}]\nprices: {m: {prompt: 1000, output: 2000}}\n"


def key_lines(name: str, *lines: str) -> str:
    return "\n".join(["[[key]]", f'name = "{name}"', f'sha256 = "{hash_of(name + "-secret")}"', *lines, ""])


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-secret"}


@pytest.fixture(scope="module")
def accounts(tmp_path_factory) -> Iterator[Any]:
    """A gateway with keys, prices, routes and a ledger."""
    folder = tmp_path_factory.mktemp("accounts")
    keys = (
        key_lines("boss", "admin = true"),
        key_lines("tokens", "token_budget = 15", 'budget_period = "day"'),
        key_lines("money", "money_budget = 0.02"),
        key_lines("slow", "requests_per_minute = 1"),
    )
    (folder / "keys.toml").write_text("\n".join(keys))
    rules = "[{name: bosses, when: {key: boss}, use: m}, {use: other}]"
    (folder / "routes.yaml").write_text(f"routes: {{assistant: {{rules: {rules}, fallback: [m]}}}}")
    with stub() as one:
        (folder / "fleet.yaml").write_text(PRICED.replace("URL", one.url))
        files = {name: str(folder / f"{name}.{end}") for name, end in (("fleet", "yaml"), ("routes", "yaml"))}
        more = {"api_keys": str(folder / "keys.toml"), "spend_file": str(folder / "spend.db"), "upstream_key": None}
        with running_gateway(**files, **more, waits=False, wait_seconds=0.2) as gateway:
            wait_until(lambda: gateway.http.get("/ready").status_code == 200)
            yield gateway, one, folder


def test_requests_without_a_known_key_are_refused(accounts):
    gateway, _, _ = accounts
    assert gateway.http.post(PATH, json=CHAT).status_code == 401
    assert gateway.http.post(PATH, json=CHAT, headers={"x-api-key": "nope"}).status_code == 401
    assert gateway.http.get("/health").status_code == 200
    assert gateway.http.get("/v1/upstreams", headers=bearer("slow")).status_code == 403


@pytest.mark.parametrize("name", ["tokens", "money"])
def test_a_key_is_refused_when_its_budget_is_spent(accounts, name):
    gateway, _, _ = accounts
    codes = [gateway.http.post(PATH, json=CHAT, headers=bearer(name)).status_code]
    wait_until(lambda: spend_of(gateway, name)["total"]["num_requests"] == 1)  # charged after the answer
    refused = gateway.http.post(PATH, json=CHAT, headers=bearer(name))
    assert codes == [200] and refused.status_code == 429 and refused.json()["error"]["code"] == "budget_exceeded"
    assert int(refused.headers["retry-after"]) > 0


def spend_of(gateway: Any, name: str) -> dict[str, Any]:
    return gateway.http.get("/v1/spend", headers=bearer("boss")).json()["keys"][name]


def test_spend_is_shown_with_its_price_and_kept_in_the_file(accounts):
    gateway, _, folder = accounts
    before = spend_of(gateway, "boss")["total"]
    gateway.http.post(PATH, json=CHAT, headers=bearer("boss"))
    wait_until(lambda: spend_of(gateway, "boss")["total"]["num_requests"] == before["num_requests"] + 1)
    spent = spend_of(gateway, "boss")["models"]["m"]
    assert spent["money"] == pytest.approx((spent["prompt_tokens"] * 1000 + spent["output_tokens"] * 2000) / 1e6)
    own = gateway.http.get("/v1/spend", headers=bearer("slow")).json()["keys"]
    assert set(own) == {"slow"} and own["slow"]["total"]["num_requests"] == 0
    wait_until(lambda: (folder / "spend.db").stat().st_size > 0)


def test_a_quota_is_kept_by_the_gateway(accounts):
    gateway, _, _ = accounts
    assert gateway.http.post(PATH, json=CHAT, headers=bearer("slow")).status_code == 200
    refused = gateway.http.post(PATH, json=CHAT, headers=bearer("slow"))
    assert refused.status_code == 429 and "1 requests a minute" in refused.text


def test_an_alias_leads_to_a_model_of_the_fleet_with_its_fallback(accounts):
    gateway, one, _ = accounts
    one.requests.clear()
    answer = gateway.http.post(PATH, json=CHAT | {"model": "assistant"}, headers=bearer("boss"))
    assert answer.status_code == 200 and answer.headers["x-quire-route"] == "assistant/bosses"
    assert one.requests[-1].json()["model"] == "m"
    listed = [each["id"] for each in gateway.http.get("/v1/models", headers=bearer("boss")).json()["data"]]
    assert listed == ["m", "assistant"]


def test_the_file_is_read_again_when_it_changes_and_streams_go_on(accounts):
    gateway, one, folder = accounts
    file = folder / "fleet.yaml"
    before = file.read_text()
    with stub(models=("m", "n")) as two:
        file.write_text(f"upstreams: [{{url: {one.url}}}, {{url: {two.url}, name: second}}]\n")
        wait_until(lambda: gateway.service.upstreams.get("second") is not None)
        kept = gateway.service.upstreams.get(one.url[7:])
        file.write_text("upstreams: [nonsense]\n")
        gateway.serving.reload()
        wait_until(lambda: gateway.service.problem)
        assert "line 1" in gateway.service.problem and gateway.service.upstreams.get("second") is not None
        file.write_text(before)
        gateway.serving.reload()  # as SIGHUP does
        wait_until(lambda: gateway.service.upstreams.get("second") is None)
        assert gateway.service.upstreams.get(one.url[7:]) is kept and gateway.service.problem is None


def test_each_upstream_gets_its_own_key():
    with stub() as one, running_gateway([UpstreamSpec(one.url, "one", key="for-one")]) as gateway:
        gateway.http.post(PATH, json=CHAT, headers={"authorization": "Bearer of-the-client"})
        assert one.requests[-1].headers["authorization"] == "Bearer for-one"


def test_an_upstream_may_demand_a_certificate_of_the_gateway(tmp_path):
    make_certificates(tmp_path)

    async def scene() -> tuple[int, str]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.pem"))
        context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
        context.verify_mode = ssl.CERT_REQUIRED

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        files = {
            name: str(tmp_path / file)
            for name, file in (("ca", "ca.pem"), ("cert", "client.pem"), ("key", "client.key"))
        }
        async with server:
            status, body, _ = await ConnectionPool("a", url, TlsFiles(**files), 5.0).fetch("GET", "/", {})
            assert body == b"ok"
            with pytest.raises(UpstreamFailed) as caught:
                await ConnectionPool("a", url, TlsFiles(ca=files["ca"]), 5.0).fetch("GET", "/", {})
            with pytest.raises(UpstreamFailed, match="TLS"):
                await ConnectionPool("a", url, TlsFiles(), 5.0).fetch("GET", "/", {})
        return status, caught.value.public

    assert asyncio.run(scene())[0] == 200


def test_a_server_joins_and_leaves_when_it_drains(model_file):
    with running_gateway(join_seconds=1.0) as gateway:
        with running(model_file, dialects=all_dialects(), join=gateway.url) as server:
            wait_until(lambda: server.url[7:] in gateway.upstreams())
            gateway.wait_ready(1)
            body = {"messages": CHAT["messages"], "max_tokens": 2}
            assert gateway.http.post(PATH, json=body).status_code == 200
            time.sleep(1.5)  # longer than a registration lives: heartbeats renew it
            assert gateway.upstreams()[server.url[7:]]["state"] == "ready"
        assert "ready" not in {each["state"] for each in gateway.upstreams().values()}
        wait_until(lambda: not gateway.upstreams(), 10)


def test_only_admins_and_servers_of_this_machine_may_join(accounts):
    gateway, _, _ = accounts
    body = {"url": "http://10.9.9.9:1"}
    assert gateway.http.post("/v1/upstreams/join", json=body, headers=bearer("slow")).status_code == 403
    wrong = gateway.http.post("/v1/upstreams/join", json={"url": "nonsense"}, headers=bearer("boss"))
    assert wrong.status_code == 400 and "not a URL" in wrong.text
    assert gateway.http.post("/v1/upstreams/leave", json=body, headers=bearer("boss")).json() == {"known": False}


class Bytes:
    """A text side with one token for each byte."""

    tokenizer = object()
    digest = "bytes"


def test_cache_events_of_vllm_choose_the_upstream(monkeypatch):
    tokens = tuple(range(100, 148))
    monkeypatch.setattr("quire.gateway.relay.reading.encode_prompts", lambda ask, text: [prompt_of(tokens)])
    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    with stub() as one, stub() as two:
        specs = [
            UpstreamSpec(one.url, "one", events=f"tcp://127.0.0.1:{port}"),
            UpstreamSpec(two.url, "two", events="tcp://127.0.0.1:9"),
        ]
        with running_gateway(specs) as gateway:
            gateway.service.texts._found["m"] = Bytes()  # type: ignore[assignment]
            stored = ["BlockStored", [11, 12, 13], None, list(tokens), 16, None]
            question = {"model": "m", "messages": CHAT["messages"]}

            def told() -> dict[str, Any]:
                payload = msgspec.msgpack.encode([0.0, [stored], None])
                told.number += 1  # type: ignore[attr-defined]
                publisher.send_multipart([b"", told.number.to_bytes(8, "big"), payload])  # type: ignore[attr-defined]
                time.sleep(0.05)
                found: dict[str, Any] = gateway.http.post("/v1/cache/explain", json=question).json()
                return found

            told.number = 0  # type: ignore[attr-defined]
            wait_until(lambda: told()["upstreams"][0].get("num_cached", 0) >= 47)
            assert told()["chosen"] == "one"
            for _ in range(3):
                gateway.http.post(PATH, json=CHAT)
            assert len(one.requests) == 3 and not two.requests
    publisher.close(linger=0)
    context.term()


def test_prompts_are_assumed_to_be_cached_where_nothing_is_reported(monkeypatch):
    monkeypatch.setattr("quire.gateway.relay.reading.encode_prompts", lambda ask, text: [prompt_of(tuple(range(64)))])
    with stub(owner="llamacpp") as one, stub(owner="llamacpp") as two, running_gateway([one.url, two.url]) as gateway:
        gateway.service.texts._found["m"] = Bytes()  # type: ignore[assignment]
        for _ in range(4):
            assert gateway.http.post(PATH, json=CHAT).status_code == 200
        assert sorted((len(one.requests), len(two.requests))) == [0, 4]


def prompt_of(tokens: tuple[int, ...]) -> Any:
    from quire.text.prompts import Prompt

    return Prompt(tokens, None)


def test_a_tokenizer_of_the_store_is_used_where_no_quire_has_the_model(tmp_path):
    read: list[str] = []

    def read_text(name: str) -> ModelText:
        read.append(name)
        raise OSError("it is not there")

    with stub() as one:
        (tmp_path / "fleet.yaml").write_text(f"upstreams: [{one.url}]\ntokenizers: {{m: hf.co/org/m}}\n")
        with running_gateway(fleet=str(tmp_path / "fleet.yaml"), read_text=read_text, waits=False) as gateway:
            gateway.wait_ready(1)
            assert gateway.http.post(PATH, json=CHAT).status_code == 200
            wait_until(lambda: read == ["hf.co/org/m"])


def test_an_upstream_that_has_another_api_is_not_asked():
    with stub(owner="vllm") as one, running_gateway([one.url]) as gateway:
        answer = gateway.http.post("/api/chat", json={"model": "m", "messages": CHAT["messages"]})
        assert answer.status_code == 503 and not one.requests
        one.answer = refuse(404)
        assert httpx.post(gateway.url + "/v1/score", json={"model": "m"}).status_code == 404
