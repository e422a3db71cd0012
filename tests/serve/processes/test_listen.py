"""Addresses that a server cannot listen on are refused by the name of the setting."""

from __future__ import annotations

import pytest

from quire.config import BadSetting, ServeConfig
from quire.serve.processes.server import listen

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("host", ["", "a..b", "é" * 70, "256.256.256.256", "no such host"])
def test_a_host_that_is_none_is_refused_by_its_name(host: str) -> None:
    with pytest.raises(BadSetting) as caught:
        listen(ServeConfig(host=host, port=0))
    assert caught.value.field in ("host", "port") and ("host" in caught.value.public or "listen" in caught.value.public)
