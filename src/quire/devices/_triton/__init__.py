"""Triton kernels and their launchers, shared by devices that use torch: tensors in, tensors out, no policy."""
