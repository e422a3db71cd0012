"""Write a GGUF model again in another number format, so that formats are compared on the same model.

Matrices in the format of most weights are converted, and those that would get more bits. Others stay: a table of
embeddings with 8 bits in a file of 4 bits keeps them, as llama.cpp's converter does.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from quire.bench.engines.gguf_writer import GgufTensor, write_gguf
from quire.bench.engines.model_facts import ModelFacts
from quire.quant.format import QuantFormat
from quire.quant.registry import all_formats
from quire.weights.checkpoint import open_checkpoint
from quire.weights.container import Tensor

FORMATS = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "bf16": 32}  # with general.file_type


def write_requantized(facts: ModelFacts, format: str, folder: Path) -> Path:
    """Write the model in a format of FORMATS, unless the file exists."""
    checkpoint = open_checkpoint(facts.path)
    tensors = {name: each for name, each in checkpoint.tensors.items() if isinstance(each, Tensor)}
    formats = {name: _new_format(each, facts.format, format) for name, each in tensors.items()}

    def describe(name: str) -> GgufTensor:
        shape, number = tensors[name].shape, formats[name].gguf_type
        assert number is not None  # it was read from such a file, or is one of FORMATS
        return GgufTensor(shape, number, formats[name].bytes_for(prod(shape)))

    def numbers(name: str) -> Iterator[NDArray[Any]]:
        tensor, new = tensors[name], formats[name]
        if tensor.format == new.name:
            yield tensor.data
        else:
            yield new.quantize(tensor.dequantize().reshape(-1, new.block_weights))

    metadata = {**checkpoint.metadata, "general.file_type": FORMATS[format]}
    into = folder / f"{facts.path.stem}-{facts.path.stat().st_size}.{format}.gguf"
    return write_gguf(into, metadata, {name: describe(name) for name in tensors}, numbers)


def _new_format(tensor: Tensor, usual: str, target: str) -> QuantFormat:
    """Return the format of a tensor in the new file. `usual`: the format of most weights."""
    old, new = all_formats()[tensor.format], all_formats()[target]
    has_more_bits = new.block_bytes * old.block_weights > old.block_bytes * new.block_weights
    is_convertible = len(tensor.shape) > 1 and tensor.shape[-1] % new.block_weights == 0
    return new if is_convertible and (tensor.format == usual or has_more_bits) else old
