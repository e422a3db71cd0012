"""From the model's words to the tensors of a container. Every tensor must be there, fit, and be used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quire.graph.weight import PairedRows, StoredTensor, Weight
from quire.models.config import CheckpointSource, ModelConfig
from quire.models.errors import BadCheckpoint
from quire.models.quantization import FLOAT8, FP8, joined
from quire.ops.registry import format_shape
from quire.weights.joined import GroupedInt4, ScaledTensor
from quire.weights.random_weights import RandomTensor, random_int4

COMPARED_BYTES = 1 << 20  # at a time: stays in the CPU's cache

# Old checkpoints carry what every reader computes; GGUF carries rope factors, which draw.py takes.
_NOT_WEIGHTS = re.compile(r"rotary_emb\.inv_freq$|^rope_freqs\.weight$")


@dataclass(frozen=True, slots=True)
class TensorName:
    """A weight's name in each container, without the layer's prefix and without `.weight`, and what it is.

    A word with a dot belongs to every layer; one without belongs to the model.
    """

    safetensors: str
    gguf: str
    shape: tuple[str, ...]  # words of ModelConfig.sizes
    biased: bool = False  # the architecture has a bias here, whatever the configuration says
    paired: bool = False  # GGUF files of this architecture have the rows as rope in pairs wants them

    def tensor(self, container: str, layer: int | None, kind: str) -> str:
        """The full name of the weight or bias (`kind`)."""
        name, prefix = (self.gguf, "blk") if container == "gguf" else (self.safetensors, "model.layers")
        return f"{name}.{kind}" if layer is None else f"{prefix}.{layer}.{name}.{kind}"


Names = Mapping[str, TensorName]


def marked(names: Names, *words: str, **fields: Any) -> Names:
    """The same names, with these fields of these words set."""
    return {**names, **{word: replace(names[word], **fields) for word in words}}


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One tensor that the model has, or may have."""

    name: str  # in the model's words: layers.3.attn.q
    tensor: str  # in the container's
    shape: tuple[int, ...]
    transform: PairedRows | None
    required: bool = True


def resolve(checkpoint: CheckpointSource, config: ModelConfig, names: Names) -> dict[str, Weight]:
    """Handles of all weights, by the model's names. Reads no tensor but a head that may be the embedding table."""
    container = checkpoint.container
    tensors = joined(checkpoint.tensors, config.quantization)
    if config.tied:
        tensors, tied = _tie(tensors, *(names[word].tensor(container, None, "weight") for word in ("embed", "head")))
        config = replace(config, tied=tied)
    layers = (None, *range(config.num_layers))
    wanted = [want for layer in layers for want in _wanted(container, config, names, layer)]
    if container == "dummy":
        tensors = _made_up(wanted, config)
    if missing := [want.tensor for want in wanted if want.required and want.tensor not in tensors]:
        raise BadCheckpoint(f"The checkpoint lacks {_listed(missing)}.")
    known = {want.tensor for want in wanted}
    if unknown := [name for name in tensors if name not in known and not _NOT_WEIGHTS.search(name)]:
        raise BadCheckpoint(f"The checkpoint has {_listed(unknown)} with no place in this architecture.")
    weights = {want.name: _handle(want, tensors[want.tensor]) for want in wanted if want.tensor in tensors}
    if config.tied:
        weights["head"] = weights["embed"]
    return weights


def _tie(tensors: Mapping[str, StoredTensor], embed: str, head: str) -> tuple[Mapping[str, StoredTensor], bool]:
    """The tensors of a model whose head is said to be its embedding table, and whether it is.

    As in transformers: a head that is stored and differs is used. If one of the two is missing, the other is both.
    """
    if head not in tensors:
        return tensors, True
    rest = {name: tensor for name, tensor in tensors.items() if name != head}
    if embed not in tensors:
        return {**rest, embed: tensors[head]}, True
    return (rest, True) if _are_equal(tensors[embed], tensors[head]) else (tensors, False)


def _are_equal(one: StoredTensor, other: StoredTensor) -> bool:
    """Have both the same bytes? Reads up to the first difference; 1 GB that is equal takes 0.4 s, packing it more.

    A tensor of several parts is taken to differ from any other: to keep both is right in any case.
    """
    is_whole = not isinstance(one, ScaledTensor | GroupedInt4) and not isinstance(other, ScaledTensor | GroupedInt4)
    if not is_whole or (one.format, one.shape) != (other.format, other.shape):
        return False
    left, right = one.data, other.data
    pieces = range(0, len(left), COMPARED_BYTES)
    return all(np.array_equal(left[at : at + COMPARED_BYTES], right[at : at + COMPARED_BYTES]) for at in pieces)


def _wanted(container: str, config: ModelConfig, names: Names, layer: int | None) -> Iterator[_Wanted]:
    """The tensors of one layer, or with None those of the model."""
    sizes, heads = config.sizes(), {"q": config.num_heads, "kv": config.num_kv_heads}
    for word, entry in names.items():
        if ("." in word) != (layer is not None) or (word == "head" and config.tied):
            continue
        name = word if layer is None else f"layers.{layer}.{word}"
        shape = tuple(sizes[size] for size in entry.shape)
        transform = PairedRows(heads[entry.shape[0]]) if entry.paired and container == "gguf" else None
        yield _Wanted(name, entry.tensor(container, layer, "weight"), shape, transform)
        # config.json says which biases there are; GGUF says it by having them
        required = entry.biased or word in config.biased
        if required or (container == "gguf" and layer is not None and len(shape) == 2):
            yield _Wanted(f"{name}.bias", entry.tensor(container, layer, "bias"), shape[:1], transform, required)


def _made_up(wanted: list[_Wanted], config: ModelConfig) -> dict[str, StoredTensor]:
    """A random tensor for every one that is wanted: norms near 1, all else near 0, matrices of layers as configured."""

    def make(want: _Wanted) -> StoredTensor:
        spread, quantization = config.initial_spread, config.quantization
        if len(want.shape) == 1:
            return RandomTensor(want.tensor, want.shape, spread, 0.0 if want.name.endswith(".bias") else 1.0)
        is_covered = "." in want.name and quantization is not None
        if quantization is None or not is_covered or not quantization.covers(want.tensor.removesuffix(".weight")):
            return RandomTensor(want.tensor, want.shape, spread)
        if quantization.kind == FP8:
            return RandomTensor(want.tensor, want.shape, spread, format=FLOAT8)
        return random_int4(want.tensor, want.shape, spread, quantization.group)

    return {want.tensor: make(want) for want in wanted}


def _handle(want: _Wanted, tensor: StoredTensor) -> Weight:
    found = tuple(tensor.shape)
    if found != want.shape:
        raise BadCheckpoint(
            f"The tensor {want.tensor} is {format_shape(found)}; by the configuration it is {format_shape(want.shape)}."
        )
    return Weight(want.name, want.shape, tensor.format, tensor, want.transform)


def _listed(names: list[str], most: int = 5) -> str:
    """`3 tensors (a, b, c)`"""
    shown = ", ".join(sorted(names)[:most]) + (", …" if len(names) > most else "")
    return f"{len(names)} tensor{'s' if len(names) > 1 else ''} ({shown})"
