"""Random valid graphs of plain ops, drawn by hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from quire.graph.graph import Cache, Value
from quire.ops.elementwise import ACTIVATIONS
from tests.graph.sketch import DIM, FFN, HEAD, HEADS, KV_HEADS, LATENT, Sketch

WIDTHS = (KV_HEADS * HEAD, DIM, FFN)
KINDS = sorted(ACTIVATIONS)
SMALL, LARGE = 1e-5, 0.5  # eps of norms: the second shows up in the logits


class _Drawing:
    """A graph while it grows: the values that exist, by width, and the caches that are written."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.sketch = draw, Sketch(seed=draw(st.integers(0, 1000)))
        self.values: dict[int, list[Value]] = {}
        self.caches: list[Cache] = []
        self.tables = [self.sketch.frequencies(), self.sketch.frequencies(theta=9.0)]

    def pick(self, width: int | None = None) -> Value:
        """One of the last values, so that chains grow; of a width that exists if none is given."""
        width = self.draw(st.sampled_from(sorted(self.values))) if width is None else width
        if width not in self.values:
            return self.sketch.linear(self.pick(DIM), width)
        return self.draw(st.sampled_from(self.values[width][-3:]))

    def keep(self, value: Value) -> Value:
        self.values.setdefault(value.dim, []).append(value)
        return value

    def flip(self) -> bool:
        return self.draw(st.booleans())

    # --- ops: each takes values that exist and keeps one more

    def linear(self) -> None:
        self.keep(self.sketch.linear(self.pick(), self.draw(st.sampled_from(WIDTHS)), bias=self.flip()))

    def two_linears(self) -> None:
        x, width = self.pick(), self.draw(st.sampled_from(WIDTHS))
        self.keep(self.sketch.linear(x, width, bias=self.flip()))
        self.keep(self.sketch.linear(x, width, bias=self.flip()))

    def norm(self) -> None:
        x, s = self.pick(), self.sketch
        group = self.draw(st.sampled_from((0, HEAD)))
        weight = s.scales(self.draw(st.sampled_from((x.dim, group or x.dim)))) if self.flip() else None
        norm = s.graph.rms_norm if self.flip() else s.graph.layer_norm
        self.keep(norm(x, weight, eps=self.draw(st.sampled_from((SMALL, LARGE))), group=group))

    def rms_norm(self) -> None:
        self.keep(self.sketch.norm(self.pick(DIM), self.draw(st.sampled_from((SMALL, LARGE)))))

    def activation(self) -> None:
        self.keep(self.sketch.graph.activation(self.pick(), self.draw(st.sampled_from(KINDS))))

    def add(self) -> None:
        x = self.pick()
        self.keep(self.sketch.graph.add(x, self.pick(x.dim)))

    def add_linear(self) -> None:
        self.keep(self.sketch.graph.add(self.pick(DIM), self.sketch.linear(self.pick(), DIM)))

    def multiply(self) -> None:
        x = self.pick()
        self.keep(self.sketch.graph.multiply(self.sketch.graph.clamp(x, 2.0), self.pick(x.dim)))

    def gate(self) -> None:
        s, x = self.sketch, self.pick()
        pair = [s.graph.activation(s.linear(x, FFN), self.draw(st.sampled_from(KINDS))), s.linear(x, FFN)]
        self.keep(s.graph.multiply(*self.draw(st.permutations(pair))))

    def scale(self) -> None:
        self.keep(self.sketch.graph.scale(self.pick(), self.draw(st.sampled_from((0.5, 2.0)))))

    def scale_by(self) -> None:
        x = self.pick()
        size = self.draw(st.sampled_from((1, x.dim)))
        self.keep(self.sketch.graph.scale_by(x, self.sketch.weight(size, mean=1.0)))

    def columns(self) -> None:
        self.keep(self.sketch.graph.columns(self.pick(FFN), self.draw(st.sampled_from((0, 16, 32))), DIM))

    def heads(self, x: Value, count: int) -> Value:
        """A linear of x, with a norm of heads and rope, or without."""
        s, value = self.sketch, self.sketch.linear(x, count * HEAD, bias=self.flip())
        if self.flip():
            eps = self.draw(st.sampled_from((SMALL, LARGE)))
            value = s.graph.rms_norm(value, s.scales(HEAD) if self.flip() else None, eps=eps, group=HEAD)
        if self.flip():
            attrs = {"scaling": self.draw(st.sampled_from((1.0, 1.3))), "interleaved": self.flip()}
            value = s.rope(value, self.draw(st.sampled_from(self.tables)), **attrs)
        return value

    def attention(self) -> None:
        s, x = self.sketch, self.pick(DIM)
        q, k, v = (self.heads(x if self.flip() else self.pick(DIM), count) for count in (HEADS, KV_HEADS, KV_HEADS))
        cache = s.cache(window=self.draw(st.sampled_from((None, 4))))
        self.caches.append(cache)
        self.keep(s.attend(q, k, k if self.flip() else v, cache, softcap=self.draw(st.sampled_from((0.0, 2.0)))))

    def usual_attention(self) -> None:
        s, table = self.sketch, self.tables[0]
        x = self.pick(DIM)
        self.keep(s.graph.add(x, s.attention(s.norm(x), table)))

    def latent_attention(self) -> None:
        s, x = self.sketch, self.pick(DIM)
        latent = s.linear(x if self.flip() else self.pick(DIM), LATENT)
        q, q_rope = (self.heads(x if self.flip() else self.pick(DIM), HEADS) for _ in range(2))
        self.keep(s.attend_latent(q, q_rope, s.norm(latent) if self.flip() else latent, self.heads(x, 1)))

    def attention_shared(self) -> None:
        if self.caches:
            cache = self.draw(st.sampled_from(self.caches))
            self.keep(self.sketch.graph.attention_shared(self.heads(self.pick(DIM), HEADS), cache, scale=0.25))


OPS = sorted(name for name in vars(_Drawing) if name not in ("pick", "keep", "flip", "heads") and name[0] != "_")


@st.composite
def random_graphs(draw: Any, max_ops: int = 14) -> Sketch:
    """A graph of up to so many ops or small groups of them, with a head."""
    drawing = _Drawing(draw)
    drawing.keep(drawing.sketch.embed())
    for op in draw(st.lists(st.sampled_from(OPS), min_size=2, max_size=max_ops)):
        getattr(drawing, op)()
    last = drawing.values[DIM][-1]
    factor, cap = draw(st.sampled_from((1.0, 0.5))), draw(st.sampled_from((None, 2.0)))
    drawing.sketch.logits(last, factor=factor, cap=cap)
    return drawing.sketch
