"""Building a graph: what is recorded, and errors that name the weight."""

from __future__ import annotations

import numpy as np
import pytest

from quire.graph.graph import Graph, GraphError
from quire.graph.interpret import Interpreter
from quire.graph.weight import Weight, computed_weight
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import PagedKV

pytestmark = pytest.mark.pure

SHAPES = {
    "embed": (10, 8),
    "layers.0.attn.q": (8, 8),
    "layers.0.attn.k": (4, 8),
    "layers.0.attn.v": (4, 8),
    "layers.0.attn.v.bias": (4,),
    "norm": (8,),
    "rope": (2,),
}


def random_weights(**shapes: tuple[int, ...]) -> dict[str, Weight]:
    rng = np.random.default_rng(0)
    return {name: computed_weight(name, rng.standard_normal(shape)) for name, shape in {**SHAPES, **shapes}.items()}


def new_graph(**shapes: tuple[int, ...]) -> Graph:
    return Graph.over(random_weights(**shapes))


def draw_one_layer(g: Graph, window: int | None = None) -> None:
    x = g.embed("embed")
    for layer in g.layers(1):
        q, k, v = (g.linear(x, layer[f"attn.{word}"]) for word in "qkv")
        q, k = (g.rope(each, "rope", head_dim=4) for each in (q, k))
        x = g.add(x, g.attention(q, k, v, g.cache(PagedKV(1, 4, 4, window)), scale=0.5))
    g.logits(g.rms_norm(x, "norm", eps=1e-5), "embed")


def test_drawing_records_nodes_with_their_shapes_weights_and_caches():
    g = new_graph()
    draw_one_layer(g, window=3)
    ops = ["embed", "linear", "linear", "linear", "rope", "rope", "attention", "add", "rms_norm", "select", "linear"]
    assert [node.op.name for node in g.nodes] == ops
    assert g.output.shape == ("logits", 10) and g.outputs == {"logits": g.output}
    assert [node.output.shape for node in g.nodes[1:4]] == [("tokens", 8), ("tokens", 4), ("tokens", 4)]
    assert [node.weights["bias"] for node in g.nodes[1:4]] == [None, None, "layers.0.attn.v.bias"]
    (spec,) = g.caches
    assert spec == PagedKV(1, 4, 4, window=3) and spec.values_per_token == 8
    assert g.nodes[6].cache == 0 and g.nodes[6].attrs == {"scale": 0.5, "softcap": 0.0}
    assert g.weight_names().count("embed") == 1 and "layers.0.attn.v.bias" in g.weight_names()


def test_a_node_cannot_be_changed():
    g = new_graph()
    draw_one_layer(g)
    with pytest.raises(AttributeError):
        g.nodes[0].op = None
    with pytest.raises(TypeError):
        g.nodes[-3].attrs["eps"] = 0.0


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
    g = new_graph(norm=(7,), narrow=(8, 6))
    x = g.embed("embed")
    with pytest.raises(GraphError, match=r"rms_norm: weight 'norm' must be \[8\] and is \[7\]"):
        g.rms_norm(x, "norm", eps=1e-5)
    with pytest.raises(GraphError, match=r"linear: weight 'narrow' must be \[\*, 8\] and is \[8, 6\]"):
        g.linear(x, "narrow")


def test_values_that_do_not_fit_each_other_are_refused():
    g = new_graph()
    x = g.embed("embed")
    k = g.linear(x, "layers.0.attn.k")
    with pytest.raises(GraphError, match=r"add: input 'y' \(%1\) must be \[tokens, 8\] and is \[tokens, 4\]"):
        g.add(x, k)
    with pytest.raises(GraphError, match=r"attention: input 'v'"):
        g.attention(x, k, x, g.cache(PagedKV(1, 4, 4)), scale=0.5)


def test_a_cache_has_one_writer_and_is_read_after_it():
    g = new_graph()
    x = g.linear(g.embed("embed"), "layers.0.attn.k")
    cache = g.cache(PagedKV(1, 4, 4))
    with pytest.raises(GraphError, match="reads the cache 0 before any layer writes it"):
        g.attention_shared(x, cache, scale=0.5)
    g.attention(x, x, x, cache, scale=0.5)
    assert g.attention_shared(x, cache, scale=0.5).shape == ("tokens", 4)
    with pytest.raises(GraphError, match="two layers write the cache 0"):
        g.attention(x, x, x, cache, scale=0.5)


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
