"""Models whose layers attend in different ways: hand-drawn graphs against the interpreter, and Gemma 2."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from quire.devices.base import LoweringOptions
from quire.devices.cuda.attention import AttendCache
from quire.devices.cuda.device import CudaDevice
from quire.devices.cuda.instructions import Attend
from quire.devices.cuda.program import CudaProgram
from quire.graph.graph import Graph, Value
from quire.graph.interpret import Interpreter
from quire.graph.weight import Weight, computed_weight
from quire.ops import attention as ops
from quire.ops.cache import PagedKV
from quire.ops.registry import relative_error
from tests.devices.cuda import models
from tests.devices.cuda.models import Texts
from tests.models.toys import BLOCK, make_toy, some_tokens

pytestmark = pytest.mark.device
ERROR, DIM, VOCAB = 1e-4, 32, 53
LIMITS = replace(models.LIMITS, kv_dtype="f32")
PROMPT = [token % VOCAB for token in some_tokens(40)]


class Drawing:
    """A graph and its random weights, made as they are named."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)
        self.weights: dict[str, Weight] = {}
        self.graph = Graph({})
        self.x = self.graph.embed(self.weight("embed", VOCAB, DIM))

    def weight(self, name: str, *shape: int, factor: float = 1.0) -> str:
        name = f"{len(self.weights)}.{name}"
        array = self.rng.standard_normal(shape, np.float32) * np.float32(factor * shape[-1] ** -0.5)
        return self.add(name, array)

    def add(self, name: str, array: np.ndarray) -> str:
        self.weights[name] = computed_weight(name, array)
        self.graph.shapes = {**self.graph.shapes, name: array.shape}
        return name

    def linear(self, x: Value, width: int) -> Value:
        return self.graph.linear(x, self.weight("linear", width, x.dim))

    def rope(self, x: Value, head_dim: int, rotary: int, interleaved: bool = False) -> Value:
        name = f"{len(self.weights)}.frequencies"
        frequencies = (10000.0 ** -(np.arange(0, rotary, 2) / rotary)).astype(np.float32)
        return self.graph.rope(x, self.add(name, frequencies), head_dim=head_dim, interleaved=interleaved)

    def extra(self, name: str, heads: int) -> dict[str, str]:
        shape = (heads, 9) if name == "distances" else (heads,)
        return {name: self.add(f"{len(self.weights)}.{name}", np.abs(self.rng.standard_normal(shape, np.float32)))}

    def close(self, attended: Value) -> None:
        """Add the output of attention to the residual."""
        self.x = self.graph.add(self.x, self.linear(attended, DIM))

    def norm(self) -> Value:
        return self.graph.rms_norm(self.x, self.weight("norm", DIM), eps=1e-5)

    def logits(self) -> Drawing:
        self.graph.logits(self.norm(), self.weight("head", VOCAB, DIM))
        return self


def _heads(drawing: Drawing, spec: PagedKV, heads: int) -> tuple[Value, Value, Value]:
    h = drawing.norm()
    sizes = (heads * spec.key_dim, spec.num_heads * spec.key_dim, spec.num_heads * spec.value_dim)
    q, k, v = (drawing.linear(h, size) for size in sizes)
    return q, k, v


@cache
def mixed() -> Drawing:
    """Every layer attends in another way, and no two caches have the same shape."""
    d = Drawing()
    first = PagedKV(2, 16, 16, 9)  # rope, sinks, a window
    q, k, v = _heads(d, first, 4)
    frequencies = d.add("table", np.array([1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003], np.float32))
    q, k = (d.graph.rope(x, frequencies, head_dim=16) for x in (q, k))
    kept = d.graph.cache(first)
    d.close(d.graph.attention(q, k, v, kept, scale=0.25, **d.extra("sinks", 4)))
    spec = PagedKV(1, 20, 12)  # slopes, no rope, values of another size, 20 heads for one key
    d.close(
        d.graph.attention(*_heads(d, spec, 20), d.graph.cache(spec), scale=0.2, softcap=1.5, **d.extra("slopes", 20))
    )
    q = d.rope(d.linear(d.norm(), 8 * 16), 16, 16)  # reads the first layer's cache, with other heads
    d.close(d.graph.attention_shared(q, kept, scale=0.25, **d.extra("distances", 8)))
    spec = PagedKV(3, 24, 24, None, 7)  # chunks, partial and interleaved rope, on q and k alone
    q, k, v = _heads(d, spec, 6)
    q, k = (d.rope(x, 24, 12, interleaved=True) for x in (q, k))
    d.close(d.graph.attention(q, k, v, d.graph.cache(spec), scale=0.2))
    return d.logits()


def lowered(drawing: Drawing, place: str, **options: bool) -> CudaProgram:
    choices = LoweringOptions(dtype="f32", **options)  # type: ignore[arg-type]
    return CudaDevice(place).lower(drawing.graph, drawing.weights, LIMITS, choices)


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "plain"])
def test_layers_that_attend_in_different_ways_match_the_interpreter(fuse, place):
    """A prompt; a row beside a prompt; single tokens."""
    drawing = mixed()
    program = lowered(drawing, place, fuse=fuse)
    kinds = [type(each) for each in program.instructions if isinstance(each, Attend | AttendCache)]
    assert kinds == ([Attend, AttendCache, AttendCache, AttendCache] if fuse else [AttendCache] * 4)
    exact, texts = Interpreter(drawing.graph, drawing.weights, program.num_blocks, BLOCK), Texts(program)
    for chunks in ({0: PROMPT[:25]}, {1: PROMPT[:3], 0: PROMPT[25:26]}, {1: PROMPT[3:5], 0: PROMPT[26:27]}):
        check(texts, exact, chunks)
    for token in (27, 28):
        check(texts, exact, {0: PROMPT[token : token + 1], 1: PROMPT[token : token + 1]})


def check(texts: Texts, exact: Interpreter, chunks: dict[int, list[int]]) -> None:
    batch = texts.batch(chunks, num_logits=25)
    logits = texts.program.launch(batch).result().logits
    assert relative_error(logits, exact.run(batch)) <= ERROR


def test_a_token_is_bit_equal_in_any_company_in_deterministic_mode(place):
    program = lowered(mixed(), place, deterministic=True)
    alone, together = Texts(program), Texts(program)
    whole = alone.step({0: PROMPT[:20]}, 20)
    together.step({1: PROMPT[5:30], 0: PROMPT[:7]}, 7)
    rest = together.step({0: PROMPT[7:20], 1: PROMPT[30:31]}, 13)[:13]
    assert np.array_equal(rest, whole[7:])


def test_attention_within_the_step_matches_the_interpreter(place):
    """Rows of a step are whole; nothing is stored."""
    d = Drawing()
    q, k, v = _heads(d, PagedKV(2, 16, 24), 4)
    weights = {"sinks": None, "slopes": None, "distances": None} | d.extra("distances", 4)
    attrs = {"scale": 0.25, "num_heads": 2, "softcap": 2.0, "window": 6}
    d.close(d.graph.draw(ops.attention_bidirectional, {"q": q, "k": k, "v": v}, weights, **attrs))
    d.logits()
    program = lowered(d, place)
    exact = Interpreter(d.graph, d.weights, program.num_blocks, BLOCK)
    check(Texts(program), exact, {0: PROMPT[:23], 1: PROMPT[:1], 2: PROMPT[3:11]})


@pytest.mark.parametrize("name", ["gemma2", "phi3"])
def test_a_model_has_the_logits_of_transformers(name, place):
    """Softcaps, two windows and norms after blocks; partial rope."""
    toy, prompt = make_toy(name), some_tokens(20)
    model = toy.draw()
    program = CudaDevice(place).lower(model.graph, model.weights, LIMITS, LoweringOptions(dtype="f32"))
    texts, exact = Texts(program), toy.expected_logits(prompt)
    assert relative_error(texts.step({0: prompt[:17]}, 17), exact[:17]) <= ERROR
    assert relative_error(texts.step({1: prompt[:3], 0: prompt[17:18]}), exact[[2, 17]]) <= ERROR
    assert relative_error(texts.step({1: prompt[3:4], 0: prompt[18:19]}), exact[[3, 18]]) <= ERROR
