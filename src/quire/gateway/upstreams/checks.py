"""Health checks: whether an upstream can answer, what kind of server it is, and which models it has."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from quire.config import GatewayConfig
from quire.gateway.http.errors import UpstreamFailed, UpstreamSilent, UpstreamUnreachable
from quire.gateway.upstreams.declared import AUTO, KINDS, QUIRE
from quire.gateway.upstreams.upstream import Upstream

logger = logging.getLogger(__name__)

OWNERS = {  # in /v1/models
    **{kind: kind for kind in KINDS},
    "llamacpp": "llama-server",
    "tensorrt_llm": "trtllm",
    "library": "ollama",
}
NOT_READY_AFTER = 2  # failed checks in a row; a refused connection counts at once
DEAD_AFTER = 3  # failed checks in a row that timed out: its requests are taken elsewhere
MODELS_EVERY = 5  # checks

OnChange = Callable[[Upstream], None]


async def watch_upstream(upstream: Upstream, config: GatewayConfig, on_change: OnChange) -> None:
    """Check an upstream at intervals, until it is cancelled."""
    num_checks = 0
    while True:
        before = (upstream.is_ready, upstream.models, upstream.kind)
        wants_models = num_checks % MODELS_EVERY == 0 or not upstream.is_ready or not upstream.models
        await check_upstream(upstream, config, wants_models)
        if (upstream.is_ready, upstream.models, upstream.kind) != before:
            state = "is ready" if upstream.is_ready else f"is not ready: {upstream.problem}"
            logger.info("upstream %s (%s, %s) %s", upstream.name, upstream.spec.url, upstream.kind, state)
            on_change(upstream)
        num_checks += 1
        await asyncio.sleep(config.check_seconds if num_checks > 1 or upstream.is_ready else 0.1)


async def check_upstream(upstream: Upstream, config: GatewayConfig, wants_models: bool = True) -> None:
    """Check it once."""
    seconds = config.check_timeout
    upstream.checked_at = time.monotonic()
    try:
        if upstream.kind == AUTO or (wants_models and not upstream.spec.models):
            await _read_models(upstream, seconds)
        problem = await _problem(upstream, seconds)
    except UpstreamFailed as error:
        _count_failure(upstream, error)
        return
    except Exception as error:  # an answer of a form that no server of a known kind has
        _count_failure(upstream, UpstreamFailed(upstream.name, f"answers a check in an unknown form ({error!r})"))
        return
    upstream.num_failed_checks = 0
    upstream.is_ready, upstream.problem = not problem, problem
    if upstream.is_ready:
        upstream.breaker.succeed()


def _count_failure(upstream: Upstream, error: UpstreamFailed) -> None:
    upstream.num_failed_checks += 1
    is_refused = isinstance(error, UpstreamUnreachable)
    if is_refused or upstream.num_failed_checks >= NOT_READY_AFTER or not upstream.is_ready:
        upstream.is_ready, upstream.problem = False, error.what
    if isinstance(error, UpstreamSilent) and upstream.num_failed_checks >= DEAD_AFTER:
        upstream.pool.fail_all(error)


async def _problem(upstream: Upstream, seconds: float) -> str:
    """Why it cannot answer; empty if it can."""
    path = "/ready" if upstream.kind == QUIRE else "/health"
    status, body, _ = await upstream.pool.fetch("GET", path, upstream.headers(), seconds=seconds)
    if status == 404 and upstream.kind != QUIRE:  # it has no such path: that it listed its models is enough
        return "" if upstream.models else "has no models"
    return "" if status == 200 else f"answers {status} to {path}: {body[:200].decode('utf-8', 'replace')}"


async def _read_models(upstream: Upstream, seconds: float) -> None:
    status, body, _ = await upstream.pool.fetch("GET", "/v1/models", upstream.headers(), seconds=seconds)
    if status != 200:
        if upstream.kind == AUTO or not upstream.models:
            text = body[:200].decode("utf-8", "replace")
            raise UpstreamFailed(upstream.name, f"answers {status} to /v1/models: {text}")
        return
    listed: list[dict[str, Any]] = msgspec.json.decode(body)["data"]
    if not upstream.spec.models:
        upstream.models = tuple(str(each["id"]) for each in listed)
    if upstream.kind == AUTO:
        owners = {OWNERS.get(str(each.get("owned_by")), "") for each in listed}
        upstream.kind = next((kind for kind in KINDS if kind in owners), "openai") if listed else AUTO
