"""Odd graphs with latent attention."""

from __future__ import annotations

from tests.graph.odd_registry import odd
from tests.graph.sketch import DIM, HEAD, HEADS, LATENT, Sketch


@odd
def latent_attention(s: Sketch) -> None:
    """As DeepSeek draws it, in two layers."""
    x, table = s.embed(), s.frequencies()
    for _ in range(2):
        x = s.graph.add(x, s.latent_attention(s.norm(x), table))
        x = s.graph.add(x, s.mlp(s.norm(x)))
    s.logits(x)


@odd
def latent_attention_with_queries_of_low_rank(s: Sketch) -> None:
    x, table = s.embed(), s.frequencies()
    h = s.norm(x)
    low = s.norm(s.linear(h, 48))
    q, q_rope = s.linear(low, HEADS * HEAD), s.rope(s.linear(low, HEADS * HEAD), table, interleaved=True)
    latent, k_rope = s.norm(s.linear(h, LATENT)), s.rope(s.linear(h, HEAD), table, interleaved=True)
    s.logits(s.graph.add(x, s.linear(s.attend_latent(q, q_rope, latent, k_rope), DIM)))


@odd
def latent_attention_after_other_attention(s: Sketch) -> None:
    """Caches of both kinds in one model."""
    x, table = s.embed(), s.frequencies()
    x = s.layer(x, table)
    x = s.graph.add(x, s.latent_attention(s.norm(x), table))
    s.logits(s.layer(x, table))


@odd
def latents_of_different_sizes(s: Sketch) -> None:
    """Heads with odd counts and sizes, the rotated part larger than the rest, and no norm of the latents."""
    x = s.embed()
    for heads, nope_dim, rope_dim, dim, value_dim in ((3, 8, 24, 40, 48), (5, 24, 4, 16, 8)):
        h, table = s.norm(x), s.frequencies(rope_dim // 2)
        q, latent = s.linear(h, heads * nope_dim), s.linear(h, dim)
        q_rope, k_rope = (s.rope(s.linear(h, size), table, head_dim=rope_dim) for size in (heads * rope_dim, rope_dim))
        x = s.graph.add(x, s.linear(s.attend_latent(q, q_rope, latent, k_rope, value_dim), DIM))
    s.logits(x)


@odd
def a_latent_that_is_also_a_query(s: Sketch) -> None:
    """One head; the latent and the rotated key are read again."""
    x, table = s.embed(), s.frequencies()
    latent, k_rope = s.linear(s.norm(x), LATENT), s.rope(s.linear(s.norm(x), HEAD), table)
    seen = s.attend_latent(latent, k_rope, latent, k_rope)
    s.logits(s.graph.add(x, s.linear(s.graph.add(seen, k_rope), DIM)))
