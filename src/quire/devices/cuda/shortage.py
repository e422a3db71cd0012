"""What a GPU says when it has no memory left, in whose words ever, as one error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from quire.types.errors import OutOfDeviceMemory

logger = logging.getLogger("quire.devices.cuda")
T = TypeVar("T")
SAID = ("out of memory", "alloc_failed")  # by the driver, through torch or Triton; by libraries


def or_out_of_memory(do: Callable[[], T]) -> T:
    """What `do` answers. If there is no memory for it, OutOfDeviceMemory: all is over that it started by then, and
    what torch kept for later is given back."""
    try:
        return do()
    except Exception as error:
        if not is_shortage(error):
            raise
        logger.warning("%s", str(error).partition("\n")[0])
    # Here the error is gone, and with it the tensors that its traceback held.
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    raise OutOfDeviceMemory


def is_shortage(error: BaseException | None) -> bool:
    """Is this, or what it came of, a want of memory? A capture that is broken off says so in its own words."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and any(said in str(error).lower() for said in SAID):
            return True
        error = error.__cause__ or error.__context__
    return False
