"""Containers of weights, read through memory maps: nothing is loaded until a tensor is looked at.

The way in is `checkpoint.open_checkpoint`; every complaint about a file is one of `errors`.
"""
