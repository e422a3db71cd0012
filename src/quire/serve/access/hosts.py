"""Checks the Host header of requests to a server without API keys.

DNS rebinding: a web page's own name is made to resolve to this machine, and the browser then takes this server for the
page's own. The Host header still has the page's name. An IP address cannot be rebound, so a Host that is one is always
accepted.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from quire.config import ServeConfig
from quire.serve.errors import HostNotAllowed

LOCAL_NAMES = ("localhost", ".localhost", "host.docker.internal")
# Reserved for private networks: no page of the public internet can have such a name. A server that listens on a network
# accepts them; one that listens on loopback does not, because a neighbour on the same network can announce them.
PRIVATE_NAMES = (".local", ".internal", ".home.arpa")


class AllowedHosts:
    """The names by which clients may address this server."""

    def __init__(self, serve: ServeConfig, has_keys: bool, host_name: str | None = None) -> None:
        allowed = [name.lower() for part in serve.allowed_hosts.split(",") if (name := part.strip())]
        own = (socket.gethostname() if host_name is None else host_name).lower()
        short = own.partition(".")[0]
        self._is_checked = bool(allowed) or not has_keys
        self._is_on_network = not _is_loopback(serve.host)
        self._any = "*" in allowed
        known = (*LOCAL_NAMES, serve.host.lower(), own, short, f"{short}.local", *map(_suffix, allowed))
        self._names = frozenset(known + (PRIVATE_NAMES if self._is_on_network else ()))

    def check(self, hosts: Iterable[str]) -> None:
        """Raise HostNotAllowed if one of a request's Host headers has a name that is not allowed."""
        if self._is_checked and not self._any:
            for host in hosts:
                if not self._allows(host):
                    raise HostNotAllowed(host)

    def _allows(self, host: str) -> bool:
        name = _without_port(host).lower().rstrip(".")
        if not name or name in self._names or _is_address(name):
            return True
        if self._is_on_network and "." not in name:  # a name in a private network: public names have two parts
            return True
        parts = name.split(".")
        return any("." + ".".join(parts[start:]) in self._names for start in range(1, len(parts)))


def _suffix(name: str) -> str:
    """`*.example.com` and `.example.com` both mean every name below example.com."""
    return name.removeprefix("*") if name.startswith("*.") else name


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdecimal():
        name = host
    return name[1:-1] if name.startswith("[") and name.endswith("]") else name


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
