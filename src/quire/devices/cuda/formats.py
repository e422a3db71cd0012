"""The formats in which a program multiplies with its matrices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod

from torch import Tensor

from .experts import Experts
from .instructions import AddProduct, Attend, Gate, Head, Instruction
from .int4 import Int4Linear
from .latent import AttendLatent
from .linear import Linear
from .plain import Multiply


def matrix_formats(instructions: Sequence[Instruction]) -> dict[str, int]:
    """Return the weights of all matrices, the head included, by the format in which they are multiplied."""
    found: Counter[str] = Counter()
    for each in instructions:
        linear = each.linear if isinstance(each, Attend | AddProduct | Gate | Head | Multiply) else None
        if isinstance(each, Experts):
            for part in (each.linear.inward, each.linear.outward):
                found[part.format_name] += part.num_weights
        elif isinstance(linear, Int4Linear):
            found["int4"] += prod(linear.weight.shape)
        elif isinstance(linear, Linear):
            found[_format(linear.weight)] += linear.weight.numel()
        if isinstance(each, AttendLatent):
            found[_format(each.keys)] += each.keys.numel() + each.values.numel()
    return dict(found)


def _format(weight: Tensor) -> str:
    return str(weight.dtype).removeprefix("torch.")
