"""What a server counts, and the declarations of its metrics."""

import pytest

from quire.observe import metrics
from quire.observe.histogram import Histogram, HistogramValue
from quire.observe.meters import Meters
from quire.observe.record import Record

pytestmark = pytest.mark.pure


def record(**facts) -> Record:
    made = Record("id", "POST", "/p", "plain", 0.0, arrived=10.0, model="m", status=200)
    for name, fact in facts.items():
        setattr(made, name, fact)
    return made


def test_a_value_counts_in_the_first_bucket_whose_bound_is_not_smaller():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        histogram.add(value)
    histogram.add(2.0, times=2)
    assert histogram.value() == HistogramValue((2, 3, 1), 10.0)


def test_a_request_is_counted_by_tokens_times_and_finish_reasons():
    meters = Meters()
    times = {"submitted": 10.1, "first_token": 10.5, "ended": 12.0, "waited": 0.2, "endings": ["stop", "length"]}
    meters.observe(record(prompt_tokens=10, cached_tokens=4, output_tokens=7, forced_tokens=2, **times))
    meters.observe(record(status=503, error="overloaded", ended=10.2))
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
    assert all(bool(metric.bounds) == (metric.kind is metrics.MetricKind.HISTOGRAM) for metric in metrics.ALL)
