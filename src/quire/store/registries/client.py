"""A client of model registries: the protocol of OCI registries with Ollama's types of layers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from quire.store.downloads.http import RemoteFile, http_client
from quire.store.errors import ModelNotFound, StoreError, Unreachable
from quire.store.names import OLLAMA, ModelName
from quire.store.registries.auth import UNAUTHORIZED, RegistryAuth
from quire.store.registries.layers import MAX_TEXT, RegistryLayer, parse_layers

HOSTS = {f"https://{OLLAMA}": "https://registry.ollama.ai"}  # whose API has another host than its web page
MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
ACCEPTED = f"{MANIFEST_TYPE}, application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
FORBIDDEN, NOT_FOUND = 403, 404


class Registry:
    """One model in a registry."""

    def __init__(self, name: ModelName, client: httpx.Client) -> None:
        self.name = name
        self.address = HOSTS.get(name.address, name.address)
        self.host = name.address.partition("://")[2]
        self.client = client

    def manifest(self) -> tuple[RegistryLayer, tuple[RegistryLayer, ...]]:
        """The layer with the model's description, and the layers of its files."""
        response = self.request("GET", f"manifests/{self.name.tag}", headers={"Accept": ACCEPTED})
        try:
            if len(response.content) > MAX_TEXT:
                raise ValueError(f"it has {len(response.content):,} bytes; at most {MAX_TEXT:,} are allowed")
            return parse_layers(response.json())
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{self.name} on {self.host} is not a model: its manifest cannot be read ({error})."
            ) from error

    def blob(self, digest: str, label: str) -> RemoteFile:
        """The content of a layer."""
        return RemoteFile(self.url(f"blobs/sha256:{digest}"), label, self.client)

    def has(self, digest: str) -> bool:
        """Does the registry have this layer?"""
        url = self.url(f"blobs/sha256:{digest}")
        return self.send("HEAD", url).is_success

    def url(self, rest: str) -> str:
        """The URL of something that belongs to the model."""
        return f"{self.address}/v2/{self.name.name}/{rest}"

    def request(self, method: str, rest: str, **more: Any) -> httpx.Response:
        """Send a request about the model, which must succeed."""
        return self.check(self.send(method, self.url(rest), **more))

    def send(self, method: str, url: str, **more: Any) -> httpx.Response:
        """Send a request; returns the response whatever its status."""
        try:
            return self.client.request(method, url, follow_redirects=True, **more)
        except httpx.HTTPError as error:
            raise Unreachable(
                f"{self.host} cannot be reached ({str(error) or type(error).__name__}): check the network and the "
                "proxy, or use a model that is here (`quire list`)."
            ) from error

    def check(self, response: httpx.Response) -> httpx.Response:
        """The response, if it is a success. Raises an error that says what to do."""
        if response.is_success:
            return response
        reason = _reason(response)
        if response.status_code == NOT_FOUND:
            raise ModelNotFound(f"{self.host} has no model {self.name.name}:{self.name.tag}: check the name.")
        if response.status_code in (UNAUTHORIZED, FORBIDDEN):
            raise Unreachable(
                f"{self.host} refuses {self.name.name} (HTTP {response.status_code}{reason}): check the name; if it "
                f"is not public, put your login for {self.host.partition(':')[0]} into ~/.netrc."
            )
        raise Unreachable(
            f"{self.host} answers HTTP {response.status_code}{reason} to a request about {self.name.name}: try "
            "again later."
        )


@contextmanager
def registry_of(name: ModelName) -> Iterator[Registry]:
    """A client of the registry that a name has as its host."""
    auth = RegistryAuth(name.address.partition("://")[2].partition(":")[0])
    with http_client(auth) as client:
        yield Registry(name, client)


def manifest_text(config: RegistryLayer, layers: Iterable[RegistryLayer]) -> bytes:
    """The manifest of a model, as a registry expects it."""
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config.to_json()}
    return json.dumps({**manifest, "layers": [layer.to_json() for layer in layers]}, separators=(",", ":")).encode()


def _reason(response: httpx.Response) -> str:
    """The error messages of the registry, for a sentence."""
    try:
        messages = [str(each.get("message") or each.get("code")) for each in response.json()["errors"]]
    except (ValueError, KeyError, TypeError, AttributeError, httpx.StreamError):
        return ""
    return f", {'; '.join(messages)}" if messages else ""
