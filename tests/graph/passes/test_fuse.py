"""Every rule of fusion: where it applies, where one operand or attribute keeps it from applying, and that the fused
graph computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quire.graph.graph import Graph, Value
from quire.graph.interpret import Interpreter
from quire.graph.passes import fuse
from quire.graph.passes.narrow import narrow_tail
from quire.graph.passes.rewrite import rewrite
from quire.graph.weight import Weight, computed_weight
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import PagedKV
from quire.ops.registry import relative_error

pytestmark = pytest.mark.pure

RULES = tuple(rule for rule in fuse.RULES if rule is not fuse.merge_linears)
DIM, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, VOCAB = 12, 4, 2, 8, 20, 19
SHAPES = {
    "embed": (VOCAB, DIM),
    "head": (VOCAB, DIM),
    "head.bias": (VOCAB,),
    "norm": (DIM,),
    "norm2": (DIM,),
    "q": (HEADS * HEAD_DIM, DIM),
    "q.bias": (HEADS * HEAD_DIM,),
    "k": (KV_HEADS * HEAD_DIM, DIM),
    "v": (KV_HEADS * HEAD_DIM, DIM),
    "out": (DIM, HEADS * HEAD_DIM),
    "q_norm": (HEAD_DIM,),
    "k_norm": (HEAD_DIM,),
    "wide_q_norm": (HEADS * HEAD_DIM,),
    "wide_k_norm": (KV_HEADS * HEAD_DIM,),
    "one_head": (HEAD_DIM, DIM),
    "widen": (DIM, HEAD_DIM),
    "gate": (HIDDEN, DIM),
    "up": (HIDDEN, DIM),
    "up.bias": (HIDDEN,),
    "down": (DIM, HIDDEN),
    "down.bias": (DIM,),
    "square": (DIM, DIM),
    "rope": (HEAD_DIM // 2,),
    "other_rope": (HEAD_DIM // 2,),
    "partial_rope": (HEAD_DIM // 4,),
    "short_rope": (HEAD_DIM // 4,),
}
BATCH = Batch.of([RowPart([3, 1, 4, 1, 5, 9, 2, 6], 0, [2], 5), RowPart([5, 3], 0, [0], 2)], 16)
Draw = Callable[[Graph, Value], Value]


def weights() -> dict[str, Weight]:
    rng = np.random.default_rng(0)
    return {name: computed_weight(name, rng.standard_normal(shape)) for name, shape in SHAPES.items()}


def drawn(draw: Draw, embed: Callable[[Graph], Value] = lambda g: g.embed("embed"), **head: Any) -> Graph:
    """A graph of an embedding, what `draw` adds, and a head."""
    graph = Graph.over(weights())
    graph.logits(draw(graph, embed(graph)), "head", **head)
    return graph


def run(graph: Graph) -> np.ndarray:
    return Interpreter(graph, weights(), 4).run(BATCH)


def fused_ops(graph: Graph) -> list[str]:
    """Fuse all that there is a rule for, and check that the result is the same. Return the ops without the frame."""
    whole = rewrite(narrow_tail(graph), RULES, lambda node: True)
    assert relative_error(run(whole), run(graph)) < 1e-5
    return [node.op.name for node in whole.nodes if node.op.name not in ("embed", "select", "head")]


# --- attention


def attend(g: Graph, h: Value, **choices: Any) -> Value:
    """Attention of h. Choices for each of q, k and v: `norm_q` draws on q after its linear, `turn_q` after that."""
    heads = {}
    for word in "qkv":
        x = g.linear(choices.get(f"source_{word}", h), word)
        for step in ("norm", "turn"):
            each = choices.get(f"{step}_{word}")
            x = x if each is None else each(g, x)
        heads[word] = x
    spec = choices.get("spec", PagedKV(KV_HEADS, HEAD_DIM, HEAD_DIM, 5))
    return g.attention(heads["q"], heads["k"], heads["v"], g.cache(spec), scale=0.4, softcap=choices.get("softcap"))


def turn(name: str = "rope", **changes: Any) -> Draw:
    return lambda g, x: g.rope(x, name, **{"head_dim": HEAD_DIM, **changes})


def norm(name: str | None, eps: float = 1e-2, group: int = HEAD_DIM) -> Draw:
    return lambda g, x: g.rms_norm(x, name, eps=eps, group=group)


NORMS = {"norm_q": norm("q_norm"), "norm_k": norm("k_norm")}
WIDE_NORMS = {"norm_q": norm("wide_q_norm", group=0), "norm_k": norm("wide_k_norm", group=0)}
TURNS = {"turn_q": turn(), "turn_k": turn()}
LAYER_NORM: Draw = lambda g, x: g.layer_norm(x, "q_norm", eps=1e-2, group=HEAD_DIM)  # noqa: E731


@pytest.mark.parametrize(
    "choices",
    [
        pytest.param({**TURNS}, id="rope"),
        pytest.param({}, id="neither norms nor rope"),
        pytest.param({**TURNS, **NORMS, "softcap": 3.0}, id="norms of heads and a softcap"),
        pytest.param({**TURNS, **WIDE_NORMS}, id="norms of all heads"),
        pytest.param({"turn_q": turn("partial_rope"), "turn_k": turn("partial_rope")}, id="partial rope"),
        pytest.param({word: turn(interleaved=True, scaling=1.3) for word in TURNS}, id="rope in pairs"),
    ],
)
def test_attention_is_fused_with_all_that_makes_its_heads(choices):
    ops = fused_ops(drawn(lambda g, x: g.add(x, g.linear(attend(g, x, **choices), "out"))))
    assert ops == ["qkv_attention", "linear_add"]


@pytest.mark.parametrize(
    "choices",
    [
        pytest.param({"turn_q": turn()}, id="rope on q alone"),
        pytest.param({"turn_k": turn()}, id="rope on k alone"),
        pytest.param({**TURNS, "turn_k": turn("other_rope")}, id="two ropes"),
        pytest.param({**TURNS, "turn_k": turn(scaling=1.5)}, id="ropes of two scalings"),
        pytest.param({**TURNS, "turn_k": turn(interleaved=True)}, id="rope in halves and in pairs"),
        pytest.param({word: turn("short_rope", head_dim=HEAD_DIM // 2) for word in TURNS}, id="rope of half heads"),
        pytest.param({**TURNS, "turn_v": turn()}, id="rope on v"),
        pytest.param({**TURNS, "norm_q": norm("q_norm")}, id="a norm on q alone"),
        pytest.param({**TURNS, "norm_k": norm("k_norm")}, id="a norm on k alone"),
        pytest.param({**NORMS, "norm_k": norm("k_norm", eps=0.5)}, id="norms of two epsilons"),
        pytest.param({"norm_q": norm("wide_q_norm", group=0), "norm_k": norm("k_norm")}, id="wide norm of q alone"),
        pytest.param({"norm_q": norm("wide_q_norm"), "norm_k": norm("wide_k_norm")}, id="a weight for each head"),
        pytest.param({"norm_q": norm(None), "norm_k": norm(None)}, id="norms without weights"),
        pytest.param({**NORMS, "norm_v": norm("k_norm")}, id="a norm on v"),
        pytest.param({"norm_q": LAYER_NORM, "norm_k": LAYER_NORM}, id="layer norms"),
        pytest.param({"norm_q": turn(), "turn_q": norm("q_norm"), "norm_k": turn(), "turn_k": norm("k_norm")},
                     id="norms after rope"),
    ],
)  # fmt: skip
def test_attention_is_not_fused_if_its_heads_differ_from_what_the_fused_op_computes(choices):
    ops = fused_ops(drawn(lambda g, x: g.add(x, g.linear(attend(g, x, **choices), "out"))))
    assert "attention" in ops and "qkv_attention" not in ops


def test_attention_over_heads_of_two_sources_is_not_fused():
    for word in "qkv":
        ops = fused_ops(drawn(lambda g, x, w=word: attend_and_add(g, x, **{f"source_{w}": g.activation(x, "tanh")})))
        assert "attention" in ops


def attend_and_add(g: Graph, x: Value, **choices: Any) -> Value:
    return g.add(x, g.linear(attend(g, x, **choices), "out"))


@pytest.mark.parametrize("word, step", [("k", "linear"), ("k", "norm"), ("k", "rope"), ("q", "rope"), ("v", "linear")])
def test_attention_is_not_fused_if_something_else_reads_its_heads(word, step):
    def draw(g: Graph, x: Value) -> Value:
        seen = {}
        for each in "qkv":
            seen[each, "linear"] = h = g.linear(x, each)
            if each != "v":
                seen[each, "norm"] = h = g.rms_norm(h, f"{each}_norm", eps=1e-2, group=HEAD_DIM)
                seen[each, "rope"] = g.rope(h, "rope", head_dim=HEAD_DIM)
        q, k, v = seen["q", "rope"], seen["k", "rope"], seen["v", "linear"]
        out = g.attention(q, k, v, g.cache(PagedKV(KV_HEADS, HEAD_DIM, HEAD_DIM)), scale=0.3)
        return g.add(g.add(x, g.linear(out, "out")), g.columns(seen[word, step], 0, DIM))

    assert "attention" in fused_ops(drawn(draw))


def test_attention_is_not_fused_if_its_only_head_is_normed_in_groups():
    def draw(g: Graph, x: Value) -> Value:
        q, k = (g.rms_norm(g.linear(x, "one_head"), f"{word}_norm", eps=1e-2, group=HEAD_DIM // 2) for word in "qk")
        out = g.attention(q, k, g.linear(x, "one_head"), g.cache(PagedKV(1, HEAD_DIM, HEAD_DIM)), scale=0.3)
        return g.add(g.columns(x, 0, HEAD_DIM), out)

    graph = Graph.over(weights())
    graph.logits(graph.linear(draw(graph, graph.embed("embed")), "widen"), "head")
    assert "attention" in fused_ops(graph)


def test_values_made_of_the_projection_of_keys_are_not_fused():
    def draw(g: Graph, x: Value) -> Value:
        k = g.linear(x, "k")
        out = g.attention(g.linear(x, "q"), k, k, g.cache(PagedKV(KV_HEADS, HEAD_DIM, HEAD_DIM)), scale=0.3)
        return g.add(x, g.linear(out, "out"))

    assert "attention" in fused_ops(drawn(draw))


# --- feed-forward blocks


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "relu2"])
def test_a_gate_is_fused_in_either_order(kind, swapped):
    def draw(g: Graph, x: Value) -> Value:
        pair = [g.activation(g.linear(x, "gate"), kind), g.linear(x, "up")]
        return g.add(x, g.linear(g.multiply(*(pair[::-1] if swapped else pair)), "down"))

    assert fused_ops(drawn(draw)) == ["gated_linear", "linear_add"]


def gate_of_two_sources(g: Graph, x: Value) -> Value:
    return g.multiply(g.activation(g.linear(x, "gate"), "silu"), g.linear(g.activation(x, "tanh"), "up"))


def gate_that_is_its_own_up(g: Graph, x: Value) -> Value:
    gate = g.linear(x, "gate")
    return g.multiply(g.activation(gate, "silu"), gate)


def gate_read_twice(g: Graph, x: Value) -> Value:
    gate = g.linear(x, "gate")
    return g.add(g.multiply(g.activation(gate, "silu"), g.linear(x, "up")), gate)


def activation_read_twice(g: Graph, x: Value) -> Value:
    active = g.activation(g.linear(x, "gate"), "silu")
    return g.add(g.multiply(active, g.linear(x, "up")), active)


def up_read_twice(g: Graph, x: Value) -> Value:
    up = g.linear(x, "up")
    return g.add(g.multiply(g.activation(g.linear(x, "gate"), "silu"), up), g.activation(up, "tanh"))


@pytest.mark.parametrize(
    "block", [gate_of_two_sources, gate_that_is_its_own_up, gate_read_twice, activation_read_twice, up_read_twice]
)
def test_a_gate_is_not_fused_otherwise(block):
    ops = fused_ops(drawn(lambda g, x: g.add(x, g.linear(block(g, x), "down"))))
    assert "gated_linear" not in ops and "multiply" in ops


def test_a_linear_is_fused_with_its_activation_unless_it_is_read_twice():
    once = fused_ops(drawn(lambda g, x: g.add(x, g.linear(g.activation(g.linear(x, "up"), "gelu"), "down"))))
    assert once == ["activated_linear", "linear_add"]

    def twice(g: Graph, x: Value) -> Value:
        up = g.linear(x, "up")
        return g.add(x, g.linear(g.add(g.activation(up, "gelu"), up), "down"))

    assert "activated_linear" not in fused_ops(drawn(twice))


# --- sums


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    "after, op",
    [
        (lambda g, y: y, "linear_add"),
        (lambda g, y: g.scale(y, 0.3), "scaled_linear_add"),
        (lambda g, y: g.rms_norm(y, "norm", eps=1e-2), "normed_linear_add"),
    ],
)
def test_a_product_is_added_to_the_residual_in_either_order(after, op, swapped):
    def draw(g: Graph, x: Value) -> Value:
        pair = [x, after(g, g.linear(x, "square"))]
        return g.activation(g.add(*(pair[::-1] if swapped else pair)), "tanh")

    assert fused_ops(drawn(draw)) == [op, "activation"]


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(lambda g, y: g.rms_norm(y, None, eps=1e-2), id="a norm without a weight"),
        pytest.param(lambda g, y: g.rms_norm(y, "norm", eps=1e-2, group=4), id="a norm of groups"),
        pytest.param(lambda g, y: g.layer_norm(y, "norm", eps=1e-2), id="a layer norm"),
        pytest.param(lambda g, y: g.scale_by(y, "norm"), id="a factor for each column"),
        pytest.param(lambda g, y: g.softcap(y, 2.0), id="a softcap"),
    ],
)
def test_a_product_is_added_alone_if_the_op_between_is_another(after):
    ops = fused_ops(drawn(lambda g, x: g.add(x, after(g, g.linear(x, "square")))))
    assert "add" in ops and "linear" in ops


@pytest.mark.parametrize(
    "after",
    [lambda g, y: y, lambda g, y: g.scale(y, 0.3), lambda g, y: g.rms_norm(y, "norm", eps=1e-2)],
)
def test_a_product_that_is_read_twice_is_not_fused_with_a_sum(after):
    def both(g: Graph, x: Value) -> Value:
        product = g.linear(x, "square")
        return g.multiply(g.add(x, after(g, product)), g.activation(product, "tanh"))

    def after_it(g: Graph, x: Value) -> Value:
        added = after(g, g.linear(x, "square"))
        return g.multiply(g.add(x, added), g.activation(added, "tanh"))

    def with_itself(g: Graph, x: Value) -> Value:
        added = after(g, g.linear(x, "square"))
        return g.add(added, added)

    for draw in (both, after_it, with_itself):
        assert "add" in fused_ops(drawn(draw))


# --- norms before products


def test_a_norm_is_part_of_every_product_that_reads_it():
    def draw(g: Graph, x: Value) -> Value:
        h = g.rms_norm(x, "norm", eps=1e-1)
        gate = g.multiply(g.activation(g.linear(h, "gate"), "silu"), g.linear(h, "up"))
        seen = g.linear(attend(g, h, **TURNS, **NORMS), "out")
        return g.rms_norm(g.add(g.add(x, seen), g.linear(gate, "down")), "norm2", eps=1e-1)

    ops = ["linear_add", "linear_add", "normed_gated_linear", "normed_head", "qkv_attention"]
    assert sorted(fused_ops(drawn(draw))) == ops


@pytest.mark.parametrize("activates", [False, True])
def test_a_norm_is_part_of_a_linear_that_alone_reads_it(activates):
    def draw(g: Graph, x: Value, num_readers: int) -> Value:
        h = g.rms_norm(x, "norm", eps=1e-1)
        up = [g.linear(h, name) for name in ("up", "gate")[:num_readers]]
        up = [g.activation(each, "tanh") for each in up] if activates else up
        return g.linear(up[0] if num_readers == 1 else g.add(*up), "down")

    assert fused_ops(drawn(lambda g, x: draw(g, x, 1)))[0] == "normed_linear"
    assert fused_ops(drawn(lambda g, x: draw(g, x, 2)))[0] == "rms_norm"


@pytest.mark.parametrize(
    "norm",
    [
        pytest.param(lambda g, x: g.rms_norm(x, None, eps=1e-1), id="without a weight"),
        pytest.param(lambda g, x: g.rms_norm(x, "norm", eps=1e-1, group=4), id="of groups"),
        pytest.param(lambda g, x: g.layer_norm(x, "norm", eps=1e-1), id="a layer norm"),
    ],
)
def test_another_norm_stays_alone(norm):
    assert fused_ops(drawn(lambda g, x: g.linear(norm(g, x), "square")))[0] in ("rms_norm", "layer_norm")
    assert fused_ops(drawn(norm))[0] in ("rms_norm", "layer_norm")


def test_a_norm_that_something_else_reads_stays():
    def draw(g: Graph, x: Value) -> Value:
        h = g.rms_norm(x, "norm", eps=1e-1)
        gate = g.multiply(g.activation(g.linear(h, "gate"), "silu"), g.linear(h, "up"))
        return g.add(h, g.linear(gate, "down"))

    assert fused_ops(drawn(draw)) == ["normed_gated_linear", "rms_norm", "linear_add"]


def test_one_of_two_norms_in_a_row_is_part_of_a_product():
    def draw(g: Graph, x: Value) -> Value:
        return attend_and_add(g, g.rms_norm(g.rms_norm(x, "norm", eps=1e-1), "norm2", eps=1e-1))

    assert fused_ops(drawn(draw)) == ["rms_norm", "qkv_attention", "rms_norm", "linear_add"]


# --- linears of one value


@pytest.mark.parametrize("num_linears", [1, 2, 3])
def test_linears_of_one_value_are_merged(num_linears):
    def draw(g: Graph, x: Value) -> Value:
        products = [g.linear(x, name) for name in ("up", "gate", "up")[:num_linears]]
        for each in products[1:]:
            products[0] = g.add(products[0], g.activation(each, "tanh"))
        return g.linear(g.activation(products[0], "tanh"), "down")

    graph = drawn(draw)
    whole = rewrite(graph, (fuse.merge_linears,), lambda node: True)
    assert relative_error(run(whole), run(graph)) < 1e-5
    assert [node.op.name for node in whole.nodes].count("linear_split") == (num_linears > 1)


# --- ends of the graph


def test_a_scale_is_part_of_the_embedding_that_it_alone_reads():
    ops = fused_ops(drawn(attend_and_add, lambda g: g.scale(g.embed("embed"), 3.0)))
    assert ops == ["scaled_embed", "qkv_attention", "linear_add"]

    def both(g: Graph) -> Value:
        x = g.embed("embed")
        return g.add(x, g.scale(x, 3.0))

    assert fused_ops(drawn(attend_and_add, both)) == ["scale", "add", "qkv_attention", "linear_add"]


@pytest.mark.parametrize("factor, cap", [(1.0, None), (0.3, None), (1.0, 2.0), (0.3, 2.0)])
def test_the_head_takes_the_factor_and_the_cap_of_the_logits(factor, cap):
    graph = drawn(lambda g, x: g.activation(x, "tanh"), factor=factor, cap=cap)
    assert fused_ops(graph) == ["activation"]


def test_a_head_whose_logits_are_capped_before_they_are_scaled_is_not_fused():
    graph = Graph.over(weights())
    narrow = graph.logits(graph.embed("embed"), "head")
    graph.outputs["logits"] = graph.scale(graph.softcap(narrow, 2.0), 0.3)
    assert fused_ops(graph) == ["linear", "softcap", "scale"]


def test_a_device_without_a_kernel_gets_plain_nodes():
    graph = drawn(lambda g, x: attend_and_add(g, g.rms_norm(x, "norm", eps=1e-1), **TURNS))
    assert str(rewrite(graph, RULES, lambda node: False)) == str(graph)
