"""safetensors files: read as the `safetensors` package writes them, and refused with a reason if invalid."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from quire.weights.checkpoint import open_checkpoint
from quire.weights.errors import CheckpointError, CorruptCheckpoint, TruncatedCheckpoint, UnsupportedCheckpoint
from quire.weights.safetensors import read_safetensors
from tests.weights.file_bytes import entry, in_memory, safetensors_bytes

pytestmark = pytest.mark.pure

TORCH_DTYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8_e4m3",
    "float8_e5m2": "f8_e5m2", "int8": "i8", "uint8": "u8", "int16": "i16", "int32": "i32", "int64": "i64",
    "bool": "bool",
}  # fmt: skip


def refusal(content: bytes) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read_safetensors(in_memory(content, "model.safetensors"))
    assert caught.value.public.startswith("model.safetensors: ")
    return caught.value


def test_reads_every_dtype_that_torch_saves(tmp_path: Path):
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    torch.manual_seed(0)
    saved = {}
    for name in TORCH_DTYPES:
        values = torch.randn(3, 8, 5) * 20
        saved[name] = values.to(torch.float32).gt(0) if name == "bool" else values.to(getattr(torch, name))
    saved["scalar"] = torch.tensor(2.5)
    saved["empty"] = torch.zeros(0, 7)
    save_file(saved, tmp_path / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(tmp_path / "model.safetensors")
    assert (checkpoint.container, dict(checkpoint.metadata)) == ("safetensors", {})
    assert checkpoint.tensors.keys() == saved.keys()
    for name, tensor in checkpoint.tensors.items():
        assert tensor.shape == tuple(saved[name].shape)
        assert tensor.format == TORCH_DTYPES.get(name, "f32")
        assert tensor.num_bytes == saved[name].numel() * saved[name].element_size()
        assert not tensor.data.flags.writeable
        np.testing.assert_array_equal(tensor.dequantize(), saved[name].float().numpy())


def test_dtypes_have_the_names_of_the_safetensors_package(tmp_path: Path):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors")
    saved = {name: torch.zeros(2, dtype=getattr(torch, name)) for name in TORCH_DTYPES}
    pytest.importorskip("safetensors.torch").save_file(saved, tmp_path / "model.safetensors")
    ours = open_checkpoint(tmp_path / "model.safetensors").tensors
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as theirs:
        for name in theirs.keys():  # noqa: SIM118  it is no mapping
            assert theirs.get_slice(name).get_dtype().lower() == ours[name].format


def test_keeps_the_order_of_the_header():
    header = {"__metadata__": {"format": "pt"}, "b": entry("U8", [2], 1, 3), "a": entry("U8", [1], 0, 1)}
    container = read_safetensors(in_memory(safetensors_bytes(header, b"\1\2\3")))
    assert list(container.tensors) == ["b", "a"]
    assert container.tensors["b"].dequantize().tolist() == [2, 3]
    assert container.metadata == {"format": "pt"}


def test_a_truncated_file_is_refused_wherever_it_ends():
    content = safetensors_bytes({"a": entry("F32", [2, 2], 0, 16), "b": entry("I8", [3], 16, 19)}, bytes(19))
    read_safetensors(in_memory(content))
    for size in range(1, len(content)):
        assert isinstance(refusal(content[:size]), TruncatedCheckpoint)


def test_an_error_about_truncated_data_names_the_tensor_and_the_remedy():
    content = safetensors_bytes({"lm_head.weight": entry("F32", [2, 2], 0, 16)}, bytes(15))
    error = refusal(content)
    assert "'lm_head.weight'" in error.public and "download it again" in error.public


def test_an_unsupported_dtype_names_the_tensor_and_the_supported_dtypes():
    error = refusal(safetensors_bytes({"w": entry("C64", [1], 0, 8)}, bytes(8)))
    assert isinstance(error, UnsupportedCheckpoint)
    for words in ("'w'", "'C64'", "BF16", "F8_E4M3"):
        assert words in error.public


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"\xff\xfe{}", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not valid JSON"),
        (b'{"a": 1, "a": 2}', "duplicate key"),
        ({"__metadata__": []}, "__metadata__"),
        ({"a": 5}, "tensor 'a' has no valid data_offsets"),
        ({"a": {"dtype": "F32", "shape": [1]}}, "data_offsets"),
        ({"a": entry("F32", [1], 4, 0)}, "data_offsets"),
        ({"a": entry("F32", [1], -4, 0)}, "data_offsets"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 2, 4]}}, "data_offsets"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4.0]}}, "data_offsets"),
        ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, "dtype and shape"),
        ({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}, "dtype and shape"),
        ({"a": entry("F32", [-1], 0, 4)}, "dtype and shape"),
        ({"a": entry("F32", [2], 0, 4)}, "tensor 'a'"),
        ({"a": entry("F16", [1], 0, 4)}, "its shape needs 2"),
        ({"a": entry("F32", [1], 0, 4), "b": entry("U8", [2], 2, 4)}, "tensor 'b' overlaps"),
        ({"a": entry("U8", [1], 0, 1), "b": entry("U8", [2], 2, 4)}, "tensor 'b' leaves a hole"),
        ({"a": entry("U8", [1], 1, 2)}, "tensor 'a' leaves a hole"),
        ({"a": entry("U8", [1], 0, 1)}, "3 bytes after its last tensor"),
        ({"a": entry("U8", [2**60, 2**60], 0, 4)}, "impossible shape"),
        ({"a": entry("U8", [0, 2**62], 0, 0)}, "impossible shape"),
        ({"a": entry("U8", [1] * 40, 0, 1)}, "of 40 dimensions"),
    ],
)
def test_an_invalid_header_is_refused_with_the_tensor_or_key(header: object, words: str):
    error = refusal(safetensors_bytes(header, bytes(4)))
    assert words in error.public and len(error.public) < 1000


@pytest.mark.parametrize("length", [2**27, 2**40, 2**63, 2**64 - 1])
def test_a_huge_header_is_refused_before_it_is_read(length: int):
    assert isinstance(refusal(struct.pack("<Q", length) + b'{"a": 1}'), CorruptCheckpoint | TruncatedCheckpoint)


def test_spaces_that_pad_the_header_are_accepted():
    text = json.dumps({"a": entry("F32", [1], 0, 4)}).encode() + b"     "
    content = safetensors_bytes(text, struct.pack("<f", 1.5))
    assert read_safetensors(in_memory(content)).tensors["a"].dequantize().tolist() == [1.5]
