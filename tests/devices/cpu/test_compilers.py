"""The extension built by each supported compiler: no warnings, and kernels that match the references."""

from __future__ import annotations

import shutil

import pytest

from tests.devices.cpu.separate_build import build_extension, run_tests

pytestmark = [pytest.mark.device, pytest.mark.slow, pytest.mark.timeout(3600)]

TESTS = [
    "tests/ops/test_kernels.py",
    "tests/devices/cpu/test_program.py",
    "tests/devices/cpu/test_shared_prefix.py",
    "tests/devices/cpu/test_experts.py",
]


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_it_builds_without_a_warning_and_its_kernels_match_their_references(compiler, tmp_path):
    if not shutil.which("cmake") or not shutil.which(compiler):
        pytest.skip(f"needs cmake and {compiler}")
    output = build_extension(tmp_path, f"-DCMAKE_CXX_COMPILER={compiler}")
    assert "warning:" not in output, output[-6000:]
    run_tests(tmp_path, TESTS, "kernel or product or table or format or chunks or group or experts")
