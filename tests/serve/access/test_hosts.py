"""The Host header: a web page whose name was rebound to this machine gets nothing from a server without keys."""

from __future__ import annotations

import pytest

from quire.config import load
from quire.serve.access.hosts import AllowedHosts
from quire.serve.errors import HostNotAllowed
from tests.serve.running import running

OWN = ["127.0.0.1:8000", "127.9.9.9", "[::1]:8000", "[fe80::1%25eth0]", "localhost", "LOCALHOST:8000", "localhost."]
OWN += [
    "app.localhost:80",
    "kim",
    "kim.lan",
    "kim.local:8000",
    "192.168.1.5:8000",
    "8.8.8.8",
    "",
    "host.docker.internal",
]
FOREIGN = ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.nip.io", "evil.example.", "evil"]
FOREIGN += [
    "kim.evil.example",
    "evillocalhost",
    "[::1].evil.example",
    "other.local",
    "x.internal",
    "1.2.3.4.evil.example",
]
PRIVATE = ["quire", "quire:8000", "quire.default.svc.cluster.local:8000", "gpu.corp.internal", "nas.home.arpa"]


def hosts(has_keys: bool = False, **settings: str) -> AllowedHosts:
    return AllowedHosts(load(settings, {}).serve, has_keys, host_name="Kim.lan")


def is_allowed(allowed: AllowedHosts, host: str) -> bool:
    try:
        allowed.check([host])
    except HostNotAllowed:
        return False
    return True


@pytest.mark.pure
@pytest.mark.parametrize("host", OWN)
def test_addresses_and_the_machines_own_names_are_allowed(host):
    assert is_allowed(hosts(), host)


@pytest.mark.pure
@pytest.mark.parametrize("host", FOREIGN)
def test_other_names_are_not(host):
    assert not is_allowed(hosts(), host)


@pytest.mark.pure
@pytest.mark.parametrize("host", PRIVATE)
def test_names_that_only_a_private_network_has_are_allowed_where_the_server_listens_on_one(host):
    assert is_allowed(hosts(host="0.0.0.0"), host) and not is_allowed(hosts(), host)
    assert not is_allowed(hosts(host="0.0.0.0"), "evil.example")


@pytest.mark.pure
def test_the_setting_adds_names_and_names_below_them():
    allowed = hosts(allowed_hosts="LLM.example.com, .a.example,*.b.example")
    assert all(
        is_allowed(allowed, host) for host in ("llm.example.com:443", "x.a.example", "x.y.b.example", "localhost")
    )
    assert not any(is_allowed(allowed, host) for host in ("www.llm.example.com", "a.example", "xa.example"))
    assert is_allowed(hosts(allowed_hosts="*"), "evil.example")
    assert is_allowed(hosts(host="gpu.example"), "gpu.example:8000")


@pytest.mark.pure
def test_with_keys_names_are_checked_only_if_the_setting_says_which():
    assert is_allowed(hosts(has_keys=True), "any.example")
    assert not is_allowed(hosts(has_keys=True, allowed_hosts="llm.example"), "any.example")


@pytest.mark.pure
def test_of_several_headers_each_is_checked():
    with pytest.raises(HostNotAllowed):
        hosts().check(["localhost", "evil.example"])


@pytest.mark.e2e
def test_a_rebound_page_reaches_no_path_but_those_of_probes(model_file):
    with running(model_file, waits=False, allowed_hosts="llm.example") as server:
        rebound = {"host": "evil.example:8000", "origin": "http://evil.example:8000"}
        for method, path in (("POST", "/plain/chat"), ("POST", "/v1/cache/flush"), ("GET", "/props"), ("GET", "/none")):
            response = server.http.request(method, path, headers=rebound, content=b"")
            assert (
                response.status_code == 403 and "--allowed-hosts" in response.text and "evil.example" in response.text
            )
        assert server.http.get("/health", headers=rebound).status_code == 200
        assert server.http.get("/ready", headers=rebound).status_code in (200, 503)
        assert server.http.get("/props").status_code == 200
        named = {"host": "llm.example", "origin": "https://llm.example"}
        assert server.http.get("/props", headers=named).status_code == 200
