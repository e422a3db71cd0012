"""Fusion: patterns of plain nodes are replaced by fused ops, where the device has a kernel for that exact node.

A rule looks at one node and returns the fused node that may replace it and others, or None. It checks every operand and
attribute: the fused op must compute the same numbers. A value that a replaced node makes and that something else still
reads keeps a rule from applying; `Uses` answers such questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from quire.graph.graph import Graph, Node, Value

Supports = Callable[[Node], bool]


@dataclass(frozen=True, slots=True)
class Fusion:
    """A fused node and the nodes that it replaces."""

    node: Node
    replaced: tuple[Node, ...]


class Uses:
    """Which node makes each value, and which read it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.position = {id(node): index for index, node in enumerate(graph.nodes)}
        self._makers = {value.id: node for node in graph.nodes for value in node.outputs}
        self._readers: dict[int, list[Node]] = {}
        for node in graph.nodes:
            for value in node.inputs:
                self._readers.setdefault(value.id, []).append(node)
        self._outputs = {value.id for value in graph.outputs.values()}

    def maker(self, value: Value, op: str) -> Node | None:
        """The node that makes a value, if it is one of this op."""
        node = self._makers.get(value.id)
        return node if node is not None and node.op.name == op else None

    def readers(self, value: Value) -> list[Node]:
        """The nodes that read a value, once for each time."""
        return self._readers.get(value.id, [])

    def is_read_once(self, value: Value) -> bool:
        """Is a value read by one node, once, and no output of the graph?"""
        return len(self.readers(value)) == 1 and value.id not in self._outputs

    def is_read(self, node: Node) -> bool:
        """Is a value of a node read, or an output of the graph?"""
        return any(self.readers(value) or value.id in self._outputs for value in node.outputs)

    def made_before(self, values: Iterable[Value]) -> int:
        """The first place in the list of nodes where all of these values exist."""
        makers = (self._makers.get(value.id) for value in values)
        return max((self.position[id(node)] + 1 for node in makers if node is not None), default=0)


Rule = Callable[[Uses, Node], Fusion | None]


def rewrite(graph: Graph, rules: Sequence[Rule], supports: Supports) -> Graph:
    """Apply each rule wherever it matches and `supports` accepts the fused node, one rule after the other."""
    for rule in rules:
        while fusions := _matches(graph, rule, supports):
            graph = _replaced(graph, fusions)
    return graph


def _matches(graph: Graph, rule: Rule, supports: Supports) -> list[Fusion]:
    """The fusions by one rule, none at a node that another replaces. Each keeps the values that others read."""
    uses, gone, found = Uses(graph), set[int](), list[Fusion]()
    for node in graph.nodes:
        fusion = None if id(node) in gone else rule(uses, node)
        if fusion is None or not supports(fusion.node):
            continue
        found.append(fusion)
        gone |= {id(each) for each in fusion.replaced}
    return found


def _replaced(graph: Graph, fusions: Sequence[Fusion]) -> Graph:
    """A fused node runs as soon as its inputs exist, so it stands before every reader of its outputs.

    A node that only replaced nodes have read is dropped.
    """
    uses = Uses(graph)
    gone = {id(node) for fusion in fusions for node in fusion.replaced}
    placed: dict[int, list[Node]] = {}
    for fusion in fusions:
        placed.setdefault(uses.made_before(fusion.node.inputs), []).append(fusion.node)
    nodes: list[Node] = []
    for place, node in enumerate([*graph.nodes, None]):
        nodes += placed.get(place, [])
        if node is not None and id(node) not in gone:
            nodes.append(node)
    whole = graph.rewritten(nodes)
    left = Uses(whole)
    return whole.rewritten(node for node in nodes if not uses.is_read(node) or left.is_read(node))
