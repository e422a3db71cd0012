"""NVIDIA GPUs: torch for memory, streams and large products, Triton and CUDA C++ for all other kernels."""

from .device import DEVICE as DEVICE
