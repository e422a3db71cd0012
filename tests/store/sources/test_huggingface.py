"""The model hub: the real huggingface_hub and our download against a hub on this machine."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest

from quire.store.errors import ModelNotFound, StoreError, Unreachable
from quire.store.hub_files import quantization_of
from quire.store.sources.huggingface import HuggingFace
from quire.store.store import Store
from tests.store.hub import COMMIT, TOKEN, place_of, publish
from tests.store.server import serving


@pytest.fixture
def store(server, tmp_path, monkeypatch) -> Store:
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    publish(server, "org/empty", {"README.md": b"hello"})
    return Store(tmp_path, [HuggingFace(server.url)])


def body(word: str) -> bytes:
    return f"GGUF {word} ".encode() * 100


GGUF = {
    "README.md": b"hello",
    "toy-Q8_0.gguf": body("eight"),
    "toy-Q4_K_M.gguf": body("four"),
    "mmproj-toy-F16.gguf": body("eyes"),
    "big/toy-BF16-00001-of-00002.gguf": body("one"),
    "big/toy-BF16-00002-of-00002.gguf": body("two"),
}


def test_a_tag_selects_the_file(server, store):
    publish(server, "org/toy", GGUF)
    assert store.resolve("hf.co/org/toy:q8_0").read_bytes() == body("eight")
    manifest = store.show("hf.co/org/toy:q8_0")
    assert (manifest.quantization, manifest.licence, manifest.format) == ("Q8_0", "mit", "gguf")
    assert manifest.source == f"hf.co/org/toy@{COMMIT}"
    assert (store.layout.manifests / "hf.co" / "org" / "toy" / "q8_0.json").is_file()


def test_without_a_tag_the_best_for_its_size_is_chosen(server, store):
    publish(server, "org/toy", GGUF)
    assert store.resolve("hf.co/org/toy").name == "toy-Q4_K_M.gguf"


def test_all_parts_of_a_split_model_are_fetched(server, store):
    publish(server, "org/toy", GGUF)
    path = store.resolve("hf.co/org/toy:BF16")
    assert path.name == "toy-BF16-00001-of-00002.gguf"
    assert (path.parent / "toy-BF16-00002-of-00002.gguf").read_bytes() == body("two")


def test_the_error_for_an_unknown_tag_lists_the_tags(server, store):
    publish(server, "org/toy", GGUF)
    with pytest.raises(ModelNotFound, match="has no tag Q2_K: choose one of BF16, Q4_K_M, Q8_0"):
        store.resolve("hf.co/org/toy:Q2_K")


def test_safetensors_come_with_config_and_tokenizer(server, store):
    shards = {f"model-0000{i}-of-00002.safetensors": body(f"shard {i}") for i in (1, 2)}
    index = {"model.safetensors.index.json": b"{}"}
    other = {"config.json": b'{"a": 1}', "tokenizer.json": b"{}", "pytorch_model.bin": body("no"), "notes.md": b"no"}
    more = {"added_tokens.json": b"{}", "additional_chat_templates/rag.jinja": b"x", "other/rag.jinja": b"no"}
    publish(server, "org/plain", shards | index | other | more)
    folder = store.resolve("hf.co/org/plain")
    expected = {*shards, *index, "config.json", "tokenizer.json", "added_tokens.json", "chat_template.rag.jinja"}
    assert {path.name for path in folder.iterdir()} == expected
    assert (folder / "config.json").read_bytes() == b'{"a": 1}'
    with pytest.raises(ModelNotFound, match="leave the tag out"):
        store.resolve("hf.co/org/plain:Q4_0")


def test_modules_of_sentence_transformers_and_files_of_speech_models_come_along(server, store):
    plain = ["modules.json", "sentence_bert_config.json", "preprocessor_config.json", "README.md", "source.spm"]
    modules = ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]
    others = ["onnx/config.json", "2_Dense/pytorch_model.bin"]
    files = {name: body(name) for name in ("config.json", "model.safetensors", *plain, *modules, *others)}
    publish(server, "org/embedder", files)
    folder = store.resolve("hf.co/org/embedder")
    flat = {name.replace("/", "."): name for name in modules}
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", *plain, *flat}
    assert all((folder / name).read_bytes() == files[path] for name, path in flat.items())


def test_the_files_of_a_model_are_fetched_at_the_same_time(server, store):
    shards = {f"model-0000{i}-of-00003.safetensors": body(f"shard {i}") for i in (1, 2, 3)}
    publish(server, "org/plain", {"config.json": b"{}", **shards})
    server.stall, places, ended = 10, {place_of(each) for each in shards.values()}, []

    def hear(what: str, done: int, total: int | None) -> None:
        if what in shards and done == total:
            ended.append(what)
        if not server.go_on.is_set() and places <= {path for path, _ in server.requests}:
            assert ended == [], "all were asked for before one had come"
            server.go_on.set()

    store.pull("hf.co/org/plain", hear)
    assert (store.find("hf.co/org/plain") / "model-00003-of-00003.safetensors").read_bytes() == body("shard 3")


def test_a_repository_without_supported_weights_is_refused(server, store):
    publish(server, "org/other", {"pytorch_model.bin": body("no")})
    with pytest.raises(StoreError, match=r"neither GGUF files nor model\.safetensors"):
        store.resolve("hf.co/org/other")


def test_a_dropped_connection_is_resumed(server, store):
    publish(server, "org/toy", GGUF)
    server.drops = [300]
    assert store.resolve("hf.co/org/toy").read_bytes() == body("four")
    assert server.ranges_of(place_of(body("four"))) == [None, "bytes=300-"]


def test_the_size_is_announced_before_the_first_byte(server, store):
    publish(server, "org/toy", GGUF)
    announced = []

    def hear(what: str, done: int, total: int | None) -> None:
        announced.append((what, len(server.ranges_of(place_of(body("four"))))))

    store.pull("hf.co/org/toy", hear)
    assert announced[0] == (f"hf.co/org/toy:latest: toy-Q4_K_M.gguf, 0.0 MB from hf.co/org/toy@{COMMIT}", 0)


def test_the_error_for_an_unknown_repository_says_how_to_log_in(server, store):
    with pytest.raises(
        ModelNotFound, match=r"no repository org/nothing, or it is private: .*`hf auth login`.*HF_TOKEN"
    ):
        store.resolve("hf.co/org/nothing")


def test_a_gated_model_needs_a_token_and_the_error_says_so(server, store, monkeypatch):
    publish(server, "org/gated", GGUF, gated=True)
    with pytest.raises(Unreachable, match=rf"accept its conditions on {server.url}/org/gated, then .*`hf auth login`"):
        store.resolve("hf.co/org/gated")
    assert server.ranges_of(place_of(body("four"))) == []
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert store.resolve("hf.co/org/gated").read_bytes() == body("four")


def test_the_token_is_not_sent_to_redirects(server, store, monkeypatch):
    seen = []
    with serving() as elsewhere:
        elsewhere.files[place_of(body("four"))] = body("four")
        elsewhere.special = lambda method, path, headers: seen.append(headers.get("Authorization"))
        publish(server, "org/gated", GGUF, gated=True)
        server.special.storage = elsewhere.url.replace("127.0.0.1", "localhost")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        assert store.resolve("hf.co/org/gated").read_bytes() == body("four")
    assert seen == [None]


def test_a_hub_that_cannot_be_reached_is_an_error(tmp_path, server):
    store = Store(tmp_path, [HuggingFace("http://127.0.0.1:1")])
    with pytest.raises(
        Unreachable, match=r"cannot be reached at http://127\.0\.0\.1:1 .*check the network and the proxy"
    ):
        store.resolve("hf.co/org/toy")


def test_no_request_is_sent_with_hf_hub_offline(server, store, monkeypatch):
    publish(server, "org/toy", GGUF)
    path = store.resolve("hf.co/org/toy")
    server.requests.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert store.resolve("hf.co/org/toy") == path
    with pytest.raises(Unreachable, match="HF_HUB_OFFLINE forbids"):
        store.pull("hf.co/org/toy:Q8_0")
    assert server.requests == []


def test_huggingface_hub_accepts_the_hub_of_these_tests(server, store, tmp_path):
    publish(server, "org/toy", GGUF | {"config.json": b"{}"})
    for name in ("toy-Q4_K_M.gguf", "config.json"):
        path = huggingface_hub.hf_hub_download("org/toy", name, endpoint=server.url, cache_dir=tmp_path / "cache")
        assert Path(path).read_bytes() == (GGUF | {"config.json": b"{}"})[name]


@pytest.mark.parametrize(
    "file_name, expected",
    [
        ("toy-Q4_K_M.gguf", "Q4_K_M"),
        ("toy.q8_0.gguf", "Q8_0"),
        ("Llama-3.2-1B-IQ4_XS.gguf", "IQ4_XS"),
        ("a-bf16-00001-of-00003.gguf", "BF16"),
        ("Q4_0/a-00001-of-00003.gguf", "Q4_0"),
        ("gpt-oss-mxfp4.gguf", "MXFP4"),
        ("a-fp16.gguf", "F16"),
        ("qwen2.gguf", ""),
    ],
)
def test_the_number_format_is_read_from_the_file_name(file_name, expected):
    assert quantization_of(file_name) == expected
