"""Attention of few rows in one kernel: against the ops' references, and against the kernels that it replaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from quire.devices._triton.attend_few import attend_few
from quire.devices._triton.attention import AttentionWork, attend, configs_for
from quire.devices._triton.norm import Product
from quire.devices._triton.rope import HeadNorm, Heads, RopeTables, TokenPlacement, rope_write
from quire.ops.attention import attention
from quire.ops.cache import PagedCache, PagedKV
from quire.ops.norm import rms_norm
from quire.ops.registry import relative_error
from quire.ops.rope import rope
from tests.devices._triton.paged import BLOCK, NO_EXTRAS, Step, Text, planned
from tests.devices.interpreted import in_interpreter

pytestmark = [pytest.mark.device]
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
PAGED = PagedKV(2, 32, 32)
EPS = 1e-5
ALL = ["softcap", "sinks", "slopes", "distances"]
# the very first token; ends of blocks, tiles and chunks, and the tokens after them; rows in several parts
TEXTS = [Text(n) for n in (0, 15, 64, 127, 128, 255, 256, 300)]


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.float().cpu().numpy()


def rounded(x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return numbers(torch.from_numpy(x).to(dtype))


@dataclass(frozen=True)
class Case:
    """A step of single tokens, before the newest keys are written: their slots are NaN."""

    step: Step  # without q
    raw: np.ndarray  # [T, (heads + 2 * kv_heads) * dim]
    frequencies: np.ndarray
    scales: tuple[np.ndarray, np.ndarray] | None = None  # of tokens, of columns
    norms: np.ndarray | None = None  # [2, dim]
    interleaved: bool = False

    @classmethod
    def random(
        cls, spec: PagedKV, group: int, texts: list[Text], num_blocks: int = 120, rotary: int | None = None,
        has_all: bool = False, extras: Sequence[str] = (),
    ) -> Case:  # fmt: skip
        step, rng = Step.random(spec, group, texts, num_blocks, extras=extras), np.random.default_rng(1)
        slots = step.batch.slots
        for each in (step.keys, step.values):
            each[slots // BLOCK, slots % BLOCK] = np.nan
        rotary = spec.key_dim if rotary is None else rotary
        frequencies = (10000.0 ** -(np.arange(0, rotary, 2) / rotary)).astype(np.float32)
        columns = (group + 2) * spec.num_heads * spec.key_dim
        raw = rng.standard_normal((len(texts), columns), np.float32)
        if not has_all:
            return cls(step, raw, frequencies)
        scales = rng.random(len(texts), np.float32) + 0.5, rng.random(columns, np.float32) + 0.5
        norms = rng.standard_normal((2, spec.key_dim), np.float32)
        return cls(step, raw, frequencies, scales, norms)

    @property
    def heads(self) -> Heads:
        spec = self.step.spec
        return Heads(spec.num_heads * self.step.group, spec.num_heads, spec.key_dim)

    def rounded(self, dtype: torch.dtype, cache_dtype: torch.dtype) -> Case:
        return replace(self, step=self.step.rounded(dtype, cache_dtype), raw=rounded(self.raw, dtype))

    def reference(self, cache_dtype: torch.dtype) -> tuple[np.ndarray, PagedCache]:
        """Return the ops' output, and the cache with the newest keys."""
        heads, kv_heads, dim = self.heads
        whole = self.raw if self.scales is None else self.raw * self.scales[0][:, None] * self.scales[1]
        q, k, v = np.split(whole, [heads * dim, (heads + kv_heads) * dim], axis=1)
        if self.norms is not None:
            q, k = (rms_norm(x, w, eps=EPS, group=len(w)) for x, w in zip((q, k), self.norms, strict=True))
        turn = {"head_dim": dim, "interleaved": self.interleaved}
        q, k = (rope(x, self.frequencies, self.step.batch.positions, **turn) for x in (q, k))
        cache = PagedCache(self.step.spec, self.step.keys.copy(), self.step.values.copy())
        k, v = (rounded(x, cache_dtype) for x in (k, v))
        extras = NO_EXTRAS | self.step.extras
        return attention.reference(q, k, v, cache, self.step.batch, scale=self.step.scale, **extras), cache

    def on(self, place: str, dtype: torch.dtype, cache_dtype: torch.dtype, num_ctas: int = 28) -> Placed:
        angles = np.arange(1 + self.step.batch.positions.max(), dtype=np.float32)[:, None] * self.frequencies
        tables = (torch.from_numpy(f(angles)).to(place) for f in (np.cos, np.sin))
        turns = RopeTables(*tables, self.interleaved)
        caches = (x.transpose(0, 2, 1, 3).copy() for x in (self.step.keys, self.step.values))
        k, v = (torch.from_numpy(x).to(place, cache_dtype) for x in caches)
        where = TokenPlacement(
            *(torch.from_numpy(x).to(place) for x in (self.step.batch.positions, self.step.batch.slots))
        )
        scales = [torch.from_numpy(x).to(place) for x in self.scales or ()]
        product = Product(torch.from_numpy(self.raw).to(place, dtype), *scales)
        norm = None if self.norms is None else HeadNorm(*torch.from_numpy(self.norms).to(place), eps=EPS)
        limits = self.step.limits(configs_for(self.heads.dim, cache_dtype), num_ctas=num_ctas)
        work, counts = planned(self.step, place, limits)
        assert counts.wide == 0
        return Placed(self, product, turns, where, (k, v), norm, work._replace(wide=work.wide[:0]), counts.partials)


@dataclass(frozen=True)
class Placed:
    """All arguments of the kernel."""

    case: Case
    product: Product
    turns: RopeTables
    where: TokenPlacement
    cache: tuple[torch.Tensor, torch.Tensor]
    norm: HeadNorm | None
    work: AttentionWork
    num_partials: int

    @property
    def tables(self) -> torch.Tensor:
        return torch.from_numpy(self.case.step.batch.block_tables).to(self.product.raw.device)

    @property
    def options(self) -> dict[str, Any]:
        """What the op has beside tensors."""
        step = self.case.step
        terms = step.terms(str(self.product.raw.device))
        return {"scale": step.scale, "terms": terms, "window": step.spec.window, "chunk": step.spec.chunk}

    def run(self) -> torch.Tensor:
        """Run the kernel: [T, heads * dim]."""
        heads, raw = self.case.heads, self.product.raw
        out = torch.full((len(raw), heads.num_heads * heads.dim), torch.nan).to(raw)
        arrived = torch.zeros(len(raw) * heads.kv_heads, dtype=torch.int32, device=raw.device)
        attend_few(
            self.product, heads, self.turns, self.where, self.cache, self.tables, self.work, arrived, out,
            norm=self.norm, **self.options,
        )  # fmt: skip
        assert not arrived.any(), "the counters are reset for the next layer"
        return out

    def run_apart(self) -> torch.Tensor:
        """Compute the same with three kernels."""
        heads = self.case.heads
        q = rope_write(self.product, heads, self.turns, self.where, self.cache, self.norm)
        q = q.view(len(q), heads.num_heads, heads.dim)
        out = torch.full_like(q, torch.nan)
        attend(q, *self.cache, self.tables, self.where.positions, self.work, out, **self.options)
        return out.view(len(q), -1)


def assert_matches(case: Case, place: str, dtype: str = "f32", cache_dtype: torch.dtype | None = None) -> Placed:
    """Compare the output and the whole cache: keys in their slots, and nothing else written."""
    kind = cache_dtype or DTYPES[dtype]
    case = case.rounded(DTYPES[dtype], kind)
    placed = case.on(place, DTYPES[dtype], kind)
    out = numbers(placed.run())
    expected, cache = case.reference(kind)
    tolerance = attention.tolerance["bf16" if cache_dtype else dtype]
    assert relative_error(out, expected) <= tolerance
    slots = case.step.batch.slots
    before = (case.step.keys, case.step.values)
    for actual, there, old in zip(placed.cache, (cache.keys, cache.values), before, strict=True):
        actual, old = numbers(actual).transpose(0, 2, 1, 3), old.copy()
        at = slots // BLOCK, slots % BLOCK
        assert relative_error(actual[at], there[at]) <= tolerance
        actual[at] = old[at]
        assert np.array_equal(actual, old, equal_nan=True), "nothing else is written"
    return placed


@pytest.mark.parametrize("dtype", ["bf16", *in_interpreter("f32", "f16")])
def test_it_matches_the_references(dtype, place):
    placed = assert_matches(Case.random(PAGED, 4, TEXTS), place, dtype)
    assert placed.num_partials > len(TEXTS), "some rows are in several parts"


@pytest.mark.parametrize("rotary", [16, *in_interpreter(32)])
def test_scales_norms_and_partial_rope_are_applied(rotary, place):
    assert_matches(Case.random(PAGED, 3, TEXTS[-4:], rotary=rotary, has_all=True), place)


@pytest.mark.interpreted
@pytest.mark.parametrize("group", [1, 3, 16])
def test_any_number_of_heads_shares_a_key_head(group, place):
    assert_matches(Case.random(PAGED, group, [Text(3), Text(200)], 20), place)


@pytest.mark.parametrize("head_dim", [80, *in_interpreter(8, 10, 112, 128, 512)])
def test_heads_have_any_size(head_dim, place):
    assert_matches(Case.random(PagedKV(2, head_dim, head_dim), 4, [Text(40), Text(150)], 24), place, "bf16")


@pytest.mark.parametrize("window", [200, *in_interpreter(1)])
def test_a_window_hides_earlier_keys(window, place):
    assert_matches(Case.random(PagedKV(2, 32, 32, window), 4, TEXTS), place)


@pytest.mark.interpreted
@pytest.mark.parametrize("chunk", [1, 100, 128])
def test_a_chunk_hides_the_chunks_before_it(chunk, place):
    assert_matches(Case.random(PagedKV(2, 32, 32, None, chunk), 4, TEXTS), place)


@pytest.mark.parametrize("extras", [ALL, *in_interpreter(*([name] for name in ALL))], ids="-".join)
def test_a_softcap_sinks_and_biases_are_applied(extras, place):
    """In rows of one part and of several: a sink counts once."""
    placed = assert_matches(Case.random(PAGED, 3, TEXTS, extras=extras), place)
    assert placed.num_partials > 2


@pytest.mark.parametrize("rotary", [16, *in_interpreter(0, 32)])
def test_pairs_are_interleaved_or_absent(rotary, place):
    case = Case.random(PAGED, 3, TEXTS[-4:], rotary=rotary, has_all=True)
    case = replace(case, interleaved=rotary > 0)
    one, three = (case.on(place, torch.float32, torch.float32) for _ in range(2))
    assert_matches(case, place)
    assert relative_error(numbers(one.run()), numbers(three.run_apart())) <= 1e-5


@pytest.mark.parametrize("dtype", ["bf16", *in_interpreter("f32")])
def test_an_8_bit_cache_is_read_as_rounded_including_the_newest_key(dtype, place):
    assert_matches(Case.random(PAGED, 4, [Text(0), Text(140)], 24), place, dtype, torch.float8_e4m3fn)


@pytest.mark.interpreted
def test_it_equals_three_separate_kernels(place):
    case = Case.random(PAGED, 4, TEXTS, has_all=True)
    one, three = (case.on(place, torch.float32, torch.float32) for _ in range(2))
    assert relative_error(numbers(one.run()), numbers(three.run_apart())) <= 1e-5
    for here, there in zip(one.cache, three.cache, strict=True):
        assert np.allclose(numbers(here), numbers(there), atol=1e-5, equal_nan=True)


def test_the_result_does_not_depend_on_which_part_finishes_last(place):
    """The interpreter runs programs in the order of their items, so the items are permuted."""
    case, rng = Case.random(PAGED, 4, [Text(400), Text(200)], 60), np.random.default_rng(0)
    placed = case.on(place, torch.float32, torch.float32)
    outs = [placed.run()]
    count = int(placed.work.counts[0])
    for _ in range(2):
        placed.work.narrow[:count] = placed.work.narrow[torch.from_numpy(rng.permutation(count)).to(place)]
        outs.append(placed.run())
    assert all(torch.equal(out, outs[0]) for out in outs)


@pytest.mark.interpreted
def test_more_parts_than_are_loaded_together_are_merged(place):
    case = Case.random(PagedKV(1, 16, 16), 2, [Text(1300)], 90)
    placed = assert_matches(case, place)
    assert placed.num_partials > 8


def test_padding_rows_are_skipped(place):
    """A captured launch has a larger grid than its tokens and items need."""
    case = Case.random(PAGED, 4, TEXTS[-3:])
    alone, padded = (case.on(place, torch.float32, torch.float32) for _ in range(2))
    extra = torch.zeros((2, alone.product.raw.shape[1]), device=place)
    padded = replace(padded, product=Product(torch.cat([padded.product.raw, extra])))
    out = padded.run()
    assert torch.equal(out[:3], alone.run()) and out[3:].isnan().all()


@pytest.mark.gpu
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("lengths", [[5000], [37, 128, 700, 1500, 2048, 90, 3, 640] * 2], ids=["long", "many"])
def test_it_matches_at_the_sizes_of_real_models(lengths, cache_dtype, place):
    case = Case.random(PagedKV(8, 128, 128), 4, [Text(n) for n in lengths], 1200)
    assert_matches(case, place, "bf16", None if cache_dtype == torch.bfloat16 else cache_dtype)
