"""Every model of the store, loaded on request: real engines, and the clients of Ollama and OpenAI."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ollama
import openai
import pytest

from quire.bench.machine.processes import resident_bytes
from quire.config import Config, load
from quire.devices.facts import device_facts
from quire.engine.need import Budget, Share, budget_of, memory_need, need_of
from quire.serve.http.app import all_dialects
from quire.serve.residency.engines import EngineLauncher
from quire.serve.residency.shelf import StoreShelf
from quire.store.layout import write_atomically
from quire.store.manifest import Manifest, StoredFile, manifest_path
from quire.store.names import parse_name
from quire.store.store import Store
from tests.serve.running import Running, link_or_copy, running
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

TAGS = ("smol:a", "smol:b", "smol:c", "smol:d")
SMALL = {"max_context": 512, "max_rows": 8, "max_step_tokens": 256}
clients: dict[Running, ollama.Client] = {}
GREEDY = {"temperature": 0, "num_predict": 8}
BOTH = pytest.mark.parametrize("fronts", [1, 2])


def make_store(home: Path, model_file: Path) -> Store:
    """The real model as several files, each with a name and, as far as the store can tell, a content of its own."""
    store = Store(home)
    store.layout.make()
    for tag in TAGS:
        digest, name = hashlib.sha256(tag.encode()).hexdigest(), parse_name(tag)
        link_or_copy(model_file, store.layout.blob(digest))
        file = StoredFile("weights", digest, model_file.stat().st_size, "model.gguf")
        made = Manifest(name.name, name.tag, (file,), "a test", "2026-01-01T00:00:00+00:00", "gguf", "Q4_1")
        write_atomically(manifest_path(store.layout.manifests, name), made.to_json())
    return store


@pytest.fixture(scope="module")
def store(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_store(tmp_path_factory.mktemp("store"), model_file)


class AsOnGpu(EngineLauncher):
    """Engines on the CPU, of which the server reckons as if they were on a GPU."""

    def budget(self, config: Config) -> Budget:
        return budget_of("cuda", config)

    def measure(self, path: Path, config: Config) -> Share:
        found = memory_need(path, "cuda", config)
        assert isinstance(found, Share)
        return found


@contextmanager
def serving(store: Store, **settings: Any) -> Iterator[Running]:
    more = SMALL | {"num_blocks": None} | settings
    with running([], all_dialects(), shelf=StoreShelf(store), home=str(store.layout.home), **more) as server:
        clients[server] = ollama.Client(host=server.url, trust_env=False, timeout=120)
        try:
            yield server
        finally:
            clients.pop(server)._client.close()


def client(server: Running) -> ollama.Client:
    return clients[server]


def loaded(server: Running) -> set[str]:
    return {str(each.model) for each in client(server).ps().models}


def say(server: Running, model: str, **more: Any) -> str:
    asked = {"prompt": "Once upon a time", "options": GREEDY, "raw": True} | more
    return str(client(server).generate(model, **asked).response)


def memory(server: Running) -> dict[str, Any]:
    return server.http.get("/props").json()["memory"]


@pytest.fixture(scope="module", params=[1, 2], ids=["1-front", "2-fronts"])
def server(store: Store, request: pytest.FixtureRequest) -> Iterator[Running]:
    with serving(store, fronts=request.param) as started:
        yield started


def test_a_models_life_as_ollamas_client_sees_it(server: Running):
    speaks = client(server)
    assert {each.model for each in speaks.list().models} == set(TAGS) and loaded(server) == set()
    assert say(server, TAGS[0]) == say(server, TAGS[1])
    assert loaded(server) == set(TAGS[:2])
    (first,) = [each for each in speaks.ps().models if each.model == TAGS[0]]
    assert 290 < (first.expires_at - datetime.now(UTC)).total_seconds() <= 300
    assert first.size > 150e6 and first.size_vram == 0 and first.context_length == 512
    assert speaks.generate(TAGS[0], keep_alive=0).done_reason == "unload"
    assert loaded(server) == {TAGS[1]}
    assert speaks.generate(TAGS[2], keep_alive="10m").done_reason == "load"
    say(server, TAGS[1], keep_alive=-1)
    say(server, TAGS[2])
    left = {each.model: (each.expires_at - datetime.now(UTC)).total_seconds() for each in speaks.ps().models}
    assert 590 < left[TAGS[2]] <= 600 and left[TAGS[1]] > 1e9
    say(server, TAGS[1], keep_alive=0)
    wait_until(lambda: loaded(server) == {TAGS[2]})
    assert speaks.chat(TAGS[2], [{"role": "user", "content": "Hi"}], options=GREEDY, keep_alive="1s").message.content
    wait_until(lambda: loaded(server) == set())
    assert speaks.show(TAGS[0]).details.family == "llama" and loaded(server) == set()


def test_openais_client_sees_loaded_models_and_gets_404_for_unknown_ones(server: Running):
    say(server, TAGS[3], keep_alive=60)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as speaks:
        facts = {each.id: each.loaded for each in speaks.models.list().data}  # type: ignore[attr-defined]
        assert facts == {tag: tag == TAGS[3] for tag in TAGS}
        with pytest.raises(openai.NotFoundError, match="smol:a or smol:b"):
            speaks.completions.create(model="smollm2:135m", prompt="Hi")


def test_a_model_that_is_pulled_or_changed_meanwhile_is_found(server: Running, store: Store):
    store.copy(TAGS[0], "new:tag")
    assert say(server, "new:tag") == say(server, TAGS[0])
    store.remove("new:tag")
    with pytest.raises(ollama.ResponseError, match="not served here"):
        say(server, "new:tag")


def test_many_requests_at_once_cause_one_load(server: Running):
    client(server).generate(TAGS[1], keep_alive=0)
    before = memory(server)["num_loads"]
    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda _: say(server, TAGS[1]), range(16)))
    assert len(set(texts)) == 1 and memory(server)["num_loads"] == before + 1


def test_a_killed_engine_does_not_touch_the_others(server: Running):
    long = {"temperature": 0, "num_predict": 120}
    alone = say(server, TAGS[0], options=long)
    say(server, TAGS[1])
    clients = [server.client_of(tag) for tag in TAGS[:2]]
    victim = clients[1]._link.pid
    texts: dict[str, list[str]] = {tag: [] for tag in TAGS[:2]}

    def ask(tag: str) -> None:
        texts[tag].append(say(server, tag, options=long))

    threads = [threading.Thread(target=ask, args=(tag,)) for tag in TAGS[:2] for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: clients[1].counters(60).num_running > 0 or any(texts.values()))
    os.kill(victim, signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert texts == {tag: [alone] * 3 for tag in TAGS[:2]}
    wait_until(lambda: clients[1].num_restarts == 1)
    assert clients[0].num_restarts == 0


def test_a_model_that_does_not_fit_is_refused_with_both_numbers_and_a_context_that_would(store: Store):
    with serving(store, memory_budget=0.05) as server:
        refused = server.http.post("/api/generate", json={"model": TAGS[0], "prompt": "Hi"})
        assert refused.status_code == 507
        assert "and the memory budget is 50 MB. No context would fit" in refused.json()["error"]
    with serving(store, memory_budget=0.25, max_context=8192, min_context=4096) as server:
        refused = server.http.post("/api/generate", json={"model": TAGS[0], "prompt": "Hi"}).json()["error"]
        fits = int(refused.split("A context of ")[1].split()[0])
        assert "with a context of 4096 tokens" in refused and 16 <= fits < 4096
    with serving(store, memory_budget=0.25, max_context=fits, min_context=4096) as server:
        assert say(server, TAGS[0])


def test_a_context_is_fitted_to_the_memory_and_reported(store: Store):
    with serving(store, memory_budget=0.25, max_context=8192, min_context=16) as server:
        say(server, TAGS[0])
        (told,) = client(server).ps().models
        assert 16 <= told.context_length < 8192
        assert server.http.get("/props").json()["models"][TAGS[0]]["max_context"] == told.context_length


def least_gb(model_file: Path) -> float:
    """What one model takes with a single context, from its header."""
    return need_of(model_file, load(SMALL, {}), device_facts("cpu")).bytes_for(512) / 1e9


@BOTH
def test_an_idle_model_gives_up_memory_and_stays_when_another_needs_it(store: Store, model_file: Path, fronts: int):
    with serving(store, memory_budget=2.1 * least_gb(model_file), fronts=fronts) as server:
        said = say(server, TAGS[0])
        alone = memory(server)["taken_bytes"][TAGS[0]]
        assert say(server, TAGS[1]) == said
        told = memory(server)
        assert told["taken_bytes"][TAGS[0]] < alone and (told["num_loads"], told["num_unloads"]) == (2, 0)
        blocks = server.http.get("/v1/cache").json()["models"]
        props = server.http.get("/props").json()["models"]
        assert blocks[TAGS[0]]["num_blocks"] < props[TAGS[0]]["num_blocks"]  # than it began with
        assert sum(told["taken_bytes"].values()) <= told["budget_bytes"]
        assert say(server, TAGS[0]) == said


@pytest.mark.slow
def test_models_take_turns_in_a_memory_that_holds_two_of_them(store: Store, model_file: Path):
    budget = 2.2 * least_gb(model_file)
    with serving(store, memory_budget=budget) as server, ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(say, server, TAGS[number % 4]) for number in range(48)]
        sizes = []
        while not all(each.done() for each in asked):
            sizes.append(sum(resident_bytes(client._link.pid) or 0 for client in server.residency.clients()))
            time.sleep(0.05)
        assert len({each.result() for each in asked}) == 1
        told = memory(server)
        assert 0 < max(sizes) <= told["budget_bytes"]
        assert len(loaded(server)) <= 2 and told["num_unloads"] >= 2
        assert sum(told["taken_bytes"].values()) <= told["budget_bytes"]


@BOTH
def test_a_request_that_waits_too_long_for_memory_is_refused_with_retry_after(store: Store, fronts: int):
    with serving(store, memory_budget=0.25, load_patience=0.5, min_context=16, fronts=fronts) as server:
        short = {"model": TAGS[0], "prompt": "Once", "raw": True, "options": GREEDY}
        wait_until(lambda: server.http.post("/api/generate", json=short).status_code == 200)
        endless = {"model": TAGS[0], "prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=endless) as stream:
            lines = stream.iter_lines()
            next(lines)
            refused = server.http.post("/api/generate", json={"model": TAGS[1], "prompt": "Hi"})
            assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
            assert loaded(server) == {TAGS[0]}


@pytest.mark.parametrize("share, both", [(0.9, False), (0.4, True)])
def test_on_a_gpu_as_many_models_are_loaded_as_their_shares_allow(share: float, both: bool, store: Store):
    with serving(store, launcher=AsOnGpu("cpu"), memory_share=share, num_blocks=64) as server:
        said = say(server, TAGS[0])
        assert say(server, TAGS[1]) == said
        assert loaded(server) == ({TAGS[0], TAGS[1]} if both else {TAGS[1]})
        told = memory(server)
        assert told["budget_thousandths"] == 1000 and told["taken_thousandths"][TAGS[1]] == 1000 * share
        assert say(server, TAGS[0]) == said, "one that had to go comes back"
