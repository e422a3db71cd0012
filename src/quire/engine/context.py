"""The longest context that an engine serves."""

from __future__ import annotations

from quire.config import Config
from quire.models.config import ModelConfig


def context_limit(config: Config, model: ModelConfig) -> int:
    """Return the longest context to serve: not beyond the trained one, unless that was set and rope can stretch."""
    longest = model.longest_context if config.scheduler.context_is_set else model.max_context
    return min(config.scheduler.max_context, longest)
