"""Ollama's protocol against a real OCI registry: pulls, pushes, and errors."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import httpx
import pytest

from quire.store.errors import ModelNotFound, StoreError, Unreachable, WrongChecksum
from quire.store.model_files import NewFile
from quire.store.sources.huggingface import HuggingFace
from quire.store.sources.ollama import Ollama
from quire.store.store import Store
from quire.types.errors import InvalidRequest
from tests.store.docker_registry import RunningRegistry, running_registry
from tests.store.hub import publish

WEIGHTS = b"GGUF" + random.Random(5).randbytes(400_000)
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
KINDS = {
    "template": b"{{ .Prompt }}",
    "system": b"Be brief.",
    "params": b'{"stop": ["</s>"], "temperature": 0.1}',
    "messages": b'[{"role": "user", "content": "hi"}]',
    "license": b"MIT",
    "adapter": b"GGUF adapter",
    "projector": b"GGUF projector",
}


@pytest.fixture
def registry(docker_registry, no_proxy, monkeypatch) -> RunningRegistry:
    monkeypatch.setattr("quire.store.downloads.http.RETRY_SECONDS", 0.01)
    return docker_registry


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "home")


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def upload(registry: RunningRegistry, repository: str, tag: str, layers: list[tuple[str, bytes]]) -> None:
    """As Ollama itself would push it; nothing of ours takes part."""
    base = f"http://{registry.host}/v2/{repository}"
    config = json.dumps({"model_format": "gguf", "model_type": "1.2B", "file_type": "Q4_K_M"}).encode()
    with httpx.Client(trust_env=False) as client:
        for body in (config, *(body for _, body in layers)):
            place = client.post(f"{base}/blobs/uploads/").headers["Location"]
            client.put(f"{place}&digest=sha256:{sha(body)}", content=body).raise_for_status()
        described = [
            {"mediaType": kind, "digest": f"sha256:{sha(body)}", "size": len(body)}
            for kind, body in (("application/vnd.docker.container.image.v1+json", config), *layers)
        ]
        page = {"schemaVersion": 2, "mediaType": DOCKER_MANIFEST, "config": described[0], "layers": described[1:]}
        headers = {"Content-Type": DOCKER_MANIFEST}
        client.put(f"{base}/manifests/{tag}", content=json.dumps(page), headers=headers).raise_for_status()


def layer(kind: str, body: bytes) -> tuple[str, bytes]:
    return f"application/vnd.ollama.image.{kind}", body


def test_every_type_of_layer_has_its_role(registry, store):
    upload(registry, "library/toy", "1b", [layer("model", WEIGHTS), *(layer(*each) for each in KINDS.items())])
    name = f"{registry.host}/toy:1b"
    manifest = store.pull(name)
    assert store.find(name).read_bytes() == WEIGHTS and store.find(name).name == "toy-1b.gguf"
    assert {role: store.read(manifest.of_role(role)[0]) for role in KINDS} == KINDS
    assert (manifest.format, manifest.quantization, manifest.num_parameters) == ("gguf", "Q4_K_M", "1.2B")
    assert [f"{each.name}:{each.tag}" for each in store.list()] == [f"{registry.host}/library/toy:1b"]


def test_a_name_without_a_host_is_pulled_from_the_configured_registry(registry, server, tmp_path):
    publish(server, "org/other", {"README.md": b"the hub has others"})
    upload(registry, "library/bare", "latest", [layer("model", WEIGHTS)])
    upload(registry, "me/mine", "latest", [layer("model", WEIGHTS)])
    store = Store(tmp_path, [HuggingFace(server.url), Ollama()], registry=registry.host)
    assert store.resolve("bare").read_bytes() == WEIGHTS and store.resolve("me/mine:latest").read_bytes() == WEIGHTS
    assert [each.name for each in store.list()] == ["me/mine", "bare"]
    assert {each.source for each in store.list()} == {f"{registry.host}/library/bare", f"{registry.host}/me/mine"}


def test_a_pushed_model_is_pulled_unchanged(registry, store, tmp_path):
    file = tmp_path / "toy.gguf"
    file.write_bytes(WEIGHTS)
    name = f"{registry.host}/me/made:v1"
    parts = [
        NewFile("weights", "toy.gguf", file),
        *(NewFile(role, f"{role}.txt", body) for role, body in KINDS.items()),
    ]
    made = store.create(name, [*parts, NewFile("license", "license.txt", b"and another one")])
    assert store.push(name) >= len(WEIGHTS)
    back = Store(tmp_path / "other").pull(name)
    roles = [(file.role, file.digest) for file in made.files]
    assert [(file.role, file.digest) for file in back.files if file.file_name != "image.json"] == roles
    assert [file.file_name for file in back.of_role("license")] == ["license-1.txt", "license-2.txt"]


def test_a_pulled_model_is_pushed_unchanged(registry, store):
    upload(registry, "me/first", "latest", [layer("model", WEIGHTS), layer("params", b"{}")])
    store.pull(f"{registry.host}/me/first")
    store.copy(f"{registry.host}/me/first", f"{registry.host}/me/second")
    store.push(f"{registry.host}/me/second")
    pages = [
        httpx.get(
            f"http://{registry.host}/v2/me/{word}/manifests/latest",
            headers={"Accept": DOCKER_MANIFEST},
            trust_env=False,
        ).json()
        for word in ("first", "second")
    ]
    assert pages[0] == pages[1]


def test_layers_that_the_registry_has_are_not_sent(registry, store):
    name, body = f"{registry.host}/me/again", WEIGHTS + b"again"
    store.create(name, [NewFile("weights", "a.gguf", body)])
    assert store.push(name) > len(body)
    uploads = registry.answered("PATCH", "me/again", 2)  # the weights and the configuration
    assert store.push(name) == 0 and registry.answered("PATCH", "me/again", 2) == uploads
    store.create(name, [NewFile("weights", "a.gguf", body), NewFile("system", "s.txt", b"new")])
    assert store.push(name) < 1000


def test_a_large_layer_is_sent_in_several_requests(registry, store, tmp_path, monkeypatch):
    monkeypatch.setattr("quire.store.registries.push.SEND_BYTES", 100_000)
    name, body = f"{registry.host}/me/large", WEIGHTS + b"large"
    store.create(name, [NewFile("weights", "a.gguf", body)])
    store.push(name)
    assert registry.answered("PATCH", "me/large", 6) == [202] * 6
    assert Store(tmp_path / "other").resolve(name).read_bytes() == body


def test_a_large_layer_is_fetched_in_ranges(registry, store, small_pieces):
    body = WEIGHTS + b"ranges"
    upload(registry, "me/ranges", "latest", [layer("model", body)])
    assert store.resolve(f"{registry.host}/me/ranges").read_bytes() == body
    assert registry.answered("GET", sha(body), 7) == [206] * 7


def test_a_layer_that_two_models_share_is_fetched_once_and_kept_until_both_are_removed(registry, store):
    body = WEIGHTS + b"shared"
    upload(registry, "me/one", "latest", [layer("model", body), layer("system", b"one")])
    upload(registry, "me/two", "latest", [layer("model", body), layer("system", b"two")])
    one, two = (f"{registry.host}/me/{word}" for word in ("one", "two"))
    store.pull(one)
    store.pull(two)
    assert registry.answered("GET", sha(body), 1) == [200]
    assert store.remove(one) < 1000 and store.find(two).read_bytes() == body
    assert store.remove(two) > len(body) and list(store.layout.blobs.iterdir()) == []


def test_a_corrupt_blob_is_repaired_and_nothing_else_is_fetched(registry, store):
    body = WEIGHTS + b"corrupt"
    upload(registry, "me/corrupt", "latest", [layer("model", body), layer("system", b"not this one")])
    name = f"{registry.host}/me/corrupt"
    store.pull(name)
    blob = store.layout.blob(sha(body))
    blob.chmod(0o644)
    blob.write_bytes(body[:-1] + b"x")
    store.pull(name)
    assert blob.read_bytes() == body
    assert registry.answered("GET", sha(body), 2) == [200] * 2
    assert registry.answered("GET", sha(b"not this one"), 1) == [200]


def test_a_layer_that_is_corrupt_in_the_registry_is_deleted(registry, store):
    body = WEIGHTS + b"rotten"
    upload(registry, "me/rotten", "latest", [layer("model", body)])
    registry.blob(sha(body)).write_bytes(body[:-1] + b"x")
    with pytest.raises(WrongChecksum, match=r"The checksum of rotten-latest\.gguf is"):
        store.pull(f"{registry.host}/me/rotten")
    assert store.list() == [] and not store.layout.blob(sha(body)).exists()
    assert not any(each.stat().st_size == len(body) for each in store.layout.partial.iterdir())


@pytest.mark.parametrize("name", ["me/nothing", "me/known:nothing"])
def test_a_model_that_the_registry_lacks_is_an_error(registry, store, name):
    upload(registry, "me/known", "latest", [layer("model", WEIGHTS)])
    with pytest.raises(ModelNotFound, match=r"has no model me/.*:.*: check the name\."):
        store.pull(f"{registry.host}/{name}")


def test_an_image_that_is_not_a_model_is_refused(registry, store):
    upload(registry, "me/image", "latest", [("application/vnd.docker.image.rootfs.diff.tar.gzip", b"tar")])
    with pytest.raises(StoreError, match=r"a layer of type application/vnd\.docker\.image\.rootfs"):
        store.pull(f"{registry.host}/me/image")
    upload(registry, "me/empty", "latest", [layer("system", b"no weights")])
    with pytest.raises(ModelNotFound, match="has no weights"):
        store.pull(f"{registry.host}/me/empty")


def test_a_password_of_netrc_opens_a_registry(docker_registry, no_proxy, tmp_path, monkeypatch):
    (tmp_path / "users").write_text("me:$2b$04$abcdefghijklmnopqrstuuinwY/tkBVrn3xrxQI/TgnMHhkvl85RW\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    auth = {"htpasswd": {"realm": "toys", "path": str(tmp_path / "users")}}
    with running_registry(tmp_path, auth=auth) as guarded:
        store, name = Store(tmp_path / "home"), f"{guarded.host}/me/toy"
        store.create(name, [NewFile("weights", "a.gguf", WEIGHTS)])
        with pytest.raises(Unreachable, match=r"HTTP 401.*put your login for 127\.0\.0\.1 into ~/\.netrc"):
            store.push(name)
        (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password sesame\n")
        (tmp_path / ".netrc").chmod(0o600)
        assert store.push(name) > len(WEIGHTS)
        assert Store(tmp_path / "other").resolve(name).read_bytes() == WEIGHTS


PULLER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from quire.store.store import Store
    print(Store(Path(sys.argv[1])).pull(sys.argv[2]).size)
""")


def test_two_processes_that_pull_the_same_model_fetch_it_once(registry, tmp_path):
    body = WEIGHTS * 10
    upload(registry, "me/both", "latest", [layer("model", body)])
    command = [sys.executable, "-c", PULLER, str(tmp_path), f"{registry.host}/me/both"]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) for _ in range(2)]
    sizes = [int(child.communicate(timeout=100)[0]) for child in children]
    assert sizes[0] == sizes[1] > len(body) and registry.answered("GET", sha(body), 1) == [200]


def test_a_model_that_cannot_be_pushed_is_refused_before_anything_is_sent(registry, store, tmp_path):
    files = {"config.json": b"{}", "model.safetensors": b"weights"}
    parts = [NewFile("config" if name == "config.json" else "weights", name, body) for name, body in files.items()]
    store.create(f"{registry.host}/me/folder", parts)
    with pytest.raises(StoreError, match="registries accept GGUF models only"):
        store.push(f"{registry.host}/me/folder")
    store.create("mine", [NewFile("weights", "a.gguf", WEIGHTS)])
    with pytest.raises(StoreError, match=r"ollama\.com accepts only models signed"):
        store.push("mine")
    with pytest.raises(ModelNotFound, match="not in the store"):
        store.push("nothing")


def test_an_unreachable_registry_is_an_error_that_says_what_to_do(no_proxy, tmp_path):
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 cannot be reached .*: check the network and the proxy"):
        Store(Path(tmp_path), registry="127.0.0.1:1").pull("toy")
    with pytest.raises(InvalidRequest, match="nothing to pull"):
        Store(Path(tmp_path)).pull("./toy")
