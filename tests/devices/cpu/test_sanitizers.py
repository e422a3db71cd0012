"""The native code under AddressSanitizer and UBSan: every kernel on every example, and whole programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.device, pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "src" / "quire"
# Without transformers: torch under a sanitizer is not what is tested here.
TESTS = [
    "tests/ops/test_kernels.py",
    "tests/models/test_contract.py",
    "tests/devices/cpu/test_program.py",
    "tests/devices/cpu/test_shared_prefix.py",
]
CHOSEN = "kernel or product or table or format or toy or quantized or q4_1 or q8_0"

# An editable installation finds quire before PYTHONPATH does.
NOT_EDITABLE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "ScikitBuildRedirectingFinder"]
"""


def test_kernels_and_programs_touch_only_what_is_theirs(tmp_path):
    libraries = [_library(name) for name in ("libasan.so", "libubsan.so", "libstdc++.so")]
    if not shutil.which("cmake") or not all(libraries):
        pytest.skip("needs cmake and GCC with its sanitizers")
    _build(tmp_path / "build")
    shutil.copytree(PACKAGE, tmp_path / "src" / "quire", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (built,) = (tmp_path / "build").glob("_native*.so")
    shutil.copy(built, tmp_path / "src" / "quire" / "devices" / "cpu")
    (tmp_path / "src" / "sitecustomize.py").write_text(NOT_EDITABLE)
    env = os.environ | {
        "PYTHONPATH": str(tmp_path / "src"),
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    script = "from quire.devices.cpu.bindings import native; print(native().__file__, native().variants())"
    loaded = subprocess.run(
        [sys.executable, "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert loaded.stdout.startswith(str(tmp_path)), loaded.stderr  # or the tests below would all be skipped
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", CHOSEN, *TESTS]
    ran = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0 and "Sanitizer" not in said and "runtime error" not in said, said[-6000:]
    assert "skipped" not in ran.stdout, ran.stdout[-2000:]


def _library(name: str) -> str:
    """Where GCC has it; empty if it does not."""
    gcc = shutil.which("g++")
    if not gcc:
        return ""
    path = subprocess.run([gcc, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
    return path if Path(path).is_absolute() else ""


def _build(folder: Path) -> None:
    options = ["-DQUIRE_SANITIZE=ON", f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_CXX_COMPILER=g++"]
    for command in (["cmake", "-S", str(ROOT), "-B", str(folder), *options], ["cmake", "--build", str(folder), "-j2"]):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
