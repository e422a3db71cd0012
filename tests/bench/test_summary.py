"""Figures of answers that are known to the microsecond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.bench.heard import Heard
from quire.bench.rows import BY_KEY, flat
from quire.bench.summary import Around, Limits, Spread, Summary, parse_limits, summarize
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure


def answer(sent: float, first: float, gap: float = 0.1, num_tokens: int = 5, **more) -> Heard:
    stamps = [sent + first + gap * index for index in range(num_tokens)]
    known = {"prompt_tokens": 10, "output_tokens": num_tokens, "max_tokens": num_tokens}
    return Heard(due=sent, sent=sent, stamps=stamps, ended=stamps[-1], **{**known, **more})


def summary(*heard: Heard, limits: Limits | None = None, **around) -> Summary:
    return summarize("2 clients", heard, limits, Around(**around))


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=200))
def test_percentiles_equal_numpys(values):
    spread = Spread.of(values)
    for name, percent in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        assert getattr(spread, name) == float(np.percentile(values, percent))
    assert spread.max == max(values)
    assert spread.mean == pytest.approx(float(np.mean(values)))


def test_of_nothing_everything_is_zero():
    assert Spread.of([]) == Spread()
    empty = summary()
    assert (empty.output_per_second, empty.num_requests, empty.concerns) == (0.0, 0, ())


def test_rates_are_over_the_time_from_the_first_request_to_the_last_end():
    made = summary(answer(0.0, 0.6), answer(1.0, 0.6, cached_tokens=4))
    assert made.seconds == pytest.approx(2.0)
    assert made.output_per_second == pytest.approx(5.0)
    assert made.total_per_second == pytest.approx(15.0)
    assert made.requests_per_second == pytest.approx(1.0)
    assert made.first_token.p50 == pytest.approx(0.6)
    assert made.per_token.p50 == pytest.approx(0.1) and made.gap.p50 == pytest.approx(0.1)
    assert made.whole.max == pytest.approx(1.0)
    assert (made.prompt_tokens, made.output_tokens, made.cached_tokens) == (20, 10, 4)
    assert made.cached_share == pytest.approx(0.2)


def test_time_per_token_is_counted_in_tokens_and_not_in_events():
    two_at_once = answer(0.0, 0.5, gap=0.2, num_tokens=3, output_tokens=5)
    made = summary(two_at_once)
    assert made.per_token.p50 == pytest.approx(0.1)
    assert made.gap.p50 == pytest.approx(0.2)


def test_errors_are_counted_and_not_measured():
    lost = Heard(due=0.0, sent=0.0, ended=9.0, error="503: full")
    made = summary(answer(0.0, 0.5), lost, Heard(due=0.0, sent=0.0, ended=1.0))
    assert (made.num_requests, made.num_good) == (3, 1)
    assert made.errors == {"503: full": 1, "an empty answer": 1}
    assert made.whole.max < 1.0


def test_goodput_counts_what_is_within_all_limits():
    fast, slow = answer(0.0, 0.2, gap=0.05), answer(0.0, 1.8, gap=0.05)
    limits = parse_limits(["ttft:500", "tpot:60,e2el:3000"])
    made = summary(fast, slow, limits=limits)
    assert limits == Limits(0.5, 0.06, 3.0)
    assert made.goodput == pytest.approx(1 / made.seconds)
    assert summary(fast).goodput is None
    assert summary(fast, limits=parse_limits(["tpot:40"])).goodput == 0.0


@pytest.mark.parametrize("text", ["ttft", "ttft:soon", "itl:3"])
def test_what_is_no_limit_is_refused(text):
    with pytest.raises(InvalidRequest, match="ttft:MILLISECONDS"):
        parse_limits([text])


def test_cost_follows_from_the_price_of_an_hour():
    made = summary(answer(0.0, 0.6), price_per_hour=3.6)  # 5 tokens in a second at 0.001 a second
    assert made.cost_per_million_output == pytest.approx(0.001 / made.output_per_second * 1e6)
    assert summary(answer(0.0, 0.6)).cost_per_million_output is None


@pytest.mark.parametrize(
    "heard, said",
    [
        (answer(0, 0.5, output_tokens=None), "without usage"),
        (answer(0, 0.5, must_reach=True, max_tokens=10), "ended early, at 50%"),
        (answer(0, 0.5, output_tokens=3), "more events than the tokens"),
        (answer(0, 0.5, wants_json=True, text=["{"]), "not the JSON"),
    ],
)
def test_what_makes_figures_doubtful_is_said(heard, said):
    assert any(said in concern for concern in summary(heard).concerns)
    assert not any(said in concern for concern in summary(answer(0, 0.5)).concerns)


def test_a_late_or_busy_generator_accuses_itself():
    late = summary(answer(0, 0.5, gap=0.01), own_delay=Spread(p99=0.002), processor_share=0.97)
    assert any("itself was up to 2.00 ms late" in concern for concern in late.concerns)
    assert any("97% of a core" in concern for concern in late.concerns)


def test_files_have_the_names_of_vllms_benchmark():
    made = summary(answer(0.0, 0.6))
    named = flat(made)
    assert named["p99_ttft_ms"] == pytest.approx(600.0)
    assert named["mean_tpot_ms"] == pytest.approx(100.0)
    assert named["total_output_tokens"] == named["total_input_tokens"] / 2 == 5
    assert BY_KEY["output_throughput"].shown(made) == "5 tok/s"
