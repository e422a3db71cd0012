"""Odd graphs: q, k and v, their norms and ropes, and caches."""

from __future__ import annotations

from collections.abc import Callable

from quire.graph.graph import Value
from tests.graph.odd_registry import odd
from tests.graph.sketch import DIM, HEAD, HEADS, KV_HEADS, Sketch

# --- norms and ropes of q and k


def _with_heads(s: Sketch, change: Callable[[Value, Value, Value, str], tuple[Value, Value, Value]]) -> None:
    """A model whose layers differ from Llama's in q, k and v alone."""
    x, table = s.embed(), s.frequencies()
    for _ in range(2):
        q, k, v = change(*s.qkv(s.norm(x)), table)
        x = s.graph.add(x, s.linear(s.attend(q, k, v), DIM))
        x = s.graph.add(x, s.mlp(s.norm(x)))
    s.logits(x)


def _norm_heads(s: Sketch, x: Value, eps: float = 1e-5, **more: str | None) -> Value:
    weight = more["weight"] if "weight" in more else s.scales(HEAD)
    return s.graph.rms_norm(x, weight, eps=eps, group=HEAD)


@odd
def norm_on_q_alone(s: Sketch) -> None:
    _with_heads(s, lambda q, k, v, t: (s.rope(_norm_heads(s, q), t), s.rope(k, t), v))


@odd
def norm_on_k_alone(s: Sketch) -> None:
    _with_heads(s, lambda q, k, v, t: (s.rope(q, t), s.rope(_norm_heads(s, k), t), v))


@odd
def norm_on_v(s: Sketch) -> None:
    _with_heads(s, lambda q, k, v, t: (s.rope(q, t), s.rope(k, t), _norm_heads(s, v, weight=None)))


@odd
def different_eps_of_q_and_k(s: Sketch) -> None:
    _with_heads(s, lambda q, k, v, t: (s.rope(_norm_heads(s, q, 0.7), t), s.rope(_norm_heads(s, k, 1e-5), t), v))


@odd
def head_norms_without_weights(s: Sketch) -> None:
    def change(q: Value, k: Value, v: Value, t: str) -> tuple[Value, Value, Value]:
        return s.rope(_norm_heads(s, q, weight=None), t), s.rope(_norm_heads(s, k, weight=None), t), v

    _with_heads(s, change)


@odd
def a_weight_in_one_of_two_head_norms(s: Sketch) -> None:
    _with_heads(s, lambda q, k, v, t: (s.rope(_norm_heads(s, q, weight=None), t), s.rope(_norm_heads(s, k), t), v))


@odd
def norms_of_all_heads_together(s: Sketch) -> None:
    _with_heads(s, lambda q, k, v, t: (s.rope(s.norm(q), t), s.rope(s.norm(k), t), v))


@odd
def norm_of_each_head_of_q_and_of_the_whole_k(s: Sketch) -> None:
    _with_heads(s, lambda q, k, v, t: (s.rope(_norm_heads(s, q), t), s.rope(s.norm(k), t), v))


@odd
def a_weight_for_every_head_of_a_norm(s: Sketch) -> None:
    def change(q: Value, k: Value, v: Value, t: str) -> tuple[Value, Value, Value]:
        wide = (s.graph.rms_norm(x, s.scales(x.dim), eps=1e-5, group=HEAD) for x in (q, k))
        q, k = wide
        return s.rope(q, t), s.rope(k, t), v

    _with_heads(s, change)


@odd
def norms_of_half_heads(s: Sketch) -> None:
    """With one head, the weight has its size, though the groups have half of it."""
    x, table = s.embed(), s.frequencies()
    h = s.norm(x)
    q, k, v = (s.linear(h, HEAD) for _ in range(3))
    q, k = (s.rope(s.graph.rms_norm(each, s.scales(HEAD), eps=1e-5, group=HEAD // 2), table) for each in (q, k))
    s.logits(s.graph.add(x, s.linear(s.attend(q, k, v, s.cache(num_heads=1)), DIM)))


@odd
def layer_norms_of_heads(s: Sketch) -> None:
    def change(q: Value, k: Value, v: Value, t: str) -> tuple[Value, Value, Value]:
        q, k = (s.graph.layer_norm(x, s.scales(HEAD), eps=1e-5, group=HEAD) for x in (q, k))
        return s.rope(q, t), s.rope(k, t), v

    _with_heads(s, change)


@odd
def norms_of_heads_after_rope(s: Sketch) -> None:
    _with_heads(s, lambda q, k, v, t: (_norm_heads(s, s.rope(q, t)), _norm_heads(s, s.rope(k, t)), v))


@odd
def two_norms_of_heads(s: Sketch) -> None:
    def change(q: Value, k: Value, v: Value, t: str) -> tuple[Value, Value, Value]:
        q, k = (_norm_heads(s, _norm_heads(s, x)) for x in (q, k))
        return s.rope(q, t), s.rope(k, t), v

    _with_heads(s, change)


@odd
def two_tables_of_rope(s: Sketch) -> None:
    other = s.frequencies(theta=9.0)
    _with_heads(s, lambda q, k, v, t: (s.rope(q, t), s.rope(k, other), v))


@odd
def another_table_in_each_layer(s: Sketch) -> None:
    x = s.embed()
    for theta in (100.0, 9.0):
        x = s.layer(x, s.frequencies(theta=theta))
    s.logits(x)


@odd
def two_scalings_of_rope(s: Sketch) -> None:
    _with_heads(s, lambda q, k, v, t: (s.rope(q, t, scaling=1.3), s.rope(k, t), v))


@odd
def scaled_rope(s: Sketch) -> None:
    _with_heads(s, lambda q, k, v, t: (s.rope(q, t, scaling=1.3), s.rope(k, t, scaling=1.3), v))


@odd
def rope_in_pairs_and_in_halves(s: Sketch) -> None:
    _with_heads(s, lambda q, k, v, t: (s.rope(q, t, interleaved=True), s.rope(k, t), v))


@odd
def rope_in_pairs(s: Sketch) -> None:
    _with_heads(s, lambda q, k, v, t: (s.rope(q, t, interleaved=True), s.rope(k, t, interleaved=True), v))


@odd
def partial_rope(s: Sketch) -> None:
    part = s.frequencies(pairs=3)
    _with_heads(s, lambda q, k, v, t: (s.rope(q, part), s.rope(k, part), v))


@odd
def rope_of_half_heads(s: Sketch) -> None:
    part, half = s.frequencies(pairs=HEAD // 4), HEAD // 2
    _with_heads(s, lambda q, k, v, t: (s.rope(q, part, head_dim=half), s.rope(k, part, head_dim=half), v))


@odd
def rope_on_q_alone(s: Sketch) -> None:
    _with_heads(s, lambda q, k, v, t: (s.rope(q, t), k, v))


@odd
def rope_on_k_alone(s: Sketch) -> None:
    _with_heads(s, lambda q, k, v, t: (q, s.rope(k, t), v))


@odd
def rope_on_v(s: Sketch) -> None:
    _with_heads(s, lambda q, k, v, t: (s.rope(q, t), s.rope(k, t), s.rope(v, t)))


@odd
def no_rope(s: Sketch) -> None:
    _with_heads(s, lambda q, k, v, t: (q, k, v))


@odd
def no_rope_in_one_layer(s: Sketch) -> None:
    x, table = s.layer(s.embed(), s.frequencies()), s.frequencies()
    x = s.graph.add(x, s.linear(s.attend(*s.qkv(s.norm(x))), DIM))
    s.logits(s.layer(x, table))


@odd
def rope_twice(s: Sketch) -> None:
    _with_heads(s, lambda q, k, v, t: (s.rope(s.rope(q, t), t), s.rope(s.rope(k, t), t), v))


@odd
def rope_read_by_two(s: Sketch) -> None:
    """The rotated k is the value too."""

    def change(q: Value, k: Value, v: Value, t: str) -> tuple[Value, Value, Value]:
        k = s.rope(k, t)
        return s.rope(q, t), k, s.graph.add(k, v)

    _with_heads(s, change)


@odd
def queries_scaled_by_position(s: Sketch) -> None:
    def change(q: Value, k: Value, v: Value, t: str) -> tuple[Value, Value, Value]:
        return s.graph.scale_by_position(s.rope(q, t), beta=0.3, span=4), s.rope(k, t), v

    _with_heads(s, change)


@odd
def clamped_queries_keys_and_values(s: Sketch) -> None:
    def change(q: Value, k: Value, v: Value, t: str) -> tuple[Value, Value, Value]:
        q, k, v = (s.graph.clamp(x, 0.8) for x in (q, k, v))
        return s.rope(q, t), s.rope(k, t), v

    _with_heads(s, change)


# --- where q, k and v come from


@odd
def the_value_is_the_key_before_rope(s: Sketch) -> None:
    def change(q: Value, k: Value, v: Value, t: str) -> tuple[Value, Value, Value]:
        return s.rope(q, t), s.rope(_norm_heads(s, k), t), k

    _with_heads(s, change)


@odd
def the_value_is_the_key(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    h = s.norm(x)
    q, k = (s.rope(s.linear(h, n * HEAD), table) for n in (HEADS, KV_HEADS))
    s.logits(s.graph.add(x, s.linear(s.attend(q, k, k), DIM)))


def _in_order(s: Sketch, order: str, biased: str = "") -> None:
    x, table = s.embed(), s.frequencies()
    for _ in range(2):
        h = s.norm(x)
        made = {each: s.linear(h, (HEADS if each == "q" else KV_HEADS) * HEAD, bias=each in biased) for each in order}
        attended = s.attend(s.rope(made["q"], table), s.rope(made["k"], table), made["v"])
        x = s.graph.add(x, s.linear(attended, DIM, bias="o" in biased))
        x = s.graph.add(x, s.mlp(s.norm(x)))
    s.logits(x)


@odd
def linears_in_the_order_v_q_k(s: Sketch) -> None:
    _in_order(s, "vqk")


@odd
def linears_in_the_order_k_v_q(s: Sketch) -> None:
    _in_order(s, "kvq")


@odd
def linears_in_the_order_q_v_k(s: Sketch) -> None:
    _in_order(s, "qvk")


@odd
def a_bias_on_k_alone(s: Sketch) -> None:
    _in_order(s, "qkv", biased="k")


@odd
def biases_on_q_and_out(s: Sketch) -> None:
    _in_order(s, "qkv", biased="qo")


@odd
def q_k_and_v_of_different_norms(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    q, k, v = (s.linear(s.norm(x), n * HEAD) for n in (HEADS, KV_HEADS, KV_HEADS))
    s.logits(s.graph.add(x, s.linear(s.attend(s.rope(q, table), s.rope(k, table), v), DIM)))


@odd
def v_of_another_value(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    h = s.norm(x)
    q, k, _ = s.qkv(h)
    v = s.linear(x, KV_HEADS * HEAD)
    s.logits(s.graph.add(x, s.linear(s.attend(s.rope(q, table), s.rope(k, table), v), DIM)))


@odd
def a_fourth_linear_of_the_norm(s: Sketch) -> None:
    """A gate of the attention's output."""
    x, table = s.embed(), s.frequencies()
    h = s.norm(x)
    q, k, v = s.qkv(h)
    attended = s.attend(s.rope(q, table), s.rope(k, table), v)
    gate = s.graph.activation(s.linear(h, attended.dim), "sigmoid")
    s.logits(s.graph.add(x, s.linear(s.graph.multiply(attended, gate), DIM)))


@odd
def q_k_and_v_in_the_columns_of_one_linear(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    whole, kv = s.linear(s.norm(x), (HEADS + 2 * KV_HEADS) * HEAD), KV_HEADS * HEAD
    k, q, v = (s.graph.columns(whole, at, width) for at, width in ((0, kv), (kv, HEADS * HEAD), (3 * kv, kv)))
    s.logits(s.graph.add(x, s.linear(s.attend(s.rope(q, table), s.rope(k, table), v), DIM)))


@odd
def the_same_matrix_for_k_and_v(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    h, matrix = s.norm(x), s.matrix(KV_HEADS * HEAD, DIM)
    q, k, v = s.linear(h, HEADS * HEAD), s.graph.linear(h, matrix), s.graph.linear(h, matrix)
    s.logits(s.graph.add(x, s.linear(s.attend(s.rope(q, table), s.rope(k, table), v), DIM)))


@odd
def q_read_by_two_attentions(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    h = s.norm(x)
    q, k, v = s.qkv(h)
    q, k = s.rope(q, table), s.rope(k, table)
    other = s.attend(q, s.rope(s.linear(h, KV_HEADS * HEAD), table), v)
    s.logits(s.graph.add(x, s.linear(s.graph.add(s.attend(q, k, v), other), DIM)))


@odd
def q_read_beside_attention(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    q, k, v = s.qkv(s.norm(x))
    attended = s.attend(s.rope(q, table), s.rope(k, table), v)
    s.logits(s.graph.add(x, s.linear(s.graph.add(attended, q), DIM)))


# --- caches


@odd
def different_numbers_of_heads(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    for heads, kv_heads in ((4, 2), (3, 1), (2, 2)):
        h = s.norm(x)
        q, k, v = (s.linear(h, n * HEAD) for n in (heads, kv_heads, kv_heads))
        attended = s.attend(s.rope(q, table), s.rope(k, table), v, s.cache(num_heads=kv_heads))
        x = s.graph.add(x, s.linear(attended, DIM))
    s.logits(x)


@odd
def different_sizes_of_heads(s: Sketch) -> None:
    x = s.embed()
    for size in (16, 32, 8):
        h, table = s.norm(x), s.frequencies(pairs=size // 2)
        q, k, v = (s.linear(h, n * size) for n in (HEADS, KV_HEADS, KV_HEADS))
        q, k = (s.rope(each, table, head_dim=size) for each in (q, k))
        attended = s.attend(q, k, v, s.cache(key_dim=size, value_dim=size), scale=size**-0.5)
        x = s.graph.add(x, s.linear(attended, DIM))
    s.logits(x)


@odd
def keys_wider_than_values(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    h = s.norm(x)
    q, k, v = (s.linear(h, n) for n in (HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * 8))
    attended = s.attend(s.rope(q, table), s.rope(k, table), v, s.cache(value_dim=8))
    s.logits(s.graph.add(x, s.linear(attended, DIM)))


@odd
def values_wider_than_keys(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    h = s.norm(x)
    q, k, v = (s.linear(h, n) for n in (HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * 32))
    attended = s.attend(s.rope(q, table), s.rope(k, table), v, s.cache(value_dim=32))
    s.logits(s.graph.add(x, s.linear(attended, DIM)))


@odd
def windows_and_chunks(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    for limits in ({"window": 5}, {}, {"chunk": 8}, {"window": 3, "chunk": 4}):
        q, k, v = s.qkv(s.norm(x))
        x = s.graph.add(x, s.linear(s.attend(s.rope(q, table), s.rope(k, table), v, s.cache(**limits)), DIM))
    s.logits(x)


@odd
def terms_of_scores(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    kinds = (
        {"softcap": 2.0},
        {"sinks": s.weight(HEADS)},
        {"slopes": s.weight(HEADS, mean=1.0, spread=0.1)},
        {"distances": s.weight(HEADS, 9, spread=1.0)},
        {"softcap": 1.5, "sinks": s.weight(HEADS), "slopes": s.weight(HEADS, mean=1.0), "scale": 0.5},
    )
    for extras in kinds:
        q, k, v = s.qkv(s.norm(x))
        x = s.graph.add(x, s.linear(s.attend(s.rope(q, table), s.rope(k, table), v, **extras), DIM))
    s.logits(x)


@odd
def different_scales_of_scores(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    for scale in (0.25, 1.0):
        q, k, v = s.qkv(s.norm(x))
        x = s.graph.add(x, s.linear(s.attend(s.rope(q, table), s.rope(k, table), v, scale=scale), DIM))
    s.logits(x)


def _shared(s: Sketch, x: Value, table: str, q_first: bool) -> Value:
    cache = s.cache(window=6)
    h = s.norm(x)
    q, k, v = s.qkv(h)
    early = s.rope(s.linear(x, HEADS * HEAD), table) if q_first else None
    x = s.graph.add(x, s.linear(s.attend(s.rope(q, table), s.rope(k, table), v, cache), DIM))
    late = s.rope(_norm_heads(s, s.linear(s.norm(x), HEADS * HEAD)), table) if early is None else early
    return s.graph.add(x, s.linear(s.graph.attention_shared(late, cache, scale=0.25), DIM))


@odd
def a_cache_read_by_two_layers(s: Sketch) -> None:
    s.logits(_shared(s, s.embed(), s.frequencies(), q_first=False))


@odd
def a_shared_cache_whose_second_query_exists_before_the_keys(s: Sketch) -> None:
    """A fused node that runs as soon as its inputs exist would read the cache before it is written."""
    s.logits(_shared(s, s.embed(), s.frequencies(), q_first=True))
