"""The longest context that an engine serves, and the steps that it needs for it."""

from __future__ import annotations

from dataclasses import replace

from quire.config import Config
from quire.models.config import ModelConfig
from quire.models.draw import DrawnModel


def context_limit(config: Config, model: ModelConfig) -> int:
    """Return the longest context to serve: not beyond the trained one, unless that was set and rope can stretch."""
    longest = model.longest_context if config.scheduler.context_is_set else model.max_context
    return min(config.scheduler.max_context, longest)


def with_model_limits(config: Config, model: DrawnModel) -> Config:
    """The settings with the model's context. An encoder computes a whole text in one step."""
    most = config.scheduler.max_step_tokens
    most = max(most, model.context) if model.is_encoder else most
    return replace(config, scheduler=replace(config.scheduler, max_context=model.context, max_step_tokens=most))
