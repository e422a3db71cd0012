"""Digests of prefixes, against a plain reference."""

from __future__ import annotations

import struct
from array import array
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.types.digests import block_digest, little_endian, path_digests, root_digest
from quire.types.request import CacheKey

pytestmark = pytest.mark.pure

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def reference(data: bytes) -> bytes:
    return blake2b(data, digest_size=16, person=b"quire-prefix").digest()


@given(TOKENS, st.integers(1, 16), st.text(), st.text(), st.text())
def test_a_path_is_a_chain_of_digests(tokens, size, model, adapter, salt):
    fields = [each.encode("utf-8", "surrogatepass") for each in (model, adapter, salt)]
    digest = reference(b"".join(struct.pack("<I", len(each)) + each for each in fields))
    assert root_digest(CacheKey(model, adapter, salt)) == digest
    expected = []
    for start in range(0, len(tokens) - size + 1, size):
        digest = reference(digest + struct.pack(f"<{size}I", *tokens[start : start + size]))
        expected.append(digest)
    data = little_endian(array("I", tokens).tobytes())
    assert list(path_digests(root_digest(CacheKey(model, adapter, salt)), data, 4 * size)) == expected


def test_keys_that_differ_in_one_field_have_other_roots():
    keys = [CacheKey(), CacheKey("a"), CacheKey("", "a"), CacheKey("", "", "a"), CacheKey("a", "b"), CacheKey("ab")]
    assert len({root_digest(key) for key in keys}) == len(keys)


def test_the_digest_of_a_head_is_not_that_of_the_whole_block():
    root, chunk = root_digest(CacheKey()), array("I", range(16)).tobytes()
    assert len({block_digest(root, chunk[: 4 * size]) for size in range(1, 17)}) == 16
