"""The model graph and the methods that build it. A model file calls them once; the result is a list of frozen nodes.

A value is [tokens, dim], or [logits, dim] after the head; both sizes are known only when a step runs. Nodes refer to
weights by name: the same graph can be lowered with the weights of a checkpoint, a shard or a test. Shapes are checked
as each node is added, so an error names the weight instead of failing in a kernel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from quire.graph.weight import Weights
from quire.ops import add as residual
from quire.ops import attention, embed, gate, head, linear, norm, rope
from quire.ops.cache import CacheSpec
from quire.ops.registry import Op, Shape, ShapeError, format_shape
from quire.types.errors import QuireError

WeightNames = str | None | tuple[str | None, ...]  # the weights bound to one parameter of an op


class GraphError(QuireError):
    """A graph cannot be built: a weight is missing or has the wrong shape."""

    code = "invalid_model"


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

    def __str__(self) -> str:
        outputs = ", ".join(f"%{v.id} {format_shape(v.shape)}" for v in self.outputs)
        args = [f"%{v.id}" for v in self.inputs] + [f"{k}={v}" for k, v in {**self.weights, **self.attrs}.items()]
        args += [] if self.cache is None else [f"cache={self.cache}"]
        return f"{outputs} = {self.op.name}({', '.join(args)})"


@dataclass(frozen=True, slots=True)
class Defaults:
    """Attributes that all layers of a model share."""

    head_dim: int
    norm_eps: float
    attention_scale: float
    rope_scaling: float = 1.0


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer during drawing: completes the names of its weights and owns its cache."""

    index: int

    def __getitem__(self, word: str) -> str:
        return f"layers.{self.index}.{word}"


class Graph:
    """Nodes in execution order. Only the model that draws it, and passes, add to it."""

    def __init__(self, weights: Weights, defaults: Defaults) -> None:
        self.nodes: list[Node] = []
        self.caches: list[CacheSpec] = []
        self.defaults = defaults
        self._shapes: dict[str, Shape] = {name: tuple(weight.shape) for name, weight in weights.items()}
        self._cached_layers: set[int] = set()
        self._num_values = 0

    # --- methods for models

    def layers(self, count: int) -> Iterator[Layer]:
        """Yield the layers, in order."""
        return map(Layer, range(count))

    def embed(self, table: str) -> Value:
        """Look up the embeddings of the step's tokens."""
        return self._draw(embed.embed, {}, {"table": table})

    def rms_norm(self, x: Value, weight: str) -> Value:
        """Scale x to unit root mean square, times weight."""
        return self._draw(norm.rms_norm, {"x": x}, {"weight": weight}, eps=self.defaults.norm_eps)

    def rms_norm_heads(self, x: Value, weight: str) -> Value:
        """Apply rms_norm to each head, with one weight."""
        return self._draw(norm.rms_norm_heads, {"x": x}, {"weight": weight}, eps=self.defaults.norm_eps)

    def linear(self, x: Value, weight: str) -> Value:
        """Multiply x with a weight, and add its bias if the checkpoint has one."""
        return self._draw(linear.linear, {"x": x}, {"weight": weight, "bias": self._bias(weight)})

    def linear_split(self, x: Value, *weights: str) -> tuple[Value, ...]:
        """Apply several linears to one x."""
        bound: dict[str, WeightNames] = {"weights": weights, "biases": tuple(self._bias(name) for name in weights)}
        return self._draw_all(linear.linear_split, {"x": x}, bound)

    def rope(self, x: Value, frequencies: str = "rope.frequencies") -> Value:
        """Rotate every head of x by its token's position."""
        attrs = {"head_dim": self.defaults.head_dim, "scaling": self.defaults.rope_scaling, "interleaved": False}
        return self._draw(rope.rope, {"x": x}, {"frequencies": frequencies}, **attrs)

    def attention(self, q: Value, k: Value, v: Value, *, cache: Layer, window: int | None = None) -> Value:
        """Write k and v to the layer's cache; q attends to all tokens before it, or to the last `window`."""
        if cache.index in self._cached_layers:
            raise GraphError(f"layer {cache.index} attends twice: the second would overwrite the cache of the first")
        self._cached_layers.add(cache.index)
        head_dim = self.defaults.head_dim
        self.caches.append(CacheSpec("window" if window else "paged", k.dim // head_dim, head_dim, window))
        inputs = {"q": q, "k": k, "v": v}
        return self._draw(attention.attention, inputs, {}, scale=self.defaults.attention_scale)

    def silu_gate(self, x: Value, gate_weight: str, up_weight: str) -> Value:
        """silu(linear(x, gate)) * linear(x, up)."""
        biases = {"gate_bias": self._bias(gate_weight), "up_bias": self._bias(up_weight)}
        return self._draw(gate.silu_gate, {"x": x}, {"gate": gate_weight, "up": up_weight, **biases})

    def add(self, x: Value, y: Value) -> Value:
        """Add x and y."""
        return self._draw(residual.add, {"x": x, "y": y}, {})

    def logits(self, x: Value, weight: str) -> Value:
        """Compute the logits of the tokens in the step's `logits_at`."""
        return self._draw(head.logits, {"x": x}, {"weight": weight})

    # --- the finished graph

    @property
    def output(self) -> Value:
        """The last value: a model ends with its logits."""
        return self.nodes[-1].outputs[0]

    def weight_names(self) -> tuple[str, ...]:
        """Return every weight that a node uses, once, in order of first use."""
        bound = (names for node in self.nodes for names in node.weights.values())
        flat = (name for names in bound for name in (names if isinstance(names, tuple) else (names,)))
        return tuple(dict.fromkeys(name for name in flat if name is not None))

    def digest(self) -> str:
        """Return a hash that is equal for equal graphs: part of the cache key of lowered weights."""
        return hashlib.sha256(str(self).encode()).hexdigest()

    def __str__(self) -> str:
        weights = [f"{name} {format_shape(self._shapes[name])}" for name in self.weight_names()]
        caches = [f"cache {index} = {spec}" for index, spec in enumerate(self.caches)]
        return "\n".join([*weights, *caches, *map(str, self.nodes)])

    # --- adding nodes

    def _draw(self, op: Op, inputs: Mapping[str, Value], weights: Mapping[str, WeightNames], **attrs: Any) -> Value:
        (out,) = self._draw_all(op, inputs, weights, **attrs)
        return out

    def _draw_all(
        self, op: Op, inputs: Mapping[str, Value], weights: Mapping[str, WeightNames], **attrs: Any
    ) -> tuple[Value, ...]:
        """Check the shapes, then record the node."""
        args: dict[str, Any] = {name: value.shape for name, value in inputs.items()}
        args |= {name: self._shape_of(names) for name, names in weights.items()}
        args |= {name: ("logits" if name == "logits_at" else "tokens",) for name in op.reads}
        cache = len(self.caches) - 1 if op.uses_cache else None
        if cache is not None:
            args["cache"] = self.caches[cache]
        try:
            shapes = op.infer(**args, **attrs)
        except ShapeError as error:
            raise self._graph_error(error, op, inputs, weights) from None
        outputs = tuple(Value(self._num_values + i, shape) for i, shape in enumerate(shapes))
        self._num_values += len(outputs)
        frozen = (MappingProxyType(dict(weights)), MappingProxyType(attrs))
        self.nodes.append(Node(op, tuple(inputs[name] for name in op.inputs), *frozen, outputs, cache))
        return outputs

    def _shape_of(self, names: WeightNames) -> Any:
        if isinstance(names, tuple):
            return tuple(self._shape_of(name) for name in names)
        if names is None:
            return None
        if names not in self._shapes:
            raise GraphError(f"the model uses a weight {names!r} that the checkpoint does not have")
        return self._shapes[names]

    def _bias(self, weight: str) -> str | None:
        return f"{weight}.bias" if f"{weight}.bias" in self._shapes else None

    def _graph_error(
        self, error: ShapeError, op: Op, inputs: Mapping[str, Value], weights: Mapping[str, WeightNames]
    ) -> GraphError:
        """Describe a shape error to the user: name the weight or value instead of the op's parameter."""
        parameter, _, index = error.parameter.partition("[")
        bound = weights.get(parameter)
        name = bound[int(index[:-1])] if isinstance(bound, tuple) and index else bound
        subject = f"weight {name!r}" if name else f"input {parameter!r} (%{inputs[parameter].id})"
        expected, found = format_shape(error.expected), format_shape(error.found)
        return GraphError(f"{op.name}: {subject} must be {expected} and is {found}")
