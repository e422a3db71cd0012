"""The parts of a graph: values, and the nodes that compute them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.ops.registry import Op, Shape, format_shape

WeightNames = str | None | tuple[str | None, ...]  # the weights bound to one parameter of an op


@dataclass(frozen=True, slots=True)
class Value:
    """An output of a node."""

    id: int
    shape: Shape  # ("tokens", dim) or ("logits", dim)

    @property
    def dim(self) -> int:
        return int(self.shape[-1])


@dataclass(frozen=True, slots=True)
class Node:
    """One use of an op. `inputs` are in the order of op.inputs; weights and attrs are by parameter."""

    op: Op
    inputs: tuple[Value, ...]
    weights: Mapping[str, WeightNames]
    attrs: Mapping[str, Any]
    outputs: tuple[Value, ...]
    cache: int | None = None  # index into Graph.caches

    @property
    def output(self) -> Value:
        """The only output."""
        (out,) = self.outputs
        return out

    def input(self, name: str) -> Value:
        """The value bound to this parameter of the op."""
        return self.inputs[self.op.inputs.index(name)]

    def __str__(self) -> str:
        outputs = ", ".join(f"%{v.id} {format_shape(v.shape)}" for v in self.outputs)
        arguments = [f"%{v.id}" for v in self.inputs]
        arguments += [f"{k}={v}" for k, v in {**self.weights, **self.attrs}.items() if v is not None]
        arguments += [] if self.cache is None else [f"cache={self.cache}"]
        return f"{outputs} = {self.op.name}({', '.join(arguments)})"
