"""Converts the out-of-memory errors of torch, Triton, the driver and libraries to one error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from quire.types.errors import OutOfDeviceMemory, StepFailed

logger = logging.getLogger("quire.devices.cuda")
T = TypeVar("T")
MESSAGES = ("out of memory", "alloc_failed")  # of the driver, through torch or Triton; of libraries


def convert_out_of_memory(do: Callable[[], T], error_of: Callable[[], StepFailed] = OutOfDeviceMemory) -> T:
    """Return the result of `do`. Raises OutOfDeviceMemory, or the error that is given, if memory runs out, after
    everything that was started has finished and torch's cached memory is freed."""
    try:
        return do()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        logger.warning("%s", str(error).partition("\n")[0])
    # Here the error is gone, and with it the tensors that its traceback kept alive.
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    raise error_of()


def state_failure() -> StepFailed:
    """The error of a step in which memory ran out after it had changed states: it cannot be computed again."""
    return StepFailed("The device ran out of memory in a step. Send the request again.")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether the error or one of its causes is out of memory. A failed capture raises another error on top."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and any(message in str(error).lower() for message in MESSAGES):
            return True
        error = error.__cause__ or error.__context__
    return False
