"""NVIDIA GPUs: torch for memory, streams and large products, Triton for everything around them."""

from .device import DEVICE as DEVICE
