"""Marks: keyed hashes of prompt prefixes. The marks of two prompts are equal as long as their tokens are.

A mark depends on its token, on all tokens before it, and on a secret. So token frequencies cannot be counted, and
testing whether a prompt was a certain text needs the secret.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

MARK_BYTES = 4  # one entry of an array("I"), like a token
SECRET_BYTES = 32


def marks_of(tokens: Sequence[int], secret: bytes = b"") -> array[int]:
    """One mark for each token. With equal secrets, equal prefixes have equal marks."""
    state = blake2b(digest_size=MARK_BYTES, key=secret)
    update, digest = state.update, state.digest
    data = array("I", tokens).tobytes()
    marks = bytearray()
    for start in range(0, len(data), MARK_BYTES):
        update(data[start : start + MARK_BYTES])
        marks += digest()
    return array("I", bytes(marks))


def name_mark(text: str, secret: bytes) -> str:
    """The mark of a name; empty for an empty name."""
    return blake2b(text.encode(), digest_size=8, key=secret).hexdigest() if text else ""
