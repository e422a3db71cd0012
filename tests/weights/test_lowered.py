"""Lowered weights on disk: found unchanged or not at all, never partial, and within the size limit."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from quire.types.lowered import file_prefix
from quire.weights import lowered
from quire.weights.lowered import CHUNK, SUFFIX, LoweredModel, LoweredStore

pytestmark = pytest.mark.pure

RECIPE = "cpu layout 1"
ARRAYS = {
    "a f32 8x8": np.arange(5000, dtype=np.uint8),
    "b q4_1 9x32": np.arange(CHUNK + 77, dtype=np.uint64).astype(np.uint8),  # crosses the end of a chunk
    "empty": np.zeros(0, np.uint8),
    "c": np.frombuffer(os.urandom(300_000), np.uint8),
}


def make(folder: Path, *identity: str, max_bytes: int = 1 << 30) -> LoweredModel:
    return LoweredStore(folder / "lowered", max_bytes, min_bytes=0).for_model(*identity or ("digest", "graph", "0.1.0"))


def write(model: LoweredModel, recipe: str = RECIPE) -> Path:
    model.keep(recipe, ARRAYS)
    model.wait()
    return model.path(recipe)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "lowered").iterdir()) if (folder / "lowered").exists() else []


def assert_found(model: LoweredModel, recipe: str = RECIPE) -> None:
    found = model.find(recipe)
    assert found is not None and list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert np.array_equal(found[name], array)


def test_written_arrays_are_found_mapped_and_read_only(tmp_path):
    write(make(tmp_path))
    assert_found(make(tmp_path))
    for array in (make(tmp_path).find(RECIPE) or {}).values():
        assert not array.flags.writeable and (array.size == 0 or array.ctypes.data % lowered.PAGE == 0)


def test_nothing_is_found_if_nothing_was_written(tmp_path, caplog):
    assert make(tmp_path).find(RECIPE) is None
    assert files(tmp_path) == [] and not caplog.records


@pytest.mark.parametrize(
    "identity, recipe",
    [
        (("other", "graph", "0.1.0"), RECIPE),
        (("digest", "other", "0.1.0"), RECIPE),
        (("digest", "graph", "0.1.1"), RECIPE),
        (("digest", "graph", "0.1.0"), "cpu layout 2"),
        (("digestgraph", "0.1.0"), RECIPE),
    ],
)
def test_another_model_version_or_recipe_uses_another_file(tmp_path, identity, recipe):
    write(make(tmp_path))
    assert make(tmp_path, *identity).find(recipe) is None


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage, args",
    [
        (cut, 0),
        (cut, 20),
        (cut, 4096),
        (cut, -1),
        (cut, -4096),
        (flip, 0),
        (flip, 9),
        (flip, 30),
        (flip, 60),
        (flip, 4096),
    ],
)
def test_a_damaged_file_is_ignored_and_written_again(tmp_path, caplog, damage, args):
    damage(write(make(tmp_path)), args)
    with caplog.at_level(logging.WARNING):
        assert make(tmp_path).find(RECIPE) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    write(make(tmp_path))
    assert_found(make(tmp_path))


def test_a_large_damaged_range_is_detected(tmp_path):
    path = write(make(tmp_path))
    content = bytearray(path.read_bytes())
    content[CHUNK // 2 : CHUNK] = bytes(CHUNK // 2)
    path.write_bytes(content)
    assert make(tmp_path).find(RECIPE) is None


class FullDisk:
    """A file on a disk that accepts some bytes and is then full."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, content: memoryview) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(self.room, len(content))
        self.room -= taken
        return taken


def test_a_full_disk_is_logged_once_and_leaves_no_file(tmp_path, monkeypatch, caplog):
    writer = lowered.ChunkWriter
    monkeypatch.setattr(lowered, "ChunkWriter", lambda file: writer(FullDisk(CHUNK + 1)))
    write(make(tmp_path))
    assert files(tmp_path) == []
    assert [record.message for record in caplog.records if "No space left" in record.message] == [
        record.message for record in caplog.records
    ]


def test_weights_lowered_from_a_copy_of_the_checkpoint_are_found(tmp_path):
    store = LoweredStore(tmp_path / "lowered", 1 << 30, min_bytes=0)
    one, other = (store.for_model("digest", file=tmp_path / name) for name in ("one.gguf", "other.gguf"))
    write(one)
    assert other.find(RECIPE) is not None and other.path(RECIPE) == one.path(RECIPE)
    assert one.path(RECIPE).name.startswith(file_prefix(tmp_path / "one.gguf"))
    write(other)
    assert len(files(tmp_path)) == 1


def test_nothing_is_written_to_a_disk_with_too_little_free_space(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": lowered.KEEP_FREE})())
    write(make(tmp_path))
    assert files(tmp_path) == [] and "they take 2 MB, and 268 MB are free" in caplog.records[0].message


def test_an_unwritable_home_is_logged_once(tmp_path, caplog):
    (tmp_path / "lowered").write_text("a file where the folder should be")
    model = make(tmp_path)
    assert model.find(RECIPE) is None
    caplog.clear()
    write(model)
    assert len(caplog.records) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_read_only_folder_still_works(tmp_path):
    write(make(tmp_path))
    (tmp_path / "lowered").chmod(0o500)
    assert_found(make(tmp_path))


def test_the_least_recently_used_files_are_removed(tmp_path):
    size = write(make(tmp_path, "old")).stat().st_size
    write(make(tmp_path, "used"))
    for age, name in ((300, "used"), (200, "old")):
        os.utime(make(tmp_path, name).path(RECIPE), times=(time.time() - age,) * 2)
    assert_found(make(tmp_path, "used"))  # which makes it the newer one
    write(make(tmp_path, "new", max_bytes=2 * size))
    assert make(tmp_path, "old").find(RECIPE) is None
    assert_found(make(tmp_path, "used"))
    assert_found(make(tmp_path, "new"))


def test_models_above_the_maximum_or_below_the_minimum_size_are_not_written(tmp_path):
    write(make(tmp_path, max_bytes=1000))
    small = LoweredStore(tmp_path / "lowered", 1 << 30).for_model("digest")
    write(small)
    assert files(tmp_path) == []


def test_a_removed_file_stays_valid_while_it_is_mapped(tmp_path):
    path = write(make(tmp_path))
    found = make(tmp_path).find(RECIPE)
    path.unlink()
    assert found is not None and all(np.array_equal(found[name], array) for name, array in ARRAYS.items())


def test_abandoned_partial_files_are_removed_and_others_are_not(tmp_path):
    folder = tmp_path / "lowered"
    folder.mkdir()
    for name in ("abandoned.part", "growing.part"):
        (folder / name).write_bytes(b"x")
    os.utime(folder / "abandoned.part", times=(0, 0))
    path = write(make(tmp_path))
    assert files(tmp_path) == sorted([path.name, "growing.part"])


WRITER = """
import sys
from pathlib import Path
import numpy as np
from quire.weights.lowered import LoweredStore
model = LoweredStore(Path(sys.argv[1]), 1 << 30, min_bytes=0).for_model("shared")
for number in range(20):
    model.keep("recipe", {"a": np.full(5_000_000, 7, np.uint8), "b": np.arange(9, dtype=np.uint8)})
    model.wait()
    found = model.find("recipe")
    assert found is not None and (found["a"] == 7).all() and list(found["b"]) == list(range(9))
"""


def test_processes_that_write_the_same_file_at_once_never_see_a_partial_file(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    children = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(child.communicate()[1], child.returncode) for child in children] == [("", 0)] * 2
    assert len(list(tmp_path.iterdir())) == 1 and next(tmp_path.iterdir()).suffix == SUFFIX
