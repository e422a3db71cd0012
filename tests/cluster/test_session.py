"""What `quire cluster` says before it reaches Ray, and when it takes a cluster for ready."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from quire.cluster.errors import ClusterError, RayMissing, UnreadableState
from quire.cluster.guarded import find_port
from quire.cluster.ray_api import connect, load_ray
from quire.cluster.session import ClusterSession, choose_cluster, is_up

pytestmark = pytest.mark.pure


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RayMissing, match=r"\.\[ray\]"):
        load_ray()


def test_a_cluster_is_chosen_by_name_or_as_the_only_one(tmp_path):
    with pytest.raises(ClusterError, match="there are none"):
        choose_cluster(tmp_path, "")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "session.json").write_text("{}")
        assert choose_cluster(tmp_path, name) == name
        if name == "one":
            assert choose_cluster(tmp_path, "") == "one"
    with pytest.raises(ClusterError, match="Give --name: there are one, two"):
        choose_cluster(tmp_path, "")
    with pytest.raises(ClusterError, match="There is no cluster 'three'"):
        choose_cluster(tmp_path, "three")


def test_a_damaged_session_file_is_named(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "session.json").write_text('{"address": ')
    with pytest.raises(UnreadableState, match=r"session\.json is damaged"):
        ClusterSession(tmp_path, "one").status()


def replica(version: str = "1", state: str = "ready", is_joined: bool = True) -> dict[str, Any]:
    return {"group": "m", "version": version, "state": state, "is_joined": is_joined}


def status(
    *replicas: dict[str, Any], target: int = 2, gateway: str = "ready", is_decided: bool = True
) -> dict[str, Any]:
    groups = {"m": {"version": "1", "target": target}}
    return {"gateway": {"state": gateway}, "groups": groups, "replicas": list(replicas), "is_decided": is_decided}


@pytest.mark.parametrize(
    "found, is_ready",
    [
        (status(replica(), replica()), True),
        (status(target=0), True),
        (status(replica()), False),
        (status(replica(), replica(), replica()), False),
        (status(replica(), replica(state="starting")), False),
        (status(replica(), replica(is_joined=False)), False),
        (status(replica(), replica(), replica("0", "draining")), False),
        (status(replica(), replica(), gateway="starting"), False),
        (status(replica(), replica(), is_decided=False), False),
    ],
)
def test_a_cluster_is_up_when_exactly_what_should_run_is_ready(found, is_ready):
    assert is_up(found) == is_ready


@pytest.mark.filterwarnings("ignore")
def test_an_address_where_nobody_listens_is_an_error_at_once():
    pytest.importorskip("ray")
    with pytest.raises(ClusterError, match="There is no Ray cluster at"):
        connect(f"127.0.0.1:{find_port('127.0.0.1')}")
