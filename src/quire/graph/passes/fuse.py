"""The rules of fusion that devices share. A device applies those that it has kernels for."""

from __future__ import annotations

from typing import Any, NamedTuple

from quire.graph.graph import Node, Value, WeightNames
from quire.graph.passes.fuse_states import fuse_activated_conv, fuse_delta_rule, fuse_gated_norm, fuse_norm_of_gated
from quire.graph.passes.rewrite import Fusion, Rule, Uses
from quire.ops import fused, fused_experts


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


def fuse_scaled_residual(uses: Uses, node: Node) -> Fusion | None:
    """x + scale(linear(h)) becomes scaled_linear_add."""
    if node.op.name != "add":
        return None
    for residual, scaled in (node.inputs, node.inputs[::-1]):
        scale = uses.maker(scaled, "scale")
        linear = uses.maker(scale.inputs[0], "linear") if scale else None
        if scale is None or linear is None:
            continue
        if not all(uses.is_read_once(each.output) for each in (scale, linear)):
            continue
        inputs, attrs = {"x": linear.inputs[0], "residual": residual}, {"factor": scale.attrs["factor"]}
        whole = uses.graph.node(fused.scaled_linear_add, inputs, linear.weights, attrs, outputs=node.outputs)
        return Fusion(whole, (linear, scale, node))
    return None


def fuse_normed_residual(uses: Uses, node: Node) -> Fusion | None:
    """x + rms_norm(linear(h)) becomes normed_linear_add."""
    if node.op.name != "add":
        return None
    for residual, normed in (node.inputs, node.inputs[::-1]):
        norm = uses.maker(normed, "rms_norm")
        linear = uses.maker(norm.inputs[0], "linear") if norm else None
        if norm is None or linear is None or not _is_of_tokens(norm):
            continue
        if not all(uses.is_read_once(each.output) for each in (norm, linear)):
            continue
        inputs, attrs = {"x": linear.inputs[0], "residual": residual}, {"eps": norm.attrs["eps"]}
        weights = {**linear.weights, "norm": norm.weights["weight"]}
        whole = uses.graph.node(fused.normed_linear_add, inputs, weights, attrs, outputs=node.outputs)
        return Fusion(whole, (linear, norm, node))
    return None


def fuse_activation(uses: Uses, node: Node) -> Fusion | None:
    """activation(linear(x)) becomes activated_linear."""
    linear = uses.maker(node.inputs[0], "linear") if node.op.name == "activation" else None
    if linear is None or not uses.is_read_once(linear.output):
        return None
    x = {"x": linear.inputs[0]}
    whole = uses.graph.node(fused.activated_linear, x, linear.weights, node.attrs, outputs=node.outputs)
    return Fusion(whole, (linear, node))


def fuse_scaled_embed(uses: Uses, node: Node) -> Fusion | None:
    """scale(embed) becomes scaled_embed."""
    embed = uses.maker(node.inputs[0], "embed") if node.op.name == "scale" else None
    if embed is None or not uses.is_read_once(embed.output):
        return None
    whole = uses.graph.node(fused.scaled_embed, {}, embed.weights, node.attrs, outputs=node.outputs)
    return Fusion(whole, (embed, node))


class _Projection(NamedTuple):
    """Heads of q, k or v: a linear, then a norm of heads, then rope, if it has them."""

    linear: Node
    norm: Node | None
    rope: Node | None

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(node for node in self if node is not None)

    @classmethod
    def of(cls, uses: Uses, value: Value) -> _Projection | None:
        """The nodes that make a value. None: there are others, or something else reads what is between them."""
        rope = uses.maker(value, "rope")
        unrotated = rope.inputs[0] if rope else value
        norm = uses.maker(unrotated, "rms_norm")
        linear = uses.maker(norm.inputs[0] if norm else unrotated, "linear")
        found = None if linear is None else cls(linear, norm, rope)
        return found if found and all(uses.is_read_once(node.output) for node in found.nodes) else None


def fuse_attention(uses: Uses, node: Node) -> Fusion | None:
    """attention, with the linears, the norms of heads and the ropes of its q, k and v, becomes qkv_attention."""
    if node.op.name != "attention":
        return None
    assert node.cache is not None
    q, k, v = (_Projection.of(uses, value) for value in node.inputs)
    if q is None or k is None or v is None or v.norm is not None or v.rope is not None:
        return None
    if not q.linear.inputs == k.linear.inputs == v.linear.inputs:
        return None
    head_dim = uses.graph.kv_of(node).key_dim
    norms = _head_norms(uses, q.norm, k.norm, head_dim)
    rope = _common_rope(q.rope, k.rope, head_dim)
    if norms is None or rope is None:
        return None
    linears = [each.linear for each in (q, k, v)]
    weights: dict[str, WeightNames] = {
        "norm": None,
        "weights": tuple(each.weights["weight"] for each in linears),  # type: ignore[misc]
        "biases": tuple(each.weights["bias"] for each in linears),  # type: ignore[misc]
        "frequencies": q.rope.weights["frequencies"] if q.rope else None,
        "q_norm": q.norm.weights["weight"] if q.norm else None,
        "k_norm": k.norm.weights["weight"] if k.norm else None,
        **node.weights,
    }
    attrs = {"eps": 0.0, "head_dim": head_dim, **norms, **rope, **node.attrs}
    x = {"x": q.linear.inputs[0]}
    whole = uses.graph.node(fused.qkv_attention, x, weights, attrs, cache=node.cache, outputs=node.outputs)
    return Fusion(whole, (*q.nodes, *k.nodes, *v.nodes, node))


def _head_norms(uses: Uses, of_q: Node | None, of_k: Node | None, head_dim: int) -> dict[str, Any] | None:
    """The attributes of both norms. None: one is missing, or they differ."""
    if of_q is None and of_k is None:
        return {"head_eps": 0.0, "head_group": head_dim}
    if of_q is None or of_k is None or of_q.attrs != of_k.attrs:
        return None
    group = of_q.attrs["group"]
    for node in (of_q, of_k):
        name = node.weights["weight"]
        if not isinstance(name, str) or uses.graph.shapes[name] != (group or node.output.dim,):
            return None
    return {"head_eps": of_q.attrs["eps"], "head_group": group}


def _common_rope(of_q: Node | None, of_k: Node | None, head_dim: int) -> dict[str, Any] | None:
    """The attributes of both ropes. None: one is missing, they differ, or their heads are not those of the cache."""
    if of_q is None and of_k is None:
        return {"scaling": 1.0, "interleaved": False}
    if of_q is None or of_k is None or of_q.attrs != of_k.attrs or of_q.weights != of_k.weights:
        return None
    if of_q.attrs["head_dim"] != head_dim:
        return None
    return {name: of_q.attrs[name] for name in ("scaling", "interleaved")}


_NORMED = {"gated_linear": fused.normed_gated_linear, "head": fused.normed_head, "qkv_attention": fused.qkv_attention}


def fuse_norm(uses: Uses, node: Node) -> Fusion | None:
    """A product of rms_norm(x) becomes a product of x that computes the norm itself.

    Several readers of a norm may each compute it, but not linears: together they would compute it more than once.
    """
    if node.op.name not in {*_NORMED, "linear", "activated_linear"} or node.weights.get("norm") is not None:
        return None
    norm = uses.maker(node.input("x"), "rms_norm")
    if norm is None or not _is_of_tokens(norm):
        return None
    is_alone = uses.is_read_once(norm.output)
    if node.op.name not in _NORMED and not is_alone:  # cost
        return None
    weights, attrs = {**node.weights, "norm": norm.weights["weight"]}, {**node.attrs, "eps": norm.attrs["eps"]}
    op, x = _NORMED.get(node.op.name, fused.normed_linear), {"x": norm.inputs[0]}
    whole = uses.graph.node(op, x, weights, attrs, cache=node.cache, outputs=node.outputs)
    return Fusion(whole, (norm, node) if is_alone else (node,))


def fuse_route(uses: Uses, node: Node) -> Fusion | None:
    """rms_norm and the first route of it become normed_route, which computes both."""
    norm = uses.maker(node.input("x"), "rms_norm") if node.op.name == "route" else None
    if norm is None or not _is_of_tokens(norm):
        return None
    if next(each for each in uses.readers(norm.output) if each.op.name == "route") is not node:
        return None
    weights, attrs = {**node.weights, "norm": norm.weights["weight"]}, {**node.attrs, "eps": norm.attrs["eps"]}
    outputs, x = (*norm.outputs, *node.outputs), {"x": norm.inputs[0]}
    whole = uses.graph.node(fused_experts.normed_route, x, weights, attrs, outputs=outputs)
    return Fusion(whole, (norm, node))


def fuse_experts_residual(uses: Uses, node: Node) -> Fusion | None:
    """x + experts(h) becomes experts_add."""
    if node.op.name != "add":
        return None
    for residual, answer in (node.inputs, node.inputs[::-1]):
        experts = uses.maker(answer, "experts")
        if experts is None or not uses.is_read_once(answer):
            continue
        inputs = {**dict(zip(experts.op.inputs, experts.inputs, strict=True)), "residual": residual}
        op = fused_experts.experts_add
        whole = uses.graph.node(op, inputs, experts.weights, experts.attrs, outputs=node.outputs)
        return Fusion(whole, (experts, node))
    return None


def _is_of_tokens(norm: Node) -> bool:
    """Does a norm take the whole width of a token, and has it a weight?"""
    return norm.attrs["group"] in (0, norm.output.dim) and norm.weights["weight"] is not None


def fuse_head(uses: Uses, node: Node) -> Fusion | None:
    """The linear that makes the logits, with the scale and the softcap after it, becomes head. No node reads them."""
    if uses.graph.outputs.get("logits") not in node.outputs or uses.readers(node.output):
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


# All rules, in an order in which none hides a pattern of another: a gate has an activation and two linears inside.
RULES: tuple[Rule, ...] = (
    fuse_head,
    fuse_gate,
    fuse_activated_conv,
    fuse_delta_rule,
    fuse_gated_norm,
    fuse_norm_of_gated,
    fuse_attention,
    fuse_normed_residual,
    fuse_scaled_residual,
    fuse_activation,
    fuse_residual,
    fuse_scaled_embed,
    fuse_experts_residual,
    fuse_route,
    merge_linears,
    fuse_norm,
)
