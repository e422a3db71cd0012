"""Summary, shared prefixes and cache hits of synthetic traces with known properties."""

from __future__ import annotations

import random
from array import array
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.advisor.cache_replay import blocks_without_eviction, hit_curve, prefix_pins, replay_cache
from quire.advisor.shared_prefixes import common_length, find_shared_prefixes
from quire.advisor.simulation import SERVED, busiest_part
from quire.advisor.workload import TraceCall, TraceWorkload
from quire.advisor.workload_summary import Distribution, concurrency_of, measured_concurrency, summarize_workload
from quire.observe.marks import marks_of
from quire.types.request import CacheKey
from tests.advisor import traces

pytestmark = pytest.mark.pure


def plain(prompts: list[list[int]], outputs: int = 1) -> TraceWorkload:
    rng = random.Random(0)
    calls = [
        TraceCall(float(at), marks_of(prompt), array("I", rng.randbytes(4 * outputs)), CacheKey(), "m")
        for at, prompt in enumerate(prompts)
    ]
    return TraceWorkload(tuple(calls), "plain", True, 0, Counter(), 0)


def test_finds_that_85_percent_of_the_prompt_tokens_are_shared():
    workload = traces.workload(traces.shared())
    tree = find_shared_prefixes(workload)
    (largest,) = tree.largest(1)
    assert (largest.start, largest.end, largest.num_calls) == (0, 340, 200) and largest.saves == 199 * 340
    assert tree.share == pytest.approx(0.85, abs=0.01)
    curve = hit_curve(workload, 16)
    assert all(each.rate == pytest.approx(0.85, abs=0.01) for each in curve)
    description = summarize_workload(workload)
    assert (description.prompt.p50, description.output.high, description.context.mean) == (400, 50, 450)
    assert description.arrivals.kind == "steady" and description.arrivals.per_second == pytest.approx(2.0)


def test_a_trace_of_unique_prompts_shares_nothing():
    workload = traces.workload(traces.unique())
    assert find_shared_prefixes(workload).share == 0.0 and {each.rate for each in hit_curve(workload, 16)} == {0.0}


def test_bursts_and_independent_arrivals_are_told_apart():
    arrivals = summarize_workload(traces.workload(traces.bursty())).arrivals
    assert arrivals.kind == "bursty" and arrivals.peak_per_second == 20 and arrivals.peak_ten_seconds == 2.0
    rng, when, lines = random.Random(5), 0.0, []
    for _ in range(500):
        when += rng.expovariate(3.0)
        lines.append(traces.line(when, [1, 2, 3]))
    arrivals = summarize_workload(traces.workload(lines)).arrivals
    assert arrivals.kind == "independent" and arrivals.variation == pytest.approx(1.0, abs=0.15)


def test_tenants_do_not_share_and_are_counted():
    workload = traces.workload(traces.two_tenants())
    assert summarize_workload(workload).tenants == {"a": 60, "b": 20}
    tree = find_shared_prefixes(workload)
    assert sorted((each.tenant, each.num_calls) for each in tree.largest(2)) == [("a", 60), ("b", 20)]
    together = traces.workload([each | {"body": each["body"] | {"cache_salt": ""}} for each in traces.two_tenants()])
    saved = find_shared_prefixes(together).saves - tree.saves
    assert saved == pytest.approx(160, abs=16)  # the prefix is computed once instead of twice
    assert replay_cache(together, 2000).hit_tokens - replay_cache(workload, 2000).hit_tokens == saved


def test_structured_answers_and_models_are_counted():
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    lines = [traces.line(at, [at], model="big" if at < 3 else "small") for at in range(8)]
    lines[0]["body"]["response_format"] = lines[5]["body"]["response_format"] = schema
    description = summarize_workload(traces.workload(lines))
    assert description.structured_share == 0.25 and description.models == {"small": 5, "big": 3}


def test_refused_requests_are_counted_and_left_out():
    lines = [*traces.unique(3), traces.unique(4)[3] | {"status": 429}]
    workload = traces.workload(lines)
    assert (len(workload.calls), workload.num_refused) == (3, 1)


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_match_numpy(values):
    found = Distribution.of(values)
    percentiles = [found.p50, found.p90, found.p95, found.p99]
    assert np.allclose(percentiles, np.percentile(values, (50, 90, 95, 99))) and found.high == max(values)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=20))
def test_shared_prefixes_save_the_tokens_of_earlier_prompts(prompts):
    workload = plain(prompts)
    seen: set[tuple[int, ...]] = set()
    repeated = 0
    for prompt in prompts:
        heads = [tuple(prompt[: end + 1]) for end in range(len(prompt))]
        repeated += sum(head in seen for head in heads)
        seen.update(heads)
    prefixes = find_shared_prefixes(workload)
    assert prefixes.saves == repeated
    for prefix in prefixes.largest(1000):
        head = workload.calls[prefix.example].marks[: prefix.end]
        assert prefix.num_calls == sum(call.marks[: prefix.end] == head for call in workload.calls) > 1


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_common_length_is_found_by_marks(left, right):
    expected = next(
        (at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )
    assert common_length(marks_of(left), marks_of(right)) == expected


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=1, max_size=15))
def test_a_cache_without_eviction_hits_all_but_the_last_tokens(prompts):
    """The last token of a prompt is always computed, because its logits are needed."""
    workload = plain(prompts)
    hits = replay_cache(workload, blocks_without_eviction(workload, 4), 4)
    most = find_shared_prefixes(workload).saves
    assert most - len(prompts) <= hits.hit_tokens <= most and hits.num_refused == hits.num_waited == 0


def test_a_small_cache_evicts_and_pins_prevent_it():
    rng = random.Random(6)
    rare, common_prefix = traces.ids(rng, 160), traces.ids(rng, 160)
    prompts = [(rare if at % 10 == 0 else common_prefix) + traces.ids(rng, 100) for at in range(100)]
    workload = plain(prompts)
    small, large = replay_cache(workload, 60), replay_cache(workload, 5000)
    assert small.rate < large.rate - 0.03
    best = find_shared_prefixes(workload).largest(2)
    assert replay_cache(workload, 60, pins=prefix_pins(workload, best)).rate > small.rate + 0.03


def test_an_answer_is_read_from_the_prompt_that_repeats_it():
    first, answer = list(range(40)), list(range(100, 130))
    lines = [traces.line(0, first, output=30), traces.line(1, [*first, *answer, 7, 8])]
    workload = traces.workload(lines)
    assert workload.calls[0].output == workload.calls[1].marks[40:70]
    assert replay_cache(workload, 100).hit_tokens == 69  # the KV of an answer's last token is not computed


def test_concurrency_is_measured_if_the_trace_has_durations():
    spans = [(0.0, 10.0), (0.0, 5.0), (5.0, 10.0)]
    found = concurrency_of(spans, is_measured=True)
    assert (found.mean, found.peak, found.curve[-1]) == (2.0, 2, (10.0, 0))
    assert measured_concurrency(traces.workload(traces.unique())) is None
    timed = [each | {"seconds": 2.0} for each in traces.unique(gap=0.5)]
    assert measured_concurrency(traces.workload(timed)).peak == 4


def test_the_busiest_part_of_a_long_trace_is_simulated():
    calls = 2 * SERVED.output // 50
    lines = traces.shared(calls, gap=1.0)
    for at in range(900, 1100):
        lines[at]["time"] = 900.0 + (at - 900) * 0.01
    part = busiest_part(traces.workload(lines), SERVED)
    assert len(part.calls) == SERVED.output // 50 and part.calls[0].time == 0.0
    assert sum(later.time - sooner.time < 0.5 for sooner, later in zip(part.calls, part.calls[1:], strict=False)) >= 199
    short = traces.workload(traces.shared())
    assert busiest_part(short, SERVED) is short
