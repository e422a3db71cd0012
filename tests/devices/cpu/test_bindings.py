"""The native extension is optional: without it there is one warning; with it, the CPU's features are detected."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quire.devices.cpu import bindings

ROOT = Path(__file__).resolve().parents[3]
NATIVE = "quire.devices.cpu._native"


@pytest.fixture(autouse=True)
def fresh_cache():
    bindings.native.cache_clear()
    yield
    bindings.native.cache_clear()


@pytest.mark.pure
def test_without_the_extension_one_warning_says_what_to_do(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, NATIVE, None)  # Python's entry for a module that does not exist
    assert bindings.native() is None
    assert bindings.native() is None
    [record] = caplog.records
    assert (record.name, record.levelno) == ("quire.devices.cpu", logging.WARNING)
    assert "numpy reference" in record.getMessage() and "install a C++17 compiler" in record.getMessage()


@pytest.mark.pure
def test_an_extension_that_does_not_load_says_why(monkeypatch, caplog):
    def broken(name: str):
        raise ImportError("undefined symbol: quire")

    monkeypatch.setattr(bindings, "import_module", broken)
    assert bindings.native() is None
    [record] = caplog.records
    assert "do not load (undefined symbol: quire)" in record.getMessage()


@pytest.mark.device
def test_features_are_those_that_the_system_reports():
    native = bindings.native()
    if native is None:
        pytest.skip("the extension was not built")
    cpuinfo = Path("/proc/cpuinfo")
    flags = [line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")] if cpuinfo.exists() else []
    if not flags:
        pytest.skip("no x86 flags in /proc/cpuinfo")
    reported = set(flags[0].partition(":")[2].split())
    looked_for = {"sse4_1", "sse4_2", "avx", "f16c", "fma", "bmi1", "bmi2", "avx2", "avx_vnni"} | {
        f"avx512{part}" for part in ("f", "dq", "bw", "vl", "_vnni", "_bf16", "_fp16")
    }
    assert set(native.features()) == reported & looked_for


@pytest.mark.slow
@pytest.mark.device
@pytest.mark.timeout(600)
def test_installation_without_a_compiler_works_and_warns(tmp_path):
    """A real installation, as a user does it, without a compiler. Needs the package index."""
    tree = tmp_path / "tree"
    skipped = shutil.ignore_patterns(".*", "build", "dist", "tests", "__pycache__")
    shutil.copytree(ROOT, tree, ignore=skipped)
    python = make_venv(tmp_path / "venv")
    env = without_compiler(tmp_path / "bin")

    install = [python, "-m", "pip", "install", "--verbose", str(tree)]
    installed = subprocess.run(install, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    assert "no working C++ compiler" in installed.stdout + installed.stderr

    script = "import quire.devices.cpu.bindings as b; print(b.__file__, b.native(), b.native())"
    ran = subprocess.run([python, "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert str(tmp_path / "venv") in ran.stdout and ran.stdout.endswith("None None\n")
    [warning] = ran.stderr.splitlines()
    assert warning.startswith("quire was installed without its native CPU kernels.")


def make_venv(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder / "bin" / "python"


def without_compiler(folder: Path) -> dict[str, str]:
    """Return an environment whose PATH has only the tools that a build starts, and whose compiler does not exist."""
    folder.mkdir()
    for tool in ("cmake", "ninja", "git", "sh", "uname", "env"):
        if found := shutil.which(tool):
            (folder / tool).symlink_to(found)
    return os.environ | {"PATH": str(folder), "CC": "/nonexistent/cc", "CXX": "/nonexistent/c++"}
