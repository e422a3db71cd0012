"""Kernels in CUDA C++: compiled by the compiler of torch, and cached on disk."""

from __future__ import annotations

import pytest
import torch

from quire.devices.cuda import nvrtc

pytestmark = pytest.mark.device


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "99.1")
    nvrtc._compiler.cache_clear()
    with pytest.raises(nvrtc.CudaError, match=r"libnvrtc\.so\.99 was not found"):
        nvrtc._compiler()


def test_an_unwritable_cache_is_ignored(tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("no folder")
    nvrtc._write_cache(occupied / "kernel.cubin", b"code")
    assert occupied.read_text() == "no folder"


def test_machine_code_is_written_to_the_cache(tmp_path):
    nvrtc._write_cache(tmp_path / "new" / "kernel.cubin", b"code")
    assert [(each.name, each.read_bytes()) for each in (tmp_path / "new").iterdir()] == [("kernel.cubin", b"code")]


@pytest.mark.gpu
def test_a_compile_error_is_reported(place):
    with pytest.raises(nvrtc.CudaError, match="identifier"):
        nvrtc.compile_kernel("few_rows", {"LAYERS": 1}, torch.device(place, 0))


@pytest.mark.gpu
def test_compiled_code_is_read_from_the_cache(place, tmp_path, monkeypatch):
    monkeypatch.setattr(nvrtc, "_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(nvrtc, "FOLDER", tmp_path)
    (tmp_path / "one.cu").write_text('extern "C" __global__ void one(int* to) { *to = NUMBER; }')
    first = nvrtc.compile_kernel("one", {"NUMBER": 1}, torch.device(place, 0))
    monkeypatch.setattr(nvrtc, "_compile", None)
    assert nvrtc.compile_kernel("one", {"NUMBER": 1}, torch.device(place, 0)) == first
