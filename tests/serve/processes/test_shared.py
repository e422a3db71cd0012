"""State shared by the processes of a server: quotas hold across them, and metrics add up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.observe import metrics
from quire.observe.histogram import HistogramValue
from quire.observe.metrics import MetricSample, sum_samples
from quire.serve.access.keys import ApiKey
from quire.serve.access.quota import TOKENS, Quotas
from quire.serve.errors import QuotaExceeded
from quire.serve.processes.shared import SharedMeters, SharedQuotaTable

pytestmark = pytest.mark.pure

KEYS = (
    ApiKey("free", "0"),
    ApiKey("busy", "1", max_concurrent=2),
    ApiKey("slow", "2", requests_per_minute=3),
    ApiKey("terse", "3", tokens_per_minute=60),
)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[list[SharedQuotaTable]]:
    """The hub's, and those of two fronts."""
    path = tmp_path / "quotas"
    made = [SharedQuotaTable.make(path, KEYS, 2), *(SharedQuotaTable(path, KEYS, 2) for _ in range(2))]
    yield made
    for table in made:
        table.close()


def test_requests_that_run_are_counted_over_all_processes_and_those_of_a_dead_one_forgotten(
    tables: list[SharedQuotaTable],
) -> None:
    one, other = (Quotas(table, place) for place, table in enumerate(tables[1:]))
    with one.running(KEYS[1], 0.0):
        with other.running(KEYS[1], 0.0), pytest.raises(QuotaExceeded, match="2 requests"), one.running(KEYS[1], 0.0):
            pass
        other.running(KEYS[1], 0.0).__enter__()
        tables[0].forget(1)
        with one.running(KEYS[1], 0.0), one.running(KEYS[0], 0.0):
            pass


def test_a_minute_is_shared(tables: list[SharedQuotaTable]) -> None:
    one, other = (Quotas(table, place) for place, table in enumerate(tables[1:]))
    for quotas in (one, other, one):
        with quotas.running(KEYS[2], 100.0):
            pass
    for quotas in (one, other):
        with pytest.raises(QuotaExceeded, match="3 requests a minute") as refused, quotas.running(KEYS[2], 100.0):
            pass
        assert refused.value.retry_after == pytest.approx(20.0)
    with other.running(KEYS[2], 121.0):
        pass
    with one.running(KEYS[3], 0.0):
        one.charge(KEYS[3], 100)
    with pytest.raises(QuotaExceeded, match="60 tokens"), other.running(KEYS[3], 1.0):
        pass


def test_no_process_sees_a_number_that_another_is_changing(tables: list[SharedQuotaTable], tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "from tests.serve.processes.test_shared import KEYS, Quotas, SharedQuotaTable\n"
        f"quotas = Quotas(SharedQuotaTable(Path({str(tmp_path / 'quotas')!r}), KEYS, 2))\n"
        "for _ in range(5000): quotas.charge(KEYS[3], 1)\n"
    )
    with Quotas(tables[0]).running(KEYS[3], 0.0):
        children = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
        assert [child.wait(60) for child in children] == [0, 0]
    with tables[0].row(KEYS[3]) as row:
        assert row[TOKENS] == 60 - 10_000


def test_numbers_of_all_processes_are_added_and_a_successor_goes_on_from_its_predecessor(tmp_path: Path) -> None:
    tokens, refused, gap = metrics.PROMPT_TOKENS, metrics.REFUSED, metrics.TOKEN_GAP
    one, other = SharedMeters(tmp_path, 0), SharedMeters(tmp_path, 1)
    mine = [MetricSample(tokens, 3, "m"), MetricSample(gap, HistogramValue((1, 2), 0.5), "m")]
    theirs = [MetricSample(tokens, 4, "m"), MetricSample(tokens, 5, "n"), MetricSample(refused, 1, "m", "overloaded")]
    other.write([*theirs, MetricSample(gap, HistogramValue((2, 0), 0.25), "m")])
    assert sum_samples([*mine, *one.others()]) == [
        MetricSample(tokens, 7, "m"),
        MetricSample(gap, HistogramValue((3, 2), 0.75), "m"),
        MetricSample(tokens, 5, "n"),
        MetricSample(refused, 1, "m", "overloaded"),
    ]
    successor = SharedMeters(tmp_path, 1)
    successor.write([MetricSample(tokens, 1, "m")])
    assert {(each.metric, each.model): each.value for each in one.others()}[tokens, "m"] == 5
    assert sum_samples([MetricSample(tokens, 1, "m"), *successor.others()])[0] == MetricSample(tokens, 5, "m")
