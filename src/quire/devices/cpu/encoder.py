"""Lowers what encoders have: attention of whole rows, and pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.graph.graph import Node

from .buffers import BLOCK, NO_COLUMNS

if TYPE_CHECKING:
    from .lower import _Lowering

NO_QUANTS = -1


def emit_attention(lowering: _Lowering, node: Node) -> None:
    """attention_bidirectional: keys and values last for one step."""
    (q, k, v), out, num_heads = node.inputs, node.output, node.attrs["num_heads"]
    is_direct = v.dim // num_heads % BLOCK == 0
    columns, quants = lowering.place_both(out) if is_direct else (lowering.place(out), NO_QUANTS)
    window = node.attrs.get("window")
    operands = {"q": lowering.read(q), "k": lowering.read(k), "v": lowering.read(v), "num_heads": num_heads}
    operands["window"] = 0 if window is None else window + 1  # the native one counts the token itself
    lowering.emit("attend_bidirectional", **operands, **lowering.extras(node), out=columns, quants=quants)
    lowering.ensure_quants(out)
    lowering.release(*node.inputs)


def emit_pool(lowering: _Lowering, node: Node) -> None:
    """pool: to rows that other nodes read; if the graph has logits too, to the caller's array."""
    (x,), out = node.inputs, node.output
    is_apart = "logits" in lowering.graph.outputs
    lowering.emit("pool", x=lowering.read(x), out=NO_COLUMNS if is_apart else lowering.place(out))
    if not is_apart:
        lowering.ensure_quants(out)
    lowering.release(x)
