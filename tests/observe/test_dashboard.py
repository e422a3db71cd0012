"""The dashboard shows every metric, and no name that is not one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
import yaml

from quire.config import ServeConfig
from quire.observe import metrics
from quire.observe.metrics import Metric, MetricKind
from quire.serve.admin.routes import OWN_ROUTES
from quire.serve.http.app import all_dialects
from tests.architecture.sources import ROOT
from tests.serve.running import running

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "quire.json").read_text(encoding="utf-8"))
CHARTS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
NAME = re.compile(r"\bquire_\w+")


def exposed_names(metric: Metric) -> set[str]:
    """The names of a metric's samples."""
    match metric.kind:
        case MetricKind.COUNTER:
            return {f"{metric.name}_total"}
        case MetricKind.HISTOGRAM:
            return {f"{metric.name}_{part}" for part in ("bucket", "sum", "count")}
        case MetricKind.GAUGE:
            return {metric.name}


KNOWN = {name: metric for metric in metrics.ALL for name in exposed_names(metric)}


def expressions() -> Iterator[str]:
    yield from (target["expr"] for panel in CHARTS for target in panel["targets"])


@pytest.mark.pure
def test_every_name_in_the_dashboard_is_a_metric():
    texts = [*expressions(), *(each["definition"] for each in DASHBOARD["templating"]["list"] if "definition" in each)]
    assert [name for text in texts for name in NAME.findall(text) if name not in KNOWN] == []


@pytest.mark.pure
def test_every_metric_is_in_the_dashboard():
    used = {KNOWN[name].name for text in expressions() for name in NAME.findall(text)}
    assert {metric.name for metric in metrics.ALL} - used == set()


@pytest.mark.pure
@pytest.mark.parametrize("expression", tuple(expressions()))
def test_an_expression_filters_by_instance_and_model_and_groups_by_existing_labels(expression):
    selectors = re.findall(r"(quire_\w+)\{([^}]*)\}", expression)
    assert selectors and len(selectors) == len(NAME.findall(expression))
    assert all('instance=~"$instance"' in chosen and 'model=~"$model"' in chosen for _, chosen in selectors)
    labels = {"le", "model"} | {label for name, _ in selectors if (label := KNOWN[name].label)}
    assert {label.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(",")} <= labels
    for name, _ in selectors:
        is_rate = re.search(rf"(rate|increase)\({name}\{{[^}}]*\}}\[\$__rate_interval\]\)", expression)
        if KNOWN[name] is not metrics.RESTARTS:  # which is shown as it is, too
            assert bool(is_rate) == (KNOWN[name].kind is not MetricKind.GAUGE), name
    assert ("histogram_quantile" in expression) == ("_bucket{" in expression)
    assert expression.count("(") == expression.count(")")


@pytest.mark.pure
def test_the_dashboard_is_valid_for_grafana():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert DASHBOARD["schemaVersion"] >= 39 and len(ids) == len(set(ids)) and DASHBOARD["uid"] == "quire"
    assert {each["name"]: each["type"] for each in DASHBOARD["templating"]["list"]} == {
        "datasource": "datasource",
        "instance": "query",
        "model": "query",
    }
    for panel in CHARTS:
        assert panel["datasource"] == SOURCE and panel["title"] and panel["description"].endswith(".")
        assert all(target["datasource"] == SOURCE for target in panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@pytest.mark.pure
def test_no_panel_covers_another():
    places = [(panel["title"], panel["gridPos"]) for panel in DASHBOARD["panels"]]
    assert all(place["x"] + place["w"] <= 24 for _, place in places)
    for (one, a), (other, b) in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or above, (one, other)


@pytest.mark.pure
def test_prometheus_scrapes_the_servers_path_and_port():
    (job,) = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    assert ("GET", job["metrics_path"]) in [(route.method, route.path) for route in OWN_ROUTES]
    assert job["static_configs"] == [{"targets": [f"localhost:{ServeConfig().port}"]}]


@pytest.mark.e2e
def test_a_server_exposes_every_declared_metric(model_file):
    with running(model_file, all_dialects()) as server:
        assert server.http.post("/v1/completions", json={"model": "toy", "prompt": "Hi"}).status_code == 200
        assert server.http.post("/v1/completions", json={"model": "nobody", "prompt": "Hi"}).status_code == 404
        exposed = set(NAME.findall(server.http.get("/metrics").text))
    assert set(KNOWN) - exposed == set() and exposed - set(KNOWN) <= {metric.name for metric in metrics.ALL}
