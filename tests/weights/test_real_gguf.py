"""The bundled model's file: opened in milliseconds, every value as the `gguf` package reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quire.quant.registry import all_formats
from quire.weights.checkpoint import open_checkpoint
from quire.weights.container import Tensor

pytestmark = pytest.mark.pure


def reference(gguf, tensor: Tensor) -> np.ndarray:
    """Dequantize the tensor with the `gguf` package."""
    fmt = all_formats()[tensor.format]
    rows = tensor.data.reshape(*tensor.shape[:-1], -1)
    if tensor.format == "f32":
        return rows.view(np.float32)
    return gguf.dequantize(rows, gguf.GGMLQuantizationType(fmt.gguf_type))


def test_needs_no_package_but_numpy(model_file: Path):
    code = f"""
import sys
from quire.weights.checkpoint import open_checkpoint
next(iter(open_checkpoint({str(model_file)!r}).tensors.values())).dequantize()
assert not {{"torch", "transformers", "gguf", "safetensors"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


def test_a_tensor_of_each_format_and_shape_is_the_reference_bit_for_bit(model_file: Path):
    gguf = pytest.importorskip("gguf")
    tensors = open_checkpoint(model_file).tensors
    sample = {(t.format, t.shape): t for t in tensors.values() if t.num_bytes < 2_000_000}
    assert {fmt for fmt, _ in sample} >= {"f32", "q4_1"}
    for tensor in sample.values():
        np.testing.assert_array_equal(tensor.dequantize(), reference(gguf, tensor))


@pytest.mark.slow
def test_all_metadata_and_all_tensors_are_those_of_the_gguf_package(model_file: Path):
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(model_file)
    checkpoint = open_checkpoint(model_file)
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert list(checkpoint.metadata) == list(fields)
    for key, field in fields.items():
        expected = field.contents()
        assert checkpoint.metadata[key] == (tuple(expected) if isinstance(expected, list) else expected), key
    assert list(checkpoint.tensors) == [t.name for t in reader.tensors]
    for theirs in reader.tensors:
        ours = checkpoint.tensors[theirs.name]
        assert ours.shape == tuple(int(size) for size in theirs.shape[::-1])
        assert ours.format == theirs.tensor_type.name.lower()
        np.testing.assert_array_equal(ours.data, theirs.data.reshape(-1).view(np.uint8))
        np.testing.assert_array_equal(ours.dequantize(), reference(gguf, ours))
