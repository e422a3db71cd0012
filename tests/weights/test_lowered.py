"""Lowered weights on disk: found again as they were, or made anew; never half, and never more than was allowed."""

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
from quire.weights.lowered import PIECE, SUFFIX, LoweredModel, LoweredStore

pytestmark = pytest.mark.pure

RECIPE = "cpu layout 1"
ARRAYS = {
    "a f32 8x8": np.arange(5000, dtype=np.uint8),
    "b q4_1 9x32": np.arange(PIECE + 77, dtype=np.uint64).astype(np.uint8),  # over the end of a piece
    "empty": np.zeros(0, np.uint8),
    "c": np.frombuffer(os.urandom(300_000), np.uint8),
}


def make(folder: Path, *identity: str, max_bytes: int = 1 << 30) -> LoweredModel:
    return LoweredStore(folder / "lowered", max_bytes, min_bytes=0).of(*identity or ("digest", "graph", "0.1.0"))


def kept(model: LoweredModel, recipe: str = RECIPE) -> Path:
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


def test_what_was_kept_is_found_mapped_and_read_only(tmp_path):
    kept(make(tmp_path))
    assert_found(make(tmp_path))
    for array in (make(tmp_path).find(RECIPE) or {}).values():
        assert not array.flags.writeable and (array.size == 0 or array.ctypes.data % lowered.PAGE == 0)


def test_nothing_is_found_where_nothing_was_kept(tmp_path, caplog):
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
def test_another_model_version_or_recipe_is_another_file(tmp_path, identity, recipe):
    kept(make(tmp_path))
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
def test_a_damaged_file_is_not_used_and_is_made_again(tmp_path, caplog, damage, args):
    damage(kept(make(tmp_path)), args)
    with caplog.at_level(logging.WARNING):
        assert make(tmp_path).find(RECIPE) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    kept(make(tmp_path))
    assert_found(make(tmp_path))


def test_a_stretch_that_the_disk_lost_is_found_out(tmp_path):
    path = kept(make(tmp_path))
    content = bytearray(path.read_bytes())
    content[PIECE // 2 : PIECE] = bytes(PIECE // 2)
    path.write_bytes(content)
    assert make(tmp_path).find(RECIPE) is None


class FullDisk:
    """A file on a disk that takes some bytes and then no more."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, content: memoryview) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(self.room, len(content))
        self.room -= taken
        return taken


def test_a_full_disk_costs_one_line_of_the_log_and_leaves_nothing(tmp_path, monkeypatch, caplog):
    whole = lowered.Pieces
    monkeypatch.setattr(lowered, "Pieces", lambda file: whole(FullDisk(PIECE + 1)))
    kept(make(tmp_path))
    assert files(tmp_path) == []
    assert [record.message for record in caplog.records if "No space left" in record.message] == [
        record.message for record in caplog.records
    ]


def test_what_was_made_of_a_copy_is_found_too(tmp_path):
    store = LoweredStore(tmp_path / "lowered", 1 << 30, min_bytes=0)
    one, other = (store.of("digest", file=tmp_path / name) for name in ("one.gguf", "other.gguf"))
    kept(one)
    assert other.find(RECIPE) is not None and other.path(RECIPE) == one.path(RECIPE)
    assert one.path(RECIPE).name.startswith(file_prefix(tmp_path / "one.gguf"))
    kept(other)
    assert len(files(tmp_path)) == 1


def test_a_disk_without_room_is_left_as_it_is(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": lowered.KEEP_FREE})())
    kept(make(tmp_path))
    assert files(tmp_path) == [] and "they take 2 MB, and 268 MB are free" in caplog.records[0].message


def test_a_home_that_cannot_be_written_costs_one_line_of_the_log(tmp_path, caplog):
    (tmp_path / "lowered").write_text("a file where the folder should be")
    model = make(tmp_path)
    assert model.find(RECIPE) is None
    caplog.clear()
    kept(model)
    assert len(caplog.records) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_that_may_only_be_read_still_serves(tmp_path):
    kept(make(tmp_path))
    (tmp_path / "lowered").chmod(0o500)
    assert_found(make(tmp_path))


def test_the_least_recently_used_files_give_way(tmp_path):
    size = kept(make(tmp_path, "old")).stat().st_size
    kept(make(tmp_path, "used"))
    for age, name in ((300, "used"), (200, "old")):
        os.utime(make(tmp_path, name).path(RECIPE), times=(time.time() - age,) * 2)
    assert_found(make(tmp_path, "used"))  # which makes it the newer one
    kept(make(tmp_path, "new", max_bytes=2 * size))
    assert make(tmp_path, "old").find(RECIPE) is None
    assert_found(make(tmp_path, "used"))
    assert_found(make(tmp_path, "new"))


def test_what_is_larger_than_the_bound_or_hardly_worth_a_file_is_not_written(tmp_path):
    kept(make(tmp_path, max_bytes=1000))
    small = LoweredStore(tmp_path / "lowered", 1 << 30).of("digest")
    kept(small)
    assert files(tmp_path) == []


def test_a_file_that_is_removed_stays_with_those_who_have_it_mapped(tmp_path):
    path = kept(make(tmp_path))
    found = make(tmp_path).find(RECIPE)
    path.unlink()
    assert found is not None and all(np.array_equal(found[name], array) for name, array in ARRAYS.items())


def test_parts_that_lost_their_writer_are_removed_and_others_are_not(tmp_path):
    folder = tmp_path / "lowered"
    folder.mkdir()
    for name in ("abandoned.part", "growing.part"):
        (folder / name).write_bytes(b"x")
    os.utime(folder / "abandoned.part", times=(0, 0))
    path = kept(make(tmp_path))
    assert files(tmp_path) == sorted([path.name, "growing.part"])


WRITER = """
import sys
from pathlib import Path
import numpy as np
from quire.weights.lowered import LoweredStore
model = LoweredStore(Path(sys.argv[1]), 1 << 30, min_bytes=0).of("shared")
for number in range(20):
    model.keep("recipe", {"a": np.full(5_000_000, 7, np.uint8), "b": np.arange(9, dtype=np.uint8)})
    model.wait()
    found = model.find("recipe")
    assert found is not None and (found["a"] == 7).all() and list(found["b"]) == list(range(9))
"""


def test_processes_that_write_the_same_file_at_once_never_see_a_part_of_it(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    children = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(child.communicate()[1], child.returncode) for child in children] == [("", 0)] * 2
    assert len(list(tmp_path.iterdir())) == 1 and next(tmp_path.iterdir()).suffix == SUFFIX
