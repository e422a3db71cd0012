"""From recurrent ops to native instructions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from quire.graph.graph import Node

from .caches import native_index

if TYPE_CHECKING:
    from .lower import _Lowering


def emit_short_conv(lowering: _Lowering, node: Node) -> None:
    """One instruction, with the activation of its output if the op has one."""
    (x,), packer = node.inputs, lowering.packer
    vectors = {name: packer.vector(node.weights[name]) for name in ("weight", "bias")}
    lowering.emit(
        "short_conv",
        states=native_index(lowering.graph, node),
        x=lowering.read(x),
        **vectors,
        kind=node.attrs.get("kind", ""),
        out=lowering.place(node.output),
    )
    lowering.ensure_quants(node.output)
    lowering.release(x)


def emit_delta_rule(lowering: _Lowering, node: Node) -> None:
    """Two instructions: what all columns of a token's heads share, and the recurrence."""
    q, k, v, decay, beta = node.inputs
    heads, attrs = beta.dim, node.attrs
    work = lowering.buffers.allocate(2 * q.dim + (decay.dim if decay.dim == heads else 2 * decay.dim))
    lowering.emit(
        "delta_rule",
        states=native_index(lowering.graph, node),
        qkv=[lowering.read(each) for each in (q, k, v)],
        decay=lowering.read(decay),
        beta=lowering.read(beta),
        work=work.columns,
        num_heads=attrs["num_heads"],
        is_unit=attrs["eps"] is not None,
        numbers=(attrs["scale"], attrs["eps"] or 0.0),
        out=lowering.place(node.output),
    )
    lowering.buffers.release(work)
    lowering.ensure_quants(node.output)
    lowering.release(*node.inputs)


def emit_log_decay(lowering: _Lowering, node: Node) -> None:
    """One instruction, token by token."""
    (x,), packer = node.inputs, lowering.packer
    vectors = {name: packer.vector(node.weights[name]) for name in ("rate", "bias")}
    lowering.emit("log_decay", x=lowering.read(x), **vectors, out=lowering.place(node.output))
    lowering.ensure_quants(node.output)
    lowering.release(x)


def emit_state_scan(lowering: _Lowering, node: Node) -> None:
    """Two instructions: time steps and decays of a token's heads, and the recurrence."""
    (x, dt, b, c), packer, attrs = node.inputs, lowering.packer, node.attrs
    is_by_head = prod(packer.weights[str(node.weights["rate"])].shape) == dt.dim
    work = lowering.buffers.allocate(2 * dt.dim if is_by_head else dt.dim)
    lowering.emit(
        "state_scan",
        states=native_index(lowering.graph, node),
        xbc=[lowering.read(each) for each in (x, b, c)],
        dt=lowering.read(dt),
        work=work.columns,
        vectors=[packer.vector(node.weights[name]) for name in ("rate", "bias", "skip")],
        bounds=(attrs.get("low", 0.0), attrs.get("high", float("inf"))),
        out=lowering.place(node.output),
    )
    lowering.buffers.release(work)
    lowering.ensure_quants(node.output)
    lowering.release(*node.inputs)


RECURRENT: dict[str, Callable[[_Lowering, Node], None]] = {
    "activated_short_conv": emit_short_conv,
    "delta_rule": emit_delta_rule,
    "log_decay": emit_log_decay,
    "short_conv": emit_short_conv,
    "state_scan": emit_state_scan,
}
