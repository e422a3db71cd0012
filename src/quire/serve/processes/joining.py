"""A server that registers with a gateway: a heartbeat while it serves, and a last word when it drains."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import httpx

from quire.config import BadSetting
from quire.serve.residency.contract import ResidencyStatus
from quire.types.gateway_settings import JoinConfig
from quire.types.transfer import Role

logger = logging.getLogger(__name__)

BEATS = 3  # heartbeats within the time after which the gateway removes a silent server
POLL_SECONDS = 0.05
FIRST_SECONDS = 1.0  # between two tries until the gateway has answered
TIMEOUT = 3.0


async def stay_joined(
    config: JoinConfig, url: str, role: str, is_ready: Callable[[], bool], is_draining: Callable[[], bool]
) -> None:
    """Stay registered with the gateway of the settings, if there is one, until this server drains; then leave."""
    if config.join is None:
        return
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log every heartbeat
    member = GatewayMember(config, url, role)
    beat_at = 0.0
    try:
        while not is_draining():
            now = asyncio.get_running_loop().time()
            if is_ready() and now >= beat_at:
                beat_at = now + await member.beat()
            await asyncio.sleep(POLL_SECONDS)
    finally:  # also if the server ends at once
        await asyncio.create_task(member.leave())  # a task of its own: this one may have been cancelled


def has_loaded(status: ResidencyStatus) -> bool:
    """Have the models of the command line been loaded, and do they respond?"""
    return status.error is None and all(each.is_ready for each in status.models if each.is_named)


def check_join(config: JoinConfig) -> None:
    """Raise BadSetting if the settings are wrong."""
    for name, given in (("join", config.join), ("advertise", config.advertise)):
        if given is not None and not given.startswith(("http://", "https://")):
            raise BadSetting(f"{name} is {given!r}; it must be a URL such as http://host:9000.", field=name)


class GatewayMember:
    """This server's registration with a gateway."""

    def __init__(self, config: JoinConfig, url: str, role: str = Role.BOTH) -> None:
        self._config = config
        self._registration = {"url": config.advertise or url, "kind": "quire", "key": config.offered_key or ""}
        if role != Role.BOTH:
            self._registration["role"] = role
        self._is_known = self._has_joined = False  # at the last answer; ever

    async def beat(self) -> float:
        """Join, or renew the registration. Returns the seconds until the next time."""
        answer = await self._post("join")
        return FIRST_SECONDS if answer is None else float(answer["seconds"]) / BEATS

    async def leave(self) -> None:
        """Say that this server takes no more requests."""
        if self._has_joined:  # also if the last beat failed: the gateway may still count on this server
            await self._post("leave")

    async def _post(self, what: str) -> dict[str, Any] | None:
        key = self._config.join_key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        gateway = (self._config.join or "").rstrip("/")
        try:
            async with httpx.AsyncClient(timeout=TIMEOUT, trust_env=False) as client:
                response = await client.post(f"{gateway}/v1/upstreams/{what}", json=self._registration, headers=headers)
            answer: dict[str, Any] = response.json()
        except (httpx.HTTPError, ValueError) as error:
            self._report(False, f"{type(error).__name__}: {error}")
            return None
        self._report(response.status_code == 200, response.text)
        return answer if response.status_code == 200 else None

    def _report(self, is_known: bool, why: str) -> None:
        """Log a change, and the first failure."""
        if is_known and not self._is_known:
            logger.info("joined the gateway at %s", self._config.join)
        elif not is_known:
            logger.warning("the gateway at %s cannot be joined: %s", self._config.join, why)
        self._is_known = is_known
        self._has_joined |= is_known
