"""CUDA C++ kernels, compiled at first use by the compiler that comes with torch, and cached on disk."""

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
COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE: all blocks run at once, and may wait for each other
CHAINED = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: the kernel waits for the previous one itself


class CudaError(RuntimeError):
    """The driver or the compiler reported an error."""


class _Attribute(ctypes.Structure):
    _fields_ = (("id", c_int), ("_", c_int), ("value", c_int * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        *((name, c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", c_void_p),
        ("attributes", POINTER(_Attribute)),
        ("num_attributes", c_uint),
    )


class LaunchConfig(NamedTuple):
    """The launch configuration of a kernel."""

    num_blocks: int
    num_threads: int
    shared: int  # bytes of dynamic shared memory
    attribute: int = COOPERATIVE


@cache
def driver() -> Any:
    """Load libcuda."""
    return ctypes.CDLL("libcuda.so.1")


def check(code: int, what: str) -> None:
    """Raise CudaError unless the driver's return code is 0."""
    if code:
        text = c_char_p()
        driver().cuGetErrorString(code, byref(text))
        raise CudaError(f"{what}: {(text.value or b'unknown').decode()} ({code}).")


@cache
def _compiler() -> Any:
    """Load libnvrtc from where torch has it."""
    name = f"libnvrtc.so.{(torch.version.cuda or '0').split('.')[0]}"
    homes = [Path(each) / "nvidia" for each in sys.path if each]
    paths = [name, *(str(found) for home in homes if home.is_dir() for found in home.glob(f"*/lib/{name}"))]
    for path in paths:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise CudaError(f"{name} was not found beside torch.")


def compile_kernel(
    name: str, definitions: dict[str, int], device: torch.device, *, arch_specific: bool = False
) -> bytes:
    """Return the machine code of kernels/NAME.cu with these definitions, from the cache or newly compiled.

    `arch_specific`: allow instructions that only this generation of GPUs has.
    """
    source = (FOLDER / f"{name}.cu").read_bytes()
    included = [each.read_bytes() for each in sorted(FOLDER.glob("*.cuh"))]
    major, minor = torch.cuda.get_device_capability(device)
    options = [f"--gpu-architecture=sm_{major}{minor}{'a' if arch_specific else ''}", "--std=c++17"]
    options += [f"-D{key}={int(value)}" for key, value in definitions.items()]
    identity = repr((source, included, options, torch.version.cuda)).encode()
    cached = _cache_folder() / f"{name}-{hashlib.sha256(identity).hexdigest()[:32]}.cubin"
    if cached.is_file():
        return cached.read_bytes()
    code = _compile(source, name, [*options, f"--include-path={FOLDER}"])
    _write_cache(cached, code)
    return code


def current_stream(device: torch.device) -> int:
    """Return torch's current stream on the device."""
    return torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0


def _cache_folder() -> Path:
    """Return Triton's cache folder."""
    return Path(triton.knobs.cache.dir)


def _write_cache(path: Path, code: bytes) -> None:
    """Write the machine code. An error is ignored: the kernel is compiled again at the next start."""
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
        raise CudaError(f"The compiler does not accept {name}.cu.")
    try:
        encoded = (c_char_p * len(options))(*(each.encode() for each in options))
        if library.nvrtcCompileProgram(program, len(options), encoded):
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
        """Load machine code, and allow it `shared` bytes of shared memory on this device."""
        cuda, library, function = driver(), c_void_p(), c_void_p()
        check(cuda.cuLibraryLoadData(byref(library), code, None, None, 0, None, None, 0), f"{name} cannot be loaded")
        check(cuda.cuLibraryGetKernel(byref(function), library, name.encode()), f"{name} is not in its machine code")
        result = cuda.cuKernelSetAttribute(MAX_DYNAMIC_SHARED, shared, function, device.index)
        check(result, f"{name} cannot have {shared} bytes of shared memory")
        return cls(function, library)

    def launch(self, config: LaunchConfig, stream: int, arguments: tuple[Any, ...]) -> None:
        """Start the kernel on a stream."""
        self.prepare(config, arguments).start(stream)

    def prepare(self, config: LaunchConfig, arguments: tuple[Any, ...]) -> PreparedLaunch:
        """Prepare many launches. Each start reads the current content of the arguments."""
        attribute = _Attribute(config.attribute, 0)
        attribute.value[0] = 1
        sizes = (config.num_blocks, 1, 1, config.num_threads, 1, 1, config.shared)
        native = _Config(*sizes, 0, ctypes.pointer(attribute), 1)
        pointers = (c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        return PreparedLaunch(native, pointers, self.function, arguments)


@dataclass(frozen=True, slots=True, eq=False)
class PreparedLaunch:
    """A kernel with its arguments."""

    config: _Config
    pointers: Any
    function: c_void_p
    arguments: tuple[Any, ...]  # kept alive for `pointers`

    def start(self, stream: int) -> None:
        """Start the kernel on a stream."""
        self.config.stream = stream
        result = driver().cuLaunchKernelEx(byref(self.config), self.function, self.pointers, None)
        check(result, "A kernel cannot be launched")
