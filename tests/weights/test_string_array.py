"""The vectorized scan of an array of strings finds exactly what a plain loop finds."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quire.weights.string_array import decode_strings, string_offsets
from tests.weights.file_bytes import gguf_string, in_memory

pytestmark = pytest.mark.pure


def expected_offsets(strings: list[bytes], start: int) -> list[int]:
    places = [start]
    for raw in strings:
        places.append(places[-1] + 8 + len(raw))
    return places


# Short strings as in a vocabulary, empty ones, zero bytes that look like lengths, and lengths of two bytes.
odd_strings = st.one_of(
    st.binary(max_size=12),
    st.just(b""),
    st.binary(max_size=3).map(lambda raw: raw + bytes(9)),
    st.integers(250, 700).map(lambda size: b"x" * size),
    st.integers(0, 300).map(lambda n: struct.pack("<Q", n)),
)


@settings(max_examples=200, deadline=None)
@example(strings=[b"x" * 256], repeat=1, before=b"", after=b"")
@given(
    strings=st.lists(odd_strings, max_size=40),
    repeat=st.integers(1, 20),
    before=st.binary(max_size=9),
    after=st.binary(),
)
def test_finds_every_string_with_any_content(strings: list[bytes], repeat: int, before: bytes, after: bytes):
    strings = strings * repeat
    content = before + b"".join(map(gguf_string, strings)) + after
    if content:
        offsets = string_offsets(in_memory(content), len(before), len(strings))
        assert offsets.tolist() == expected_offsets(strings, len(before))


def test_finds_the_strings_of_a_large_vocabulary_with_a_few_odd_ones():
    rng = np.random.default_rng(1)
    strings = [b"t" * int(size) for size in rng.integers(1, 20, 100_000)]
    for i in rng.integers(0, len(strings), 50):
        strings[i] = [b"", bytes(20), b"x" * 3000, b"y" * 300_000][i % 4]
    offsets = string_offsets(in_memory(b"".join(map(gguf_string, strings))), 0, len(strings))
    assert offsets.tolist() == expected_offsets(strings, 0)


@pytest.mark.parametrize("size", [1, 7, 8, 11, 200, 1500, 1999])
def test_returns_fewer_offsets_if_the_file_ends_too_soon(size: int):
    content = b"".join(map(gguf_string, [b"ab"] * 200))
    assert len(content) == 2000
    assert len(string_offsets(in_memory(content), 0, 200)) == 201
    assert len(string_offsets(in_memory(content[:size]), 0, 200)) < 201


def test_a_length_of_two_to_the_63_ends_the_walk():
    for length in (2**63 - 1, 2**63, 2**64 - 1):
        content = gguf_string(b"ok") + struct.pack("<Q", length) + b"tail"
        assert len(string_offsets(in_memory(content), 0, 3)) < 4


@settings(max_examples=200, deadline=None)
@given(strings=st.lists(st.text(max_size=300)), before=st.binary(max_size=9))
@example(strings=["a", "\0", ""], before=b"")
@example(strings=["", "", ""], before=b"")
def test_decodes_every_string_as_it_was(strings: list[str], before: bytes):
    file = in_memory(before + b"".join(map(gguf_string, strings)) + b"end")
    assert decode_strings(file, string_offsets(file, len(before), len(strings))) == tuple(strings)


@pytest.mark.parametrize("strings", [[b"ok", b"\xc3"], [b"\xc3", b"\xa9"], [b"\0", b"\xff"]])
def test_invalid_utf8_is_not_completed_by_the_next_string(strings: list[bytes]):
    file = in_memory(b"".join(map(gguf_string, strings)))
    with pytest.raises(UnicodeDecodeError):
        decode_strings(file, string_offsets(file, 0, len(strings)))
