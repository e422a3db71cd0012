"""One server for each module of tests, with the real model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.running import Running, running


@pytest.fixture(scope="module")
def server(model_file: Path) -> Iterator[Running]:
    with running(model_file) as started:
        yield started
