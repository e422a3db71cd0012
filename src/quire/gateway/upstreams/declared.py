"""Upstreams, prices and discovery as a fleet file declares them.

upstreams:
  - http://10.0.0.1:8000                     # a URL alone: of any kind, recognized by its answers
  - url: https://10.0.0.2:8443
    name: gpu-2                              # default: host:port
    kind: vllm                               # one of KINDS
    key_file: /run/secrets/gpu-2             # its API key; or key: SECRET
    weight: 2                                # for --balance weighted
    models: [llama-3]                        # default: what its /v1/models lists
    tls: {ca: ca.pem, cert: gateway.pem, key: gateway.key}
    events: tcp://10.0.0.2:5557              # vLLM's cache events over ZMQ
tokenizers: {llama-3: hf.co/org/llama-3}     # for models that no Quire server has: a model of the store
prices: {llama-3: {prompt: 0.5, cached: 0.05, output: 1.5}}      # for a million tokens
models: {llama-3: {wait_seconds: 300, max_waiting: 1000}}        # requests for it wait while it has no upstream
kubernetes: {service: quire, namespace: default, port: http}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from quire.gateway.http.pool import TlsFiles
from quire.gateway.upstreams.expected import ExpectedModel, read_expected
from quire.gateway.yaml_nodes import BadFleet, YamlNode, read_yaml
from quire.types.errors import InvalidRequest

AUTO, QUIRE = "auto", "quire"
# The APIs of `serve/dialects` that each kind of server has. Other paths are tried with any of them.
KINDS: Mapping[str, frozenset[str]] = {
    QUIRE: frozenset({"openai", "responses", "anthropic", "ollama"}),
    "vllm": frozenset({"openai", "responses", "anthropic"}),
    "sglang": frozenset({"openai", "responses", "anthropic", "ollama"}),
    "trtllm": frozenset({"openai", "responses"}),
    "llama-server": frozenset({"openai", "responses", "anthropic"}),
    "ollama": frozenset({"openai", "responses", "anthropic", "ollama"}),
    "openai": frozenset({"openai", "responses"}),
}
OF_FILE = ("upstreams", "tokenizers", "prices", "models", "kubernetes")
OF_UPSTREAM = ("url", "name", "kind", "key", "key_file", "weight", "models", "tls", "events")
OF_TLS = ("ca", "cert", "key")
OF_PRICE = ("prompt", "cached", "output")
OF_KUBERNETES = ("service", "namespace", "port", "kind", "scheme", "api", "token_file", "ca_file", "key_file")
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"  # where a pod finds its token


@dataclass(frozen=True, slots=True)
class UpstreamSpec:
    """One server, as it is declared."""

    url: str
    name: str = ""
    kind: str = AUTO
    key: str = field(default="", repr=False)
    weight: float = 1.0
    models: tuple[str, ...] = ()  # empty: it is asked
    tls: TlsFiles = field(default_factory=TlsFiles)
    events: str = ""


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """The price of a million tokens of each kind."""

    prompt: float = 0.0
    cached: float = 0.0
    output: float = 0.0

    def cost(self, prompt: int, cached: int, output: int) -> float:
        """What a request costs. `prompt` includes `cached`."""
        return ((prompt - cached) * self.prompt + cached * self.cached + output * self.output) / 1e6


@dataclass(frozen=True, slots=True)
class KubernetesService:
    """A service whose endpoints are upstreams."""

    service: str
    namespace: str = ""  # empty: that of this pod
    port: str = ""  # name or number; empty: the only one
    kind: str = AUTO
    scheme: str = "http"
    api: str = "https://kubernetes.default.svc"
    token_file: str = f"{ACCOUNT}/token"
    ca_file: str = f"{ACCOUNT}/ca.crt"
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class FleetFile:
    """All that a fleet file declares."""

    upstreams: tuple[UpstreamSpec, ...] = ()
    tokenizers: Mapping[str, str] = field(default_factory=dict)
    prices: Mapping[str, ModelPrice] = field(default_factory=dict)
    kubernetes: KubernetesService | None = None
    models: Mapping[str, ExpectedModel] = field(default_factory=dict)


def read_fleet(path: Path) -> FleetFile:
    """Read a fleet file. Raises BadFleet, which names the line."""
    return build_fleet(read_yaml(path, BadFleet), path.parent)


def build_fleet(root: YamlNode, folder: Path) -> FleetFile:
    """The parsed file, checked. Paths in it are relative to `folder`."""
    parts = root.entries(OF_FILE)
    if not {"upstreams", "kubernetes", "models"} & parts.keys():
        raise root.error("the file has none of upstreams, kubernetes and models.")
    nodes = parts["upstreams"].items() if "upstreams" in parts else []
    upstreams = tuple(_upstream(node, folder) for node in nodes)
    for place, node in enumerate(nodes):
        for field_name in ("name", "url"):
            value = getattr(upstreams[place], field_name)
            if value in [getattr(each, field_name) for each in upstreams[:place]]:
                raise node.error(f"two upstreams have the {field_name} {value}.")
    tokenizers = parts["tokenizers"].entries() if "tokenizers" in parts else {}
    prices = parts["prices"].entries() if "prices" in parts else {}
    return FleetFile(
        upstreams,
        {model: node.text() for model, node in tokenizers.items()},
        {model: _price(node) for model, node in prices.items()},
        _kubernetes(parts["kubernetes"], folder) if "kubernetes" in parts else None,
        read_expected(parts["models"]) if "models" in parts else {},
    )


def spec_of_url(url: str, name: str = "", kind: str = AUTO, key: str = "") -> UpstreamSpec:
    """The upstream at this URL. Raises InvalidRequest."""
    problem = url_problem(url)
    if problem:
        raise InvalidRequest(f"The upstream {url!r} {problem}", field="upstream")
    if kind not in (AUTO, *KINDS):
        raise InvalidRequest(f"There is no kind {kind!r} of upstreams: use {', '.join((AUTO, *KINDS))}.", field="kind")
    return UpstreamSpec(url.rstrip("/"), name or urlsplit(url).netloc.rpartition("@")[2], kind, key)


def url_problem(url: str) -> str:
    """What is wrong with an upstream's URL; empty if nothing is."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_valid = False
    if not is_valid:
        return "is not a URL such as http://host:8000."
    return "must not have a query." if parts.query or parts.fragment else ""


def _upstream(node: YamlNode, folder: Path) -> UpstreamSpec:
    if not node.is_mapping:
        return _of_url(node, node.text())
    parts = node.entries(OF_UPSTREAM)
    if "url" not in parts:
        raise node.error("this upstream has no url.")
    plain = _of_url(parts["url"], parts["url"].text())
    kind = parts["kind"].text() if "kind" in parts else AUTO
    if kind not in (AUTO, *KINDS):
        raise parts["kind"].error(f"there is no kind {kind!r}: choose from {', '.join((AUTO, *KINDS))}.")
    return UpstreamSpec(
        plain.url,
        parts["name"].text() if "name" in parts else plain.name,
        kind,
        _secret(node, parts, folder),
        parts["weight"].number(0, 1e6) if "weight" in parts else 1.0,
        tuple(parts["models"].texts()) if "models" in parts else (),
        _tls(parts["tls"], folder) if "tls" in parts else TlsFiles(),
        parts["events"].text() if "events" in parts else "",
    )


def _of_url(node: YamlNode, url: str) -> UpstreamSpec:
    if problem := url_problem(url):
        raise node.error(f"{url!r} {problem}")
    return spec_of_url(url)


def _secret(node: YamlNode, parts: Mapping[str, YamlNode], folder: Path) -> str:
    if "key" in parts and "key_file" in parts:
        raise node.error("give one of key and key_file.")
    if "key_file" not in parts:
        return parts["key"].text() if "key" in parts else ""
    try:
        return _path(parts["key_file"], folder).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise parts["key_file"].error(f"the key cannot be read: {error}.") from None


def _tls(node: YamlNode, folder: Path) -> TlsFiles:
    parts = node.entries(OF_TLS)
    if ("cert" in parts) != ("key" in parts):
        raise node.error("cert and key go together: give both or neither.")
    files = TlsFiles(**{name: str(_path(each, folder)) for name, each in parts.items()})
    try:
        files.context()
    except OSError as error:  # ssl.SSLError is one
        raise node.error(f"these files cannot be used for TLS: {error}.") from None
    return files


def _price(node: YamlNode) -> ModelPrice:
    found = {name: each.number(0) for name, each in node.entries(OF_PRICE).items()}
    if "cached" not in found and "prompt" in found:
        found["cached"] = found["prompt"]
    return ModelPrice(**found)


def _kubernetes(node: YamlNode, folder: Path) -> KubernetesService:
    parts = node.entries(OF_KUBERNETES)
    if "service" not in parts:
        raise node.error("the service is missing.")
    key = _secret(node, {name: each for name, each in parts.items() if name == "key_file"}, folder)
    return KubernetesService(**{name: each.text() for name, each in parts.items() if name != "key_file"}, key=key)


def _path(node: YamlNode, folder: Path) -> Path:
    return folder / Path(node.text()).expanduser()
