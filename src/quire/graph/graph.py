"""The graph and the pen that draws it. A model file calls these methods once; what is left is a list of frozen nodes.

A value is [tokens, dim], or [logits, dim] behind the head; both sizes are known only when a step runs. Nodes name their
weights, they do not hold them: the same graph is lowered with the weights of a checkpoint, a shard or a test. Shapes
are checked as each node is drawn, so an error names the weight and not the kernel that would have met it.
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
from quire.ops.registry import Op, Shape, ShapeError, show
from quire.types.errors import QuireError

WeightNames = str | None | tuple[str | None, ...]  # what is bound to one parameter of an op


class GraphError(QuireError):
    """A graph cannot be drawn: a weight is missing or does not fit."""

    code = "invalid_model"


@dataclass(frozen=True, slots=True)
class Value:
    """What a node answers."""

    id: int
    shape: Shape  # ("tokens", dim) or ("logits", dim)

    @property
    def dim(self) -> int:
        return int(self.shape[-1])


@dataclass(frozen=True, slots=True)
class Node:
    """One op at work. `inputs` are in the order of op.inputs; weights and attrs are by parameter."""

    op: Op
    inputs: tuple[Value, ...]
    weights: Mapping[str, WeightNames]
    attrs: Mapping[str, Any]
    outputs: tuple[Value, ...]
    cache: int | None = None  # index into Graph.caches

    def __str__(self) -> str:
        outputs = ", ".join(f"%{v.id} {show(v.shape)}" for v in self.outputs)
        said = [f"%{v.id}" for v in self.inputs] + [f"{k}={v}" for k, v in {**self.weights, **self.attrs}.items()]
        said += [] if self.cache is None else [f"cache={self.cache}"]
        return f"{outputs} = {self.op.name}({', '.join(said)})"


@dataclass(frozen=True, slots=True)
class Defaults:
    """What all layers of a model have in common, so that its declaration need not repeat it."""

    head_dim: int
    norm_eps: float
    attention_scale: float
    rope_scaling: float = 1.0


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer while it is drawn: it completes the names of its weights and owns its cache."""

    index: int

    def __getitem__(self, word: str) -> str:
        return f"layers.{self.index}.{word}"


class Graph:
    """Nodes in the order in which they can run. Only the model that draws it, and passes, add to it."""

    def __init__(self, weights: Weights, defaults: Defaults) -> None:
        self.nodes: list[Node] = []
        self.caches: list[CacheSpec] = []
        self.defaults = defaults
        self._shapes: dict[str, Shape] = {name: tuple(weight.shape) for name, weight in weights.items()}
        self._cached_layers: set[int] = set()
        self._num_values = 0

    # --- the pen

    def layers(self, count: int) -> Iterator[Layer]:
        """One after the other."""
        return map(Layer, range(count))

    def embed(self, table: str) -> Value:
        """The step's tokens as vectors."""
        return self._draw(embed.embed, {}, {"table": table})

    def rms_norm(self, x: Value, weight: str) -> Value:
        """Unit root mean square, times weight."""
        return self._draw(norm.rms_norm, {"x": x}, {"weight": weight}, eps=self.defaults.norm_eps)

    def rms_norm_heads(self, x: Value, weight: str) -> Value:
        """rms_norm of each head with the same weight."""
        return self._draw(norm.rms_norm_heads, {"x": x}, {"weight": weight}, eps=self.defaults.norm_eps)

    def linear(self, x: Value, weight: str) -> Value:
        """x times a weight, plus its bias if the checkpoint has one."""
        return self._draw(linear.linear, {"x": x}, {"weight": weight, "bias": self._bias(weight)})

    def linear_split(self, x: Value, *weights: str) -> tuple[Value, ...]:
        """Several linears of one x."""
        bound: dict[str, WeightNames] = {"weights": weights, "biases": tuple(self._bias(name) for name in weights)}
        return self._draw_all(linear.linear_split, {"x": x}, bound)

    def rope(self, x: Value, frequencies: str = "rope.frequencies") -> Value:
        """Turn every head of x by its token's position."""
        attrs = {"head_dim": self.defaults.head_dim, "scaling": self.defaults.rope_scaling, "interleaved": False}
        return self._draw(rope.rope, {"x": x}, {"frequencies": frequencies}, **attrs)

    def attention(self, q: Value, k: Value, v: Value, *, cache: Layer, window: int | None = None) -> Value:
        """Keep k and v in the layer's cache, and let q see all that came before, or the last `window` of it."""
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
        """x + y"""
        return self._draw(residual.add, {"x": x, "y": y}, {})

    def logits(self, x: Value, weight: str) -> Value:
        """The distribution over the vocabulary, for the tokens that the step chose."""
        return self._draw(head.logits, {"x": x}, {"weight": weight})

    # --- what is drawn

    @property
    def output(self) -> Value:
        """The last value: a model ends with its logits."""
        return self.nodes[-1].outputs[0]

    def weight_names(self) -> tuple[str, ...]:
        """Every weight that a node uses, once, in order of first use."""
        bound = (names for node in self.nodes for names in node.weights.values())
        flat = (name for names in bound for name in (names if isinstance(names, tuple) else (names,)))
        return tuple(dict.fromkeys(name for name in flat if name is not None))

    def digest(self) -> str:
        """Equal for equal graphs: part of the key under which a device keeps what it lowered."""
        return hashlib.sha256(str(self).encode()).hexdigest()

    def __str__(self) -> str:
        weights = [f"{name} {show(self._shapes[name])}" for name in self.weight_names()]
        caches = [f"cache {index} = {spec}" for index, spec in enumerate(self.caches)]
        return "\n".join([*weights, *caches, *map(str, self.nodes)])

    # --- drawing

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
            raise self._explained(error, op, inputs, weights) from None
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

    def _explained(
        self, error: ShapeError, op: Op, inputs: Mapping[str, Value], weights: Mapping[str, WeightNames]
    ) -> GraphError:
        """A parameter's name means nothing to a user: say which weight, or which value, it is."""
        parameter, _, index = error.parameter.partition("[")
        bound = weights.get(parameter)
        name = bound[int(index[:-1])] if isinstance(bound, tuple) and index else bound
        who = f"weight {name!r}" if name else f"input {parameter!r} (%{inputs[parameter].id})"
        return GraphError(f"{op.name}: {who} must be {show(error.expected)} and is {show(error.found)}")
