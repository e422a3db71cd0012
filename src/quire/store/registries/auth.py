"""Authentication at a registry: it names a token server, which gives us a token that all later requests carry.

User name and password come from the entry of the registry's host in ~/.netrc. Most registries give anybody a token for
reading.
"""

from __future__ import annotations

import base64
import netrc
import re
from collections.abc import Generator
from contextlib import suppress

import httpx

UNAUTHORIZED = 401
PAIR = re.compile(r'(\w+)="([^"]*)"')


class RegistryAuth(httpx.Auth):
    """Answers the challenges of one registry. A token is used until it is refused."""

    def __init__(self, host: str) -> None:
        self._login = _login(host)
        self._authorization: str | None = None  # the value of the Authorization header

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Send the token that we have; if it is refused, get a new one, once."""
        if self._authorization is not None:
            request.headers["Authorization"] = self._authorization
        response = yield request
        kind, _, rest = response.headers.get("WWW-Authenticate", "").partition(" ")
        if response.status_code != UNAUTHORIZED:
            return
        if kind.lower() == "basic" and self._login is not None:
            self._authorization = self._login
        elif kind.lower() == "bearer":
            token_request = self._token_request(request.url, dict(PAIR.findall(rest)))
            if token_request is None:
                return
            token_response = yield token_request
            token_response.read()
            token = _token(token_response)
            self._authorization = f"Bearer {token}" if token else None
        else:
            return
        if self._authorization is not None:
            request.headers["Authorization"] = self._authorization
        yield request  # even without a token: the caller gets the response to this request

    def _token_request(self, registry: httpx.URL, challenge: dict[str, str]) -> httpx.Request | None:
        realm = challenge.pop("realm", "")
        if not realm.startswith("https://") and not (registry.scheme == "http" and realm.startswith("http://")):
            return None  # never send a password unencrypted because a server asks for it
        params = {key: value for key, value in challenge.items() if key in ("service", "scope")}
        headers = {"Authorization": self._login} if self._login else {}
        return httpx.Request("GET", httpx.URL(realm).copy_merge_params(params), headers=headers)


def _token(response: httpx.Response) -> str | None:
    with suppress(ValueError):
        body = response.json()
        if response.is_success and isinstance(body, dict):
            token = body.get("token") or body.get("access_token")
            return token if isinstance(token, str) else None
    return None


def _login(host: str) -> str | None:
    try:
        entry = netrc.netrc().hosts.get(host)
    except (OSError, netrc.NetrcParseError):
        return None
    if entry is None:
        return None
    user, _, password = entry
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
