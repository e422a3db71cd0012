"""Any file either opens or is refused with one of our errors, and never causes a large allocation."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quire.weights.container import Container
from quire.weights.errors import CheckpointError
from quire.weights.gguf import read_gguf
from quire.weights.mapped_file import MappedFile
from quire.weights.safetensors import read_safetensors
from tests.weights.file_bytes import entry, gguf_bytes, in_memory, safetensors_bytes

pytestmark = pytest.mark.pure

GGUF = gguf_bytes(
    {
        "general.architecture": (8, "llama"),
        "general.alignment": (4, 32),
        "bool": (7, True),
        "tokens": (9, (8, [f"token {i}" for i in range(80)])),
        "types": (9, (5, list(range(20)))),
        "nested": (9, (9, [(4, (1, 2)), (8, ("a", "b"))])),
    },
    [("a", (32, 2), 8, bytes(68)), ("b", (256, 1), 12, bytes(144)), ("c", (3, 2), 0, bytes(24))],
)
SAFETENSORS = safetensors_bytes(
    {
        "__metadata__": {"format": "pt"},
        "a": entry("F32", [2, 3], 0, 24),
        "b": entry("BF16", [4], 24, 32),
        "c": entry("F8_E4M3", [0, 7], 32, 32),
    },
    bytes(32),
)

interesting = st.one_of(
    st.integers(0, 2**64 - 1),
    st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**40, 2**60, 2**62, 2**63 - 1, 2**63, 2**64 - 1]),
    st.integers(0, 300),
)
patches = st.one_of(st.binary(min_size=1, max_size=4), interesting.map(lambda n: struct.pack("<Q", n)))


@st.composite
def damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """The valid file with a few bytes replaced, inserted or dropped, perhaps cut, perhaps with a tail."""
    content = bytearray(valid)
    for _ in range(draw(st.integers(0, 4))):
        at, patch = draw(st.integers(0, len(content))), draw(patches)
        keep = draw(st.sampled_from([at + len(patch), at, at + 2 * len(patch)]))
        content[at:keep] = patch
    size = draw(st.one_of(st.just(len(content)), st.integers(1, len(content))))
    return bytes(content[:size]) + draw(st.one_of(st.just(b""), st.binary(max_size=40)))


def opens_or_refuses(read: Callable[[MappedFile], Container], content: bytes) -> None:
    try:
        container = read(in_memory(content))
        dict(container.metadata)
    except CheckpointError as error:
        assert error.public
        return
    for tensor in container.tensors.values():
        assert tensor.dequantize().shape == tensor.shape


@settings(max_examples=500, deadline=None)
@given(damaged(GGUF))
@example(GGUF)
def test_a_damaged_gguf_file_opens_or_is_refused(content: bytes):
    opens_or_refuses(read_gguf, content)


@settings(max_examples=500, deadline=None)
@given(damaged(SAFETENSORS))
@example(SAFETENSORS)
def test_a_damaged_safetensors_file_opens_or_is_refused(content: bytes):
    opens_or_refuses(read_safetensors, content)


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=200), st.sampled_from([b"", b"GGUF\3\0\0\0", struct.pack("<Q", 20) + b'{"']))
def test_random_bytes_open_or_are_refused(noise: bytes, start: bytes):
    opens_or_refuses(read_gguf, start + noise)
    opens_or_refuses(read_safetensors, start + noise)


FILES = pytest.mark.parametrize(("valid", "read"), [(GGUF, read_gguf), (SAFETENSORS, read_safetensors)])


@FILES
def test_a_file_with_any_one_byte_wrong_opens_or_is_refused(valid: bytes, read: Callable[[MappedFile], Container]):
    for at in range(len(valid)):
        for patch in (b"\0", b"\xff", bytes([valid[at] ^ 0x80]), b"\xff" * 8, struct.pack("<Q", 2**60)):
            opens_or_refuses(read, valid[:at] + patch + valid[at + len(patch) :])


@FILES
def test_no_size_in_a_file_causes_a_large_allocation(valid: bytes, read: Callable[[MappedFile], Container]):
    claim = struct.pack("<Q", 2**33)  # the system would grant 8 GB, as long as they are not written to
    tracemalloc.start()
    try:
        for at in range(len(valid)):
            opens_or_refuses(read, valid[:at] + claim + valid[at + len(claim) :])
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@settings(max_examples=8_000, deadline=None)
@given(damaged(GGUF), damaged(SAFETENSORS))
def test_many_damaged_files_open_or_are_refused(gguf: bytes, safetensors: bytes):
    opens_or_refuses(read_gguf, gguf)
    opens_or_refuses(read_safetensors, safetensors)
