"""The values of a graph as the device holds them: which fused ops make them, how long they are kept, in which format.

Lowering and the prediction of memory (plan.py) read it; it does not import torch.
"""

from __future__ import annotations

from quire.graph.graph import Graph, Node, Value
from quire.graph.passes.fuse import RULES
from quire.graph.passes.narrow import narrow_tail
from quire.graph.passes.rewrite import rewrite
from quire.ops.cache import State

from . import FACTS

SUMS = ("linear_add", "scaled_linear_add", "normed_linear_add")
AFTER_LOGITS = ("scale", "softcap")  # computed in float32, like the logits
DELTA_RULES = ("delta_rule", "gated_delta_rule")
RECURRENT = ("short_conv", "activated_short_conv", *DELTA_RULES, "state_scan")
READ_GAPS = ("log_decay", "gated_norm", *RECURRENT)
# computed number by number
MAPPED = ("activation", "xielu", "add", "multiply", "scale", "scale_rows", "scale_by", "softcap", "clamp", "columns")


def prepare_graph(graph: Graph, fuse: bool = True) -> Graph:
    """Return the graph that is lowered: the tail is narrow, and ops are fused where the device has kernels for it."""
    graph = narrow_tail(graph)
    return fuse_graph(graph) if fuse else graph


def fuse_graph(graph: Graph) -> Graph:
    """Return the graph with the fused ops that the device has kernels for."""

    values = HeldValues(graph)

    def supports(node: Node) -> bool:
        if node.op.name == "linear_split":  # products of one format; logits are float32
            return not any(values.is_float32(value) for value in node.outputs)
        if node.op.name in SUMS:  # the sum may be left to the next norm, and nothing norms the logits
            return node.output != graph.outputs.get("logits")
        if node.op.name not in FACTS.fused_ops or node.cache is None:
            return node.op.name in FACTS.fused_ops
        if isinstance(graph.caches[node.cache], State):
            return True
        spec = graph.kv_of(node)
        has_heads = spec.key_dim == spec.value_dim and spec.key_dim % 2 == 0
        return has_heads and node.attrs["head_group"] in (0, spec.key_dim)

    return rewrite(graph, RULES, supports)


class HeldValues:
    """How long each value of a graph is held, and which are float32."""

    def __init__(self, graph: Graph) -> None:
        self._outputs = {graph.output.id, *(value.id for value in graph.outputs.values())}
        self.readers: dict[int, list[Node]] = {}
        for node in graph.nodes:
            for value in node.inputs:
                self.readers.setdefault(value.id, []).append(node)
        self._float32 = {graph.outputs["logits"].id} if "logits" in graph.outputs else set()
        for node in reversed(graph.nodes):
            if node.op.name in AFTER_LOGITS and node.output.id in self._float32:
                self._float32.add(node.inputs[0].id)
        pools = {node.output.id for node in graph.nodes if node.op.name == "pool"}
        self._float32 |= pools.intersection(self._outputs)
        decays = (node.output.id for node in graph.nodes if node.op.name == "log_decay")
        self._float32 |= {
            decay for decay in decays if all(node.op.name == "delta_rule" for node in self.readers.get(decay, []))
        }

    def is_last_reader(self, node: Node, value: Value) -> bool:
        """Is a value read by no later node, and no output of the graph?"""
        return self.readers[value.id][-1] is node and value.id not in self._outputs

    def last_read_by(self, node: Node) -> tuple[int, ...]:
        """Return the values that are freed after a node."""
        return tuple(dict.fromkeys(value.id for value in node.inputs if self.is_last_reader(node, value)))

    def takes_gaps(self, value: Value) -> bool:
        """May tokens of a value have gaps between them? Only some instructions read such values."""
        return value.id not in self._outputs and all(_takes_gaps(node) for node in self.readers.get(value.id, []))

    def is_view(self, node: Node) -> bool:
        """Are the columns that a node selects of a value not copied? All that reads that value selects columns of it:
        it does not change. And all that reads the columns reads tokens with gaps between them."""
        if node.op.name != "columns":
            return False
        (x,), out = node.inputs, node.output
        return all(each.op.name == "columns" for each in self.readers[x.id]) and all(
            each.op.name in READ_GAPS or (each.op.name in MAPPED and out not in each.inputs[1:])
            for each in self.readers.get(out.id, [])
        )

    def is_float32(self, value: Value) -> bool:
        """Is a value logits, or do logits come from it number by number? Or is it pooled, or the decay of states?"""
        return value.id in self._float32


def _takes_gaps(node: Node) -> bool:
    is_whole_norm = node.op.name == "rms_norm" and node.attrs["group"] in (0, node.output.dim)
    return is_whole_norm or node.op.name in ("rope", "attention_latent", "attention_bidirectional", *READ_GAPS)
