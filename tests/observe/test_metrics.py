"""Metrics have one name each, and the names that others' dashboards know."""

from dataclasses import asdict

import pytest

from quire.cache.kv_cache import KVCache
from quire.config import SchedulerConfig
from quire.observe import metrics
from quire.scheduler.scheduler import Scheduler
from quire.types.request import GenerateRequest

pytestmark = pytest.mark.pure


def rendered() -> str:
    cache = KVCache(8)
    scheduler = Scheduler(cache, SchedulerConfig(max_rows=2, max_step_tokens=64, max_context=64))
    scheduler.add(GenerateRequest("a", tuple(range(20))), 0.0)
    scheduler.add(GenerateRequest("b", tuple(range(50, 70))), 0.0)
    scheduler.plan(0.0)
    return metrics.render(metrics.core_samples(asdict(cache.stats()), asdict(scheduler.stats())))


def test_the_numbers_of_cache_and_scheduler_are_rendered_under_our_names_and_vllms():
    lines = rendered().splitlines()
    assert "quire_requests_running 2" in lines and "vllm:num_requests_running 2" in lines
    assert 'quire_kv_blocks{state="held"} 4' in lines and "vllm:kv_cache_usage_perc 0.5" in lines
    assert "quire_prefix_queried_tokens_total 40" in lines and "vllm:prefix_cache_queries_total 40" in lines


def test_every_declared_metric_is_rendered_with_its_help_once():
    text = rendered()
    for metric in metrics.ALL:
        assert text.count(f"# HELP {metric.name}") == 1


def test_names_are_unique():
    names = [metric.name for metric in metrics.ALL] + [metric.alias for metric in metrics.ALL if metric.alias]
    assert len(names) == len(set(names)) and len(metrics.ALL) >= 9
