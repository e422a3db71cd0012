"""The native code under AddressSanitizer and UBSan: every kernel on every example, and whole programs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.devices.cpu.separate_build import build_extension, run_tests

pytestmark = [pytest.mark.device, pytest.mark.slow, pytest.mark.timeout(3600)]

# Without transformers: torch need not be tested under a sanitizer.
TESTS = [
    "tests/ops/test_kernels.py",
    "tests/models/test_contract.py",
    "tests/devices/cpu/test_program.py",
    "tests/devices/cpu/test_shared_prefix.py",
    "tests/devices/cpu/test_experts.py",
    "tests/devices/cpu/test_windows.py",
]
SELECTION = "kernel or product or table or format or toy or quantized or q4_1 or q8_0 or experts"
SELECTION += " or two_windows or rows_of_a_group"  # of window groups


def test_kernels_and_programs_have_no_memory_errors(tmp_path):
    libraries = [_library(name) for name in ("libasan.so", "libubsan.so", "libstdc++.so")]
    if not shutil.which("cmake") or not all(libraries):
        pytest.skip("needs cmake and GCC with its sanitizers")
    build_extension(tmp_path, "-DQUIRE_SANITIZE=ON", "-DCMAKE_CXX_COMPILER=g++")
    output = run_tests(
        tmp_path,
        TESTS,
        SELECTION,
        LD_PRELOAD=" ".join(libraries),
        ASAN_OPTIONS="detect_leaks=0:abort_on_error=1",
        UBSAN_OPTIONS="print_stacktrace=1",
    )
    assert "Sanitizer" not in output and "runtime error" not in output, output[-6000:]


def _library(name: str) -> str:
    """Return the path of GCC's library; empty if there is none."""
    gcc = shutil.which("g++")
    if not gcc:
        return ""
    path = subprocess.run([gcc, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
    return path if Path(path).is_absolute() else ""
