"""Digests of prefixes: 16 bytes that name a path through a prefix tree, the same on every engine.

    root     blake2b of model, adapter and salt, each as UTF-8 behind its length (4 bytes, little endian)
    block    blake2b of its parent's digest (or the root) and its tokens (4 bytes each, little endian)

A digest therefore names all tokens up to the end of its block, and under which key they are cached. A partly filled
block has the digest of the tokens that it has. Blake2b is personalised, so no digest collides with one made elsewhere.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b

from quire.types.request import CacheKey

DIGEST_BYTES = 16
PERSON = b"quire-prefix"


@lru_cache(maxsize=4096)
def root_digest(key: CacheKey) -> bytes:
    """Return the digest above the first blocks of a cache key."""
    fields = [text.encode("utf-8", "surrogatepass") for text in (key.model, key.adapter, key.salt)]
    data = b"".join(len(each).to_bytes(4, "little") + each for each in fields)
    return blake2b(data, digest_size=DIGEST_BYTES, person=PERSON).digest()


new_hash = blake2b(digest_size=DIGEST_BYTES, person=PERSON).copy  # twice as fast as the constructor


def block_digest(parent: bytes, chunk: bytes) -> bytes:
    """Return the digest of a block with these tokens (as `little_endian` returns them) behind its parent's digest."""
    block = new_hash()
    block.update(parent + chunk)
    return block.digest()


def little_endian(data: bytes) -> bytes:
    """Return the bytes of an array of tokens (type "I") in little-endian order, as digests take them."""
    if sys.byteorder == "little":
        return data
    tokens = array("I", data)
    tokens.byteswap()
    return tokens.tobytes()


def path_digests(root: bytes, data: bytes, block_bytes: int) -> Iterator[bytes]:
    """Yield the digest of each whole block of `data`, each chained to the one before it."""
    digest = root
    for start in range(0, len(data) - block_bytes + 1, block_bytes):
        block = new_hash()
        block.update(digest + data[start : start + block_bytes])
        digest = block.digest()
        yield digest
