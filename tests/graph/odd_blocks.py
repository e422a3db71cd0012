"""Odd graphs: blocks, residuals, feed-forward and the head."""

from __future__ import annotations

from collections.abc import Callable

from quire.graph.graph import Value
from quire.ops import select
from tests.graph.odd_registry import odd
from tests.graph.sketch import DIM, FFN, VOCAB, Sketch

# --- blocks and residuals


@odd
def post_norms(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    for _ in range(2):
        x = s.graph.add(x, s.norm(s.attention(x, table)))
        x = s.graph.add(x, s.norm(s.mlp(x)))
    s.logits(x)


def _post_normed(s: Sketch, block: Callable[[Value, Value], Value]) -> None:
    """`block` takes the residual and a product."""
    x, table = s.embed(), s.frequencies()
    x = block(x, s.attention(x, table))
    s.logits(block(x, s.mlp(x)))


@odd
def post_norms_of_groups(s: Sketch) -> None:
    _post_normed(s, lambda x, y: s.graph.add(x, s.graph.rms_norm(y, s.scales(), eps=1e-5, group=16)))


@odd
def post_norms_without_weights(s: Sketch) -> None:
    _post_normed(s, lambda x, y: s.graph.add(x, s.graph.rms_norm(y, None, eps=1e-5)))


@odd
def a_post_norm_read_by_two(s: Sketch) -> None:
    def block(x: Value, y: Value) -> Value:
        normed = s.norm(y)
        return s.graph.add(s.graph.add(x, normed), s.graph.activation(normed, "tanh"))

    _post_normed(s, block)


@odd
def a_product_read_beside_its_post_norm(s: Sketch) -> None:
    _post_normed(s, lambda x, y: s.graph.add(s.graph.add(x, s.norm(y)), s.graph.activation(y, "tanh")))


@odd
def a_post_norm_added_to_itself(s: Sketch) -> None:
    def block(x: Value, y: Value) -> Value:
        normed = s.norm(y)
        return s.graph.add(normed, normed)

    _post_normed(s, block)


@odd
def norms_before_and_after(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    x = s.graph.add(x, s.norm(s.attention(s.norm(x), table)))
    s.logits(s.graph.add(x, s.norm(s.mlp(s.norm(x), "gelu_tanh"))))


@odd
def norms_of_the_sum(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    x = s.norm(s.graph.add(x, s.attention(x, table)))
    s.logits(s.norm(s.graph.add(x, s.mlp(x))))


@odd
def layer_norms_with_and_without_bias(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    biased = s.scales()
    s.weight(DIM, name=f"{biased}.bias")
    x = s.graph.add(x, s.attention(s.graph.layer_norm(x, biased, eps=1e-5), table))
    x = s.graph.add(x, s.mlp(s.graph.layer_norm(x, s.scales(), eps=1e-5), "gelu"))
    s.graph.logits(s.graph.layer_norm(x, None, eps=1e-5), s.matrix(VOCAB, DIM))


@odd
def norms_without_weights(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    x = s.graph.add(x, s.attention(s.graph.rms_norm(x, None, eps=1e-5), table))
    x = s.graph.add(x, s.mlp(s.graph.rms_norm(x, None, eps=0.3)))
    s.graph.logits(s.graph.rms_norm(x, None, eps=1e-5), s.matrix(VOCAB, DIM))


@odd
def norms_of_groups_before_linears(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    x = s.graph.add(x, s.attention(s.graph.rms_norm(x, s.scales(), eps=1e-5, group=16), table))
    s.logits(s.graph.add(x, s.mlp(s.graph.rms_norm(x, s.scales(16), eps=1e-5, group=16))))


@odd
def no_norms(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    x = s.graph.add(x, s.attention(x, table))
    x = s.graph.add(x, s.mlp(x))
    s.graph.logits(x, s.matrix(VOCAB, DIM))


@odd
def different_eps_in_every_norm(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    x = s.graph.add(x, s.attention(s.norm(x, 0.5), table))
    x = s.graph.add(x, s.mlp(s.norm(x, 0.05)))
    s.graph.logits(s.norm(x, 2.0), s.matrix(VOCAB, DIM))


@odd
def a_norm_read_beside_its_linears(s: Sketch) -> None:
    """The residual is the norm, not what was normed."""
    x, table = s.embed(), s.frequencies()
    h = s.norm(x)
    x = s.graph.add(h, s.attention(h, table))
    h = s.norm(x)
    s.logits(s.graph.add(h, s.mlp(h)))


@odd
def parallel_blocks_of_one_norm(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    for _ in range(2):
        h = s.norm(x)
        x = s.graph.add(s.graph.add(x, s.attention(h, table)), s.mlp(h))
    s.logits(x)


@odd
def parallel_blocks_of_two_norms(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    for _ in range(2):
        both = s.graph.add(s.attention(s.norm(x), table), s.mlp(s.norm(x)))
        x = s.graph.add(both, x)
    s.logits(x)


@odd
def a_layer_without_attention(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    x = s.graph.add(x, s.mlp(s.norm(x)))
    x = s.layer(x, table)
    s.logits(s.graph.add(x, s.mlp(s.norm(x), "relu2")))


@odd
def no_attention_at_all(s: Sketch) -> None:
    x = s.embed()
    s.logits(s.graph.add(x, s.mlp(s.norm(x))))


@odd
def no_layers(s: Sketch) -> None:
    s.graph.logits(s.embed(), s.matrix(VOCAB, DIM))


@odd
def attention_without_a_residual(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    x = s.attention(s.norm(x), table)
    s.logits(s.mlp(s.norm(x)))


@odd
def the_residual_is_read_again_after_the_sum(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    summed = s.graph.add(x, s.attention(s.norm(x), table))
    again = s.graph.add(summed, s.mlp(s.norm(x)))
    s.logits(s.graph.add(again, x))


@odd
def the_product_is_read_again_after_the_sum(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    product = s.attention(s.norm(x), table)
    summed = s.graph.add(x, product)
    s.logits(s.graph.add(s.graph.add(summed, s.mlp(s.norm(summed))), product))


@odd
def a_product_added_to_itself(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    product = s.attention(s.norm(x), table)
    s.logits(s.graph.add(product, product))


@odd
def a_product_multiplied_by_itself(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    product = s.attention(s.norm(x), table)
    s.logits(s.graph.add(x, s.graph.multiply(product, product)))


@odd
def the_sum_of_two_products(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    s.logits(s.graph.add(s.attention(s.norm(x), table), s.linear(x, DIM)))


@odd
def the_product_before_the_residual(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    x = s.graph.add(s.attention(s.norm(x), table), x)
    s.logits(s.graph.add(s.mlp(s.norm(x)), x))


@odd
def a_residual_made_after_the_product(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    product = s.attention(s.norm(x), table)
    s.logits(s.graph.add(s.graph.scale(s.norm(x), 0.5), product))


@odd
def scaled_residuals(s: Sketch) -> None:
    x, table = s.graph.scale(s.embed(), 3.0), s.frequencies()
    x = s.graph.add(x, s.graph.scale(s.attention(s.norm(x), table), 0.3))
    x = s.graph.add(x, s.graph.scale_by(s.mlp(s.norm(x)), s.weight(DIM)))
    s.logits(s.graph.scale_by(x, s.weight(1, mean=1.0)))


@odd
def a_scaled_product_read_by_two(s: Sketch) -> None:
    def block(x: Value, y: Value) -> Value:
        scaled = s.graph.scale(y, 0.3)
        return s.graph.add(s.graph.add(x, scaled), s.graph.activation(scaled, "tanh"))

    _post_normed(s, block)


@odd
def a_product_read_beside_its_scale(s: Sketch) -> None:
    _post_normed(s, lambda x, y: s.graph.add(s.graph.add(x, s.graph.scale(y, 0.3)), s.graph.activation(y, "tanh")))


@odd
def an_embedding_read_beside_its_scale(s: Sketch) -> None:
    x = s.embed()
    s.logits(s.graph.add(s.layer(s.graph.scale(x, 3.0), s.frequencies()), x))


@odd
def a_linear_read_beside_its_activation(s: Sketch) -> None:
    def block(h: Value) -> Value:
        up = s.linear(h, FFN)
        return s.linear(s.graph.add(s.graph.activation(up, "gelu"), up), DIM)

    _feed_forward(s, block)


@odd
def learned_positions(s: Sketch) -> None:
    x = s.graph.add(s.embed(), s.graph.embed_positions(s.weight(80, DIM), offset=2))
    x = s.graph.add(x, s.linear(s.attend(*s.qkv(s.norm(x))), DIM, bias=True))
    s.logits(s.graph.add(x, s.mlp(s.norm(x))))


# --- feed-forward


def _feed_forward(s: Sketch, block: Callable[[Value], Value]) -> None:
    x, table = s.embed(), s.frequencies()
    x = s.graph.add(x, s.attention(s.norm(x), table))
    s.logits(s.graph.add(x, block(s.norm(x))))


@odd
def the_gate_and_up_of_different_values(s: Sketch) -> None:
    def block(h: Value) -> Value:
        gate = s.graph.activation(s.linear(h, FFN), "silu")
        return s.linear(s.graph.multiply(gate, s.linear(s.graph.scale(h, 0.5), FFN)), DIM)

    _feed_forward(s, block)


@odd
def the_gate_is_up(s: Sketch) -> None:
    def block(h: Value) -> Value:
        up = s.linear(h, FFN)
        return s.linear(s.graph.multiply(s.graph.activation(up, "silu"), up), DIM)

    _feed_forward(s, block)


@odd
def the_gate_comes_second(s: Sketch) -> None:
    def block(h: Value) -> Value:
        up = s.linear(h, FFN)
        return s.linear(s.graph.multiply(up, s.graph.activation(s.linear(h, FFN), "gelu")), DIM)

    _feed_forward(s, block)


@odd
def two_activations(s: Sketch) -> None:
    def block(h: Value) -> Value:
        gate, up = (s.graph.activation(s.linear(h, FFN), kind) for kind in ("silu", "tanh"))
        return s.linear(s.graph.multiply(gate, up), DIM)

    _feed_forward(s, block)


@odd
def an_activation_of_a_norm(s: Sketch) -> None:
    def block(h: Value) -> Value:
        return s.linear(s.graph.multiply(s.graph.activation(h, "silu"), s.linear(h, DIM)), DIM)

    _feed_forward(s, block)


@odd
def an_activation_times_a_norm(s: Sketch) -> None:
    def block(h: Value) -> Value:
        return s.linear(s.graph.multiply(s.graph.activation(s.linear(h, DIM), "silu"), h), DIM)

    _feed_forward(s, block)


@odd
def a_gate_read_by_two(s: Sketch) -> None:
    def block(h: Value) -> Value:
        gate, up = s.linear(h, FFN), s.linear(h, FFN)
        product = s.graph.multiply(s.graph.activation(gate, "silu"), up)
        return s.linear(s.graph.add(product, gate), DIM)

    _feed_forward(s, block)


@odd
def an_up_read_by_two(s: Sketch) -> None:
    def block(h: Value) -> Value:
        gate, up = s.linear(h, FFN), s.linear(h, FFN)
        product = s.graph.multiply(s.graph.activation(gate, "silu"), up)
        return s.linear(s.graph.add(product, up), DIM)

    _feed_forward(s, block)


@odd
def an_activation_read_by_two(s: Sketch) -> None:
    def block(h: Value) -> Value:
        activated = s.graph.activation(s.linear(h, FFN), "silu")
        product = s.graph.multiply(activated, s.linear(h, FFN))
        return s.linear(s.graph.add(product, activated), DIM)

    _feed_forward(s, block)


@odd
def a_gated_product_read_by_two(s: Sketch) -> None:
    def block(h: Value) -> Value:
        product = s.graph.multiply(s.graph.activation(s.linear(h, FFN), "silu"), s.linear(h, FFN))
        return s.graph.add(s.linear(product, DIM), s.linear(product, DIM))

    _feed_forward(s, block)


@odd
def a_bias_on_the_gate_alone(s: Sketch) -> None:
    def block(h: Value) -> Value:
        gate = s.graph.activation(s.linear(h, FFN, bias=True), "silu")
        return s.linear(s.graph.multiply(gate, s.linear(h, FFN)), DIM, bias=True)

    _feed_forward(s, block)


@odd
def a_bias_on_up_alone(s: Sketch) -> None:
    def block(h: Value) -> Value:
        gate = s.graph.activation(s.linear(h, FFN), "silu")
        return s.linear(s.graph.multiply(gate, s.linear(h, FFN, bias=True)), DIM)

    _feed_forward(s, block)


@odd
def a_clamp_between_gate_and_product(s: Sketch) -> None:
    def block(h: Value) -> Value:
        gate = s.graph.clamp(s.graph.activation(s.linear(h, FFN), "silu"), 0.4)
        return s.linear(s.graph.multiply(gate, s.linear(h, FFN)), DIM)

    _feed_forward(s, block)


@odd
def ungated_blocks(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    for kind in ("gelu", "relu", "relu2", "tanh", "sigmoid"):
        x = s.graph.add(x, s.linear(s.graph.activation(s.linear(s.norm(x), FFN, bias=True), kind), DIM))
    s.logits(s.layer(x, table))


@odd
def gated_by_every_activation(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    for kind in ("gelu", "gelu_tanh", "relu", "relu2", "tanh", "sigmoid"):
        x = s.graph.add(x, s.mlp(s.norm(x), kind))
    s.logits(s.layer(x, table))


@odd
def xielu(s: Sketch) -> None:
    def block(h: Value) -> Value:
        weights = (s.weight(1, mean=0.8, spread=0.01), s.weight(1, mean=0.6, spread=0.01))
        return s.linear(s.graph.xielu(s.linear(h, FFN), *weights, beta=0.5, eps=-1e-6), DIM)

    _feed_forward(s, block)


# --- the head


def _hidden(s: Sketch) -> Value:
    return s.layer(s.embed(), s.frequencies())


@odd
def scaled_and_capped_logits(s: Sketch) -> None:
    s.logits(_hidden(s), factor=0.3, cap=1.5)


@odd
def scaled_logits(s: Sketch) -> None:
    s.logits(_hidden(s), factor=0.3)


@odd
def capped_logits(s: Sketch) -> None:
    s.logits(_hidden(s), cap=1.5)


@odd
def logits_capped_before_they_are_scaled(s: Sketch) -> None:
    s.graph.outputs["logits"] = s.graph.scale(s.logits(_hidden(s), cap=1.5), 0.3)


@odd
def logits_scaled_twice(s: Sketch) -> None:
    s.graph.outputs["logits"] = s.graph.scale(s.logits(_hidden(s), factor=3.0), 0.3)


@odd
def logits_capped_twice(s: Sketch) -> None:
    s.graph.outputs["logits"] = s.graph.softcap(s.logits(_hidden(s), cap=1.5), 0.5)


@odd
def logits_scaled_between_two_caps(s: Sketch) -> None:
    s.graph.outputs["logits"] = s.graph.softcap(s.graph.scale(s.logits(_hidden(s), cap=1.5), 0.7), 0.5)


@odd
def a_norm_of_the_logits(s: Sketch) -> None:
    s.graph.outputs["logits"] = s.norm(s.logits(_hidden(s)))


@odd
def a_scaled_norm_of_the_logits(s: Sketch) -> None:
    s.graph.outputs["logits"] = s.graph.scale(s.norm(s.logits(_hidden(s))), 0.7)


@odd
def logits_added_to_their_scaled_self(s: Sketch) -> None:
    logits = s.logits(_hidden(s))
    s.graph.outputs["logits"] = s.graph.add(logits, s.graph.scale(logits, 0.7))


@odd
def scaled_logits_read_once_more(s: Sketch) -> None:
    """Something reads the product that the scale takes in, and nothing reads the result."""
    product = s.logits(_hidden(s))
    s.graph.outputs["logits"] = s.graph.scale(product, 0.7)
    s.graph.activation(product, "tanh")


@odd
def logits_that_a_sum_reads(s: Sketch) -> None:
    """The sum is not the output: the product is."""
    product = s.logits(_hidden(s))
    s.graph.add(s.graph.activation(product, "tanh"), product)


@odd
def logits_that_a_sum_reads_once(s: Sketch) -> None:
    product = s.logits(_hidden(s))
    chosen = s.graph.nodes[-1].inputs[0]
    s.graph.add(s.graph.activation(s.linear(chosen, VOCAB), "tanh"), product)


@odd
def logits_of_two_linears_of_one_value(s: Sketch) -> None:
    product = s.logits(_hidden(s))
    chosen = s.graph.nodes[-1].inputs[0]
    s.graph.outputs["logits"] = s.graph.add(product, s.graph.activation(s.linear(chosen, VOCAB), "tanh"))


@odd
def a_head_with_a_bias(s: Sketch) -> None:
    s.graph.logits(s.norm(_hidden(s)), s.matrix(VOCAB, DIM, bias=True), cap=2.0)


@odd
def a_head_that_is_the_embedding_table(s: Sketch) -> None:
    table = s.weight(VOCAB, DIM)
    x = s.layer(s.graph.embed(table), s.frequencies())
    s.graph.logits(s.norm(x), table)


@odd
def no_head(s: Sketch) -> None:
    """The output is the last value, of all tokens."""
    s.norm(_hidden(s))


@odd
def blocks_after_the_selection(s: Sketch) -> None:
    x = s.graph.draw(select.select, {"x": _hidden(s)}, {})
    x = s.graph.add(x, s.mlp(s.norm(x)))
    s.graph.outputs["logits"] = s.linear(s.norm(x), VOCAB)


@odd
def two_selections(s: Sketch) -> None:
    x = _hidden(s)
    first, second = (s.graph.draw(select.select, {"x": each}, {}) for each in (x, s.mlp(s.norm(x))))
    s.graph.outputs["logits"] = s.linear(s.graph.add(first, second), VOCAB)


@odd
def a_selection_before_the_last_attention(s: Sketch) -> None:
    x, table = s.layer(s.embed(), s.frequencies()), s.frequencies()
    early = s.graph.draw(select.select, {"x": x}, {})
    late = s.graph.draw(select.select, {"x": s.layer(x, table)}, {})
    s.graph.outputs["logits"] = s.linear(s.graph.add(early, s.norm(late)), VOCAB)


@odd
def a_selection_before_an_attention_that_nothing_reads(s: Sketch) -> None:
    """Its cache is written all the same."""
    x, table = _hidden(s), s.frequencies()
    s.logits(x)
    s.attention(s.norm(x), table)


@odd
def a_value_that_nothing_reads(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    h = s.norm(x)
    s.graph.activation(s.linear(h, 32), "silu")
    s.logits(s.graph.add(x, s.attention(h, table)))


@odd
def positions_after_the_last_attention(s: Sketch) -> None:
    x = s.graph.scale_by_position(_hidden(s), beta=0.3, span=4)
    s.logits(s.graph.add(x, s.mlp(s.norm(x))))
