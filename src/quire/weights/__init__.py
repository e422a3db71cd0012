"""Readers of weight files, through memory maps: nothing is loaded until a tensor is accessed.

The entry point is `checkpoint.open_checkpoint`; every error about a file is one of `errors`.
"""
