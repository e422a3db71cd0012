"""Binds an architecture's weight names to the tensors of a container. Every tensor must exist, fit, and be used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quire.graph.weight import PairedRows, StoredTensor, Weight
from quire.models.config import CheckpointSource, ModelConfig
from quire.models.errors import BadCheckpoint
from quire.models.quantization import FLOAT8, FP8, join_tensors
from quire.ops.registry import format_shape
from quire.weights.quantized_tensors import GroupedInt4, ScaledTensor
from quire.weights.random_weights import RandomTensor, random_int4

COMPARED_BYTES = 1 << 20  # at a time, to stay in the CPU's cache

# Old checkpoints store frequencies, which we compute; GGUF stores rope factors, which draw.py reads.
_NOT_WEIGHTS = re.compile(r"rotary_emb\.inv_freq$|^rope_freqs\.weight$")


@dataclass(frozen=True, slots=True)
class TensorName:
    """A weight's name in each container, without the layer's prefix and without `.weight`, and its shape.

    A name with a dot belongs to every layer; one without belongs to the model.
    """

    safetensors: str
    gguf: str
    shape: tuple[str, ...]  # names of ModelConfig.sizes
    biased: bool = False  # the architecture always has a bias here
    paired: bool = False  # GGUF files of this architecture store the rows for pairwise rope (PairedRows)

    def tensor(self, container: str, layer: int | None, kind: str) -> str:
        """Return the full name of the weight or bias (`kind`)."""
        name, prefix = (self.gguf, "blk") if container == "gguf" else (self.safetensors, "model.layers")
        return f"{name}.{kind}" if layer is None else f"{prefix}.{layer}.{name}.{kind}"


Names = Mapping[str, TensorName]


def with_fields(names: Names, *words: str, **fields: Any) -> Names:
    """Return the same names, with these fields of some entries changed."""
    return {**names, **{word: replace(names[word], **fields) for word in words}}


@dataclass(frozen=True, slots=True)
class _ExpectedTensor:
    """A tensor that the model has, or may have."""

    name: str  # in the graph: layers.3.attn.q
    tensor: str  # in the container
    shape: tuple[int, ...]
    transform: PairedRows | None
    required: bool = True


def bind_weights(checkpoint: CheckpointSource, config: ModelConfig, names: Names) -> dict[str, Weight]:
    """Return handles of all weights, by graph name. Reads no tensor except to compare a tied head with the table."""
    container = checkpoint.container
    tensors = join_tensors(checkpoint.tensors, config.quantization)
    if config.tied:
        tensors, tied = _tie(tensors, *(names[word].tensor(container, None, "weight") for word in ("embed", "head")))
        config = replace(config, tied=tied)
    layers = (None, *range(config.num_layers))
    expected = [each for layer in layers for each in _expected_tensors(container, config, names, layer)]
    if container == "dummy":
        tensors = _random_tensors(expected, config)
    if missing := [each.tensor for each in expected if each.required and each.tensor not in tensors]:
        raise BadCheckpoint(f"The checkpoint lacks {_summary(missing)}.")
    known = {each.tensor for each in expected}
    if unknown := [name for name in tensors if name not in known and not _NOT_WEIGHTS.search(name)]:
        raise BadCheckpoint(f"The checkpoint has {_summary(unknown)} that this architecture does not use.")
    weights = {each.name: _weight(each, tensors[each.tensor]) for each in expected if each.tensor in tensors}
    if config.tied:
        weights["head"] = weights["embed"]
    return weights


def _tie(tensors: Mapping[str, StoredTensor], embed: str, head: str) -> tuple[Mapping[str, StoredTensor], bool]:
    """Return the tensors of a model with tied embeddings by its configuration, and whether they really are tied.

    As in transformers: a stored head that differs from the table is used. If one of the two is missing, the other
    serves as both.
    """
    if head not in tensors:
        return tensors, True
    rest = {name: tensor for name, tensor in tensors.items() if name != head}
    if embed not in tensors:
        return {**rest, embed: tensors[head]}, True
    return (rest, True) if _are_equal(tensors[embed], tensors[head]) else (tensors, False)


def _are_equal(one: StoredTensor, other: StoredTensor) -> bool:
    """Return whether both have the same bytes. Reads up to the first difference; 1 GB of equal bytes takes 0.4 s.

    A tensor of several parts counts as different from any other: keeping both is always correct.
    """
    is_whole = not isinstance(one, ScaledTensor | GroupedInt4) and not isinstance(other, ScaledTensor | GroupedInt4)
    if not is_whole or (one.format, one.shape) != (other.format, other.shape):
        return False
    left, right = one.data, other.data
    chunks = range(0, len(left), COMPARED_BYTES)
    return all(np.array_equal(left[at : at + COMPARED_BYTES], right[at : at + COMPARED_BYTES]) for at in chunks)


def _expected_tensors(
    container: str, config: ModelConfig, names: Names, layer: int | None
) -> Iterator[_ExpectedTensor]:
    """Yield the tensors of one layer, or with None those outside the layers."""
    sizes, heads = config.sizes(), {"q": config.num_heads, "kv": config.num_kv_heads}
    for word, entry in names.items():
        if ("." in word) != (layer is not None) or (word == "head" and config.tied):
            continue
        name = word if layer is None else f"layers.{layer}.{word}"
        shape = tuple(sizes[size] for size in entry.shape)
        transform = PairedRows(heads[entry.shape[0]]) if entry.paired and container == "gguf" else None
        yield _ExpectedTensor(name, entry.tensor(container, layer, "weight"), shape, transform)
        # config.json declares the biases; in GGUF they are simply present or absent
        required = entry.biased or word in config.biased
        if required or (container == "gguf" and layer is not None and len(shape) == 2):
            yield _ExpectedTensor(
                f"{name}.bias", entry.tensor(container, layer, "bias"), shape[:1], transform, required
            )


def _random_tensors(expected: list[_ExpectedTensor], config: ModelConfig) -> dict[str, StoredTensor]:
    """Return random tensors: norms near 1, all else near 0, matrices of layers in the configured quantization."""

    def make(each: _ExpectedTensor) -> StoredTensor:
        std, quantization = config.init_std, config.quantization
        if len(each.shape) == 1:
            return RandomTensor(each.tensor, each.shape, std, 0.0 if each.name.endswith(".bias") else 1.0)
        is_covered = "." in each.name and quantization is not None
        if quantization is None or not is_covered or not quantization.covers(each.tensor.removesuffix(".weight")):
            return RandomTensor(each.tensor, each.shape, std)
        if quantization.kind == FP8:
            return RandomTensor(each.tensor, each.shape, std, format=FLOAT8)
        return random_int4(each.tensor, each.shape, std, quantization.group)

    return {each.tensor: make(each) for each in expected}


def _weight(expected: _ExpectedTensor, tensor: StoredTensor) -> Weight:
    if tuple(tensor.shape) != expected.shape:
        found, shape = format_shape(tuple(tensor.shape)), format_shape(expected.shape)
        raise BadCheckpoint(f"The tensor {expected.tensor} is {found}; by the configuration it must be {shape}.")
    return Weight(expected.name, expected.shape, tensor.format, tensor, expected.transform)


def _summary(names: list[str], most: int = 5) -> str:
    """Format a list of names as `3 tensors (a, b, c)`."""
    shown = ", ".join(sorted(names)[:most]) + (", …" if len(names) > most else "")
    return f"{len(names)} tensor{'s' if len(names) > 1 else ''} ({shown})"
