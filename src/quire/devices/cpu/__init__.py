"""The CPU device: native kernels where they were built, the numpy references elsewhere."""

from .device import DEVICE

__all__ = ["DEVICE"]
