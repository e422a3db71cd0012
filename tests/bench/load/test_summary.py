"""Figures of requests with known times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.bench.load.request_result import RequestResult
from quire.bench.load.summary import LatencyLimits, Percentiles, RunConditions, Summary, parse_limits, summarize
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure


def request(sent: float, first: float, gap: float = 0.1, num_tokens: int = 5, **fields) -> RequestResult:
    event_times = [sent + first + gap * index for index in range(num_tokens)]
    defaults = {"prompt_tokens": 10, "output_tokens": num_tokens, "max_tokens": num_tokens}
    return RequestResult(due=sent, sent=sent, event_times=event_times, ended=event_times[-1], **{**defaults, **fields})


def summary(*results: RequestResult, limits: LatencyLimits | None = None, **conditions) -> Summary:
    return summarize("2 clients", results, limits, RunConditions(**conditions))


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=200))
def test_percentiles_equal_numpys(values):
    percentiles = Percentiles.of(values)
    for name, percent in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        assert getattr(percentiles, name) == float(np.percentile(values, percent))
    assert percentiles.max == max(values)
    assert percentiles.mean == pytest.approx(float(np.mean(values)))


def test_figures_of_no_requests_are_zero():
    assert Percentiles.of([]) == Percentiles()
    empty = summary()
    assert (empty.output_per_second, empty.num_requests, empty.concerns) == (0.0, 0, ())


def test_rates_are_over_the_time_from_the_first_request_to_the_last_end():
    figures = summary(request(0.0, 0.6), request(1.0, 0.6, cached_tokens=4))
    assert figures.seconds == pytest.approx(2.0)
    assert figures.output_per_second == pytest.approx(5.0)
    assert figures.total_per_second == pytest.approx(15.0)
    assert figures.requests_per_second == pytest.approx(1.0)
    assert figures.first_token.p50 == pytest.approx(0.6)
    assert figures.per_token.p50 == pytest.approx(0.1) and figures.gap.p50 == pytest.approx(0.1)
    assert figures.end_to_end.max == pytest.approx(1.0)
    assert (figures.prompt_tokens, figures.output_tokens, figures.cached_tokens) == (20, 10, 4)
    assert figures.cached_share == pytest.approx(0.2)


def test_time_per_token_is_counted_in_tokens_and_not_in_events():
    two_at_once = request(0.0, 0.5, gap=0.2, num_tokens=3, output_tokens=5)
    figures = summary(two_at_once)
    assert figures.per_token.p50 == pytest.approx(0.1)
    assert figures.gap.p50 == pytest.approx(0.2)


def test_failed_requests_count_as_errors_only():
    lost = RequestResult(due=0.0, sent=0.0, ended=9.0, error="503: full")
    figures = summary(request(0.0, 0.5), lost, RequestResult(due=0.0, sent=0.0, ended=1.0))
    assert (figures.num_requests, figures.num_succeeded) == (3, 1)
    assert figures.errors == {"503: full": 1, "an empty answer": 1}
    assert figures.end_to_end.max < 1.0


def test_goodput_counts_requests_within_all_limits():
    fast, slow = request(0.0, 0.2, gap=0.05), request(0.0, 1.8, gap=0.05)
    limits = parse_limits(["ttft:500", "tpot:60,e2el:3000"])
    figures = summary(fast, slow, limits=limits)
    assert limits == LatencyLimits(0.5, 0.06, 3.0)
    assert figures.goodput == pytest.approx(1 / figures.seconds)
    assert summary(fast).goodput is None
    assert summary(fast, limits=parse_limits(["tpot:40"])).goodput == 0.0


@pytest.mark.parametrize("text", ["ttft", "ttft:soon", "itl:3"])
def test_an_invalid_limit_is_refused(text):
    with pytest.raises(InvalidRequest, match="ttft:MILLISECONDS"):
        parse_limits([text])


def test_cost_follows_from_the_price_of_an_hour():
    figures = summary(request(0.0, 0.6), price_per_hour=3.6)  # 5 tokens in a second at 0.001 a second
    assert figures.cost_per_million_output == pytest.approx(0.001 / figures.output_per_second * 1e6)
    assert summary(request(0.0, 0.6)).cost_per_million_output is None


@pytest.mark.parametrize(
    "result, concern",
    [
        (request(0, 0.5, output_tokens=None), "had no usage"),
        (request(0, 0.5, must_reach_max=True, max_tokens=10), "ended early, at 50%"),
        (request(0, 0.5, output_tokens=3), "more events than their usage"),
        (request(0, 0.5, expects_json=True, text=["{"]), "not the requested JSON"),
    ],
)
def test_reasons_to_doubt_the_figures_are_listed(result, concern):
    assert any(concern in text for text in summary(result).concerns)
    assert not any(concern in text for text in summary(request(0, 0.5)).concerns)


def test_a_late_or_busy_generator_is_a_concern():
    late = summary(request(0, 0.5, gap=0.01), generator_delay=Percentiles(p99=0.002), processor_share=0.97)
    assert any("was up to 2.00 ms late" in concern for concern in late.concerns)
    assert any("97% of a core" in concern for concern in late.concerns)
