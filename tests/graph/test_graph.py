"""Building a graph: what is recorded, and errors that name the weight."""

from __future__ import annotations

import numpy as np
import pytest

from quire.graph.graph import Defaults, Graph, GraphError
from quire.graph.interpret import Interpreter
from quire.graph.weight import Weight, computed_weight
from quire.ops.batch import Batch, RowPart

pytestmark = pytest.mark.pure

SHAPES = {
    "embed": (10, 8),
    "layers.0.attn.q": (8, 8),
    "layers.0.attn.k": (4, 8),
    "layers.0.attn.v": (4, 8),
    "layers.0.attn.v.bias": (4,),
    "norm": (8,),
    "rope.frequencies": (2,),
}


def random_weights(**shapes: tuple[int, ...]) -> dict[str, Weight]:
    rng = np.random.default_rng(0)
    return {name: computed_weight(name, rng.standard_normal(shape)) for name, shape in {**SHAPES, **shapes}.items()}


def new_graph(**shapes: tuple[int, ...]) -> Graph:
    return Graph(random_weights(**shapes), Defaults(head_dim=4, norm_eps=1e-5, attention_scale=0.5))


def draw_one_layer(g: Graph, window: int | None = None) -> None:
    x = g.embed("embed")
    for layer in g.layers(1):
        q, k, v = g.linear_split(x, layer["attn.q"], layer["attn.k"], layer["attn.v"])
        x = g.add(x, g.attention(g.rope(q), g.rope(k), v, cache=layer, window=window))
    g.logits(g.rms_norm(x, "norm"), "embed")


def test_drawing_records_nodes_with_their_shapes_weights_and_caches():
    g = new_graph()
    draw_one_layer(g, window=3)
    ops = ["embed", "linear_split", "rope", "rope", "attention", "add", "rms_norm", "logits"]
    assert [node.op.name for node in g.nodes] == ops
    assert g.output.shape == ("logits", 10)
    assert [value.shape for value in g.nodes[1].outputs] == [("tokens", 8), ("tokens", 4), ("tokens", 4)]
    assert g.nodes[1].weights["biases"] == (None, None, "layers.0.attn.v.bias")
    (spec,) = g.caches
    assert (spec.kind, spec.num_heads, spec.head_dim, spec.window, spec.values_per_token) == ("window", 1, 4, 3, 8)
    assert g.nodes[4].cache == 0 and g.nodes[4].attrs == {"scale": 0.5}
    assert g.weight_names().count("embed") == 1 and "layers.0.attn.v.bias" in g.weight_names()


def test_a_node_cannot_be_changed():
    g = new_graph()
    draw_one_layer(g)
    with pytest.raises(AttributeError):
        g.nodes[0].op = None
    with pytest.raises(TypeError):
        g.nodes[-2].attrs["eps"] = 0.0


def test_equal_graphs_have_equal_digests():
    one, two, other, wider = new_graph(), new_graph(), new_graph(), new_graph(embed=(11, 8))
    draw_one_layer(one)
    draw_one_layer(two)
    draw_one_layer(other, window=3)
    draw_one_layer(wider)
    assert one.digest() == two.digest()
    assert len({one.digest(), other.digest(), wider.digest()}) == 3
    assert "%0 [tokens, 8] = embed(table=embed)" in str(one)


def test_a_missing_weight_is_named():
    with pytest.raises(GraphError, match=r"'layers\.3\.attn\.q'"):
        g = new_graph()
        g.linear(g.embed("embed"), "layers.3.attn.q")


def test_a_weight_that_does_not_fit_is_named_with_both_shapes():
    g = new_graph(norm=(7,), up=(12, 8), gate=(16, 8), narrow=(8, 6))
    x = g.embed("embed")
    with pytest.raises(GraphError, match=r"rms_norm: weight 'norm' must be \[8\] and is \[7\]"):
        g.rms_norm(x, "norm")
    with pytest.raises(GraphError, match=r"linear_split: weight 'narrow' must be \[\*, 8\] and is \[8, 6\]"):
        g.linear_split(x, "layers.0.attn.q", "narrow")
    with pytest.raises(GraphError, match=r"silu_gate: weight 'up' must be \[16, 8\] and is \[12, 8\]"):
        g.silu_gate(x, "gate", "up")


def test_values_that_do_not_fit_each_other_are_refused():
    g = new_graph()
    x = g.embed("embed")
    k = g.linear(x, "layers.0.attn.k")
    with pytest.raises(GraphError, match=r"add: input 'y' \(%1\) must be \[tokens, 8\] and is \[tokens, 4\]"):
        g.add(x, k)
    (layer,) = g.layers(1)
    with pytest.raises(GraphError, match=r"attention: input 'v'"):
        g.attention(x, k, x, cache=layer)


def test_a_layer_has_one_cache():
    g = new_graph()
    x = g.linear(g.embed("embed"), "layers.0.attn.k")
    (layer,) = g.layers(1)
    g.attention(x, x, x, cache=layer)
    with pytest.raises(GraphError, match="layer 0 attends twice"):
        g.attention(x, x, x, cache=layer)


def test_the_interpreter_runs_a_graph_and_keeps_its_cache_between_steps():
    g = new_graph()
    draw_one_layer(g)
    tokens = [3, 1, 4, 1, 5, 9, 2]
    whole = Interpreter(g, random_weights(), num_blocks=4, block_tokens=4)
    expected = whole.run(Batch.of([RowPart(tokens, 0, [2, 0], num_logits=7)], 4))
    assert expected.shape == (7, 10)
    steps = Interpreter(g, random_weights(), num_blocks=4, block_tokens=4)
    for at, token in enumerate(tokens):
        assert np.array_equal(steps.run(Batch.of([RowPart([token], at, [1, 3])], 4))[0], expected[at])
