"""The guarantees of the store: atomic files, shared content, concurrent processes, detection of damage."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from quire.store.blobs import PARTIAL_DAYS
from quire.store.errors import DamagedModel, DiskFull, ModelNotFound, WrongChecksum
from quire.store.names import ModelName
from quire.store.source import ModelOffer, Progress, SourceFile, all_sources
from quire.store.store import Store
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure

BODY = b"GGUF" + bytes(100_000)


class Shelf:
    """A source whose files are in memory."""

    def __init__(self, **files: bytes) -> None:
        self.files = files
        self.fetched: list[str] = []
        self.promised: dict[str, str] = {}
        self.failure: Exception | None = None
        self.has_digests = True

    def claims(self, name: ModelName) -> bool:
        return name.kind == "stored" and name.name in ("toy", "twin", "folder")

    def offer(self, name: ModelName) -> ModelOffer:
        kind = "safetensors" if name.name == "folder" else "gguf"
        return ModelOffer("a shelf", tuple(self.source_file(each) for each in self.files), format=kind, licence="MIT")

    def source_file(self, file_name: str) -> SourceFile:
        body = self.files[file_name]
        digest = self.promised.get(file_name, hashlib.sha256(body).hexdigest())
        return SourceFile("weights", file_name, digest, digest=digest if self.has_digests else None, size=len(body))

    def fetch(self, source_file: SourceFile, partial: Path, progress: Progress) -> None:
        self.fetched.append(source_file.file_name)
        have = partial.stat().st_size if partial.exists() else 0
        with partial.open("ab") as file:
            file.write(self.files[source_file.file_name][have:])
            if self.failure:
                raise self.failure
        progress(source_file.file_name, len(self.files[source_file.file_name]), len(self.files[source_file.file_name]))


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(**{"toy.gguf": BODY})


@pytest.fixture
def store(tmp_path, shelf) -> Store:
    return Store(tmp_path / "home", [shelf])


def blobs(store: Store) -> list[Path]:
    return sorted(store.layout.blobs.iterdir())


def test_a_pulled_model_is_found_under_its_published_name(store):
    assert store.find("toy") is None and store.list() == []
    manifest = store.pull("toy")
    path = store.find("toy:latest")
    assert path is not None and path.name == "toy.gguf" and path.read_bytes() == BODY
    assert (manifest.name, manifest.tag, manifest.size, manifest.licence) == ("toy", "latest", len(BODY), "MIT")
    assert store.list() == [manifest] == [store.show("toy")]
    assert [blob.name for blob in blobs(store)] == [f"sha256-{hashlib.sha256(BODY).hexdigest()}"]
    assert list(store.layout.partial.iterdir()) == []


def test_recommended_sampling_is_beside_the_weights(store, shelf):
    offer = shelf.offer
    shelf.offer = lambda name: replace(offer(name), sampling={"temperature": 0.2, "top_p": 0.9})
    path = store.resolve("toy")
    beside = path.parent / "generation_config.json"
    assert json.loads(beside.read_text()) == {"temperature": 0.2, "top_p": 0.9}
    beside.unlink()  # a view that an older version made has none
    assert store.resolve("toy") == path and beside.is_file()
    store.remove("toy")
    assert not path.parent.exists()


def test_resolve_pulls_once(store, shelf):
    assert store.resolve("toy") == store.resolve("toy")
    assert shelf.fetched == ["toy.gguf"]


def test_names_with_the_same_content_share_files(store, shelf):
    store.pull("toy")
    store.pull("twin:1")
    store.copy("toy", "mine:v2")
    assert shelf.fetched == ["toy.gguf"] and len(blobs(store)) == 1
    assert [f"{each.name}:{each.tag}" for each in store.list()] == ["mine:v2", "toy:latest", "twin:1"]
    assert store.find("mine:v2") == store.find("toy")


def test_files_are_removed_with_the_last_name_that_needs_them(store):
    store.pull("toy")
    store.copy("toy", "mine")
    assert store.remove("toy") == 0 and store.find("mine").read_bytes() == BODY
    assert store.remove("mine") == len(BODY)
    assert (
        blobs(store) == [] and list(store.layout.views.iterdir()) == [] and list(store.layout.manifests.iterdir()) == []
    )


def test_files_are_removed_when_their_name_gets_others(store, shelf):
    store.pull("toy")
    shelf.files = {"toy.gguf": BODY + b"new"}
    store.pull("toy")
    assert [blob.stat().st_size for blob in blobs(store)] == [len(BODY) + 3]
    assert len(list(store.layout.views.iterdir())) == 0 and store.find("toy").read_bytes() == BODY + b"new"


def test_a_model_of_many_files_is_a_folder_with_their_names(tmp_path):
    store = Store(tmp_path, [Shelf(**{"config.json": b"{}", "model.safetensors": b"weights"})])
    folder = store.resolve("folder")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert (folder / "config.json").read_bytes() == b"{}"


def test_a_store_can_be_moved(store, tmp_path, shelf):
    store.pull("toy")
    store.find("toy")
    store.layout.home.rename(tmp_path / "elsewhere")
    assert Store(tmp_path / "elsewhere", [shelf]).find("toy").read_bytes() == BODY


def test_a_file_without_a_known_checksum_is_stored(store, shelf):
    shelf.has_digests = False
    assert store.resolve("toy").read_bytes() == BODY


def test_content_with_a_wrong_checksum_is_deleted(store, shelf):
    shelf.promised["toy.gguf"] = "0" * 64
    with pytest.raises(WrongChecksum, match=r"The checksum of toy\.gguf is"):
        store.pull("toy")
    assert blobs(store) == [] and list(store.layout.partial.iterdir()) == [] and store.find("toy") is None


def test_a_damaged_partial_file_is_fetched_again_from_the_start(store, shelf):
    store.layout.make()
    key = hashlib.sha256(shelf.source_file("toy.gguf").key.encode()).hexdigest()
    (store.layout.partial / key).write_bytes(b"rubbish")
    assert store.resolve("toy").read_bytes() == BODY
    assert shelf.fetched == ["toy.gguf"] * 2


def test_a_truncated_blob_is_detected_and_repaired_by_a_pull(store, shelf):
    path = store.resolve("toy")
    blob = blobs(store)[0]
    blob.chmod(0o644)
    os.truncate(blob, 1000)
    with pytest.raises(DamagedModel, match=r"has 1,000 bytes, expected 100,004: repair it with `quire pull toy:"):
        store.find("toy")
    store.pull("toy")
    assert store.find("toy") == path and path.read_bytes() == BODY


def test_a_missing_blob_is_detected(store):
    store.pull("toy")
    blobs(store)[0].unlink()
    with pytest.raises(DamagedModel, match="is missing"):
        store.find("toy")


def test_a_flipped_bit_is_detected_and_repaired_by_a_pull(store, shelf):
    store.pull("toy")
    blob = blobs(store)[0]
    blob.chmod(0o644)
    blob.write_bytes(BODY[:-1] + b"x")
    store.pull("toy")
    assert shelf.fetched == ["toy.gguf"] * 2 and blob.read_bytes() == BODY


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m | {"version": 9},
        lambda m: m | {"files": []},
        lambda m: m | {"surprise": 1},
        lambda m: m | {"files": [m["files"][0] | {"file_name": "../../escape"}]},
        lambda m: m | {"files": [m["files"][0] | {"digest": "../x"}]},
        lambda m: m | {"files": [m["files"][0] | {"size": -1}]},
        lambda m: [],
    ],
)
def test_an_invalid_manifest_is_refused(store, change):
    store.pull("toy")
    path = store.layout.manifests / "toy" / "latest.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(DamagedModel, match=r"latest\.json cannot be read"):
        store.find("toy")
    assert store.list() == []


def test_nothing_is_collected_while_a_manifest_cannot_be_read(store):
    store.pull("toy")
    store.copy("toy", "mine")
    (store.layout.manifests / "toy" / "latest.json").write_text("{")
    assert store.remove("mine") == 0 and len(blobs(store)) == 1


def test_an_abandoned_download_is_removed_with_the_next_model(store):
    store.pull("toy")
    old, fresh = store.layout.partial / "old", store.layout.partial / "fresh"
    old.write_bytes(b"123")
    fresh.write_bytes(b"123")
    long_ago = old.stat().st_mtime - (PARTIAL_DAYS + 1) * 86400
    os.utime(old, (long_ago, long_ago))
    assert store.remove("toy") == len(BODY) + 3
    assert not old.exists() and fresh.exists()


def test_a_full_disk_leaves_nothing_visible_and_the_next_pull_resumes(store, shelf):
    shelf.failure = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="No space"):  # this source does not translate; those that write do
        store.pull("toy")
    assert store.find("toy") is None and blobs(store) == []
    shelf.failure = None
    assert store.resolve("toy").read_bytes() == BODY


def test_a_full_disk_leaves_the_old_manifest(store, monkeypatch):
    store.pull("toy")
    before = store.show("toy")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match=r"The disk of .* is full"):
        store.pull("toy")
    monkeypatch.undo()
    assert store.show("toy") == before
    assert [path.name for path in (store.layout.manifests / "toy").iterdir()] == ["latest.json"]


@pytest.mark.parametrize("call", [Store.show, Store.remove, lambda store, name: store.copy(name, "x")])
@pytest.mark.parametrize("name", ["toy", "./toy.gguf"])
def test_what_is_not_in_the_store_cannot_be_shown_copied_or_removed(store, call, name):
    with pytest.raises(ModelNotFound, match="not in the store"):
        call(store, name)


def test_the_error_for_an_unknown_model_says_what_to_try(store, tmp_path, monkeypatch):
    with pytest.raises(ModelNotFound, match="Try smollm2:135m"):
        store.resolve("unheard-of")
    monkeypatch.chdir(tmp_path)
    Path("checkpoints").mkdir()
    with pytest.raises(ModelNotFound, match=r"write \./checkpoints"):
        store.resolve("checkpoints")


def test_a_path_is_used_in_place(tmp_path):
    store = Store(tmp_path / "home")
    file = tmp_path / "x.gguf"
    with pytest.raises(ModelNotFound, match="There is no file or folder"):
        store.resolve(str(file))
    file.write_bytes(BODY)
    assert store.resolve(str(file)) == file == store.find(str(file))
    assert not store.layout.home.exists()
    with pytest.raises(InvalidRequest, match="nothing to pull"):
        store.pull(str(file))


def test_a_copy_needs_a_name_of_the_store(store):
    store.pull("toy")
    for target in ("hf.co/a/b", "./x.gguf"):
        with pytest.raises(InvalidRequest, match="cannot be the name of a copy"):
            store.copy("toy", target)


def test_every_source_keeps_its_contract():
    sources = all_sources()
    assert {type(each).__name__ for each in sources} >= {"Local", "PackageIndex", "HuggingFace"}
    for name in (ModelName("path", "./x"), ModelName("hub", "a/b", "latest"), ModelName("stored", "smollm2", "135m")):
        assert sum(each.claims(name) for each in sources) == 1


PULLER = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    from tests.store.test_store import BODY, Shelf
    from quire.store.store import Store

    class Slow(Shelf):
        def fetch(self, source_file, partial, progress):
            super().fetch(source_file, partial, progress)
            with open(sys.argv[2], "a") as log:
                log.write("fetched\\n")
            time.sleep(0.5)

    store = Store(Path(sys.argv[1]), [Slow(**{"toy.gguf": BODY})])
    print(store.resolve(sys.argv[3]).read_bytes() == BODY)
""")


def start_puller(home: Path, log: Path, name: str) -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", PULLER, str(home), str(log), name]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True)


def test_two_processes_that_pull_the_same_bytes_fetch_them_once(tmp_path):
    log = tmp_path / "log"
    children = [start_puller(tmp_path / "home", log, name) for name in ("toy", "toy", "twin")]
    assert [child.communicate(timeout=60)[0].strip() for child in children] == ["True"] * 3
    assert log.read_text() == "fetched\n"


def test_a_removal_during_a_pull_removes_none_of_its_files(store, tmp_path):
    store.pull("toy")
    store.copy("toy", "mine")
    log = tmp_path / "log"
    Store(store.layout.home, [Shelf()]).remove("toy")
    blobs(store)[0].unlink()  # so that the child has something to fetch
    child = start_puller(store.layout.home, log, "twin")
    while not log.exists():
        assert child.poll() is None
    store.remove("mine")
    assert child.communicate(timeout=60)[0].strip() == "True"
    assert store.find("twin").read_bytes() == BODY
