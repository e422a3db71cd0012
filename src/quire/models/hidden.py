"""Hidden rows of a model as outputs of its graph, for a head that drafts from them."""

from __future__ import annotations

from collections.abc import Sequence

from quire.graph.weight import Weight
from quire.models.draw import DrawnModel
from quire.models.errors import UnsupportedModel

FUSION = "eagle.fusion"


def keep_last_rows(model: DrawnModel) -> None:
    """Make the rows after the last norm an output."""
    model.graph.outputs["hidden"] = model.graph.layer_inputs[-1]


def keep_fused_rows(model: DrawnModel, layers: Sequence[int], matrix: Weight) -> DrawnModel:
    """Return the model with an output: the inputs of some layers side by side, times a matrix."""
    graph, hidden = model.graph, model.config.hidden
    values = [graph.layer_inputs[layer] for layer in layers]
    if any(value.dim != hidden for value in values) or len(graph.layer_inputs) != model.config.num_layers + 1:
        raise UnsupportedModel(f"{model.architecture} has layers whose hidden rows a head cannot read.")
    made = [place for place, node in enumerate(graph.nodes) if not set(values).isdisjoint(node.outputs)]
    whole, before = len(graph.nodes), max(made) + 1
    graph.shapes = {**graph.shapes, FUSION: tuple(matrix.shape)}
    joined = values[0]
    for value in values[1:]:
        joined = graph.concat(joined, value)
    graph.outputs["hidden"] = graph.linear(joined, FUSION)
    # As soon as their inputs exist: what follows the last layer is computed for few tokens.
    graph.nodes[before:] = [*graph.nodes[whole:], *graph.nodes[before:whole]]
    return DrawnModel(model.architecture, model.config, graph, {**model.weights, FUSION: matrix}, model.context)
