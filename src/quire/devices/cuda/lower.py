"""Lowers a graph to instructions: passes rewrite the graph, then every node becomes one instruction.

Passes (graph/passes) narrow the tail to the tokens that yield logits, and fuse what kernels compute together:

qkv_attention      one product, one kernel with norms of heads, rope and the KV write, and attention
gated_linear       one product over both matrices, or one kernel with the activation
linear_add         the sum is the last stage of the product, or the first of the next norm; also with a norm of the
                   product (normed_linear_add) or a factor (scaled_linear_add)
gated_delta_rule   the delta rule with what its decay and its beta are made of; activated_short_conv, gated_norm
experts_add        the sum of the experts' answers is added to the residual
normed_route       the RMS norm and the choice of experts are one kernel
activated_linear, head, scaled_embed    what follows a product or a lookup
normed_…, and the norm of qkv_attention the RMS norm is part of the product, or of the kernel that adds the residual

An op that no rule fuses has a plain instruction (plain.py). Whether a value is read again is known here: a sum is in
place unless the residual is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.devices._triton.elementwise import NO_NUMBERS
from quire.devices._triton.norm import Norm
from quire.devices._triton.rope import HeadNorm, Heads, RopeTables
from quire.devices.errors import NoKernel
from quire.graph.graph import Graph, Node, Value
from quire.ops.cache import Latent

from .attention import lower_attention, lower_bidirectional, terms_of
from .caches import Caches
from .encoder import EmbedTypes, Pool
from .expert_tiles import ExpertTiles
from .experts import lower_experts, lower_route
from .extra_rows import Concatenate, ReadFeatures, RowBuffers, StoreHidden
from .instructions import AddProduct, Attend, Embed, Forget, Gate, Head, Instruction, Select
from .latent import lower_latent
from .linear import Multiplies, Prefetches
from .plain import (
    EmbedPositions,
    Map,
    Multiply,
    Normalize,
    ProductColumns,
    Rotate,
    ScaleByPosition,
    SelectColumns,
    SplitProduct,
)
from .recurrent import lower_decay, lower_gated_norm, lower_recurrent
from .sources import lower_attention_source, lower_shift_tokens
from .values import MAPPED, RECURRENT, SUMS, HeldValues
from .weights import Placer

NO_ROWS = RowBuffers()
AHEAD_BYTES = 4 << 20  # more would delay what the running product still reads, and evict it from the cache


class Lowering:
    """Makes the instructions of a graph. What depends on a node's neighbours is the life of its values alone."""

    def __init__(
        self,
        graph: Graph,
        placer: Placer,
        caches: Caches,
        num_positions: int,
        fixed_chunk: int | None,
        rows: RowBuffers = NO_ROWS,
    ) -> None:
        self.graph, self.placer, self.caches = graph, placer, caches
        self.num_positions, self.fixed_chunk = num_positions, fixed_chunk
        self.values = HeldValues(graph)
        self._turns: dict[tuple[str | None, float], RopeTables] = {}
        self.expert_tiles = ExpertTiles(placer.tiles.is_fixed)
        self.rows = rows
        self.rows_of: dict[str, set[int]] = {}  # indices of instructions by the rows that they compute

    def walk(self) -> list[Instruction]:
        """Return all instructions, including those that free values."""
        instructions: list[Instruction] = []
        for node in self.graph.nodes:
            emit = EMIT.get(node.op.name)
            if emit is None:
                raise NoKernel(f"The op {node.op.name} has no kernel on this device.")
            begin, made = len(instructions), emit(self, node)
            instructions += made if isinstance(made, list) else [made]
            for value in set(node.outputs).intersection(self.graph.hidden_outputs):
                assert self.rows.hidden is not None
                instructions.append(StoreHidden(value.id, self.rows.hidden))
            if values := self.values.last_read_by(node):
                instructions.append(Forget(values))
            self.rows_of.setdefault(str(node.outputs[0].shape[0]), set()).update(range(begin, len(instructions)))
        look_ahead([each.linear for each in instructions if hasattr(each, "linear")])
        return instructions

    def is_last_reader(self, node: Node, value: Value) -> bool:
        """Is a value read by no later node, and no output of the graph?"""
        return self.values.is_last_reader(node, value)

    def is_float32(self, value: Value) -> bool:
        """Is a value in float32, whatever the format of activations?"""
        return self.values.is_float32(value)

    # --- weights

    def vector(self, node: Node, parameter: str) -> Tensor | None:
        """Place a vector, if there is one, in float32."""
        name = node.weights.get(parameter)
        return self.placer.vector(name) if isinstance(name, str) else None

    def norm(self, node: Node, parameter: str = "norm") -> Norm | None:
        """The RMS norm that a fused node has; its weight is bound to this parameter."""
        weight = self.vector(node, parameter)
        return None if weight is None else Norm(weight, node.attrs["eps"])

    def matrix(self, node: Node, kind: str = "") -> Multiplies:
        """Place the matrix of a linear. That of the logits is not quantized."""
        name, bias = name_of(node, "weight"), node.weights["bias"]
        assert bias is None or isinstance(bias, str)
        if self.is_float32(node.output):
            return self.placer.head(name, bias)
        return self.placer.matrix((name,), (bias,), kind)

    def reads_fp8(self, value: Value) -> bool:
        """Do FP8 products that add to a residual read a value, and nothing else?"""
        readers = self.values.readers.get(value.id, [])
        return bool(readers) and all(
            node.op.name in SUMS and node.input("residual") != value and self.placer.is_fp8((name_of(node, "weight"),))
            for node in readers
        )

    def turns(self, node: Node) -> RopeTables:
        """Return the cosines and sines of all positions, computed once, in float64 like the reference."""
        name, scaling = node.weights["frequencies"], float(node.attrs["scaling"])
        assert name is None or isinstance(name, str)
        if (name, scaling) not in self._turns:
            frequencies = np.zeros(0, np.float32) if name is None else self.placer.weights[name].float32()
            angles = (np.arange(self.num_positions, dtype=np.float32)[:, None] * frequencies).astype(np.float64)
            both = ((f(angles) * scaling).astype(np.float32) for f in (np.cos, np.sin))
            cos, sin = (torch.from_numpy(each).to(self.placer.device) for each in both)
            self._turns[name, scaling] = RopeTables(cos, sin)
        return self._turns[name, scaling]._replace(interleaved=node.attrs["interleaved"])


# --- plain ops


def _embed(lowering: Lowering, node: Node) -> Instruction:
    return Embed(lowering.placer.table(name_of(node, "table")), node.output.id, float(node.attrs.get("factor", 1.0)))


def _features(lowering: Lowering, node: Node) -> Instruction:
    assert lowering.rows.features is not None
    return ReadFeatures(lowering.rows.features, node.output.id)


def _concat(lowering: Lowering, node: Node) -> Instruction:
    x, y = node.inputs
    return Concatenate(x.id, y.id, node.output.id)


def _embed_positions(lowering: Lowering, node: Node) -> Instruction:
    return EmbedPositions(lowering.placer.table(name_of(node, "table")), node.attrs["offset"], node.output.id)


def _embed_types(lowering: Lowering, node: Node) -> Instruction:
    return EmbedTypes(lowering.placer.table(name_of(node, "table")), node.output.id)


def _pool(lowering: Lowering, node: Node) -> Instruction:
    return Pool(node.inputs[0].id, node.output.id, torch.float32 if lowering.is_float32(node.output) else None)


def _select(lowering: Lowering, node: Node) -> Instruction:
    (x,) = node.inputs
    return Select(x.id, node.output.id, copies=not lowering.is_last_reader(node, x))


def _norm(lowering: Lowering, node: Node) -> Instruction:
    group, weight, bias = node.attrs["group"], lowering.vector(node, "weight"), lowering.vector(node, "bias")
    if weight is None:
        weight = torch.ones(group or node.output.dim, device=lowering.placer.device)
    norm = Norm(weight, node.attrs["eps"], bias, "layer" if node.op.name == "layer_norm" else "rms")
    (x,) = node.inputs
    return Normalize(x.id, norm, group, node.output.id, keeps=not lowering.is_last_reader(node, x))


def _linear(lowering: Lowering, node: Node) -> Instruction:
    """linear, activated_linear and normed_linear."""
    kind = node.attrs.get("kind", "")
    dtype = torch.float32 if lowering.is_float32(node.output) else None
    linear = lowering.matrix(node, kind)
    return Multiply(node.inputs[0].id, lowering.norm(node), linear, node.output.id, kind, dtype)


def _rope(lowering: Lowering, node: Node) -> Instruction:
    return Rotate(node.inputs[0].id, lowering.turns(node), node.attrs["head_dim"], node.output.id)


def _scale_by_position(lowering: Lowering, node: Node) -> Instruction:
    """The reference makes the table: x = 1 at every position."""
    positions = np.arange(lowering.num_positions, dtype=np.int32)
    factors = node.op(np.ones((len(positions), 1), np.float32), positions, **node.attrs)[:, 0]
    table = torch.from_numpy(np.ascontiguousarray(factors)).to(lowering.placer.device)
    return ScaleByPosition(node.inputs[0].id, table, node.output.id)


def _map(lowering: Lowering, node: Node) -> Instruction:
    x, out, kind = node.inputs[0], node.output, node.op.name
    if lowering.values.is_view(node):
        return SelectColumns(x.id, node.attrs["start"], out.dim, out.id)
    other = node.inputs[1].id if len(node.inputs) > 1 else None
    attrs, numbers = node.attrs, NO_NUMBERS
    if kind == "activation":
        kind = attrs["kind"]
    elif kind == "columns":
        kind = "copy"
    elif kind == "softcap":
        numbers = (1.0, float(attrs["cap"]), 0.0, 0.0)
    elif kind == "xielu":
        both = (float(lowering.placer.weights[name_of(node, each)].float32()[0]) for each in ("positive", "negative"))
        numbers = (*both, float(attrs["beta"]), float(attrs["eps"]))  # type: ignore[assignment]
    elif kind in ("scale", "clamp"):
        numbers = (float(attrs["factor" if kind == "scale" else "limit"]), 0.0, 0.0, 0.0)
    weight = lowering.vector(node, "weight")
    return Map(kind, x.id, other, out.id, out.dim, numbers, weight, attrs.get("start", 0))


def _attention(lowering: Lowering, node: Node) -> Instruction:
    """attention and attention_shared."""
    spec = lowering.graph.kv_of(node)
    return lower_attention(node, spec, lowering.placer, lowering.caches, lowering.fixed_chunk)


def _route(lowering: Lowering, node: Node) -> Instruction:
    """route and normed_route."""
    return lower_route(node, lowering.placer, lowering.norm(node), lowering.expert_tiles)


def _experts(lowering: Lowering, node: Node) -> Instruction:
    """experts and experts_add."""
    residual = node.input("residual") if "residual" in node.op.inputs else None
    copies = residual is not None and (residual in node.inputs[:-1] or not lowering.is_last_reader(node, residual))
    return lower_experts(node, lowering.placer, lowering.expert_tiles, copies)


def _attention_latent(lowering: Lowering, node: Node) -> Instruction:
    assert node.cache is not None
    spec = lowering.graph.caches[node.cache]
    assert isinstance(spec, Latent)
    return lower_latent(node, spec, lowering.placer, lowering.caches, lowering.fixed_chunk)


def _recurrent(lowering: Lowering, node: Node) -> Instruction:
    """An op that has states, plain or fused."""
    return lower_recurrent(node, lowering.graph, lowering.placer, lowering.caches)


def _log_decay(lowering: Lowering, node: Node) -> Instruction:
    return lower_decay(node, lowering.placer, lowering.is_float32(node.output))


# --- fused ops


def _gated_norm(lowering: Lowering, node: Node) -> Instruction:
    return lower_gated_norm(node, lowering.placer)


def _qkv_attention(lowering: Lowering, node: Node) -> Instruction:
    assert node.cache is not None
    spec, attrs = lowering.graph.kv_of(node), node.attrs
    of_q, of_k = (lowering.vector(node, parameter) for parameter in ("q_norm", "k_norm"))
    terms = terms_of(node, lowering.placer)
    return Attend(
        value=node.inputs[0].id,
        norm=lowering.norm(node),
        linear=lowering.placer.matrix(_names(node, "weights"), _names(node, "biases")),
        heads=Heads(node.output.dim // spec.value_dim, spec.num_heads, spec.key_dim),
        head_norm=None
        if of_q is None or of_k is None
        else HeadNorm(of_q, of_k, attrs["head_eps"], not attrs["head_group"]),
        turns=lowering.turns(node),
        caches=lowering.caches,
        layer=node.cache,
        scale=attrs["scale"],
        window=spec.window,
        fixed_chunk=lowering.fixed_chunk,
        out=node.output.id,
        chunk=spec.chunk,
        softcap=terms.softcap,
        sinks=terms.sinks,
        slopes=terms.slopes,
        distances=terms.distances,
    )


def _gated_linear(lowering: Lowering, node: Node) -> Instruction:
    names, biases = (name_of(node, "gate"), name_of(node, "up")), (node.weights["gate_bias"], node.weights["up_bias"])
    kind, out = node.attrs["kind"], node.output
    linear = lowering.placer.matrix(names, biases, kind, is_gate=True)  # type: ignore[arg-type]
    return Gate(node.inputs[0].id, lowering.norm(node), linear, out.id, lowering.reads_fp8(out), kind)


def _linear_split(lowering: Lowering, node: Node) -> list[Instruction]:
    """One product for all matrices of a format. Its columns are copied for readers that need them without gaps."""
    (x,), names, biases = node.inputs, _names(node, "weights"), _names(node, "biases")
    formats = [lowering.placer.weights[name].format for name in names]
    instructions: list[Instruction] = []
    for format in dict.fromkeys(formats):
        chosen = [i for i, each in enumerate(formats) if each == format]
        outputs = [node.outputs[i] for i in chosen]
        linear = lowering.placer.matrix([names[i] for i in chosen], [biases[i] for i in chosen])
        whole = -1 - outputs[0].id  # no value of the graph
        starts = accumulate((value.dim for value in outputs), initial=0)
        parts = [
            ProductColumns(value.id, start, value.dim, not lowering.values.takes_gaps(value))
            for value, start in zip(outputs, starts, strict=False)
        ]
        instructions += [Multiply(x.id, None, linear, whole), SplitProduct(whole, tuple(parts))]
    return instructions


def _linear_add(lowering: Lowering, node: Node) -> Instruction:
    """linear_add, scaled_linear_add and normed_linear_add."""
    x, residual = node.input("x"), node.input("residual")
    copies = x == residual or not lowering.is_last_reader(node, residual)
    factor = float(node.attrs.get("factor", 1.0))
    return AddProduct(x.id, lowering.matrix(node), residual.id, node.output.id, lowering.norm(node), factor, copies)


def _head(lowering: Lowering, node: Node) -> Instruction:
    linear, attrs = lowering.matrix(node), node.attrs
    return Head(node.inputs[0].id, lowering.norm(node), linear, node.output.id, attrs["factor"], attrs["cap"])


Emit = Callable[[Lowering, Node], Instruction | list[Instruction]]
EMIT: dict[str, Emit] = {
    "embed": _embed,
    "embed_positions": _embed_positions,
    "features": _features,
    "concat": _concat,
    "embed_types": _embed_types,
    "pool": _pool,
    "select": _select,
    "rms_norm": _norm,
    "layer_norm": _norm,
    "linear": _linear,
    "rope": _rope,
    "scale_by_position": _scale_by_position,
    **dict.fromkeys(MAPPED, _map),
    **dict.fromkeys(("route", "normed_route"), _route),
    **dict.fromkeys(("experts", "experts_add"), _experts),
    **dict.fromkeys(("attention", "attention_shared"), _attention),
    "attention_latent": _attention_latent,
    "attention_bidirectional": lambda lowering, node: lower_bidirectional(node, lowering.placer),
    "attention_source": lower_attention_source,
    "shift_tokens": lower_shift_tokens,
    **dict.fromkeys(RECURRENT, _recurrent),
    "log_decay": _log_decay,
    "qkv_attention": _qkv_attention,
    **dict.fromkeys(("gated_linear", "normed_gated_linear"), _gated_linear),
    "linear_split": _linear_split,
    **dict.fromkeys(SUMS, _linear_add),
    **dict.fromkeys(("activated_linear", "normed_linear"), _linear),
    **dict.fromkeys(("head", "normed_head"), _head),
    "scaled_embed": _embed,
    "gated_norm": _gated_norm,
}


def look_ahead(linears: Sequence[Prefetches]) -> None:
    """Let each product prefetch the first weights of the next one; the last one those of the next step."""
    for linear, following in zip(linears, [*linears[1:], *linears[:1]], strict=True):
        linear.ahead = following.raw[:AHEAD_BYTES]


def name_of(node: Node, parameter: str) -> str:
    """The name of the weight that is bound to a parameter."""
    name = node.weights[parameter]
    assert isinstance(name, str)
    return name


def _names(node: Node, parameter: str) -> tuple[Any, ...]:
    names = node.weights[parameter]
    assert isinstance(names, tuple)
    return names
