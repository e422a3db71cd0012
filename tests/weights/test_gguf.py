"""GGUF files: read as the `gguf` package writes them, and refused with a reason if invalid."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.quant.registry import all_formats, gguf_formats
from quire.weights.checkpoint import open_checkpoint
from quire.weights.errors import CheckpointError, CorruptCheckpoint, TruncatedCheckpoint, UnsupportedCheckpoint
from quire.weights.gguf import read_gguf
from tests.weights.file_bytes import ARRAY, STRING, gguf_bytes, gguf_string, gguf_value, in_memory

pytestmark = pytest.mark.pure

F32, Q8_0 = 0, 8

VALUES: dict[str, tuple[int, Any]] = {
    "u8": (0, 255),
    "i8": (1, -128),
    "u16": (2, 65535),
    "i16": (3, -32768),
    "u32": (4, 2**32 - 1),
    "i32": (5, -(2**31)),
    "f32": (6, 0.5),
    "bool": (7, True),
    "string": (STRING, "grüße ▁\0 end"),
    "empty string": (STRING, ""),
    "u64": (10, 2**64 - 1),
    "i64": (11, -(2**63)),
    "f64": (12, 1e300),
    "numbers": (ARRAY, (5, (1, -2, 3))),
    "floats": (ARRAY, (6, (0.25, -1.5))),
    "bools": (ARRAY, (7, (True, False, True))),
    "strings": (ARRAY, (STRING, ("a", "", "ä" * 300, "\0" * 20, "end"))),
    "nothing": (ARRAY, (STRING, ())),
    "nested": (ARRAY, (ARRAY, ((5, (1, 2)), (STRING, ("x", "y")), (4, ())))),
}


def plain(kind: int, value: Any) -> Any:
    return tuple(plain(value[0], item) for item in value[1]) if kind == ARRAY else value


def refusal(content: bytes) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read_gguf(in_memory(content))
    assert caught.value.public.startswith("model.gguf: ")
    assert "/models" not in caught.value.public
    return caught.value


@pytest.mark.parametrize("version", [2, 3])
def test_reads_metadata_of_every_type(version: int):
    metadata = read_gguf(in_memory(gguf_bytes(VALUES, version=version))).metadata
    assert dict(metadata) == {key: plain(*value) for key, value in VALUES.items()}
    assert list(metadata) == list(VALUES)
    assert isinstance(metadata["bool"], bool)
    assert "numbers" in metadata and "absent" not in metadata
    assert metadata["strings"] is metadata["strings"], "an array is decoded once"


def test_tensors_are_views_of_the_file_in_row_major_order():
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    file = in_memory(gguf_bytes({}, [("a", (4, 3), F32, weights.tobytes()), ("scalar", (), F32, bytes(4))]))
    container = read_gguf(file)
    tensor = container.tensors["a"]
    assert (tensor.name, tensor.shape, tensor.format, tensor.num_bytes) == ("a", (3, 4), "f32", 48)
    assert tensor.data.dtype == np.uint8 and not tensor.data.flags.writeable
    assert np.shares_memory(tensor.data, file.data)
    np.testing.assert_array_equal(tensor.dequantize(), weights)
    tensor.dequantize()[0] = 5  # a new array: writable
    assert container.tensors["scalar"].dequantize().shape == ()


@pytest.mark.parametrize("fmt", [f for f in gguf_formats().values() if f.block_weights > 1], ids=lambda f: f.name)
def test_a_tensor_larger_than_a_chunk_is_dequantized_as_in_one_piece(fmt, monkeypatch):
    monkeypatch.setattr("quire.weights.container.CHUNK_WEIGHTS", 1024)
    raw = np.random.default_rng(3).integers(0, 128, (3 * 14, fmt.block_bytes), dtype=np.uint8)
    name, dims = "w", (fmt.block_weights * 3, 7, 2)
    content = gguf_bytes({}, [(name, dims, fmt.gguf_type, raw.tobytes())])
    with np.errstate(all="ignore"):
        expected = fmt.dequantize(raw).reshape(dims[::-1])
    np.testing.assert_array_equal(read_gguf(in_memory(content)).tensors[name].dequantize(), expected)


def test_reads_what_the_gguf_package_writes(tmp_path: Path):
    gguf = pytest.importorskip("gguf")
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(tmp_path / "small.gguf", "llama")
    writer.add_custom_alignment(64)
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.eps", 1e-5)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "Ġthe", "é", ""])
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0, 0.0, 2.5])
    writer.add_array("tokenizer.ggml.token_type", [1, 2, 3, 1])
    written = {}
    for name in ("f32", "f16", "q8_0", "q4_0", "q4_1", "bf16"):
        kind = gguf.GGMLQuantizationType(all_formats()[name].gguf_type)
        raw = gguf.quantize(rng.standard_normal((3, 5, 64), np.float32), kind)
        written[f"{name}.weight"] = (name, gguf.dequantize(raw, kind))
        writer.add_tensor(f"{name}.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint(tmp_path / "small.gguf")
    assert checkpoint.container == "gguf"
    assert dict(checkpoint.metadata) == {
        "general.architecture": "llama",
        "general.alignment": 64,
        "llama.block_count": 2,
        "llama.eps": pytest.approx(1e-5),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.tokens": ("<s>", "Ġthe", "é", ""),
        "tokenizer.ggml.scores": (0.5, -1.0, 0.0, 2.5),
        "tokenizer.ggml.token_type": (1, 2, 3, 1),
    }
    assert list(checkpoint.tensors) == list(written)
    for name, (fmt, weights) in written.items():
        assert checkpoint.tensors[name].format == fmt
        assert checkpoint.tensors[name].shape == (3, 5, 64)
        np.testing.assert_array_equal(checkpoint.tensors[name].dequantize(), weights)


def test_a_big_endian_or_old_file_is_refused():
    big = b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
    assert isinstance(error := refusal(big), UnsupportedCheckpoint) and "big endian" in error.public
    old = b"GGUF" + struct.pack("<IQQ", 1, 0, 0)
    assert isinstance(error := refusal(old), UnsupportedCheckpoint) and "version 1" in error.public


def test_an_unsupported_format_names_the_tensor_and_the_supported_formats():
    error = refusal(gguf_bytes({}, [("blk.0.ffn_up.weight", (256,), 16, bytes(66))]))
    assert isinstance(error, UnsupportedCheckpoint) and error.code == "checkpoint_unsupported"
    for words in ("'blk.0.ffn_up.weight'", "number 16", "q4_k", "mxfp4"):
        assert words in error.public


def test_a_truncated_file_is_refused_wherever_it_ends():
    content = gguf_bytes(VALUES, [("a", (32, 2), Q8_0, bytes(range(68))), ("b", (8,), F32, bytes(32))])
    for size in range(1, len(content)):
        assert isinstance(refusal(content[:size]), TruncatedCheckpoint | CorruptCheckpoint)
    read_gguf(in_memory(content))


def test_an_error_about_truncated_data_names_the_tensor_and_the_remedy():
    content = gguf_bytes({}, [("a", (8,), F32, bytes(32)), ("b", (8,), F32, bytes(32))])
    error = refusal(content[:-1])
    assert isinstance(error, TruncatedCheckpoint)
    assert "tensor 'b'" in error.public and "download it again" in error.public


@pytest.mark.parametrize("claimed", [2**20, 2**40, 2**60, 2**64 - 1])
def test_a_huge_size_is_refused_before_anything_is_allocated(claimed: int):
    count = struct.pack("<Q", claimed)
    string_array = gguf_string("k") + struct.pack("<II", ARRAY, STRING) + count
    number_array = gguf_string("k") + struct.pack("<II", ARRAY, 12) + count
    nested_array = gguf_string("k") + struct.pack("<II", ARRAY, ARRAY) + count
    long_string = gguf_string("k") + struct.pack("<I", STRING) + count
    long_key = count
    for key in (string_array, number_array, nested_array, long_string, long_key):
        assert isinstance(refusal(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + bytes(64)), TruncatedCheckpoint)
    assert isinstance(refusal(b"GGUF" + struct.pack("<I", 3) + count + bytes(64)), TruncatedCheckpoint)
    assert isinstance(refusal(b"GGUF" + struct.pack("<IQ", 3, 0) + count + bytes(64)), TruncatedCheckpoint)
    for dims in [(claimed,), (claimed, claimed)]:
        assert isinstance(refusal(gguf_bytes({}, [("a", dims, F32, b"")])), TruncatedCheckpoint | CorruptCheckpoint)


def test_an_empty_tensor_may_be_of_any_shape_that_numpy_can_describe():
    tensors = [("none", (0, 5), F32, b""), ("long", (2**20, 0), F32, b"")]
    opened = read_gguf(in_memory(gguf_bytes({}, tensors))).tensors
    assert [t.dequantize().shape for t in opened.values()] == [(5, 0), (0, 2**20)]
    assert "impossible shape" in refusal(gguf_bytes({}, [("a", (2**62, 0), F32, b"")])).public


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<html>not found</html>", "letters GGUF"),
        (gguf_bytes({}, [("a", (8,), F32, bytes(32)), ("a", (8,), F32, bytes(32))]), "two tensors called 'a'"),
        (gguf_bytes({}, [("a", (33,), Q8_0, bytes(68))]), "rows have 33"),
        (gguf_bytes({}, [("a", (16, 2), Q8_0, bytes(68))]), "rows have 16"),
        (gguf_bytes({}, [("a", (1, 1, 1, 1, 1), F32, bytes(4))]), "5 dimensions"),
        (gguf_bytes({}, [("a", (8,), F32, bytes(64))], offsets={"a": 4}), "tensor 'a' is not aligned"),
        (gguf_bytes({"general.alignment": (4, 3)}), "power of two"),
        (gguf_bytes({"general.alignment": (4, 0)}), "power of two"),
        (gguf_bytes({"general.alignment": (STRING, "32")}), "power of two"),
        (gguf_bytes({"k": (STRING, b"\xff\xfe")}), "'k' is not UTF-8"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_string("k") + struct.pack("<I", 13) + bytes(8), "type 13"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_string("k") + struct.pack("<IB", 7, 2) + bytes(8),
            "neither true",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * (gguf_string("k") + struct.pack("<II", 4, 0)), "'k' twice"),
    ],
)
def test_an_invalid_file_is_refused_with_the_tensor_or_key(content: bytes, words: str):
    assert words in refusal(content).public


def test_overlapping_tensors_are_refused_by_both_names():
    tensors = [("first", (16,), F32, bytes(64)), ("second", (16,), F32, bytes(64))]
    error = refusal(gguf_bytes({}, tensors, offsets={"second": 32}))
    assert isinstance(error, CorruptCheckpoint)
    assert "'first'" in error.public and "'second'" in error.public


def test_deeply_nested_arrays_are_refused():
    value: Any = (4, (1,))
    for _ in range(100):
        value = (ARRAY, (value,))
    assert "nested" in refusal(gguf_bytes({"k": (ARRAY, value)})).public


def test_an_invalid_array_is_reported_when_it_is_accessed():
    content = gguf_bytes({"words": (ARRAY, (STRING, ("ok", b"\xff"))), "flags": (ARRAY, (0, (0, 1, 2)))})
    content = content.replace(gguf_value(ARRAY, (0, (0, 1, 2))), gguf_value(ARRAY, (7, (0, 1, 1)))[:-1] + b"\2")
    metadata = read_gguf(in_memory(content)).metadata
    for key in ("words", "flags"):
        with pytest.raises(CorruptCheckpoint, match=key):
            metadata[key]


def test_an_error_stays_short_for_long_tensor_names():
    assert len(refusal(gguf_bytes({}, [("x" * 100_000, (3,), Q8_0, bytes(34))])).public) < 1000
