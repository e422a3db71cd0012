"""Benchmarks: figures with their targets, never assertions of time."""
