"""Finds out whether the head of a model is its embedding table."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quire.graph.weight import StoredTensor
from quire.weights.quantized_tensors import GroupedInt4, ScaledTensor

COMPARED_BYTES = 1 << 20  # at a time, to stay in the CPU's cache


def tie(tensors: Mapping[str, StoredTensor], embed: str, head: str) -> tuple[Mapping[str, StoredTensor], bool]:
    """Return the tensors of a model with tied embeddings by its configuration, and whether they really are tied.

    As in transformers: a head that is stored and differs is used. If one of the two is missing, the other is both.
    """
    if head not in tensors:
        return tensors, True
    rest = {name: tensor for name, tensor in tensors.items() if name != head}
    if embed not in tensors:
        return {**rest, embed: tensors[head]}, True
    return (rest, True) if _are_equal(tensors[embed], tensors[head]) else (tensors, False)


def _are_equal(one: StoredTensor, other: StoredTensor) -> bool:
    """Return whether both have the same bytes. Reads up to the first difference; 1 GB of equal bytes takes 0.4 s.

    A tensor of several parts counts as different from any other: keeping both is always right.
    """
    is_whole = not isinstance(one, ScaledTensor | GroupedInt4) and not isinstance(other, ScaledTensor | GroupedInt4)
    if not is_whole or (one.format, one.shape) != (other.format, other.shape):
        return False
    left, right = one.data, other.data
    pieces = range(0, len(left), COMPARED_BYTES)
    return all(np.array_equal(left[at : at + COMPARED_BYTES], right[at : at + COMPARED_BYTES]) for at in pieces)
