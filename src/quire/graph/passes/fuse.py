"""The rules of fusion that devices share. A device applies those that it has kernels for."""

from __future__ import annotations

from quire.graph.graph import Node
from quire.graph.passes.rewrite import Fusion, Uses
from quire.ops import fused


def merge_linears(uses: Uses, node: Node) -> Fusion | None:
    """All linears of one value become one linear_split."""
    if node.op.name != "linear":
        return None
    same = [each for each in uses.readers(node.inputs[0]) if each.op.name == "linear"]
    if len(same) < 2:
        return None
    weights = {
        "weights": tuple(each.weights["weight"] for each in same),
        "biases": tuple(each.weights["bias"] for each in same),
    }
    outputs = [each.output for each in same]
    merged = uses.graph.node(fused.linear_split, {"x": node.inputs[0]}, weights, {}, outputs=outputs)  # type: ignore[arg-type]
    return Fusion(merged, tuple(same))


def fuse_gate(uses: Uses, node: Node) -> Fusion | None:
    """activation(linear(x, gate)) * linear(x, up) becomes gated_linear."""
    if node.op.name != "multiply":
        return None
    for activated, up_value in (node.inputs, node.inputs[::-1]):
        activation, up = uses.maker(activated, "activation"), uses.maker(up_value, "linear")
        gate = uses.maker(activation.inputs[0], "linear") if activation else None
        if activation is None or gate is None or up is None or gate.inputs != up.inputs:
            continue
        if not all(uses.is_read_once(each.output) for each in (activation, gate, up)):
            continue
        names = {"gate": gate.weights["weight"], "up": up.weights["weight"]}
        biases = {"gate_bias": gate.weights["bias"], "up_bias": up.weights["bias"]}
        attrs = {"kind": activation.attrs["kind"]}
        x = {"x": gate.inputs[0]}
        whole = uses.graph.node(fused.gated_linear, x, {**names, **biases}, attrs, outputs=node.outputs)
        return Fusion(whole, (gate, up, activation, node))
    return None


def fuse_residual(uses: Uses, node: Node) -> Fusion | None:
    """x + linear(h) becomes linear_add."""
    if node.op.name != "add":
        return None
    for residual, product in (node.inputs, node.inputs[::-1]):
        linear = uses.maker(product, "linear")
        if linear is None or not uses.is_read_once(product):
            continue
        inputs = {"x": linear.inputs[0], "residual": residual}
        whole = uses.graph.node(fused.linear_add, inputs, linear.weights, {}, outputs=node.outputs)
        return Fusion(whole, (linear, node))
    return None


def fuse_head(uses: Uses, node: Node) -> Fusion | None:
    """The linear that makes the logits, with the scale and the softcap after it, becomes head."""
    if uses.graph.outputs.get("logits") not in node.outputs:
        return None
    replaced, attrs, last = [node], {"factor": 1.0, "cap": 0.0}, node
    for op, attribute, parameter in (("softcap", "cap", "cap"), ("scale", "factor", "factor")):
        if last.op.name == op:
            attrs[attribute] = last.attrs[parameter]
            before = uses.maker(last.inputs[0], "scale") or uses.maker(last.inputs[0], "linear")
            if before is None or not uses.is_read_once(before.output):
                return None
            last = before
            replaced.append(last)
    if last.op.name != "linear":
        return None
    whole = uses.graph.node(fused.head, {"x": last.inputs[0]}, last.weights, attrs, outputs=node.outputs)
    return Fusion(whole, tuple(replaced))
