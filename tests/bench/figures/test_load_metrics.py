"""The metrics of a load: their names in files, and how they are formatted."""

from __future__ import annotations

import pytest

from quire.bench.figures.load_metrics import METRIC_BY_KEY, as_record
from quire.bench.load.request_result import RequestResult
from quire.bench.load.summary import RunConditions, summarize

pytestmark = pytest.mark.pure

TIMES = [0.6, 0.7, 0.8, 0.9, 1.0]
RESULT = RequestResult(0.0, sent=0.0, ended=1.0, event_times=TIMES, prompt_tokens=10, output_tokens=5)
SUMMARY = summarize("1 client", [RESULT], None, RunConditions())


def test_files_have_the_names_of_vllms_benchmark():
    record = as_record(SUMMARY)
    assert record["p99_ttft_ms"] == pytest.approx(600.0)
    assert record["mean_tpot_ms"] == pytest.approx(100.0)
    assert record["total_output_tokens"] == record["total_input_tokens"] / 2 == 5


def test_values_are_formatted_with_their_unit():
    assert METRIC_BY_KEY["output_throughput"].format(SUMMARY) == "5 tok/s"
    assert METRIC_BY_KEY["request_goodput"].format(SUMMARY) == "–"
