"""Binds an architecture's weight names to the tensors of a container. Every tensor must exist, fit, and be used."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.graph.weight import StackedTensor, StoredTensor, Transform, Weight, transformed
from quire.models.config import CheckpointSource, ModelConfig
from quire.models.errors import BadCheckpoint
from quire.models.quantization import FLOAT8, FP8, MXFP4, join_tensors
from quire.models.tied_head import tie
from quire.ops.registry import format_shape
from quire.weights.random_weights import RandomTensor, random_int4, random_scaled

Array = NDArray[Any]
Sizes = Mapping[str, int]
RowRule = Callable[[Sizes], Array]  # the rows of the stored tensor that are the weight's, in the graph's order

GGUF, SAFETENSORS = "gguf", "safetensors"
_NUMBER = re.compile(r"\.\d+")


def pairs_to_halves(heads: str, rows: str) -> RowRule:
    """The file stores the rows of every head in the order of pairwise rope: 0, D/2, 1, D/2 + 1, …"""

    def order(sizes: Sizes) -> Array:
        pairs = np.arange(sizes[rows]).reshape(sizes[heads], -1, 2)  # [head, i, half]
        return pairs.swapaxes(1, 2).reshape(-1)  # [head, half, i]

    return order


def part(index: int, *rows: str) -> RowRule:
    """Part `index` of a tensor that stacks parts of these sizes: fused qkv, fused gate and up."""

    def order(sizes: Sizes) -> Array:
        ends = np.cumsum([0, *(sizes[word] for word in rows)])
        return np.arange(ends[index], ends[index + 1])

    return order


def part_of_groups(index: int, groups: str, *rows: str) -> RowRule:
    """Part `index` of every group of a tensor that stacks groups, each with parts of these sizes (in all groups)."""

    def order(sizes: Sizes) -> Array:
        num_groups = sizes[groups]
        widths = [sizes[word] // num_groups for word in rows]
        begin, width = sum(widths[:index]), widths[index]
        starts = np.arange(num_groups) * sum(widths) + begin
        return (starts[:, None] + np.arange(width)).reshape(-1)

    return order


def concatenated(*rules: RowRule) -> RowRule:
    """The rows of several rules, one after the other."""

    def order(sizes: Sizes) -> Array:
        return np.concatenate([rule(sizes) for rule in rules])

    return order


def every_second(index: int, rows: str) -> RowRule:
    """Every second row, from `index` on: gate and up of gpt-oss."""

    def order(sizes: Sizes) -> Array:
        return np.arange(index, 2 * sizes[rows], 2)

    return order


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a container stores a weight, and how the tensor is transformed into the weight."""

    name: str  # without the layer's prefix and without `.weight`
    rows: RowRule | None = None
    transposed: bool = False
    added: float = 0.0
    negated_exp: bool = False  # the weight is -exp of what is stored
    shape: tuple[str, ...] | None = None  # of these rows, where it is not the weight's: the numbers are the same
    bias: str | None = None  # full name of the bias in its layer, where it is not this name with `.bias`
    kind: str | None = None  # suffix of the tensor's name in this container alone; None: that of both

    def transform(self, sizes: Sizes) -> Transform:
        """For a weight of these sizes."""
        return Transform(self.transposed, None if self.rows is None else self.rows(sizes), self.added, self.negated_exp)


@dataclass(frozen=True, slots=True)
class TensorName:
    """A weight's place in each container, and its shape. A name with a dot is of a layer, one without of the model."""

    safetensors: str | Stored
    gguf: str | Stored | None  # None: GGUF files do not have it
    shape: tuple[str, ...]  # names of ModelConfig.sizes
    biased: bool = False  # the architecture always has a bias here
    only: Callable[[Any, int], bool] | None = None  # which layers have it; None: all
    in_all: bool = True  # False: GGUF files of some models lack it, and no key says so
    kind: str = "weight"  # suffix of the tensor's name; "" for none

    def stored(self, container: str) -> Stored | None:
        """Return where this container stores it."""
        found = self.gguf if container == GGUF else self.safetensors
        return Stored(found) if isinstance(found, str) else found


def parts_of(
    safetensors: str, gguf: str, parts: Mapping[str, str], groups: str = "", *, transposed: bool = False
) -> dict[str, TensorName]:
    """Words whose weights are parts of one tensor, with the rows of each. Safetensors may have it transposed, or
    (`groups`) with all parts of a group side by side."""
    rows = tuple(parts.values())
    return {
        word: TensorName(
            Stored(safetensors, part_of_groups(i, groups, *rows) if groups else part(i, *rows), transposed),
            Stored(gguf, part(i, *rows)),
            (rows[i], "hidden"),
        )
        for i, word in enumerate(parts)
    }


Layouts = Mapping[str, Mapping[str, TensorName | Stored]]  # by the end of the name of a tensor that files have
# GGUF files with q, k and v as one tensor
FUSED_QKV: Layouts = {
    "attn_qkv.weight": {f"attn.{word}": Stored("attn_qkv", part(i, "q", "kv", "kv")) for i, word in enumerate("qkv")}
}


@dataclass(frozen=True, slots=True)
class Names:
    """The tensors of an architecture, by their names in the graph."""

    entries: Mapping[str, TensorName]
    layers: str = "model.layers"  # the prefix of layers in safetensors
    gguf_layers: str = "blk"  # and in GGUF
    first: int = 0  # the number of the first layer in files
    layouts: Layouts = field(default_factory=dict)  # what differs in some files: entries, or their places
    # Of safetensors:
    stacked: frozenset[str] = frozenset()  # tensors that are stored apart, with `*` where their number is
    renamed: Mapping[str, str] = field(default_factory=dict)  # another name of a tensor -> that in `entries`
    other_prefix: str = ""  # what some files have in place of the first word of `layers`
    # Old checkpoints store frequencies, which we compute; GGUF stores rope factors, which draw.py reads.
    ignored: re.Pattern[str] = field(default=re.compile(r"rotary_emb\.inv_freq$|^rope_\w+\.weight$"))

    def but(self, entries: Mapping[str, TensorName | None] | None = None, *, ignored: str = "", **fields: Any) -> Names:
        """Return the same names with other entries (None: removed) and fields. `ignored`: a pattern of more tensors."""
        merged = {**self.entries, **(entries or {})}
        pattern = re.compile(f"{self.ignored.pattern}|{ignored}") if ignored else self.ignored
        kept = {word: each for word, each in merged.items() if each is not None}
        return replace(self, entries=kept, ignored=pattern, **fields)

    def marked(self, *words: str, **fields: Any) -> Names:
        """Return the same names, with these fields of some entries changed."""
        return self.but({word: replace(self.entries[word], **fields) for word in words})

    def extra_layers(self, container: str, config: ModelConfig) -> Iterator[str]:
        """Yield patterns of the tensors of layers behind the last one."""
        prefix = re.escape(self.gguf_layers if container == GGUF else self.layers)
        for layer in range(config.num_layers, config.num_layers + config.extra_layers):
            yield rf"^{prefix}\.{layer}\."

    def in_layout_of(self, container: str, tensors: Iterable[str]) -> Names:
        """Return the names of a file with these tensors."""
        found = [key for key in self.layouts if any(name.endswith(key) for name in tensors)]
        changes = {word: each for key in found for word, each in self.layouts[key].items()}
        return self.but({word: self._changed(container, word, each) for word, each in changes.items()})

    def _changed(self, container: str, word: str, change: TensorName | Stored) -> TensorName:
        if isinstance(change, TensorName):
            return change
        entry = self.entries[word]
        return replace(entry, gguf=change) if container == GGUF else replace(entry, safetensors=change)

    def full_name(self, container: str, stored: str, layer: int | None, kind: str) -> str:
        """Return the full name of the weight or bias (`kind`)."""
        prefix = self.gguf_layers if container == GGUF else self.layers
        name = stored if layer is None else f"{prefix}.{self.first + layer}.{stored}"
        return f"{name}.{kind}" if kind else name


@dataclass(frozen=True, slots=True)
class _Expected:
    """A tensor that the model has, or may have."""

    name: str  # in the graph: layers.3.attn.q
    tensor: str  # in the container
    shape: tuple[int, ...]
    transform: Transform
    required: bool = True
    stored: tuple[int, ...] | None = None  # the tensor's shape, if it is another


def bind_weights(
    checkpoint: CheckpointSource, config: ModelConfig, names: Names, *, is_part: bool = False
) -> dict[str, Weight]:
    """Return handles of all weights, by graph name. Reads no tensor except to compare a tied head with the table.

    `is_part`: the checkpoint has tensors of other parts too.
    """
    container = checkpoint.container
    tensors = join_tensors(checkpoint.tensors, config.quantization)
    if container == SAFETENSORS:
        tensors = _stack(_renamed(tensors, names), names.stacked)
    is_mxfp4 = config.quantization is not None and config.quantization.kind == MXFP4
    blocks = [key for key in names.layouts if key.endswith("_blocks")]
    names = names.in_layout_of(container, blocks if container == "dummy" and is_mxfp4 else tensors)
    if config.tied and "head" in names.entries:
        both = (_first(container, names, word) for word in ("embed", "head"))
        tensors, tied = tie(tensors, *both)
        config = replace(config, tied=tied)
    layers = (None, *range(config.num_layers))
    expected = [each for layer in layers for each in _expected(container, config, names, layer)]
    if container == "dummy":
        tensors = _random_tensors(expected, config)
    if missing := [each.tensor for each in expected if each.required and each.tensor not in tensors]:
        raise BadCheckpoint(f"The checkpoint lacks {_summary(missing)}.")
    known = {each.tensor for each in expected}
    is_ignored = re.compile("|".join([names.ignored.pattern, *names.extra_layers(container, config)])).search
    if unknown := [name for name in tensors if not is_part and name not in known and not is_ignored(name)]:
        raise BadCheckpoint(f"The checkpoint has {_summary(unknown)} that this architecture does not use.")
    shapes, found = _stored_shapes(expected), [each for each in expected if each.tensor in tensors]
    weights = {each.name: _handle(each, tensors[each.tensor], shapes[each.tensor]) for each in found}
    if config.tied and "head" in names.entries:
        weights["head"] = weights["embed"]
    return weights


def _renamed(tensors: Mapping[str, StoredTensor], names: Names) -> Mapping[str, StoredTensor]:
    """The tensors under the names in `entries`. A file of the model without its head has no prefix (`model.`)."""
    prefix, _, layers = names.layers.partition(".")
    if names.other_prefix:
        tensors = {re.sub(rf"^{names.other_prefix}\.", f"{prefix}.", name): tensors[name] for name in tensors}
    has_prefix = any(name.startswith(f"{prefix}.") for name in tensors)
    is_bare = not has_prefix and any(name.startswith(f"{layers}.") for name in tensors)
    if not is_bare and not names.renamed:
        return tensors
    own = [_first(SAFETENSORS, names, word) for word in ("head", "score") if word in names.entries]
    heads = (*own, *names.renamed)
    full = {f"{prefix}.{name}" if is_bare and name not in heads else name: tensor for name, tensor in tensors.items()}
    return {names.renamed.get(name, name): tensor for name, tensor in full.items()}


def _stack(tensors: Mapping[str, StoredTensor], stacked: frozenset[str]) -> Mapping[str, StoredTensor]:
    """The tensors, with those that are stored one by one under a number as one tensor."""
    if not stacked:
        return tensors
    ends = "|".join(re.escape(each).replace(r"\*", r"\d+") for each in sorted(stacked))
    pattern = re.compile(rf"(.*?)({ends})(\.\w+)$")
    whole: dict[str, StoredTensor] = {}
    parts: dict[str, dict[int, StoredTensor]] = {}  # by the name with `*`, then by the number
    for name, tensor in tensors.items():
        if match := pattern.match(name):
            before, stem, after = match.groups()
            number = _NUMBER.search(stem)
            assert number is not None
            parts.setdefault(f"{before}{_NUMBER.sub('.*', stem)}{after}", {})[int(number[0][1:])] = tensor
        else:
            whole[name] = tensor
    return {**whole, **{name.replace(".*", ""): _stacked(name, found) for name, found in parts.items()}}


def _stacked(name: str, found: Mapping[int, StoredTensor]) -> StackedTensor:
    """Tensors of the numbers 0, 1, …, as one. `name` has `*` for the number."""
    if missing := [name.replace("*", str(number)) for number in range(len(found)) if number not in found]:
        raise BadCheckpoint(f"The checkpoint lacks {_summary(missing)}.")
    parts = tuple(found[number] for number in range(len(found)))
    for each in parts[1:]:
        if (each.shape, each.format) != (parts[0].shape, parts[0].format):
            raise BadCheckpoint(
                f"The tensor {each.name} is {each.format} {format_shape(each.shape)}, and {parts[0].name} is "
                f"{parts[0].format} {format_shape(parts[0].shape)}: both must be alike."
            )
    return StackedTensor(name.replace(".*", ""), parts)


def _first(container: str, names: Names, word: str) -> str:
    stored = names.entries[word].stored(container)
    assert stored is not None
    return names.full_name(container, stored.name, None, "weight")


def _expected(container: str, config: ModelConfig, names: Names, layer: int | None) -> Iterator[_Expected]:
    """Yield the tensors of one layer, or with None those outside the layers."""
    sizes = config.sizes(layer)
    for word, entry in names.entries.items():
        stored = entry.stored(container)
        if stored is None or ("." in word) != (layer is not None):
            continue
        if entry.only is not None and not entry.only(config, layer or 0):
            continue
        name = word if layer is None else f"layers.{layer}.{word}"
        shape, transform = tuple(sizes[size] for size in entry.shape), stored.transform(sizes)
        tensor_shape = None if stored.shape is None else tuple(sizes[size] for size in stored.shape)
        tensor = names.full_name(container, stored.name, layer, entry.kind if stored.kind is None else stored.kind)
        if word != "head" or not config.tied:
            is_required = entry.in_all or container != GGUF
            yield _Expected(name, tensor, shape, transform, is_required, tensor_shape)
        # config.json declares the biases; in GGUF they are simply present or absent
        required = entry.biased or word in config.biased
        if required or (container == GGUF and layer is not None and len(shape) > 1):
            bias = names.full_name(container, stored.bias or stored.name, layer, "" if stored.bias else "bias")
            moved = Transform(rows=transform.rows, has_vectors=True)
            yield _Expected(f"{name}.bias", bias, shape[:-1] if len(shape) > 1 else shape, moved, required)


def _random_tensors(expected: list[_Expected], config: ModelConfig) -> dict[str, StoredTensor]:
    """Return random tensors: norms near 1, all else near 0, matrices of layers in the configured quantization."""

    quantization, spread = config.quantization, config.init_std

    def make(each: _Expected, shape: tuple[int, ...]) -> StoredTensor:
        if len(shape) == 1:
            return RandomTensor(each.tensor, shape, spread, 0.0 if each.name.endswith(".bias") else 1.0)
        is_matrix = "." in each.name and not each.name.endswith((".bias", ".router", ".kernel"))
        if quantization is None or not is_matrix or not quantization.covers(each.tensor.removesuffix(".weight")):
            return RandomTensor(each.tensor, shape, spread)
        if quantization.kind == FP8 and quantization.has_blocks and len(shape) == 3:
            return random_scaled(each.tensor, shape, spread, quantization.block)
        if quantization.kind == FP8:
            return RandomTensor(each.tensor, shape, spread, format=FLOAT8)
        if quantization.kind == MXFP4:
            return RandomTensor(each.tensor, shape, spread, format=MXFP4 if len(shape) == 3 else "bf16")
        return random_int4(each.tensor, shape, spread, quantization.group)

    shapes = _stored_shapes(expected)
    return {each.tensor: make(each, shapes[each.tensor]) for each in expected}


def stored_shapes(container: str, config: ModelConfig, names: Names) -> dict[str, tuple[int, ...]]:
    """Return the tensors that a checkpoint of this model must have, with their shapes in the container."""
    layers = (None, *range(config.num_layers))
    expected = (each for layer in layers for each in _expected(container, config, names, layer))
    return _stored_shapes([each for each in expected if each.required])


def _stored_shapes(expected: list[_Expected]) -> dict[str, tuple[int, ...]]:
    """Return the shapes by tensor. A tensor of several parts has as many rows as its last part needs."""
    shapes: dict[str, tuple[int, ...]] = {}
    for each in expected:
        rows, shape = each.transform.rows, each.stored or each.shape
        tall = shape if rows is None else _with_rows(shape, int(rows.max()) + 1, each.transform)
        shape = _turned(tall) if each.transform.transposed else tall
        shapes[each.tensor] = max(shapes.get(each.tensor, shape), shape)
    return shapes


def _turned(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with rows and columns exchanged."""
    return (*shape[:-2], *shape[:-3:-1])


def _with_rows(shape: tuple[int, ...], num_rows: int, transform: Transform) -> tuple[int, ...]:
    axis = len(shape) - (1 if transform.has_vectors or len(shape) == 1 else 2)
    return (*shape[:axis], num_rows, *shape[axis + 1 :])


def _handle(each: _Expected, tensor: StoredTensor, shape: tuple[int, ...]) -> Weight:
    if _without_ones(tensor.shape) != _without_ones(shape):
        found, expected = format_shape(tuple(tensor.shape)), format_shape(shape)
        raise BadCheckpoint(f"The tensor {each.tensor} is {found}; by the configuration it must be {expected}.")
    rows = each.transform.rows
    is_in_order = rows is not None and math.prod(each.shape) == math.prod(shape) and bool((np.diff(rows) == 1).all())
    transform = replace(each.transform, rows=None) if is_in_order else each.transform
    return transformed(each.name, each.shape, tensor, transform)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without leading axes of 1, which tools for GGUF files add and remove."""
    kept = tuple(itertools.dropwhile(lambda size: size == 1, shape))
    return kept or (1,)


def _summary(names: list[str], most: int = 5) -> str:
    """Format a list of names as `3 tensors (a, b, c)`."""
    shown = ", ".join(sorted(names)[:most]) + (", …" if len(names) > most else "")
    return f"{len(names)} tensor{'s' if len(names) > 1 else ''} ({shown})"
