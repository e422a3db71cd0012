"""What the controller reads from the gateway: the load of every replica, and how many requests wait for a model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from quire.cluster.group_load import counted_tokens
from quire.types.load import LoadReport

logger = logging.getLogger(__name__)

TIMEOUT = 2.0


@dataclass(frozen=True, slots=True)
class GatewayView:
    """An answer of GET /v1/upstreams."""

    upstreams: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by URL
    waiting: Mapping[str, tuple[int, float]] = field(default_factory=dict)  # model -> requests, longest wait
    is_known: bool = False  # has the gateway answered?

    def loads(self, model: str) -> dict[str, LoadReport]:
        """The reports of the upstreams that get requests for a model, by URL."""
        return {
            url: _report(each, model)
            for url, each in self.upstreams.items()
            if each["state"] == "ready" and model in each["models"]
        }

    def is_ready(self, url: str) -> bool:
        """Does the gateway send requests to this upstream?"""
        return url in self.upstreams and self.upstreams[url]["state"] == "ready"

    def num_requests(self, url: str) -> int:
        """Requests that the gateway has open at an upstream."""
        return int(self.upstreams[url]["num_open"]) if url in self.upstreams else 0

    def load_of(self, url: str, model: str) -> dict[str, int]:
        """Requests and tokens of one upstream, for `status`."""
        load = _report(self.upstreams[url], model) if url in self.upstreams else LoadReport()
        return {"running": load.num_running, "queued": load.num_waiting, "tokens": counted_tokens(load)}


def _report(upstream: Mapping[str, Any], model: str) -> LoadReport:
    found = upstream["loads"].get(model)
    return LoadReport() if found is None else msgspec.convert(found, LoadReport)


class GatewayClient:
    """Calls the gateway of the cluster."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def read(self) -> GatewayView:
        """Read the upstreams. Empty if the gateway does not answer."""
        try:
            answer = httpx.get(f"{self._url}/v1/upstreams", headers=self._headers, timeout=TIMEOUT, trust_env=False)
            answer.raise_for_status()
            found = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            logger.warning("the gateway at %s does not answer: %r", self._url, error)
            return GatewayView()
        waiting = {model: (int(each["num"]), float(each["seconds"])) for model, each in found["waiting"].items()}
        return GatewayView({each["url"]: each for each in found["upstreams"]}, waiting, is_known=True)

    def drain(self, url: str) -> None:
        """Let an upstream get no more requests. One that is not known gets none."""
        body = {"name": url.partition("://")[2]}
        try:
            httpx.post(
                f"{self._url}/v1/upstreams/drain", json=body, headers=self._headers, timeout=TIMEOUT, trust_env=False
            )
        except httpx.HTTPError as error:
            logger.warning("the gateway at %s does not answer: %r", self._url, error)
