"""From settings to the disk: an engine keeps what its device made of the weights, unless it is told not to."""

from __future__ import annotations

import logging
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import quire
from quire.config import load
from quire.devices.cpu import pack
from quire.devices.cpu.bindings import native
from quire.engine import load as engine_load
from quire.engine.llm import LLM
from quire.models.draw import draw
from quire.store.model_files import NewFile, files_at
from quire.store.store import Store
from quire.types.request import SamplingParams
from quire.weights.checkpoint import open_checkpoint
from quire.weights.lowered import LoweredModel, LoweredStore
from tests.models.toys import make_toy

pytestmark = [pytest.mark.device, pytest.mark.skipif(native() is None, reason="the extension was not built")]

GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(autouse=True)
def toys_are_worth_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_load, "LoweredStore", partial(LoweredStore, min_bytes=0))
    # Written before `keep` returns: these tests look at the folder right after.
    in_background = LoweredModel.keep

    def keep(self: LoweredModel, recipe: str, arrays: object) -> None:
        in_background(self, recipe, arrays)  # type: ignore[arg-type]
        self.wait()

    monkeypatch.setattr(LoweredModel, "keep", keep)


def answer(folder: Path, **settings: object) -> tuple[int, ...]:
    with LLM(folder, num_blocks=40, max_rows=8, **settings) as llm:
        return llm.generate("abc", GREEDY)[0].samples[0].tokens


def test_a_second_start_packs_nothing_and_has_the_same_output(toy_folder, tmp_path, monkeypatch):
    first = answer(toy_folder, home=str(tmp_path))
    (file,) = (tmp_path / "lowered").iterdir()
    monkeypatch.setattr(pack, "packed_rows", None)  # whoever packs again fails
    assert answer(toy_folder, home=str(tmp_path)) == first
    assert [file] == list((tmp_path / "lowered").iterdir())


def test_a_damaged_file_of_lowered_weights_is_rebuilt(toy_folder, tmp_path, caplog):
    first = answer(toy_folder, home=str(tmp_path))
    (file,) = (tmp_path / "lowered").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with caplog.at_level(logging.WARNING):
        assert answer(toy_folder, home=str(tmp_path)) == first
    assert "are not used" in caplog.text and file.read_bytes() == whole


def test_nothing_is_written_when_it_is_switched_off(toy_folder, tmp_path):
    answer(toy_folder, home=str(tmp_path), lowered_gb=0)
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_home_is_no_error(toy_folder, tmp_path, caplog):
    (tmp_path / "home").write_text("no folder")
    assert answer(toy_folder, home=str(tmp_path / "home")) == answer(toy_folder, lowered_gb=0)
    assert sum("lowered weights" in record.message for record in caplog.records) == 1


def test_another_version_of_quire_lowers_its_own_weights(toy_folder, tmp_path, monkeypatch):
    checkpoint, config = open_checkpoint(toy_folder), load({"home": str(tmp_path)}, {})
    ours = engine_load.kept_weights(checkpoint, draw(checkpoint), config)
    monkeypatch.setattr(engine_load, "__version__", quire.__version__ + "1")
    later = engine_load.kept_weights(checkpoint, draw(checkpoint), config)
    assert isinstance(ours, LoweredModel) and isinstance(later, LoweredModel)
    assert ours.path("recipe").parent == tmp_path / "lowered"
    assert ours.path("recipe") != later.path("recipe")


def test_lowered_weights_of_a_checkpoint_without_files_are_not_kept(tmp_path):
    toy = make_toy("llama")
    assert engine_load.kept_weights(toy.checkpoint, toy.draw(), load({"home": str(tmp_path)}, {})) is None


START = """
import sys
from functools import partial
from quire.engine import load
from quire.engine.llm import LLM
from quire.types.request import SamplingParams
from quire.weights.lowered import LoweredStore
load.LoweredStore = partial(LoweredStore, min_bytes=0)
with LLM(sys.argv[1], home=sys.argv[2], num_blocks=40, max_rows=8) as llm:
    print(*llm.generate("abc", SamplingParams(temperature=0, max_tokens=8))[0].samples[0].tokens)
"""


def test_processes_that_start_at_once_agree_and_leave_one_file(toy_folder, tmp_path):
    command = [sys.executable, "-c", START, str(toy_folder), str(tmp_path)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {child.communicate()[0].strip() for child in children}
    assert said == {" ".join(map(str, answer(toy_folder, lowered_gb=0)))}
    assert len(list((tmp_path / "lowered").iterdir())) == 1


def test_lowered_weights_are_removed_with_the_last_name_of_their_file(toy_folder: Path, tmp_path: Path) -> None:
    home, lowered = tmp_path / "home", tmp_path / "home" / "lowered"
    store = Store(home)
    store.create(
        "toy", [NewFile(each.role, each.file_name, each.content.read_bytes()) for each in files_at(toy_folder)]
    )
    store.copy("toy", "twin")
    answer(toy_folder, home=str(home))  # not of the store, and not to be touched
    (other,) = lowered.iterdir()
    assert answer(store.find("toy"), home=str(home)) == answer(store.find("twin"), home=str(home))
    (own,) = set(lowered.iterdir()) - {other}
    files, size = sum(file.size for file in store.show("toy").files), own.stat().st_size
    assert store.remove("toy") == 0 and own.exists()
    assert store.remove("twin") == files + size and list(lowered.iterdir()) == [other]
