"""Benchmarks: figures with goals. One module a command; none asserts a speed."""
