"""Metrics have one name each, and the names that others' dashboards know."""

import pytest

from quire.observe import metrics
from quire.observe.histogram import Histogram, Spread
from quire.observe.meters import Meters
from quire.observe.metrics import Sample, render
from quire.observe.record import Record

pytestmark = pytest.mark.pure


def record(**facts) -> Record:
    made = Record("id", "POST", "/p", "plain", 0.0, arrived=10.0, model="m", status=200)
    for name, fact in facts.items():
        setattr(made, name, fact)
    return made


def test_a_histogram_counts_a_value_where_its_bound_is_not_smaller():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        histogram.add(value)
    histogram.add(2.0, times=2)
    assert histogram.spread() == Spread((2, 3, 1), 10.0)


def test_a_histogram_is_rendered_with_sums_up_to_each_bound():
    lines = render([Sample(metrics.STEPS, Spread((1, *[0] * 12, 2, 3), 4.5), "m", "plan")]).splitlines()
    assert lines[:2] == [f"# HELP quire_step_seconds {metrics.STEPS.help}", "# TYPE quire_step_seconds histogram"]
    assert lines[2] == 'quire_step_seconds_bucket{model="m",part="plan",le="0.0001"} 1'
    assert lines[-4] == 'quire_step_seconds_bucket{model="m",part="plan",le="2.5"} 3'
    assert lines[-3:] == [
        'quire_step_seconds_bucket{model="m",part="plan",le="+Inf"} 6',
        'quire_step_seconds_sum{model="m",part="plan"} 4.5',
        'quire_step_seconds_count{model="m",part="plan"} 6',
    ]


def test_samples_of_two_models_stand_together_and_again_under_the_alias():
    text = render(Sample(metric, 2, model) for model in "ab" for metric in (metrics.PREEMPTIONS, metrics.SESSIONS))
    assert text.splitlines() == [
        "# HELP quire_preemptions_total Requests put off for others.",
        "# TYPE quire_preemptions_total counter",
        'quire_preemptions_total{model="a"} 2',
        'quire_preemptions_total{model="b"} 2',
        "# HELP vllm:num_preemptions_total Requests put off for others.",
        "# TYPE vllm:num_preemptions_total counter",
        'vllm:num_preemptions_total{model_name="a"} 2',
        'vllm:num_preemptions_total{model_name="b"} 2',
        "# HELP quire_sessions Conversations that hold their last context.",
        "# TYPE quire_sessions gauge",
        'quire_sessions{model="a"} 2',
        'quire_sessions{model="b"} 2',
    ]


def test_a_label_may_hold_anything():
    assert 'model="a\\"b\\\\c\\nd"' in render([Sample(metrics.SESSIONS, 1, 'a"b\\c\nd')])


def test_large_counts_keep_all_their_digits():
    assert render([Sample(metrics.PROMPT_TOKENS, 123_456_789_012, "m")]).splitlines()[2].endswith(" 123456789012")


def test_a_request_is_counted_by_what_it_cost_and_how_it_ended():
    meters = Meters()
    times = {"submitted": 10.1, "first_token": 10.5, "ended": 12.0, "waited": 0.2, "endings": ["stop", "length"]}
    meters.ended(record(prompt_tokens=10, cached_tokens=4, output_tokens=7, forced_tokens=2, **times))
    meters.ended(record(status=503, error="overloaded", ended=10.2))
    found = {(each.metric.name, each.label): each.value for each in meters.samples()}
    assert found["quire_prompt_tokens", None] == 10 and found["quire_prompt_tokens_by_source", "cached"] == 4
    assert found["quire_output_tokens_by_source", "sampled"] == 5
    assert found["quire_output_tokens_by_source", "forced"] == 2
    assert found["quire_answers_ended", "stop"] == found["quire_answers_ended", "length"] == 1
    assert found["quire_requests_refused", "overloaded"] == 1
    assert found["quire_first_token_seconds", None].total == pytest.approx(0.5)
    assert found["quire_queue_seconds", None].total == pytest.approx(0.2)
    assert sum(found["quire_request_seconds", None].counts) == 1


def test_names_are_unique_and_have_help():
    names = [metric.name for metric in metrics.ALL] + [metric.alias for metric in metrics.ALL if metric.alias]
    assert len(names) == len(set(names)) and len(metrics.ALL) >= 20
    assert all(metric.help.endswith(".") and metric.name.startswith("quire_") for metric in metrics.ALL)
    assert all(bool(metric.bounds) == (metric.kind is metrics.Kind.HISTOGRAM) for metric in metrics.ALL)
