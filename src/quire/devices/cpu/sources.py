"""Lowers attention to an encoder's output, and the neighbours of a token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire.graph.graph import Graph, Node
from quire.ops.cache import Cross, State

from .buffers import BLOCK
from .caches import native_index

NO_QUANTS = NO_VECTOR = -1


def source_caches(graph: Graph) -> tuple[tuple[int, int, int], ...]:
    """The caches of sources: the program's index, and the numbers of keys and of values of a token."""
    kept = [spec for spec in graph.caches if not isinstance(spec, State)]  # as `native_index` counts
    return tuple(
        (index, spec.num_heads * spec.key_dim, spec.num_heads * spec.value_dim)
        for index, spec in enumerate(kept)
        if isinstance(spec, Cross)
    )


def emit_attention_source(lowering: Any, node: Node) -> None:
    """attention_source: over blocks that were stored before the step."""
    (q,), out, spec = node.inputs, node.output, lowering.graph.caches[node.cache]
    columns, quants = lowering.place_both(out) if spec.value_dim % BLOCK == 0 else (lowering.place(out), NO_QUANTS)
    extras = {"scale": node.attrs["scale"], "softcap": 0.0}
    extras |= dict.fromkeys(("sinks", "slopes", "distances"), NO_VECTOR)
    operands = {"cache": native_index(lowering.graph, node), "q": lowering.read(q)}
    lowering.emit("attend_source", **operands, **extras, out=columns, quants=quants)
    lowering.ensure_quants(out)
    lowering.release(q)


def emit_shift_tokens(lowering: Any, node: Node) -> None:
    """shift_tokens: to a buffer of its own."""
    (x,), out = node.inputs, node.output
    lowering.emit("shift", x=lowering.read(x), by=node.attrs["by"], out=lowering.place(out))
    lowering.ensure_quants(out)
    lowering.release(x)


SOURCES: dict[str, Callable[[Any, Node], None]] = {
    "attention_source": emit_attention_source,
    "shift_tokens": emit_shift_tokens,
}
