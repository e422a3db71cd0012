"""Paged KV in a prefix tree. Pure: no I/O, no device arrays, and the clock is an argument."""
