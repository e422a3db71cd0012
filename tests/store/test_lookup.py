"""How names are resolved: org/repo in the hub, then in the registry; a failed lookup lists every source."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from socket import socket

import pytest

from quire.store.errors import ModelNotFound, Unreachable
from quire.store.sources.huggingface import HuggingFace
from quire.store.sources.ollama import Ollama
from quire.store.sources.package_index import CATALOGUE
from quire.store.store import Store
from quire.store.suggest import KNOWN_NAMES, close_names, did_you_mean
from tests.store.hub import publish
from tests.store.server import Behaviour, serving

pytestmark = pytest.mark.pure

OF_HUB, OF_REGISTRY = b"GGUF of the hub " * 10, b"GGUF of the registry " * 10


@pytest.fixture
def registry(no_proxy) -> Iterator[Behaviour]:
    with serving() as behaviour:
        yield behaviour


@pytest.fixture
def hub(server) -> Behaviour:
    publish(server, "org/known", {"toy-Q4_0.gguf": OF_HUB})
    return server


@pytest.fixture
def store(tmp_path, hub, registry) -> Store:
    host = registry.url.partition("://")[2]
    return Store(tmp_path / "home", [HuggingFace(hub.url), Ollama()], registry=host)


def upload(registry: Behaviour, name: str, body: bytes = OF_REGISTRY, tag: str = "latest") -> None:
    """Put a model of one layer on a stand-in of a registry."""
    about = b'{"file_type": "Q4_0"}'
    layer = {"mediaType": "application/vnd.ollama.image.model", **described(body)}
    manifest = {"schemaVersion": 2, "config": {"mediaType": "application/json", **described(about)}, "layers": [layer]}
    registry.files[f"/v2/{name}/manifests/{tag}"] = json.dumps(manifest).encode()
    for each in (about, body):
        registry.files[f"/v2/{name}/blobs/{described(each)['digest']}"] = each


def described(body: bytes) -> dict:
    return {"digest": f"sha256:{hashlib.sha256(body).hexdigest()}", "size": len(body)}


def nobody() -> str:
    """An address without a server."""
    with closing(socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_org_and_repo_are_looked_up_in_the_hub(store, registry):
    upload(registry, "org/known")
    assert store.resolve("org/known").read_bytes() == OF_HUB
    assert store.show("org/known").source.startswith("hf.co/org/known@") and registry.requests == []


def test_a_model_that_the_hub_lacks_comes_from_the_registry(store, registry):
    upload(registry, "someone/toy", tag="1b")
    assert store.resolve("someone/toy:1b").read_bytes() == OF_REGISTRY


def test_a_host_selects_hub_or_registry(store, registry):
    upload(registry, "org/known")
    host = registry.url.partition("://")[2]
    assert store.resolve(f"{host}/org/known").read_bytes() == OF_REGISTRY
    assert store.resolve("hf.co/org/known").read_bytes() == OF_HUB


def test_a_model_that_was_pulled_from_the_hub_is_found_without_its_host(store, hub):
    path = store.resolve("hf.co/org/known")
    hub.requests.clear()
    assert store.find("org/known") == path == store.resolve("org/known") and hub.requests == []


def test_a_failed_lookup_lists_the_answer_of_each_source(store, registry):
    with pytest.raises(ModelNotFound) as caught:
        store.resolve("org/unknown")
    first, hub, other = caught.value.public.split("\n")
    assert first == "org/unknown is not here, and cannot be fetched:"
    assert hub.startswith("  hf.co/org/unknown: The model hub has no repository org/unknown")
    assert "127.0.0.1" in other and "has no model org/unknown:latest: check the name." in other
    assert [path for path, _ in registry.requests] == ["/v2/org/unknown/manifests/latest"]


def test_an_unreachable_hub_never_makes_a_name_mean_another_model(tmp_path, registry):
    upload(registry, "org/known")
    host = registry.url.partition("://")[2]
    store = Store(tmp_path, [HuggingFace(f"http://{nobody()}"), Ollama()], registry=host)
    with pytest.raises(Unreachable) as caught:
        store.resolve("org/known")
    _, hub, other = caught.value.public.split("\n")
    assert "The model hub cannot be reached" in hub
    assert other.endswith(f"It has a model of this name: to use that one, write {host}/org/known")
    assert store.list() == []


def test_a_disabled_hub_is_skipped(store, hub, registry, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    upload(registry, "org/known")
    hub.requests.clear()
    assert store.resolve("org/known").read_bytes() == OF_REGISTRY and hub.requests == []


def test_both_errors_are_reported_when_no_source_can_be_reached(tmp_path, no_proxy):
    store = Store(tmp_path, [HuggingFace(f"http://{nobody()}"), Ollama()], registry=nobody())
    with pytest.raises(Unreachable, match=r"(?s)hf\.co/a/b: The model hub cannot .*127\.0\.0\.1.* cannot be reached"):
        store.resolve("a/b")


def test_a_similar_name_is_suggested_for_a_typo(store, tmp_path):
    with pytest.raises(ModelNotFound, match=r"no model smolm2:135m on .*\. Did you mean smollm2:135m"):
        store.resolve("smolm2:135m")
    offline = Store(tmp_path / "other", [Ollama()], registry=nobody())
    with pytest.raises(Unreachable, match=r"cannot be reached .* Did you mean smollm2:135m"):
        offline.resolve("smollm2:135")


def test_names_in_the_store_are_suggested_too(store):
    store.resolve("hf.co/org/known")
    store.copy("hf.co/org/known", "teacher:v2")
    for call in (store.show, store.remove, lambda name: store.copy(name, "x"), store.resolve):
        with pytest.raises(ModelNotFound, match=r"Did you mean teacher:v2\?"):
            call("teacher")
    with pytest.raises(ModelNotFound, match=r"Did you mean hf\.co/org/known\?"):
        store.resolve("org/knwn")


def test_every_name_of_the_catalogue_is_known():
    assert set(CATALOGUE) <= set(KNOWN_NAMES)


@pytest.mark.parametrize(
    "text, meant",
    [
        ("smollm2:153m", "smollm2:135m"),
        ("SmolLM2:135M", "smollm2:135m"),
        ("qwen3:06b", "qwen3:0.6b"),
        ("lama3.2:1b", "llama3.2:1b"),
        ("org/repo", "hf.co/org/repo:latest"),
    ],
)
def test_the_closest_name_comes_first(text, meant):
    assert close_names(text, [*KNOWN_NAMES, "hf.co/org/repo:latest"])[0] == meant


def test_nothing_is_suggested_for_a_name_unlike_any():
    assert did_you_mean("unheard-of", KNOWN_NAMES) == ""
