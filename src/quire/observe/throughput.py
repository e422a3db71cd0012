"""The throughput log: a line every ten seconds while an engine is busy, with token rates, requests and cache use."""

from __future__ import annotations

from logging import Logger
from typing import Protocol

INTERVAL_SECONDS = 10.0


class EngineCounts(Protocol):
    """The engine counters that a line needs. Token counts start at the engine's start."""

    @property
    def computed_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def queried_tokens(self) -> int: ...
    @property
    def hit_tokens(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def kv_usage(self) -> float: ...


class Throughput:
    """Logs the throughput of one model's engine. `log` is called once per interval with its counters."""

    def __init__(self, model: str, logger: Logger) -> None:
        self._model = model
        self._logger = logger
        self._before: EngineCounts | None = None

    def log(self, now: EngineCounts, seconds: float) -> None:
        """Write a line, unless nothing was computed and no request is running or waiting."""
        before, self._before = self._before, now
        if before is None or now.computed_tokens < before.computed_tokens:  # first call, or restarted
            return
        output = now.output_tokens - before.output_tokens
        prompt = max(0, now.computed_tokens - before.computed_tokens - output)
        if not (output or prompt or now.num_running or now.num_waiting):
            return
        queried, hit = now.queried_tokens - before.queried_tokens, now.hit_tokens - before.hit_tokens
        facts = {
            "model": self._model,
            "prompt_tokens_per_second": round(prompt / seconds, 1),
            "output_tokens_per_second": round(output / seconds, 1),
            "running": now.num_running,
            "waiting": now.num_waiting,
            "cache_hit_rate": round(hit / queried, 3) if queried else None,
            "cache_usage": round(now.kv_usage, 3),
        }
        hits = f"{hit / queried:.1%} of prompt tokens cached" if queried else "no new prompts"
        self._logger.info(
            "%s: prompt %.1f tokens/s, output %.1f tokens/s, %d running, %d waiting, %s, KV cache %.1f%% in use",
            *(self._model, prompt / seconds, output / seconds, now.num_running, now.num_waiting, hits),
            100 * now.kv_usage,
            extra=facts,
        )
