"""CUDA C++ kernels, compiled when they are first needed by the compiler that torch brings along, and kept on disk."""

from __future__ import annotations

import ctypes
import hashlib
import sys
import tempfile
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton

FOLDER = Path(__file__).parent / "kernels"
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE: all blocks run at once, and may wait for one another
CHAINED = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: the kernel itself waits for the one before


class CudaError(RuntimeError):
    """The driver, or the compiler, refused."""


class _Attribute(ctypes.Structure):
    _fields_ = (("id", c_int), ("_", c_int), ("value", c_int * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        *((name, c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", c_void_p),
        ("attributes", POINTER(_Attribute)),
        ("num_attributes", c_uint),
    )


class Launch(NamedTuple):
    """How a kernel runs."""

    num_blocks: int
    num_threads: int
    shared: int  # bytes of dynamic shared memory
    attribute: int = COOPERATIVE


@cache
def driver() -> Any:
    """libcuda."""
    return ctypes.CDLL("libcuda.so.1")


def check(code: int, what: str) -> None:
    """Raise unless the driver said yes."""
    if code:
        text = c_char_p()
        driver().cuGetErrorString(code, byref(text))
        raise CudaError(f"{what}: {(text.value or b'unknown').decode()} ({code}).")


@cache
def _compiler() -> Any:
    """libnvrtc, wherever torch found it."""
    name = f"libnvrtc.so.{(torch.version.cuda or '0').split('.')[0]}"
    homes = [Path(each) / "nvidia" for each in sys.path if each]
    places = [name, *(str(found) for home in homes if home.is_dir() for found in home.glob(f"*/lib/{name}"))]
    for place in places:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise CudaError(f"{name} was not found beside torch.")


def compiled(name: str, definitions: dict[str, int], device: torch.device, *, only_here: bool = False) -> bytes:
    """The machine code of kernels/NAME.cu with these definitions.

    `only_here`: with instructions that no other generation of GPUs has.
    """
    source = (FOLDER / f"{name}.cu").read_bytes()
    included = [each.read_bytes() for each in sorted(FOLDER.glob("*.cuh"))]
    major, minor = torch.cuda.get_device_capability(device)
    options = [f"--gpu-architecture=sm_{major}{minor}{'a' if only_here else ''}", "--std=c++17"]
    options += [f"-D{key}={int(value)}" for key, value in definitions.items()]
    identity = repr((source, included, options, torch.version.cuda)).encode()
    kept = _folder() / f"{name}-{hashlib.sha256(identity).hexdigest()[:32]}.cubin"
    if kept.is_file():
        return kept.read_bytes()
    code = _compile(source, name, [*options, f"--include-path={FOLDER}"])
    _keep(kept, code)
    return code


def stream_of(device: torch.device) -> int:
    """Where torch starts its work now."""
    return torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0


def _folder() -> Path:
    """Beside what Triton compiles."""
    return Path(triton.knobs.cache.dir)


def _keep(path: Path, code: bytes) -> None:
    """A disk that takes nothing costs a compilation at the next start, no more."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(code)
        Path(file.name).replace(path)
    except OSError:
        return


def _compile(source: bytes, name: str, options: list[str]) -> bytes:
    library, program = _compiler(), c_void_p()
    if library.nvrtcCreateProgram(byref(program), source, f"{name}.cu".encode(), 0, None, None):
        raise CudaError(f"The compiler does not take {name}.cu.")
    try:
        given = (c_char_p * len(options))(*(each.encode() for each in options))
        if library.nvrtcCompileProgram(program, len(options), given):
            raise CudaError(f"{name}.cu does not compile with {' '.join(options)}:\n{_log(program)}")
        size = c_size_t()
        library.nvrtcGetCUBINSize(program, byref(size))
        code = ctypes.create_string_buffer(size.value)
        library.nvrtcGetCUBIN(program, code)
        return code.raw
    finally:
        library.nvrtcDestroyProgram(byref(program))


def _log(program: c_void_p) -> str:
    size = c_size_t()
    _compiler().nvrtcGetProgramLogSize(program, byref(size))
    log = ctypes.create_string_buffer(size.value)
    _compiler().nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace")


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A function on the GPU."""

    function: c_void_p
    library: c_void_p

    @classmethod
    def load(cls, code: bytes, name: str, shared: int, device: torch.device) -> Kernel:
        """From machine code; on this device it may take so much shared memory."""
        cuda, library, function = driver(), c_void_p(), c_void_p()
        check(cuda.cuLibraryLoadData(byref(library), code, None, None, 0, None, None, 0), f"{name} is not loaded")
        check(cuda.cuLibraryGetKernel(byref(function), library, name.encode()), f"{name} is not there")
        refusal = cuda.cuKernelSetAttribute(MAX_DYNAMIC_SHARED, shared, function, device.index)
        check(refusal, f"{name} does not get {shared} bytes of shared memory")
        return cls(function, library)

    def launch(self, how: Launch, stream: int, arguments: tuple[Any, ...]) -> None:
        """Start it on a stream."""
        self.prepared(how, arguments).start(stream)

    def prepared(self, how: Launch, arguments: tuple[Any, ...]) -> Prepared:
        """For many launches. What the arguments hold is read when one starts."""
        attribute = _Attribute(how.attribute, 0)
        attribute.value[0] = 1
        config = _Config(how.num_blocks, 1, 1, how.num_threads, 1, 1, how.shared, 0, ctypes.pointer(attribute), 1)
        places = (c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        return Prepared(config, places, self.function, arguments)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A kernel with its arguments."""

    config: _Config
    places: Any
    function: c_void_p
    arguments: tuple[Any, ...]  # the places are theirs

    def start(self, stream: int) -> None:
        """On a stream."""
        self.config.stream = stream
        check(driver().cuLaunchKernelEx(byref(self.config), self.function, self.places, None), "A kernel did not start")
