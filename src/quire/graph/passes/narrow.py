"""Compute only what the logits need after the last op that mixes tokens."""

from __future__ import annotations

from quire.graph.graph import Graph, Node, Value
from quire.ops import select


def narrow_tail(graph: Graph) -> Graph:
    """Move `select` up to the last op that mixes tokens, so that later ops compute only the selected tokens.

    Every op after that works on each token by itself, so selecting before or after it gives the same numbers.
    """
    if "logits" not in graph.outputs:
        return graph
    kept = set(graph.hidden_outputs)  # of all tokens
    is_wide = (not _is_token_wise(node) or not kept.isdisjoint(node.outputs) for node in graph.nodes)
    mixing = [place for place, wide in enumerate(is_wide) if wide]
    start = max(mixing, default=-1) + 1
    made = {value.id for node in graph.nodes[:start] for value in node.outputs}
    narrow: dict[int, Value] = {}  # a value of tokens -> the same of selected tokens
    nodes = list(graph.nodes[:start])

    def selected(value: Value) -> Value:
        if value.shape[0] == "logits":
            return value
        if value.id not in narrow and value.id in made:
            node = graph.node(select.select, {"x": value}, {}, {})
            nodes.append(node)
            narrow[value.id] = node.output
        return narrow[value.id]

    for node in graph.nodes[start:]:
        if any(value.shape[0] == "pooled" for value in node.inputs):  # rows of pools, none of them of a token
            nodes.append(node)
            continue
        if node.op is select.select:
            narrow[node.output.id] = selected(node.inputs[0])
            continue
        inputs = {name: narrow.get(v.id) or selected(v) for name, v in zip(node.op.inputs, node.inputs, strict=True)}
        keeps = all(value.shape[0] == "logits" for value in node.outputs)
        again = graph.node(node.op, inputs, node.weights, node.attrs, outputs=node.outputs if keeps else None)
        nodes.append(again)
        narrow |= {old.id: new for old, new in zip(node.outputs, again.outputs, strict=True)}
    narrowed = graph.rewritten(nodes)
    narrowed.outputs |= {kind: narrow.get(value.id, value) for kind, value in graph.outputs.items()}
    for value in graph.hidden_outputs:
        narrowed.outputs["hidden"] = value
    return narrowed


def _is_token_wise(node: Node) -> bool:
    """Does the op compute a token's output from that token's inputs alone?"""
    reads = set(node.op.reads) - {"logits_at"}
    return not reads and not node.op.uses_batch
