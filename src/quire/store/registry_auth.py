"""How a registry lets us in: it names who gives out tokens, that one gives us one, and we show it from then on.

A user name and a password are taken from ~/.netrc, where they stand under the registry's host. Most registries give a
token for reading to anybody.
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
    """Answers the challenges of one registry. A token is kept until it is refused."""

    def __init__(self, host: str) -> None:
        self._login = _login(host)
        self._shown: str | None = None  # the header that was accepted last

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Show what we have; on a refusal get what is asked for, once."""
        if self._shown is not None:
            request.headers["Authorization"] = self._shown
        answer = yield request
        kind, _, rest = answer.headers.get("WWW-Authenticate", "").partition(" ")
        if answer.status_code != UNAUTHORIZED:
            return
        if kind.lower() == "basic" and self._login is not None:
            self._shown = self._login
        elif kind.lower() == "bearer":
            asked = self._token_request(request.url, dict(PAIR.findall(rest)))
            if asked is None:
                return
            given = yield asked
            given.read()
            token = _token(given)
            self._shown = f"Bearer {token}" if token else None
        else:
            return
        if self._shown is not None:
            request.headers["Authorization"] = self._shown
        yield request  # without a token too: the last answer is the one that the caller gets

    def _token_request(self, registry: httpx.URL, challenge: dict[str, str]) -> httpx.Request | None:
        realm = challenge.pop("realm", "")
        if not realm.startswith("https://") and not (registry.scheme == "http" and realm.startswith("http://")):
            return None  # a password is not sent in the clear because a server says so
        asked = {key: value for key, value in challenge.items() if key in ("service", "scope")}
        headers = {"Authorization": self._login} if self._login else {}
        return httpx.Request("GET", httpx.URL(realm).copy_merge_params(asked), headers=headers)


def _token(answer: httpx.Response) -> str | None:
    with suppress(ValueError):
        said = answer.json()
        if answer.is_success and isinstance(said, dict):
            token = said.get("token") or said.get("access_token")
            return token if isinstance(token, str) else None
    return None


def _login(host: str) -> str | None:
    try:
        found = netrc.netrc().hosts.get(host)
    except (OSError, netrc.NetrcParseError):
        return None
    if found is None:
        return None
    user, _, password = found
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
