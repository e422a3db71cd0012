"""Marks stand for tokens without telling them: two prompts have equal marks as far as they begin with the same tokens.

A mark is made of its token, of all tokens before it, and of a secret. So the same token has another mark after other
tokens, nothing can be counted, and who does not know the secret cannot try whether a prompt was a certain text.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

MARK_BYTES = 4  # one number of an array("I"), as tokens are
SECRET_BYTES = 32


def marks_of(tokens: Sequence[int], secret: bytes = b"") -> array[int]:
    """As many marks as tokens. Under equal secrets those of a prompt's beginning are the beginning of its marks."""
    state = blake2b(digest_size=MARK_BYTES, key=secret)
    update, digest = state.update, state.digest
    data = array("I", tokens).tobytes()
    found = bytearray()
    for at in range(0, len(data), MARK_BYTES):
        update(data[at : at + MARK_BYTES])
        found += digest()
    return array("I", bytes(found))


def name_mark(text: str, secret: bytes) -> str:
    """One for a name; that of no name is empty."""
    return blake2b(text.encode(), digest_size=8, key=secret).hexdigest() if text else ""
