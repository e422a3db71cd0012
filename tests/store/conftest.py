"""A server that each test can let misbehave."""

from collections.abc import Iterator

import pytest

from tests.store.server import Behaviour, serving


@pytest.fixture
def server(monkeypatch) -> Iterator[Behaviour]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)  # the server is on this machine
    monkeypatch.setattr("quire.store.download.RETRY_SECONDS", 0.01)
    with serving() as behaviour:
        yield behaviour
