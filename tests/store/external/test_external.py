"""Models that Ollama or the hub's library keep on this disk: found by name, used in place, never fetched again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from quire.store.create import create_model
from quire.store.errors import DamagedModel, ModelNotFound
from quire.store.external.folders import OLLAMA_SERVICE_FOLDER, external_folders
from quire.store.external.hub_cache import HubCache
from quire.store.external.ollama_folder import OllamaFolder
from quire.store.modelfile import parse_modelfile
from quire.store.names import ModelName
from quire.store.source import ModelOffer, Progress, SourceFile
from quire.store.store import Store, open_store
from quire.text.preset import read_preset
from quire.types.lowered import file_prefix
from tests.store.folders import hub_model, ollama_model, sha256

pytestmark = pytest.mark.pure

WEIGHTS, OTHER = b"GGUF" + bytes(5000), b"GGUF" + bytes(6000)
LAYERS = [("model", WEIGHTS), ("template", b"{{ .Prompt }}"), ("system", b"Be brief."), ("license", b"MIT")]
SHARDS = {f"model-0000{i}-of-00002.safetensors": bytes([i]) * 100 for i in (1, 2)}
INDEX = {"model.safetensors.index.json": json.dumps({"weight_map": {f"w{i}": name for i, name in enumerate(SHARDS)}})}
CHECKPOINT = SHARDS | {name: text.encode() for name, text in INDEX.items()} | {"config.json": b"{}"}


class Silent:
    """A source that claims every name, and must not be called."""

    def __init__(self, offer: ModelOffer | None = None) -> None:
        self.offered = offer
        self.fetched: list[str] = []

    def claims(self, name: ModelName) -> bool:
        return True

    def offer(self, name: ModelName) -> ModelOffer:
        assert self.offered is not None, f"{name} was looked for elsewhere"
        return self.offered

    def fetch(self, source_file: SourceFile, partial: Path, progress: Progress) -> None:
        self.fetched.append(source_file.file_name)
        partial.write_bytes(OTHER)


@pytest.fixture
def ollama(tmp_path) -> Path:
    return tmp_path / "ollama"


@pytest.fixture
def hub(tmp_path) -> Path:
    return tmp_path / "hub"


@pytest.fixture
def source() -> Silent:
    return Silent()


@pytest.fixture
def store(tmp_path, ollama, hub, source) -> Store:
    return Store(tmp_path / "home", [source], external=(HubCache(hub), OllamaFolder(ollama)))


def written(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def test_a_model_of_ollama_is_opened_in_place(store, ollama):
    ollama_model(ollama, "library/llama3.2", "1b", LAYERS)
    path = store.resolve("llama3.2:1b")
    assert path.resolve() == ollama / "blobs" / f"sha256-{sha256(WEIGHTS)}" and path.suffix == ".gguf"
    preset = read_preset(path.parent)
    assert (preset.template, preset.system, preset.licences) == ("{{ .Prompt }}", "Be brief.", ("MIT",))
    assert store.list() == [] and written(store.layout.home) == set(), "nothing is copied, and nothing written down"
    assert store.resolve("llama3.2:1b") == path


@pytest.mark.parametrize(
    "host, place, name",
    [
        ("registry.ollama.ai", "library/toy", "toy"),
        ("registry.ollama.ai", "someone/toy", "someone/toy"),
        ("registry.ollama.ai", "someone/toy", "ollama.com/someone/toy"),
        ("hf.co", "Org/Toy-GGUF", "hf.co/Org/Toy-GGUF"),
        ("hf.co", "Org/Toy-GGUF", "Org/Toy-GGUF"),
        ("localhost:5000", "me/toy", "localhost:5000/me/toy"),
    ],
)
def test_a_name_resolves_to_ollamas_folder_like_to_its_registry(store, ollama, host, place, name):
    ollama_model(ollama, place, "latest", LAYERS, host)
    assert store.find(name).read_bytes() == WEIGHTS
    (found,) = store.external_models()
    assert store.find(str(found.name)).read_bytes() == WEIGHTS and found.size > len(WEIGHTS)


def test_an_incomplete_model_of_ollama_is_not_found(store, ollama, source):
    ollama_model(ollama, "library/toy", "latest", LAYERS)
    (ollama / "blobs" / f"sha256-{sha256(WEIGHTS)}").unlink()
    ollama_model(ollama, "library/strange", "latest", [("tensor", WEIGHTS[:50])])
    (ollama / "manifests/registry.ollama.ai/library/toy/broken").write_text("{")
    assert store.external_models() == []
    for name in ("toy", "strange", "toy:broken"):
        assert store.find(name) is None


def test_when_ollama_updates_a_model_the_new_one_is_found(store, ollama):
    ollama_model(ollama, "library/toy", "latest", LAYERS)
    assert store.find("toy").read_bytes() == WEIGHTS
    ollama_model(ollama, "library/toy", "latest", [("model", OTHER)])
    assert store.find("toy").read_bytes() == OTHER
    store.create("mine", store.show("toy").files)
    store.remove("mine")
    assert len(list(store.layout.views.iterdir())) == 1, "the view of the former one is collected"
    assert store.find("toy").read_bytes() == OTHER


def test_a_checkpoint_in_the_hubs_cache_is_opened_in_place(store, hub):
    snapshot = hub_model(hub, "Qwen/Toy", CHECKPOINT)
    assert store.resolve("Qwen/Toy") == snapshot == store.resolve("hf.co/Qwen/Toy")
    assert store.show("Qwen/Toy").format == "safetensors" and not store.layout.home.exists()


def test_the_quantization_that_was_fetched_is_found_in_the_hubs_cache(store, hub):
    snapshot = hub_model(hub, "org/toy", {"toy-Q8_0.gguf": WEIGHTS, "toy-F16.gguf": OTHER, "README.md": b"hello"})
    assert store.find("org/toy") == snapshot / "toy-Q8_0.gguf"
    assert store.find("hf.co/org/toy:f16") == snapshot / "toy-F16.gguf"
    assert store.find("org/toy:Q4_K_M") is None
    assert [(str(each.name), each.about.quantization) for each in store.external_models()] == [
        ("hf.co/org/toy:F16", "F16"),
        ("hf.co/org/toy:Q8_0", "Q8_0"),
    ]


def test_a_snapshot_without_a_branch_is_found_too(store, hub):
    snapshot = hub_model(hub, "org/toy", {"a-Q4_0.gguf": WEIGHTS}, ref=False)
    assert store.find("org/toy") == snapshot / "a-Q4_0.gguf"


@pytest.mark.parametrize("missing", ["model-00002-of-00002.safetensors", "config.json"])
def test_an_incomplete_checkpoint_is_not_found(store, hub, missing):
    snapshot = hub_model(hub, "org/toy", CHECKPOINT)
    (snapshot / missing).unlink()
    assert store.find("org/toy") is None and store.external_models() == []


def test_a_split_file_is_found_only_with_all_its_parts(store, hub):
    parts = {f"big/toy-BF16-0000{i}-of-00002.gguf": WEIGHTS + bytes([i]) for i in (1, 2)}
    snapshot = hub_model(hub, "org/toy", parts)
    assert store.find("org/toy") == snapshot / "big/toy-BF16-00001-of-00002.gguf"
    (snapshot / "big/toy-BF16-00002-of-00002.gguf").unlink()
    assert store.find("org/toy") is None


def test_the_hubs_cache_comes_before_ollamas_model_of_the_same_name(store, hub, ollama):
    ollama_model(ollama, "org/toy", "latest", [("model", OTHER)])
    hub_model(hub, "org/toy", {"a-Q4_0.gguf": WEIGHTS})
    assert store.find("org/toy").read_bytes() == WEIGHTS
    assert store.find("ollama.com/org/toy").read_bytes() == OTHER


def test_the_stores_own_model_comes_first(store, ollama):
    ollama_model(ollama, "library/toy", "latest", LAYERS)
    store.create("toy", store.show("toy").files)
    ollama_model(ollama, "library/toy", "latest", [("model", OTHER)])
    assert store.find("toy").read_bytes() == WEIGHTS and store.external_models() == []


def test_a_pull_links_an_external_model_without_any_request(store, ollama, hub):
    ollama_model(ollama, "library/toy", "latest", LAYERS)
    hub_model(hub, "org/toy", CHECKPOINT)
    for name in ("toy", "org/toy"):
        assert store.offer(name).source == store.pull(name).source
    assert [each.name for each in store.list()] == ["org/toy", "toy"]
    assert all(blob.is_symlink() for blob in store.layout.blobs.iterdir())
    assert store.find("toy").read_bytes() == WEIGHTS and (store.find("org/toy") / "config.json").read_bytes() == b"{}"
    assert store.remove("toy") == 0 and store.find("toy").read_bytes() == WEIGHTS, "it is still Ollama's"


def test_a_pull_fetches_only_files_that_no_program_keeps_here(store, ollama, source):
    ollama_model(ollama, "library/twin", "latest", LAYERS)
    bodies = {"a": WEIGHTS, "b": OTHER}
    files = tuple(SourceFile("weights", f"{n}.gguf", n, "", sha256(body), len(body)) for n, body in bodies.items())
    source.offered = ModelOffer("a shelf", files, format="gguf")
    messages = []
    store.pull("toy", lambda what, done, total: messages.append(what))
    assert source.fetched == ["b.gguf"] and "0.0 MB of it to fetch" in messages[0]
    assert (store.find("toy").parent / "a.gguf").resolve() == ollama / "blobs" / f"sha256-{sha256(WEIGHTS)}"


def test_a_linked_model_that_was_removed_is_reported(store, ollama):
    manifest = ollama_model(ollama, "library/toy", "latest", LAYERS)
    store.pull("toy")
    manifest.unlink()
    (ollama / "blobs" / f"sha256-{sha256(WEIGHTS)}").unlink()
    with pytest.raises(DamagedModel, match=r"was used in place.*no longer there.*pull"):
        store.find("toy")


def test_a_copy_and_a_model_made_from_it_link_to_the_same_file(store, ollama, tmp_path):
    ollama_model(ollama, "library/toy", "latest", LAYERS)
    store.copy("toy", "copied")
    create_model(store, "made", parse_modelfile("FROM toy\nSYSTEM Be long."), tmp_path)
    for name in ("copied", "made"):
        assert store.find(name).resolve() == ollama / "blobs" / f"sha256-{sha256(WEIGHTS)}"
    assert read_preset(store.find("made").parent).system == "Be long."
    assert read_preset(store.find("made").parent).template == "{{ .Prompt }}"


def test_removing_an_external_model_names_the_other_programs_command(store, ollama, hub):
    ollama_model(ollama, "library/toy", "1b", LAYERS)
    hub_model(hub, "org/toy", CHECKPOINT)
    with pytest.raises(ModelNotFound, match=r"Ollama keeps it in .*ollama, and `ollama rm toy:1b` removes it there"):
        store.remove("toy:1b")
    with pytest.raises(ModelNotFound, match=r"the hub's cache keeps it in .*models--org--toy, and `hf cache rm`"):
        store.remove("org/toy")


def test_lowered_weights_of_ollamas_file_stay_while_ollama_has_it(store, ollama):
    manifest = ollama_model(ollama, "library/toy", "latest", LAYERS)
    lowered = store.layout.lowered / f"{file_prefix(store.find('toy'))}0.lowered"
    lowered.parent.mkdir()
    lowered.write_bytes(b"packed")
    store.create("mine", store.show("toy").files)
    assert store.remove("mine") == 0 and lowered.exists()
    store.create("mine", store.show("toy").files)
    manifest.unlink()
    (ollama / "blobs" / f"sha256-{sha256(WEIGHTS)}").unlink()
    assert store.remove("mine") == len(b"packed") and not lowered.exists()


def test_names_of_external_models_are_suggested_for_typos(store, ollama):
    ollama_model(ollama, "library/dolphin3", "8b", LAYERS)
    with pytest.raises(ModelNotFound, match=r"Did you mean dolphin3:8b\?"):
        store.show("dolfin3:8b")


def test_a_small_file_of_the_hubs_cache_is_read_once_for_its_digest(store, hub, monkeypatch):
    hub_model(hub, "org/toy", CHECKPOINT)
    read: list[Path] = []
    monkeypatch.setattr(
        "quire.store.external.model.digest_of", lambda path: read.append(path) or sha256(path.read_bytes())
    )
    assert store.show("org/toy") == store.show("org/toy")
    assert len(read) == 1, "large files have their digest as their name"


@pytest.mark.parametrize(
    "environ, ollama, hub",
    [
        ({}, [Path.home() / ".ollama/models", OLLAMA_SERVICE_FOLDER], Path.home() / ".cache/huggingface/hub"),
        ({"OLLAMA_MODELS": "/big", "HF_HOME": "/hf"}, [Path("/big")], Path("/hf/hub")),
        ({"OLLAMA_MODELS": "~/m", "HF_HOME": "/hf", "HF_HUB_CACHE": "/c"}, [Path.home() / "m"], Path("/c")),
        ({"OLLAMA_MODELS": "/m", "XDG_CACHE_HOME": "/x"}, [Path("/m")], Path("/x/huggingface/hub")),
    ],
)
def test_the_folders_follow_the_other_programs_variables(environ, ollama, hub):
    cache, *folders = external_folders(environ)
    assert cache == HubCache(hub) and folders == [OllamaFolder(each) for each in ollama]


def test_open_store_searches_the_external_folders(monkeypatch, tmp_path, ollama):
    from quire.config import load

    ollama_model(ollama, "library/toy", "latest", LAYERS)
    monkeypatch.setitem(os.environ, "OLLAMA_MODELS", str(ollama))
    assert open_store(load({"home": str(tmp_path / "home")})).find("toy").read_bytes() == WEIGHTS
