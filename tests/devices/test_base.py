"""Which device a name means, found out without importing what a GPU needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from quire.devices import base

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("name", ["cpu", "cuda", "nonsense"])
def test_a_name_that_was_given_means_itself(name: str, tmp_path: Path):
    assert base.choose(name, tmp_path) == base.choose(name, tmp_path / "absent") == name


@pytest.mark.parametrize(
    "missing, has_driver, expected",
    [((), True, "cuda"), (("triton",), True, "cpu"), (("torch",), True, "cpu"), ((), False, "cpu")],
)
def test_auto_is_a_gpu_where_there_is_one_and_what_it_needs(missing, has_driver, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(base, "find_spec", lambda name: None if name in missing else object())
    assert base.choose("auto", tmp_path if has_driver else tmp_path / "absent") == expected


def test_whoever_asks_does_not_wait_for_torch():
    ask = "import sys; from quire.devices.base import choose; choose('auto'); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout == "False\n"


def test_auto_can_be_opened(monkeypatch, tmp_path):
    monkeypatch.setattr(base.choose, "__defaults__", (tmp_path / "absent",))
    assert base.open("auto").name == "cpu"
