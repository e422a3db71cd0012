"""The fleet file: what it declares, and errors that name the line."""

from __future__ import annotations

import pytest

from quire.gateway.upstreams.declared import KubernetesService, build_fleet, spec_of_url
from quire.gateway.upstreams.kubernetes import specs_of
from quire.gateway.yaml_nodes import BadFleet, parse_yaml
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure

GOOD = """
upstreams:
  - http://10.0.0.1:8000
  - url: http://10.0.0.2:8000/
    name: two
    kind: vllm
    key_file: key
    weight: 2
    models: [a, b]
    events: tcp://10.0.0.2:5557
tokenizers: {a: hf.co/org/a}
prices: {a: {prompt: 1, output: 3}}
kubernetes: {service: quire, namespace: ml, port: http}
"""


def test_a_fleet_file_is_read_whole(tmp_path):
    (tmp_path / "key").write_text("secret\n")
    fleet = build_fleet(parse_yaml(GOOD, "fleet.yaml", BadFleet), tmp_path)
    one, two = fleet.upstreams
    assert (one.name, one.kind, one.models) == ("10.0.0.1:8000", "auto", ())
    assert (two.url, two.name, two.key, two.weight, two.models) == (
        "http://10.0.0.2:8000",
        "two",
        "secret",
        2,
        ("a", "b"),
    )
    assert fleet.tokenizers == {"a": "hf.co/org/a"} and fleet.kubernetes is not None
    assert fleet.prices["a"].cost(1_000_000, 0, 1_000_000) == 4.0 and fleet.prices["a"].cached == 1.0
    assert "secret" not in repr(two)


@pytest.mark.parametrize(
    "text, line, said",
    [
        ("prices: {}", 1, "none of upstreams, kubernetes and models"),
        ("upstreams:\n  - ftp://x", 2, "is not a URL"),
        ("upstreams:\n  - http://x:1\n  - http://x:1", 3, "two upstreams have the name"),
        ("upstreams:\n  - url: http://x\n    colour: red", 3, "there is no 'colour'"),
        ("upstreams:\n  - name: x", 2, "has no url"),
        ("upstreams:\n  - url: http://x\n    kind: nginx", 3, "there is no kind 'nginx'"),
        ("upstreams:\n  - url: http://x\n    key: a\n    key_file: b", 2, "give one of key and key_file"),
        ("upstreams:\n  - url: http://x\n    key_file: missing", 3, "cannot be read"),
        ("upstreams:\n  - url: http://x\n    tls: {cert: a}", 3, "go together"),
        ("upstreams:\n  - url: http://x\n    tls: {ca: missing.pem}", 3, "cannot be used for TLS"),
        ("upstreams:\n  - url: http://x\n    weight: -1", 3, "out of range"),
        ("upstreams: []\nprices: {m: {prompt: x}}", 2, "is not a number"),
        ("kubernetes: {namespace: x}", 1, "the service is missing"),
    ],
)
def test_an_error_names_its_line(text, line, said, tmp_path):
    with pytest.raises(BadFleet) as caught:
        build_fleet(parse_yaml(text, "fleet.yaml", BadFleet), tmp_path)
    assert f"fleet.yaml, line {line}: " in caught.value.public and said in caught.value.public


@pytest.mark.parametrize("url", ["", "x", "http://", "http://x:y", "http://x?a=b", "unix:/x"])
def test_a_wrong_url_is_refused(url):
    with pytest.raises(InvalidRequest):
        spec_of_url(url)


def test_the_upstreams_of_a_service_are_its_ready_addresses():
    ports = [{"name": "metrics", "port": 9}, {"name": "http", "port": 8000}]
    endpoints = [
        {"addresses": ["10.0.0.1"], "conditions": {"ready": True}, "targetRef": {"name": "pod-a"}},
        {"addresses": ["10.0.0.2"], "conditions": {"ready": False}},
        {"addresses": ["fd00::1"]},
    ]
    found = specs_of([{"ports": ports, "endpoints": endpoints}], KubernetesService("quire", port="http"))
    assert [(each.name, each.url) for each in found] == [
        ("pod-a", "http://10.0.0.1:8000"),
        ("[fd00::1]:8000", "http://[fd00::1]:8000"),
    ]
    assert specs_of([{"ports": ports, "endpoints": endpoints}], KubernetesService("quire", port="grpc")) == []
