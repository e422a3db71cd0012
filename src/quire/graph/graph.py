"""The model graph and the methods that build it. A model file calls them once; the result is a list of frozen nodes.

A value is [tokens, dim], or [logits, dim] after `select`; both row counts are known only when a step runs. Nodes name
their weights and do not hold them: the same graph is lowered with the weights of a checkpoint, a shard or a test.
Shapes are checked as each node is drawn, so an error names the weight, not the kernel that would fail.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from quire.graph.node import Node, Value, WeightNames
from quire.graph.weight import Weights
from quire.ops import attention, elementwise, embed, experts, features, latent, linear, norm, pool, rope, route, select
from quire.ops.cache import CacheSpec, PagedKV, State
from quire.ops.delta_rule import delta_rule, log_decay
from quire.ops.registry import Op, Shape, ShapeError, format_shape
from quire.ops.short_conv import short_conv
from quire.ops.state_scan import state_scan
from quire.types.errors import QuireError

OutputKind = Literal["logits", "pooled", "scores", "hidden"]  # a row for each logit, pool or (hidden) token of a step
ANSWERS = "answers"  # the rows of the head by which a decoder judges
ROWS = {"logits_at": "logits", "pools": "pooled"}  # arrays of a step that have another length than its tokens
__all__ = ["Graph", "Node", "Value", "WeightNames"]


class GraphError(QuireError):
    """A graph cannot be built: a weight is missing or has the wrong shape."""

    code = "invalid_model"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer during drawing: completes the names of its weights."""

    index: int

    def __getitem__(self, word: str) -> str:
        return f"layers.{self.index}.{word}"


@dataclass(frozen=True, slots=True)
class Cache:
    """A KV cache of the graph. One attention writes it; attention_shared of later layers may read it too."""

    index: int
    spec: CacheSpec


@dataclass(frozen=True, slots=True)
class ExpertChoice:
    """The experts of every token: their weights and their numbers, best first."""

    weights: Value
    experts: Value


@dataclass(slots=True)
class Graph:
    """Nodes in execution order. Only the model that draws it, and passes, add to it."""

    shapes: Mapping[str, Shape]  # of the weights, by name
    nodes: list[Node] = field(default_factory=list)
    caches: list[CacheSpec] = field(default_factory=list)
    outputs: dict[OutputKind, Value] = field(default_factory=dict)
    pools: bool = False  # a decoder that is drawn here also pools its tokens' vectors
    layer_inputs: list[Value] = field(default_factory=list)  # what was drawn last before each layer
    _written: set[int] = field(default_factory=set)
    _num_values: int = 0

    @classmethod
    def over(cls, weights: Weights) -> Graph:
        """Return an empty graph over these weights."""
        return cls({name: tuple(weight.shape) for name, weight in weights.items()})

    def rewritten(self, nodes: Iterable[Node]) -> Graph:
        """Return a graph with these nodes, and the same caches and outputs."""
        return replace(
            self, nodes=list(nodes), outputs=dict(self.outputs), layer_inputs=[], _written=set(self._written)
        )

    # --- methods for models

    def layers(self, count: int) -> Iterator[Layer]:
        """Yield the layers, in order."""
        for index in range(count):
            self.layer_inputs += self.nodes[-1].outputs[:1] if self.nodes else ()
            yield Layer(index)

    def embed(self, table: str) -> Value:
        """Look up the embeddings of the step's tokens."""
        return self.draw(embed.embed, {}, {"table": table})

    def features(self, dim: int) -> Value:
        """The rows that come with the step's tokens."""
        return self.draw(features.features, {}, {}, dim=dim)

    def concat(self, x: Value, y: Value) -> Value:
        """Return x and y side by side."""
        return self.draw(features.concat, {"x": x, "y": y}, {})

    def embed_positions(self, table: str, *, offset: int = 0) -> Value:
        """Look up the learned embeddings of the step's positions."""
        return self.draw(embed.embed_positions, {}, {"table": table}, offset=offset)

    def rms_norm(self, x: Value, weight: str | None, *, eps: float, group: int = 0) -> Value:
        """Scale x, or each `group` of its numbers, to unit root mean square, times weight."""
        return self.draw(norm.rms_norm, {"x": x}, {"weight": weight}, eps=eps, group=group)

    def layer_norm(self, x: Value, weight: str | None, *, eps: float, group: int = 0) -> Value:
        """Shift and scale x to mean 0 and variance 1, times weight, plus its bias if the checkpoint has one."""
        bound = {"weight": weight, "bias": self._bias(weight)}
        return self.draw(norm.layer_norm, {"x": x}, bound, eps=eps, group=group)

    def linear(self, x: Value, weight: str) -> Value:
        """Multiply x with a weight, and add its bias if the checkpoint has one."""
        return self.draw(linear.linear, {"x": x}, {"weight": weight, "bias": self._bias(weight)})

    def rope(self, x: Value, frequencies: str, *, head_dim: int, scaling: float = 1.0,
             interleaved: bool = False) -> Value:  # fmt: skip
        """Rotate every head of x by its token's position."""
        attrs = {"head_dim": head_dim, "scaling": scaling, "interleaved": interleaved}
        return self.draw(rope.rope, {"x": x}, {"frequencies": frequencies}, **attrs)

    def scale_by_position(self, x: Value, *, beta: float, span: int, shift: int = 0) -> Value:
        """Multiply x with a factor that grows with the logarithm of the position."""
        return self.draw(rope.scale_by_position, {"x": x}, {}, beta=beta, span=span, shift=shift)

    def cache(self, spec: CacheSpec) -> Cache:
        """Declare a KV cache."""
        self.caches.append(spec)
        return Cache(len(self.caches) - 1, spec)

    def attention(self, q: Value, k: Value, v: Value, cache: Cache, *, scale: float, **extras: Any) -> Value:
        """Write k and v to the cache; q attends to what it may read. `extras`: softcap; names of sinks, slopes, …"""
        self._mark_written(cache)
        return self._attend(attention.attention, {"q": q, "k": k, "v": v}, cache, scale=scale, **extras)

    def attention_shared(self, q: Value, cache: Cache, *, scale: float, **extras: Any) -> Value:
        """Attend over the cache of an earlier layer, without writing."""
        if cache.index not in self._written:
            raise GraphError(f"a layer reads the cache {cache.index} before any layer writes it")
        return self._attend(attention.attention_shared, {"q": q}, cache, scale=scale, **extras)

    def attention_latent(
        self,
        queries: tuple[Value, Value],
        stored: tuple[Value, Value],
        cache: Cache,
        names: tuple[str, str],
        scale: float,
    ) -> Value:
        """Store a latent and a rotated key; queries (plain part, rotated part) attend to all that the cache holds.

        `names`: of the weights that make keys and values of latents.
        """
        self._mark_written(cache)
        inputs = dict(zip(("q", "q_rope", "latent", "k_rope"), (*queries, *stored), strict=True))
        weights = dict(zip(("keys", "values"), names, strict=True))
        node = self.node(latent.attention_latent, inputs, weights, {"scale": scale}, cache=cache.index)
        self.nodes.append(node)
        return node.output

    def route(self, x: Value, weight: str, *, correction: str | None = None, expert_scale: str | None = None,
              **attrs: Any) -> ExpertChoice:  # fmt: skip
        """Choose experts for every token; add the bias of the router if the checkpoint has one."""
        weights = {"weight": weight, "bias": self._bias(weight), "correction": correction, "expert_scale": expert_scale}
        node = self.node(route.route, {"x": x}, weights, attrs)
        self.nodes.append(node)
        return ExpertChoice(*node.outputs)

    def experts(self, x: Value, choice: ExpertChoice, names: tuple[str | None, str, str], **attrs: Any) -> Value:
        """The weighted sum of the chosen experts' answers. `names`: of gate (None: there is none), up and down."""
        words = ("gate", "up", "down")
        weights: dict[str, WeightNames] = dict(zip(words, names, strict=True))
        weights |= {f"{word}_bias": self._bias(name) for word, name in zip(words, names, strict=True)}
        inputs = {"x": x, "weights": choice.weights, "chosen": choice.experts}
        return self.draw(experts.experts, inputs, weights, **attrs)

    def short_conv(self, x: Value, weight: str) -> Value:
        """A weighted sum of every column's last tokens, plus its bias if the checkpoint has one."""
        dim, taps = self.shapes[weight]
        bound = {"weight": weight, "bias": self._bias(weight)}
        return self._recur(short_conv, {"x": x}, State((int(dim), int(taps) - 1)), bound)

    def delta_rule(self, qkv: tuple[Value, Value, Value], decay: Value, beta: Value, state: State,
                   **attrs: Any) -> Value:  # fmt: skip
        """Linear attention by the gated delta rule. `state`: heads, key_dim, value_dim."""
        inputs = dict(zip("qkv", qkv, strict=True)) | {"decay": decay, "beta": beta}
        return self._recur(delta_rule, inputs, state, {}, **attrs)

    def log_decay(self, x: Value, rate: str, bias: str) -> Value:
        """How much a state keeps, as a logarithm: rate * softplus(x + bias)."""
        return self.draw(log_decay, {"x": x}, {"rate": rate, "bias": bias})

    def state_scan(self, xbc: tuple[Value, Value, Value], dt: Value, state: State,
                   names: tuple[str, str | None, str | None], **attrs: Any) -> Value:  # fmt: skip
        """The scan of Mamba. `state`: heads, dim, size; `names`: of rate, bias of dt, and skip."""
        inputs = dict(zip("xbc", xbc, strict=True)) | {"dt": dt}
        weights: dict[str, WeightNames] = dict(zip(("rate", "bias", "skip"), names, strict=True))
        return self._recur(state_scan, inputs, state, weights, **attrs)

    def activation(self, x: Value, kind: str) -> Value:
        """Apply a function to every number: silu, gelu, …"""
        return self.draw(elementwise.activation, {"x": x}, {}, kind=kind)

    def xielu(self, x: Value, positive: str, negative: str, *, beta: float, eps: float) -> Value:
        """Apply the activation of Apertus."""
        weights = {"positive": positive, "negative": negative}
        return self.draw(elementwise.xielu, {"x": x}, weights, beta=beta, eps=eps)

    def add(self, x: Value, y: Value) -> Value:
        """Add x and y."""
        return self.draw(elementwise.add, {"x": x, "y": y}, {})

    def multiply(self, x: Value, y: Value) -> Value:
        """Multiply x and y, number by number."""
        return self.draw(elementwise.multiply, {"x": x, "y": y}, {})

    def scale(self, x: Value, factor: float) -> Value:
        """Multiply x with a number; return x itself if that is 1."""
        return x if factor == 1.0 else self.draw(elementwise.scale, {"x": x}, {}, factor=factor)

    def scale_rows(self, x: Value, y: Value) -> Value:
        """Multiply x with one number for each token."""
        return self.draw(elementwise.scale_rows, {"x": x, "y": y}, {})

    def scale_by(self, x: Value, weight: str) -> Value:
        """Multiply x with a weight of one number, or of one number for each column."""
        return self.draw(elementwise.scale_by, {"x": x}, {"weight": weight})

    def softcap(self, x: Value, cap: float | None) -> Value:
        """Return cap * tanh(x / cap), or x itself without a cap."""
        return x if not cap else self.draw(elementwise.softcap, {"x": x}, {}, cap=cap)

    def clamp(self, x: Value, limit: float | None) -> Value:
        """Clip x to -limit .. limit; return x itself without a limit."""
        return x if not limit else self.draw(elementwise.clamp, {"x": x}, {}, limit=limit)

    def columns(self, x: Value, start: int, width: int) -> Value:
        """Select some columns of x."""
        return self.draw(elementwise.columns, {"x": x}, {}, start=start, width=width)

    def logits(self, x: Value, head: str, *, factor: float = 1.0, cap: float | None = None) -> Value:
        """Compute the logits of the tokens in `logits_at`, the scores or vectors of the step's `pools`, or both."""
        self.layer_inputs.append(x)
        if self.pools:
            vectors = self.draw(pool.pool, {"x": x}, {})
            out = self.linear(vectors, "score") if "score" in self.shapes else vectors
            if ANSWERS in self.shapes:
                out = self.softcap(self.scale(self.linear(vectors, ANSWERS), factor), cap)
            self.outputs["pooled" if out is vectors else "scores"] = out
            if head not in self.shapes:
                return out
        chosen = self.draw(select.select, {"x": x}, {})
        out = self.softcap(self.scale(self.linear(chosen, head), factor), cap)
        self.outputs["logits"] = out
        return out

    # --- the finished graph

    @property
    def output(self) -> Value:
        """The logits, or what else it computes, or the last value of a graph without outputs."""
        computed = [value for kind, value in self.outputs.items() if kind != "hidden"]
        return computed[-1] if computed else self.nodes[-1].outputs[0]

    @property
    def hidden_outputs(self) -> tuple[Value, ...]:
        """The outputs that are hidden rows of all tokens."""
        return tuple(value for kind, value in self.outputs.items() if kind == "hidden")

    def weight_names(self) -> tuple[str, ...]:
        """Return every weight that a node uses, once, in order of first use."""
        bound = (names for node in self.nodes for names in node.weights.values())
        flat = (name for names in bound for name in (names if isinstance(names, tuple) else (names,)))
        return tuple(dict.fromkeys(name for name in flat if name is not None))

    def kv_of(self, node: Node) -> PagedKV:
        """The cache of keys and values of an attention node."""
        assert node.cache is not None
        spec = self.caches[node.cache]
        assert isinstance(spec, PagedKV)
        return spec

    def digest(self) -> str:
        """Return a hash that is equal for equal graphs: part of the cache key of lowered weights."""
        return hashlib.sha256(str(self).encode()).hexdigest()

    def __str__(self) -> str:
        weights = [f"{name} {format_shape(self.shapes[name])}" for name in self.weight_names()]
        caches = [f"cache {index} = {spec}" for index, spec in enumerate(self.caches)]
        return "\n".join([*weights, *caches, *map(str, self.nodes)])

    # --- adding nodes

    def draw(self, op: Op, inputs: Mapping[str, Value], weights: Mapping[str, WeightNames], **attrs: Any) -> Value:
        """Add a node with one output."""
        node = self.node(op, inputs, weights, attrs)
        self.nodes.append(node)
        return node.output

    def node(
        self,
        op: Op,
        inputs: Mapping[str, Value],
        weights: Mapping[str, WeightNames],
        attrs: Mapping[str, Any],
        *,
        cache: int | None = None,
        outputs: Sequence[Value] | None = None,
    ) -> Node:
        """Check the shapes and make a node. `outputs`: the values that it computes, if they exist already."""
        args: dict[str, Any] = {name: value.shape for name, value in inputs.items()}
        args |= {name: self._shape_of(names) for name, names in weights.items()}
        args |= {name: (ROWS.get(name, "tokens"),) for name in op.reads}
        if op.uses_cache and cache is not None:
            args["cache"] = self.caches[cache]
        try:
            shapes = op.infer(**args, **attrs)
        except ShapeError as error:
            raise self._explained(error, op, inputs, weights) from None
        if outputs is None:
            outputs = [Value(self._num_values + i, shape) for i, shape in enumerate(shapes)]
            self._num_values += len(outputs)
        elif [value.shape for value in outputs] != list(shapes):
            raise GraphError(f"{op.name} cannot compute values of other shapes")
        frozen = (MappingProxyType(dict(weights)), MappingProxyType(dict(attrs)))
        return Node(op, tuple(inputs[name] for name in op.inputs), *frozen, tuple(outputs), cache)

    def _mark_written(self, cache: Cache) -> None:
        if cache.index in self._written:
            raise GraphError(f"two layers write the cache {cache.index}: the second would overwrite the first")
        self._written.add(cache.index)

    def _attend(self, op: Op, inputs: Mapping[str, Value], cache: Cache, **given: Any) -> Value:
        weights = {name: given.pop(name, None) for name in op.weights}
        attrs = {"scale": given.pop("scale"), "softcap": given.pop("softcap", None) or 0.0}
        if given:
            raise TypeError(f"{op.name} has no parameter {', '.join(given)}")
        node = self.node(op, inputs, weights, attrs, cache=cache.index)
        self.nodes.append(node)
        return node.output

    def _recur(
        self, op: Op, inputs: Mapping[str, Value], state: State, weights: Mapping[str, WeightNames], **attrs: Any
    ) -> Value:
        """Add a node with a state of its own."""
        cache = self.cache(state)
        self._mark_written(cache)
        node = self.node(op, inputs, weights, attrs, cache=cache.index)
        self.nodes.append(node)
        return node.output

    def _shape_of(self, names: WeightNames) -> Any:
        if isinstance(names, tuple):
            return tuple(self._shape_of(name) for name in names)
        if names is None:
            return None
        if names not in self.shapes:
            raise GraphError(f"the model uses a weight {names!r} that the checkpoint does not have")
        return self.shapes[names]

    def _bias(self, weight: str | None) -> str | None:
        return f"{weight}.bias" if f"{weight}.bias" in self.shapes else None

    def _explained(
        self, error: ShapeError, op: Op, inputs: Mapping[str, Value], weights: Mapping[str, WeightNames]
    ) -> GraphError:
        """Describe a shape error to the user: name the weight or value instead of the op's parameter."""
        parameter, _, index = error.parameter.partition("[")
        bound = weights.get(parameter)
        name = bound[int(index[:-1])] if isinstance(bound, tuple) and index else bound
        operand = f"weight {name!r}" if name else f"input {parameter!r} (%{inputs[parameter].id})"
        return GraphError(
            f"{op.name}: {operand} must be {format_shape(error.expected)} and is {format_shape(error.found)}"
        )
