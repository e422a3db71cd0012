"""A registry of models: the protocol of OCI registries with Ollama's kinds of layers. Used by pull and by push."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from .download import Address, http_client
from .errors import ModelNotFound, StoreError, Unreachable
from .layers import MAX_TEXT, Layer, layers_of
from .names import OLLAMA, ModelName
from .registry_auth import UNAUTHORIZED, RegistryAuth

HOSTS = {f"https://{OLLAMA}": "https://registry.ollama.ai"}  # where the one that people know is spoken to
MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
ACCEPTED = f"{MANIFEST_TYPE}, application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
FORBIDDEN, NOT_FOUND = 403, 404


class Registry:
    """The place of one model in a registry."""

    def __init__(self, name: ModelName, client: httpx.Client) -> None:
        self.name = name
        self.address = HOSTS.get(name.address, name.address)
        self.host = name.address.partition("://")[2]
        self.client = client

    def manifest(self) -> tuple[Layer, tuple[Layer, ...]]:
        """The layer that describes the model, and those that it consists of."""
        answer = self.ask("GET", f"manifests/{self.name.tag}", headers={"Accept": ACCEPTED})
        try:
            if len(answer.content) > MAX_TEXT:
                raise ValueError("it is too long")
            return layers_of(answer.json())
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"What {self.host} has under the name {self.name} is no model: its manifest cannot be read ({error})."
            ) from error

    def blob(self, digest: str, what: str) -> Address:
        """Where the bytes of a layer are."""
        return Address(self.url(f"blobs/sha256:{digest}"), what, self.client)

    def has(self, digest: str) -> bool:
        """Is this layer there?"""
        url = self.url(f"blobs/sha256:{digest}")
        return self.send("HEAD", url).is_success

    def url(self, rest: str) -> str:
        """Of something that belongs to the model."""
        return f"{self.address}/v2/{self.name.name}/{rest}"

    def ask(self, method: str, rest: str, **more: Any) -> httpx.Response:
        """A request about the model that must succeed."""
        return self.judge(self.send(method, self.url(rest), **more))

    def send(self, method: str, url: str, **more: Any) -> httpx.Response:
        """A request; the answer, whatever it is."""
        try:
            return self.client.request(method, url, follow_redirects=True, **more)
        except httpx.HTTPError as error:
            raise Unreachable(
                f"{self.host} cannot be reached ({str(error) or type(error).__name__}): check the network and the "
                "proxy, or use what is here (`quire list`) or the path of a model."
            ) from error

    def judge(self, answer: httpx.Response) -> httpx.Response:
        """The answer if it is a good one; else what to do about it."""
        if answer.is_success:
            return answer
        said = _complaint(answer)
        if answer.status_code == NOT_FOUND:
            raise ModelNotFound(f"{self.host} has no model {self.name.name}:{self.name.tag}: check the name.")
        if answer.status_code in (UNAUTHORIZED, FORBIDDEN):
            raise Unreachable(
                f"{self.host} refuses {self.name.name} (HTTP {answer.status_code}{said}): check the name; if it is not "
                f"public, put your login for {self.host.partition(':')[0]} into ~/.netrc."
            )
        raise Unreachable(
            f"{self.host} answers HTTP {answer.status_code}{said} to a request about {self.name.name}: try again later."
        )


@contextmanager
def registry_of(name: ModelName) -> Iterator[Registry]:
    """Speak to the registry of a name that has a host."""
    auth = RegistryAuth(name.address.partition("://")[2].partition(":")[0])
    with http_client(auth) as client:
        yield Registry(name, client)


def manifest_text(config: Layer, layers: Iterable[Layer]) -> bytes:
    """The manifest of a model, as a registry takes it."""
    said = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config.to_json()}
    return json.dumps({**said, "layers": [layer.to_json() for layer in layers]}, separators=(",", ":")).encode()


def _complaint(answer: httpx.Response) -> str:
    """What the registry says is wrong."""
    try:
        said = [str(each.get("message") or each.get("code")) for each in answer.json()["errors"]]
    except (ValueError, KeyError, TypeError, AttributeError, httpx.StreamError):
        return ""
    return f", {'; '.join(said)}" if said else ""
