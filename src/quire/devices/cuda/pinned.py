"""Host memory that the GPU reads."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from quire.devices.facts import DeviceUnavailable

MAPPED = 2  # cudaHostRegisterMapped


def pinned(shape: tuple[int, int], device: torch.device) -> Tensor:
    """Allocate bytes of host memory that the device can read. Torch's own pinned memory has sizes of powers of two."""
    memory = torch.empty(shape, dtype=torch.uint8)
    if device.type != "cuda" or not memory.numel():
        return memory
    cudart: Any = torch.cuda.cudart()
    error = cudart.cudaHostRegister(memory.data_ptr(), memory.numel(), MAPPED)
    if int(error) != 0:
        raise DeviceUnavailable(
            f"{memory.numel() / 1e9:.1f} GB of host memory cannot be pinned for experts ({error}). Raise the limit of "
            "locked memory (ulimit -l), or lower experts_on_host."
        )
    weakref.finalize(memory, cudart.cudaHostUnregister, memory.data_ptr()).atexit = False
    return memory
