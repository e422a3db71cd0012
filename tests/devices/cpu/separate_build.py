"""Builds the extension separately from the installed one, with other options or another compiler, and runs tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "src" / "quire"

# An editable installation finds quire before PYTHONPATH does.
NOT_EDITABLE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "ScikitBuildRedirectingFinder"]
"""


def build(folder: Path, *options: str) -> str:
    """Build; return the output of the compiler."""
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), f"-DPython_EXECUTABLE={sys.executable}", *options]
    output = ""
    for command in (configure, ["cmake", "--build", str(folder), "-j2"]):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
        output = ran.stdout + ran.stderr
    return output


def build_extension(folder: Path, *options: str) -> str:
    """Make a package in folder/src with this build of the extension; return the output of the compiler."""
    output = build(folder / "build", *options)
    shutil.copytree(PACKAGE, folder / "src" / "quire", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (built,) = (folder / "build").glob("_native*.so")
    shutil.copy(built, folder / "src" / "quire" / "devices" / "cpu")
    (folder / "src" / "sitecustomize.py").write_text(NOT_EDITABLE)
    return output


def run_tests(folder: Path, tests: list[str], selection: str, **environment: str) -> str:
    """Run tests of this repository with the package in that folder; all must pass. Return their output."""
    env = os.environ | {"PYTHONPATH": str(folder / "src")} | environment
    script = "from quire.devices.cpu.bindings import native; print(native().__file__)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], env=env, cwd=folder, capture_output=True, text=True, check=False
    )
    assert loaded.stdout.startswith(str(folder)), loaded.stderr  # otherwise all tests below would be skipped
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", selection, *tests]
    ran = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    output = ran.stdout + ran.stderr
    assert ran.returncode == 0, output[-6000:]
    assert "skipped" not in ran.stdout, ran.stdout[-2000:]
    return output
