"""Compiles GPU kernels as libraries for the CPU."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from quire.devices.cuda.nvrtc import FOLDER, LaunchConfig

HERE = Path(__file__).parent


@cache
def built(name: str, definitions: tuple[tuple[str, int], ...], folder: str) -> ctypes.CDLL:
    """Build NAME.cpp with these definitions."""
    options = [f"-D{key}={int(value)}" for key, value in definitions]
    library = Path(folder, hashlib.sha256(repr((name, options)).encode()).hexdigest()[:16] + ".so")
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-DEMULATED", f"-I{HERE}", f"-I{FOLDER}", *options]
    command += [str(HERE / f"{name}.cpp"), "-o", str(library)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


@dataclass(frozen=True)
class Emulated:
    """A kernel that runs to its end when it is launched."""

    library: ctypes.CDLL

    def launch(self, config: LaunchConfig, stream: int, arguments: tuple[Any, ...]) -> None:
        self.prepare(config, arguments).start(stream)

    def prepare(self, config: LaunchConfig, arguments: tuple[Any, ...]) -> _PreparedLaunch:
        self.library.run.restype = ctypes.c_uint64
        return _PreparedLaunch(self.library.run, config, *arguments)


@dataclass(frozen=True)
class _PreparedLaunch:
    run: Any
    config: LaunchConfig
    argument: Any

    def start(self, stream: int) -> None:
        config = self.config
        turns = self.run(ctypes.byref(self.argument), config.num_blocks, config.num_threads, config.shared)
        assert turns, "deadlock: no thread can continue"
