"""Upstreams from Kubernetes: the ready endpoints of a service, from its EndpointSlices.

The API server is asked for the list, then watched for changes from the list's version on. Whatever goes wrong, the list
is read again after a pause; until then the known endpoints stay.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx

from quire.gateway.upstreams.declared import KubernetesService, UpstreamSpec

logger = logging.getLogger(__name__)

LABEL = "kubernetes.io/service-name"
PAUSE_SECONDS = 2.0
WATCH_SECONDS = 300

OnSpecs = Callable[[Sequence[UpstreamSpec]], None]


async def watch_service(service: KubernetesService, on_specs: OnSpecs, pause: float = PAUSE_SECONDS) -> None:
    """Report the upstreams of a service whenever they change, until cancelled."""
    while True:
        try:
            await _follow(service, on_specs)
        except (httpx.HTTPError, OSError, ValueError, KeyError) as error:
            logger.warning("the endpoints of %s cannot be watched: %s", service.service, error)
            await asyncio.sleep(pause)


async def _follow(service: KubernetesService, on_specs: OnSpecs) -> None:
    """List the slices, then apply changes until the API server ends the watch."""
    verify: Any = _context(service)
    async with httpx.AsyncClient(verify=verify, trust_env=False, timeout=10) as client:
        path = f"{service.api}/apis/discovery.k8s.io/v1/namespaces/{_namespace(service)}/endpointslices"
        chosen = {"labelSelector": f"{LABEL}={service.service}"}
        listed = (await client.get(f"{path}?{urlencode(chosen)}", headers=_headers(service))).raise_for_status().json()
        slices = {each["metadata"]["name"]: each for each in listed["items"]}
        on_specs(specs_of(slices.values(), service))
        watched = chosen | {
            "watch": "1",
            "resourceVersion": listed["metadata"]["resourceVersion"],
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = httpx.Timeout(10, read=WATCH_SECONDS + 10)
        request = client.stream("GET", f"{path}?{urlencode(watched)}", headers=_headers(service), timeout=timeout)
        async with request as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":  # the version is too old
                    return
                _apply(slices, event)
                on_specs(specs_of(slices.values(), service))


def _apply(slices: dict[str, Any], event: Mapping[str, Any]) -> None:
    name = event["object"]["metadata"]["name"]
    if event["type"] == "DELETED":
        slices.pop(name, None)
    elif event["type"] in ("ADDED", "MODIFIED"):
        slices[name] = event["object"]


def specs_of(slices: Iterable[Mapping[str, Any]], service: KubernetesService) -> list[UpstreamSpec]:
    """The upstreams of a service's slices: one for each ready address."""
    found: dict[str, UpstreamSpec] = {}
    for each in slices:
        port = _port(each.get("ports") or (), service.port)
        if port is None:
            continue
        for endpoint in each.get("endpoints") or ():
            if (endpoint.get("conditions") or {}).get("ready") is False:
                continue
            for address in endpoint["addresses"]:
                host = f"[{address}]" if ":" in address else address
                url = f"{service.scheme}://{host}:{port}"
                pod = (endpoint.get("targetRef") or {}).get("name")
                found[url] = UpstreamSpec(url, pod or f"{host}:{port}", service.kind, service.key)
    return [found[url] for url in sorted(found)]


def _port(ports: Iterable[Mapping[str, Any]], wanted: str) -> int | None:
    for each in ports:
        if not wanted or wanted in (each.get("name"), str(each.get("port"))):
            return int(each["port"])
    return None


def _namespace(service: KubernetesService) -> str:
    if service.namespace:
        return service.namespace
    return (Path(service.token_file).parent / "namespace").read_text(encoding="utf-8").strip()


def _headers(service: KubernetesService) -> dict[str, str]:
    """The token is read anew each time: Kubernetes replaces it."""
    token = Path(service.token_file).read_text(encoding="utf-8").strip()
    return {"authorization": f"Bearer {token}", "accept": "application/json"}


def _context(service: KubernetesService) -> Any:
    if not service.api.startswith("https:"):
        return False
    return ssl.create_default_context(cafile=service.ca_file)
