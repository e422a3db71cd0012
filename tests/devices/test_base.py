"""Devices are opened by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.devices import base, cuda

pytestmark = pytest.mark.pure


def test_auto_can_be_opened(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda, "FACTS", replace(cuda.FACTS, driver=tmp_path / "absent"))
    assert base.open("auto").name == "cpu"


def test_the_hosts_memory_is_that_of_its_device():
    assert base.host_bytes() == base.open("cpu").facts().memory.total_bytes
