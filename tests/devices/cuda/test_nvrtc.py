"""Kernels in CUDA C++: compiled by what torch brings along, and kept."""

from __future__ import annotations

import pytest
import torch

from quire.devices.cuda import nvrtc

pytestmark = pytest.mark.device


def test_a_compiler_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "99.1")
    nvrtc._compiler.cache_clear()
    with pytest.raises(nvrtc.CudaError, match=r"libnvrtc\.so\.99 was not found"):
        nvrtc._compiler()


def test_a_disk_that_takes_nothing_is_no_error(tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("no folder")
    nvrtc._keep(occupied / "kernel.cubin", b"code")
    assert occupied.read_text() == "no folder"


def test_machine_code_is_kept_whole(tmp_path):
    nvrtc._keep(tmp_path / "new" / "kernel.cubin", b"code")
    assert [(each.name, each.read_bytes()) for each in (tmp_path / "new").iterdir()] == [("kernel.cubin", b"code")]


@pytest.mark.gpu
def test_what_does_not_compile_says_why(place):
    with pytest.raises(nvrtc.CudaError, match="identifier"):
        nvrtc.compiled("few_rows", {"LAYERS": 1}, torch.device(place, 0))


@pytest.mark.gpu
def test_what_was_compiled_is_found_again(place, tmp_path, monkeypatch):
    monkeypatch.setattr(nvrtc, "_folder", lambda: tmp_path)
    monkeypatch.setattr(nvrtc, "FOLDER", tmp_path)
    (tmp_path / "one.cu").write_text('extern "C" __global__ void one(int* to) { *to = NUMBER; }')
    first = nvrtc.compiled("one", {"NUMBER": 1}, torch.device(place, 0))
    monkeypatch.setattr(nvrtc, "_compile", None)
    assert nvrtc.compiled("one", {"NUMBER": 1}, torch.device(place, 0)) == first
