"""Fixtures for tests of logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from quire.observe.log import LOGGER


@pytest.fixture
def restored_logger() -> Iterator[None]:
    """Leaves quire's logger as it was before the test."""
    logger = logging.getLogger(LOGGER)
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = handlers, level, propagate
