"""Ids of answers, traces and spans. They need not be secret: a system call for each takes 40 µs on some machines."""

from __future__ import annotations

import random
import secrets

_source = random.Random(secrets.randbits(256))


def new_id(num_bytes: int) -> str:
    """A random id as hexadecimal digits."""
    return f"{_source.getrandbits(8 * num_bytes):0{2 * num_bytes}x}"
