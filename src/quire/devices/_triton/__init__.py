"""Kernels in Triton and their launchers, shared by devices that torch serves: tensors in, tensors out, no policy."""
