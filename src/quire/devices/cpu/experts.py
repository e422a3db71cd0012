"""From `route` and `experts` to native instructions.

The router multiplies float32 numbers, whatever its format: rounded activations must not change the choice of experts.
Values of experts have a row for each token and rank; they lie in buffers that are `top` times as wide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.graph.graph import Node, Value

from .buffers import NO_COLUMNS, BufferSlice, Columns
from .pack import stack_shape

if TYPE_CHECKING:
    from .lower import _Lowering

NO_BUFFER = -1


def emit_route(lowering: _Lowering, node: Node) -> None:
    """One product, then the choice, token by token."""
    (x,), (weights, chosen), packer = node.inputs, node.outputs, lowering.packer
    name, attrs = str(node.weights["weight"]), node.attrs
    num_experts, groups = packer.rows_of(name), _groups(node)
    width = 2 * num_experts + 3 * groups[0] + 2 * groups[2]  # logits, and room to work
    work = lowering.buffers.allocate(width, for_logits=x.shape[0] == "logits")
    logits = BufferSlice(work.buffer, 0, num_experts).columns
    product = {"matrices": [packer.matrix(name, "f32")], "biases": [packer.vector(node.weights["bias"])]}
    lowering.emit("product", **product, x=lowering.read(x), quants=NO_BUFFER, out=logits, residual=NO_COLUMNS)
    lowering.emit(
        "route",
        scoring=attrs["scoring"],
        num_experts=num_experts,
        top=attrs["top"],
        kind=(attrs.get("scores_chosen", False), attrs.get("renormalize", False)),
        groups=groups,
        numbers=(attrs.get("factor", 1.0), attrs.get("softcap", 0.0)),
        vectors=(packer.vector(node.weights["correction"]), packer.vector(node.weights["expert_scale"])),
        work=work.columns,
        weights=lowering.place(weights),
        chosen=lowering.place(chosen),
    )
    lowering.buffers.release(work)
    lowering.release(x)


def emit_experts(lowering: _Lowering, node: Node) -> None:
    """Sorting by expert, gate and up with the activation, down with the sum."""
    x, weights, chosen = node.inputs
    packer, attrs, top = lowering.packer, node.attrs, weights.dim
    names = [node.weights[word] for word in ("gate", "up", "down")]
    num_experts, ffn, dim = stack_shape(packer.weights[str(node.weights["up"])])
    first = [str(name) for name in names[:2] if name is not None]
    scaled = (NO_COLUMNS, NO_BUFFER)
    taken: list[BufferSlice] = []
    if attrs.get("on_input", False):
        scaled = _rows_of_slots(lowering, x, top * dim, first, taken)
    hidden = _rows_of_slots(lowering, x, top * ffn, [str(names[2])], taken)
    operands = {"x": lowering.read(x), "quants": lowering.read_quants(x), "scaled": scaled, "hidden": hidden}
    choice = (lowering.read(weights), lowering.read(chosen))
    lowering.emit(
        "experts",
        kind=attrs["kind"],
        sizes=(num_experts, ffn),
        stacks=[packer.stack(name) for name in names],
        biases=[packer.vector_of_stack(node.weights[f"{word}_bias"]) for word in ("gate", "up", "down")],
        numbers=(attrs.get("limit", 0.0), attrs.get("alpha", 1.0), attrs.get("shift", 0.0)),
        **operands,
        choice=choice,
        out=lowering.place(node.output),
        on_input=attrs.get("on_input", False),
    )
    for place in taken:
        lowering.buffers.release(place)
    lowering.ensure_quants(node.output)
    lowering.release(*node.inputs)


def _groups(node: Node) -> tuple[int, int, int]:
    names = ("groups", "top_groups", "group_top")
    groups, top_groups, group_top = (int(node.attrs.get(name, 1)) for name in names)
    return groups, top_groups, group_top


def _rows_of_slots(
    lowering: _Lowering, x: Value, width: int, readers: list[str], taken: list[BufferSlice]
) -> tuple[Columns, int]:
    """Buffers for what these weights multiply: rows, blocks or both. They are appended to `taken`."""
    kinds = [lowering.packer.is_quantized(name) for name in readers]
    is_narrow, columns, quants = x.shape[0] == "logits", NO_COLUMNS, NO_BUFFER
    if not all(kinds):
        taken.append(lowering.buffers.allocate(width, for_logits=is_narrow))
        columns = taken[-1].columns
    if any(kinds):
        taken.append(lowering.buffers.allocate(width, "quants", for_logits=is_narrow))
        quants = taken[-1].buffer.index
    return columns, quants
