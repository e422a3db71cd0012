"""From `attention_latent` to native instructions: always in the absorbed form, so that chunks change no bit.

Queries are multiplied into the space of latents, attention sums latents, and the sums are multiplied to values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.graph.graph import Node

from .caches import native_index

if TYPE_CHECKING:
    from .lower import _Lowering

NONE = -1


def emit_latent(lowering: _Lowering, node: Node) -> None:
    """The cache write, two products of heads, and attention between them."""
    (q, q_rope, latent, k_rope), names, packer = node.inputs, node.weights, lowering.packer
    num_heads, value_dim, dim = packer.weights[str(names["values"])].shape
    queries = lowering.buffers.allocate(num_heads * (dim + k_rope.dim))
    sums = lowering.buffers.allocate(num_heads * dim)
    keys = packer.matrix_of_heads(str(names["keys"]), transposed=True)
    values = packer.matrix_of_heads(str(names["values"]), transposed=False)
    read, emit, heads = lowering.read, lowering.emit, {"num_heads": num_heads}
    cache = native_index(lowering.graph, node)
    emit("write_kv", cache=cache, k=read(latent), v=read(k_rope))
    emit("place_heads", x=read(q_rope), out=queries.columns, **heads, offset=dim)
    emit("multiply_heads", matrix=keys, **heads, columns=dim, x=read(q), out=queries.columns)
    plain = {"softcap": 0.0, "sinks": NONE, "slopes": NONE, "distances": NONE, "quants": NONE}
    emit("attend", cache=cache, q=queries.columns, scale=node.attrs["scale"], **plain, out=sums.columns)
    out = lowering.place(node.output)
    emit("multiply_heads", matrix=values, **heads, columns=value_dim, x=sums.columns, out=out)
    for buffer in (queries, sums):
        lowering.buffers.release(buffer)
    lowering.ensure_quants(node.output)
    lowering.release(*node.inputs)
