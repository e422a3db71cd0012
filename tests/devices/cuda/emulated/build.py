"""Kernels for a GPU as libraries for this CPU."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from quire.devices.cuda.nvrtc import FOLDER, Launch

HERE = Path(__file__).parent


@cache
def built(name: str, definitions: tuple[tuple[str, int], ...], folder: str) -> ctypes.CDLL:
    """NAME.cpp with these definitions."""
    options = [f"-D{key}={int(value)}" for key, value in definitions]
    library = Path(folder, hashlib.sha256(repr((name, options)).encode()).hexdigest()[:16] + ".so")
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-DEMULATED", f"-I{HERE}", f"-I{FOLDER}", *options]
    command += [str(HERE / f"{name}.cpp"), "-o", str(library)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


@dataclass(frozen=True)
class Emulated:
    """A kernel that runs to its end when it is started."""

    library: ctypes.CDLL

    def launch(self, how: Launch, stream: int, arguments: tuple[Any, ...]) -> None:
        self.prepared(how, arguments).start(stream)

    def prepared(self, how: Launch, arguments: tuple[Any, ...]) -> _Prepared:
        self.library.run.restype = ctypes.c_uint64
        return _Prepared(self.library.run, how, *arguments)


@dataclass(frozen=True)
class _Prepared:
    run: Any
    how: Launch
    given: Any

    def start(self, stream: int) -> None:
        turns = self.run(ctypes.byref(self.given), self.how.num_blocks, self.how.num_threads, self.how.shared)
        assert turns, "nobody could go on"
