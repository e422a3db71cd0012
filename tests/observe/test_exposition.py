"""Metrics as text: the lines that scrapers have always read, and OpenMetrics for those that ask for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from quire.observe import metrics
from quire.observe.exposition import expose
from quire.observe.histogram import HistogramValue
from quire.observe.metrics import MetricSample

pytestmark = pytest.mark.pure

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
STEP_TIMES = MetricSample(metrics.STEPS, HistogramValue((1, *[0] * 12, 2, 3), 4.5), "m", "plan")
EVERY_METRIC = [
    MetricSample(metric, HistogramValue() if metric.bounds else 3, model, "x" if metric.label else None)
    for metric in metrics.ALL
    for model in ("a", "b")
]


def lines(*samples: MetricSample) -> list[str]:
    return expose(samples, "*/*")[0].decode().splitlines()


def test_a_histogram_has_the_number_of_values_up_to_each_bound():
    text = lines(STEP_TIMES)
    assert text[:2] == [f"# HELP quire_step_seconds {metrics.STEPS.help}", "# TYPE quire_step_seconds histogram"]
    assert text[2] == 'quire_step_seconds_bucket{le="0.0001",model="m",part="plan"} 1.0'
    assert text[-5] == 'quire_step_seconds_bucket{le="1",model="m",part="plan"} 1.0'
    assert text[-4] == 'quire_step_seconds_bucket{le="2.5",model="m",part="plan"} 3.0'
    assert text[-3:] == [
        'quire_step_seconds_bucket{le="+Inf",model="m",part="plan"} 6.0',
        'quire_step_seconds_count{model="m",part="plan"} 6.0',
        'quire_step_seconds_sum{model="m",part="plan"} 4.5',
    ]


def test_samples_of_two_models_are_in_one_family_and_again_under_the_alias():
    declared = (metrics.PREEMPTIONS, metrics.SESSIONS)
    assert lines(*(MetricSample(metric, 2, model) for model in "ab" for metric in declared)) == [
        "# HELP quire_preemptions_total Preempted requests.",
        "# TYPE quire_preemptions_total counter",
        'quire_preemptions_total{model="a"} 2.0',
        'quire_preemptions_total{model="b"} 2.0',
        "# HELP vllm:num_preemptions_total Preempted requests.",
        "# TYPE vllm:num_preemptions_total counter",
        'vllm:num_preemptions_total{model_name="a"} 2.0',
        'vllm:num_preemptions_total{model_name="b"} 2.0',
        "# HELP quire_sessions Sessions that keep their last context cached.",
        "# TYPE quire_sessions gauge",
        'quire_sessions{model="a"} 2.0',
        'quire_sessions{model="b"} 2.0',
    ]


def test_an_alias_has_its_own_label():
    text = lines(MetricSample(metrics.ENDED, 1, "m", "stop"))
    assert 'quire_answers_ended_total{model="m",reason="stop"} 1.0' in text
    assert 'vllm:request_success_total{finished_reason="stop",model_name="m"} 1.0' in text


def test_label_values_are_escaped():
    assert 'quire_sessions{model="a\\"b\\\\c\\nd"} 1.0' in lines(MetricSample(metrics.SESSIONS, 1, 'a"b\\c\nd'))


def test_large_counts_keep_all_their_digits():
    (family, *_) = parse_text("\n".join(lines(MetricSample(metrics.PROMPT_TOKENS, 123_456_789_012, "m"))))
    assert family.samples[0].value == 123_456_789_012


@pytest.mark.parametrize("accept", ["", "*/*", "text/html", "text/plain;version=0.0.4;q=0.3", "text/plain; version=x"])
def test_the_text_format_is_the_default(accept):
    assert expose(EVERY_METRIC, accept)[1] == TEXT


@pytest.mark.parametrize(
    "accept",
    [
        OPENMETRICS,
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,*/*;q=0.1",
    ],
)
def test_openmetrics_has_the_same_series_for_a_scraper_that_asks_for_it(accept):
    body, content_type = expose([*EVERY_METRIC, STEP_TIMES], accept)
    assert content_type.startswith(f"{OPENMETRICS}; version=1.0.0; charset=utf-8")
    text = expose([*EVERY_METRIC, STEP_TIMES], "")[0].decode()
    assert series(parse_openmetrics(body.decode())) == series(parse_text(text))
    assert b'le="1.0"' in body and b"_created" not in body


def series(families) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample's value, with bounds as numbers: the formats write them differently."""
    found = {}
    for sample in (sample for family in families for sample in family.samples):
        labels = {name: str(float(value)) if name == "le" else value for name, value in sample.labels.items()}
        found[sample.name, frozenset(labels.items())] = sample.value
    return found


def test_a_server_starts_without_importing_prometheus_client():
    script = "import sys, quire.serve.http.app; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0
