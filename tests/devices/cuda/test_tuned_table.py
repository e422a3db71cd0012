"""The table of tuned tiles on disk, and which tile is used."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from quire.devices._triton.stream import Tile
from quire.devices.cuda.tiles import BUCKETS, MEASURED, ProductKey, TileChoice, Tiles, shipped
from quire.devices.cuda.tuned_table import TunedTable, TuningTarget

pytestmark = pytest.mark.device

H200, OTHER = "NVIDIA H200", "NVIDIA GeForce RTX 4090"
FOUND: dict[ProductKey, TileChoice] = {
    ProductKey(96, 64, 2, False, 16): Tile(32, 32, 16, 2, 2, 3),
    ProductKey(96, 64, 2, False, 32): None,
    ProductKey(96, 64, 1, True, 64): Tile(64, 64, 64),
}


def table(folder: Path, gpu: str = OTHER) -> TunedTable:
    return TunedTable(folder, TuningTarget.here(gpu))


def test_added_choices_are_read_again(tmp_path):
    here = table(tmp_path / "not" / "yet")
    assert here.read() == {}
    here.add(FOUND)
    assert here.read() == FOUND
    again: dict[ProductKey, TileChoice] = {
        ProductKey(96, 64, 2, False, 16): None,
        ProductKey(32, 64, 2, False, 16): Tile(32, 64),
    }
    here.add(again)
    assert here.read() == {**FOUND, **again}
    assert not list(here.folder.glob("*.part"))


@pytest.mark.parametrize("different", ["gpu", "torch", "triton", "kernels"])
def test_a_table_of_another_gpu_or_version_is_not_used(different, tmp_path, caplog):
    here = table(tmp_path)
    here.add(FOUND)
    other = TunedTable(tmp_path, TuningTarget(**{**vars_of(here.made_for), different: "another"}))
    assert other.path != here.path and other.read() == {} and not caplog.records
    here.path.rename(other.path)
    assert other.read() == {} and "are not used" in caplog.text
    other.add(FOUND)
    assert other.read() == FOUND


def vars_of(made_for: TuningTarget) -> dict[str, str]:
    return {name: getattr(made_for, name) for name in TuningTarget.__slots__}


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.95, 0.999])
def test_a_truncated_file_is_ignored_and_replaced(share, tmp_path, caplog):
    here = table(tmp_path)
    here.add(FOUND)
    whole = here.path.read_bytes()
    here.path.write_bytes(whole[: int(len(whole) * share)])
    with caplog.at_level(logging.WARNING):
        assert here.read() == {}
    assert len(caplog.records) == 1
    here.add(FOUND)
    assert here.read() == FOUND


@pytest.mark.parametrize("content", ["[]", "null", "[" * 100_000, '{"made_for": 3}', "\x00\x01"])
def test_a_file_that_is_not_a_table_is_ignored(content, tmp_path, caplog):
    here = table(tmp_path)
    here.path.write_text(content)
    assert here.read() == {} and "are not used" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        {"by": "magic"},
        {"tokens": 17},
        {"columns": 100},  # not a multiple of the tile's
        {"tile": None},
        {"tile": {"rows": 32, "columns": 48}},
        {"tile": {"rows": 32, "columns": 32, "tokens": 32}},  # not of the bucket
        {"tile": {"rows": 32, "columns": 32, "stages": 2.5}},
        {"tile": {"rows": 32, "columns": 32, "speed": 9}},
    ],
)
def test_a_table_with_an_unsupported_tile_is_not_used(change, tmp_path, caplog):
    here = table(tmp_path)
    here.add(FOUND)
    content = json.loads(here.path.read_text())
    (entry,) = (each for each in content["products"] if each["tokens"] == 16)
    entry.update(change)
    here.path.write_text(json.dumps(content))
    assert here.read() == {} and "are not used" in caplog.text


def test_an_unwritable_folder_is_logged_without_an_error(tmp_path, caplog):
    tmp_path.joinpath("file").write_text("")
    here = table(tmp_path / "file")
    here.add(FOUND)
    assert "are not kept" in caplog.text and here.read() == {}


WRITER = """
import sys
from pathlib import Path
from quire.devices._triton.stream import Tile
from quire.devices.cuda.tiles import ProductKey
from quire.devices.cuda.tuned_table import TuningTarget, TunedTable
first, folder = int(sys.argv[1]), Path(sys.argv[2])
here = TunedTable(folder, TuningTarget.here("NVIDIA GeForce RTX 4090"))
for at in range(40):
    here.add({ProductKey(first + at, 64, 2, False, 16): Tile(32, 64)})
    assert ProductKey(first + at, 64, 2, False, 16) in here.read()
"""


def test_two_processes_that_write_at_once_lose_nothing(tmp_path):
    def start(first: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", WRITER, str(first), str(tmp_path)])

    writers = [start(1000), start(2000)]
    assert [each.wait(timeout=120) for each in writers] == [0, 0]
    assert {key.rows for key in table(tmp_path).read()} == {*range(1000, 1040), *range(2000, 2040)}


def test_the_file_overrides_the_shipped_choices_and_those_the_rule(tmp_path):
    weight = torch.empty((4096, 4096), dtype=torch.bfloat16, device="meta")
    key = ProductKey(4096, 4096, 2, False, 16)
    by_rule = Tiles(132).find(weight, 3, False)
    assert by_rule is not None and by_rule != MEASURED[key]
    assert Tiles(132, known=shipped(OTHER)).find(weight, 3, False) == by_rule
    assert Tiles(132, known=shipped(H200)).find(weight, 3, False) == MEASURED[key]
    table(tmp_path, H200).add({key: Tile(64, 64, 16, 2, 4, 3)})
    known = {**shipped(H200), **table(tmp_path, H200).read()}
    assert Tiles(132, known=known).find(weight, 3, False) == Tile(64, 64, 16, 2, 4, 3)
    assert Tiles(132, known={**known, key: None}).find(weight, 3, False) is None, "the library was faster"


def test_each_bucket_of_tokens_has_its_own_choice(tmp_path):
    weight = torch.empty((96, 64), dtype=torch.bfloat16, device="meta")
    known: dict[ProductKey, TileChoice] = {ProductKey(96, 64, 2, False, most): Tile(32, 32, most) for most in (16, 64)}
    tiles = Tiles(4, known=known)
    assert [tiles.find(weight, count, False) for count in (1, 16)] == [Tile(32, 32, 16)] * 2
    assert [tiles.find(weight, count, False) for count in (17, 32)] == [None] * 2, "the rule covers few tokens only"
    assert [tiles.find(weight, count, False) for count in (33, 64)] == [Tile(32, 32, 64)] * 2
    assert tiles.find(weight, 65, False) is None


def test_deterministic_mode_ignores_the_table():
    weight = torch.empty((96, 64), dtype=torch.bfloat16, device="meta")
    known: dict[ProductKey, TileChoice] = {ProductKey(96, 64, 2, False, most): None for most in BUCKETS}
    fixed = {Tiles(4, is_fixed=True, known=known).find(weight, count, False) for count in (1, 20, 64, 500)}
    assert len(fixed) == 1 and None not in fixed


def test_every_shipped_tile_is_supported_by_the_kernel():
    assert all(choice is not None and key.supports(choice) for key, choice in MEASURED.items())
