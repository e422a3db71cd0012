"""The rules of fusion of recurrent layers."""

from __future__ import annotations

from quire.graph.graph import Node
from quire.graph.passes.rewrite import Fusion, Uses
from quire.ops import fused_states


def fuse_activated_conv(uses: Uses, node: Node) -> Fusion | None:
    """activation(short_conv(x)) becomes activated_short_conv."""
    conv = uses.maker(node.inputs[0], "short_conv") if node.op.name == "activation" else None
    if conv is None or not uses.is_read_once(conv.output):
        return None
    op, x = fused_states.activated_short_conv, {"x": conv.inputs[0]}
    whole = uses.graph.node(op, x, conv.weights, node.attrs, cache=conv.cache, outputs=node.outputs)
    return Fusion(whole, (conv, node))


def fuse_delta_rule(uses: Uses, node: Node) -> Fusion | None:
    """delta_rule of log_decay(decay) and sigmoid(beta) becomes gated_delta_rule."""
    if node.op.name != "delta_rule":
        return None
    decay, share = uses.maker(node.input("decay"), "log_decay"), uses.maker(node.input("beta"), "activation")
    if decay is None or share is None or share.attrs["kind"] != "sigmoid":
        return None
    if not all(uses.is_read_once(each.output) for each in (decay, share)):
        return None
    inputs = {name: node.input(name) for name in "qkv"} | {"decay": decay.inputs[0], "beta": share.inputs[0]}
    op = fused_states.gated_delta_rule
    whole = uses.graph.node(op, inputs, decay.weights, node.attrs, cache=node.cache, outputs=node.outputs)
    return Fusion(whole, (decay, share, node))


def fuse_gated_norm(uses: Uses, node: Node) -> Fusion | None:
    """rms_norm(x) * activation(gate) becomes gated_norm."""
    if node.op.name != "multiply":
        return None
    for normed, gated in (node.inputs, node.inputs[::-1]):
        norm, gate = uses.maker(normed, "rms_norm"), uses.maker(gated, "activation")
        if norm is None or gate is None or norm.weights["weight"] is None:
            continue
        if not all(uses.is_read_once(each.output) for each in (norm, gate)):
            continue
        inputs = {"x": norm.inputs[0], "gate": gate.inputs[0]}
        attrs = {**norm.attrs, "kind": gate.attrs["kind"], "gates_first": False}
        whole = uses.graph.node(fused_states.gated_norm, inputs, norm.weights, attrs, outputs=node.outputs)
        return Fusion(whole, (norm, gate, node))
    return None


def fuse_norm_of_gated(uses: Uses, node: Node) -> Fusion | None:
    """rms_norm(x * activation(gate)) becomes gated_norm."""
    product = uses.maker(node.inputs[0], "multiply") if node.op.name == "rms_norm" else None
    if product is None or node.weights["weight"] is None or not uses.is_read_once(product.output):
        return None
    for x, gated in (product.inputs, product.inputs[::-1]):
        gate = uses.maker(gated, "activation")
        if gate is None or not uses.is_read_once(gated):
            continue
        inputs, attrs = {"x": x, "gate": gate.inputs[0]}, {"kind": gate.attrs["kind"], "gates_first": True}
        op = fused_states.gated_norm
        whole = uses.graph.node(op, inputs, node.weights, {**node.attrs, **attrs}, outputs=node.outputs)
        return Fusion(whole, (gate, product, node))
    return None
