"""Decides what each step computes. Pure: no I/O, no device arrays, and the clock is an argument."""
