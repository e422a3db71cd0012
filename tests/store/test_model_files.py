"""Models created from files that are used in place, from bytes, and from other models."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from quire.store.errors import BadName, DamagedModel, ModelNotFound, StoreError, WrongChecksum
from quire.store.model_files import NewFile, files_at, part_names
from quire.store.source import ModelOffer
from quire.store.store import Store
from quire.text.template_files import template_sources
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure

BODY = b"GGUF" + bytes(range(256)) * 100
DIGEST = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "home", [])


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "toy.gguf"
    path.write_bytes(BODY)
    return path


def test_a_file_on_the_same_disk_is_used_in_place(store, file):
    manifest = store.create("mine", files_at(file))
    assert manifest.files[0].origin == str(file) and store.layout.blob(DIGEST).is_symlink()
    assert store.find("mine").name == "toy.gguf" and store.find("mine").samefile(file)
    assert store.list() == [manifest] and (manifest.source, manifest.format) == ("made here", "gguf")


def test_a_file_on_another_disk_is_copied(store):
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        if Path(folder).stat().st_dev == store.layout.home.parent.stat().st_dev:
            pytest.skip("this machine has one file system")
        Path(folder, "toy.gguf").write_bytes(BODY)
        assert store.create("mine", files_at(Path(folder, "toy.gguf"))).files[0].origin == ""
    assert store.find("mine").read_bytes() == BODY


def test_a_vanished_file_is_reported(store, file):
    store.create("mine", files_at(file))
    file.unlink()
    with pytest.raises(DamagedModel, match=rf"of mine:latest was used in place, at {file}, and is no longer there"):
        store.find("mine")
    file.write_bytes(BODY)
    with pytest.raises(DamagedModel, match="was changed there: restore the file, or create the model again"):
        store.find("mine")
    store.create("mine", files_at(file))
    assert store.find("mine").read_bytes() == BODY


@pytest.mark.parametrize("change", [BODY + b"more", BODY[:-1] + b"x"])
def test_a_changed_file_is_detected(store, file, change):
    store.create("mine", files_at(file))
    before = file.stat().st_mtime_ns
    file.write_bytes(change)
    os.utime(file, ns=(before + 1, before + 1))
    with pytest.raises(DamagedModel, match=f"is used in place, at {file}, and was changed there"):
        store.find("mine")


def test_removing_a_model_keeps_the_users_file(store, file):
    store.create("mine", files_at(file))
    assert store.remove("mine") == 0
    assert file.read_bytes() == BODY and list(store.layout.blobs.iterdir()) == []


def test_two_files_with_the_same_content_are_stored_once(store, file, tmp_path):
    twin = tmp_path / "twin.gguf"
    shutil.copy(file, twin)
    store.create("mine", files_at(file))
    store.create("yours", files_at(twin))
    assert store.find("mine").read_bytes() == store.find("yours").read_bytes() == BODY
    assert len(list(store.layout.blobs.iterdir())) == 1


def test_content_that_the_store_has_needs_no_file(store, file):
    store.create("first", [NewFile("weights", "a.gguf", BODY)])
    assert store.create("mine", files_at(file)).files[0].origin == ""
    file.unlink()
    assert store.find("mine").read_bytes() == BODY


def test_a_file_of_the_store_itself_is_not_linked(store, file):
    store.create("first", [NewFile("weights", "a.gguf", BODY)])
    made = store.create("second", files_at(store.find("first")))
    store.remove("first")
    assert made.files[0].origin == "" and store.find("second").read_bytes() == BODY


def test_a_model_is_made_of_another_one_and_of_text(store, file):
    first = store.create("first", files_at(file), ModelOffer("made here", quantization="Q4_0", licence="MIT"))
    made = store.create("mine:v2", [*first.files, NewFile("system", "system.txt", b"Be brief.")])
    assert store.find("mine:v2").samefile(file)
    assert store.read(made.of_role("system")[0]) == b"Be brief." and store.show("first").licence == "MIT"


def test_creating_a_model_again_leaves_no_unused_files(store):
    store.create("mine", [NewFile("weights", "a.gguf", BODY), NewFile("system", "system.txt", b"one")])
    store.create("mine", [NewFile("weights", "a.gguf", BODY), NewFile("system", "system.txt", b"two")])
    assert len(list(store.layout.blobs.iterdir())) == 2


def test_files_with_the_same_name_are_numbered(store, file):
    texts = [NewFile("license", "license.txt", each) for each in (b"one", b"two", b"three")]
    made = store.create("mine", [*files_at(file), *texts])
    assert [each.file_name for each in made.of_role("license")] == ["license.txt", "license-2.txt", "license-3.txt"]


def test_a_model_is_created_from_an_added_blob(store):
    assert store.find_blob(DIGEST) is None
    added = store.add_blob([BODY[:100], BODY[100:]], DIGEST)
    assert store.find_blob(DIGEST) == added and (added.digest, added.size) == (DIGEST, len(BODY))
    store.create("mine", [replace(added, file_name="mine.gguf")])
    assert store.find("mine").name == "mine.gguf" and store.find("mine").read_bytes() == BODY
    with pytest.raises(WrongChecksum, match="The checksum of the data is"):
        store.add_blob([b"else"], DIGEST)
    assert list(store.layout.partial.iterdir()) == []
    assert store.find_blob("../../etc/passwd") is None


def test_a_model_cannot_be_created_from_a_missing_blob(store):
    added = store.add_blob([BODY])
    store.layout.blob(added.digest).unlink()
    with pytest.raises(DamagedModel, match="is missing"):
        store.create("mine", [added])
    assert store.list() == []


def test_a_model_needs_weights_and_a_valid_name(store, file):
    with pytest.raises(InvalidRequest, match="needs weights"):
        store.create("mine", [NewFile("system", "system.txt", b"Be brief.")])
    for name in ("hf.co/a/b", "./mine"):
        with pytest.raises(InvalidRequest, match="cannot be the name"):
            store.create(name, files_at(file))
    with pytest.raises(BadName):
        store.create("a b", files_at(file))


def test_a_folder_is_a_checkpoint(store, tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    with pytest.raises(StoreError, match="is not a checkpoint"):
        files_at(folder)
    (folder / "additional_chat_templates").mkdir()
    tools, kept = (
        "additional_chat_templates/tool_use.jinja",
        ("tokenizer.json", "added_tokens.json", "chat_template.jinja"),
    )
    for name in ("config.json", "model.safetensors", *kept, tools, "notes.md"):
        (folder / name).write_text(name)
    manifest = store.create("mine", files_at(folder))
    assert {each.file_name: each.role for each in manifest.files} == {
        "config.json": "config",
        "model.safetensors": "weights",
        "tokenizer.json": "tokenizer",
        "added_tokens.json": "tokenizer",
        "chat_template.jinja": "tokenizer",
        "chat_template.tool_use.jinja": "tokenizer",
    }
    assert template_sources(store.find("mine")) == template_sources(folder) == {"default": kept[-1], "tool_use": tools}
    assert manifest.format == "safetensors" and (store.find("mine") / "config.json").samefile(folder / "config.json")


def test_a_split_file_includes_its_other_parts(store, tmp_path):
    names = [f"toy-0000{number}-of-00002.gguf" for number in (1, 2)]
    (tmp_path / names[1]).write_bytes(b"GGUF two")
    with pytest.raises(StoreError, match=rf"is one of 2 parts, and {names[0]} is missing"):
        files_at(tmp_path / names[1])
    (tmp_path / names[0]).write_bytes(b"GGUF one")
    assert [part.file_name for part in files_at(tmp_path / names[1])] == names
    store.create("mine", files_at(tmp_path / names[0]))
    assert store.find("mine").name == names[0]


def test_a_path_without_a_file_is_an_error(tmp_path):
    with pytest.raises(ModelNotFound, match="There is no file or folder"):
        files_at(tmp_path / "nothing.gguf")


@pytest.mark.parametrize(
    "name, parts",
    [
        ("toy.gguf", ["toy.gguf"]),
        ("a/toy-00002-of-00002.gguf", ["a/toy-00001-of-00002.gguf", "a/toy-00002-of-00002.gguf"]),
        ("toy-1-of-2.safetensors", ["toy-1-of-2.safetensors", "toy-2-of-2.safetensors"]),
        ("best-of-10.gguf", ["best-of-10.gguf"]),
    ],
)
def test_the_parts_of_a_split_file_are_numbered_in_its_name(name, parts):
    assert part_names(name) == parts
